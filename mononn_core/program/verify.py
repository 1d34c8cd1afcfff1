"""The legality of a Program, proven before any code is printed, for any number of workers.

1. Pieces (:mod:`wellformed`): names, layouts, places, tables, types, scopes and roles.
2. Contractions (here): inner extents agree, owners are in range, a split's parts are complete and combined in order.
3. Memory (:mod:`ordering` over :mod:`footprint`): accesses stay in their boxes and boxes in their buffers; every read
   is covered by writes that happen before it; no element is written by unordered tasks or overwritten while it is
   read, across buffers that share bytes as well; waits have their arrivals and cannot deadlock; outputs are complete.
4. Worker-local memory (:mod:`worker_local`): prefetched slots and temporaries.

A buffer's elements are written once per *generation*: writing one again opens a new generation, in which what was not
written again may no longer be read. A task may not write shared bytes that it reads. Waits cannot deadlock because all
that they count comes from phases that stand earlier in the trace, which every worker walks in order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mononn_core.program import ordering, wellformed, worker_local
from mononn_core.program.expr import Acc
from mononn_core.program.footprint import Site
from mononn_core.program.ir import Operand, Phase, Program, Split
from mononn_core.program.rounds import Rounds
from mononn_core.program.rules import depends, matrix_dims, phases_with_loops, refuse
from mononn_core.program.template import get


def verify(program: Program) -> None:
    """Raise VerifyError, naming phase, buffer, ONNX node and rule, when ``program`` is not legal."""
    wellformed.check(program)
    seen, alike = set[object](), Rounds(program)
    for item, loop in program.trace():
        if isinstance(item, Phase):
            changes = alike.moves(item) is None and any(depends(item, n) for n in loop)
            key = (item.id, tuple(loop.values()) if changes else ())
            if key not in seen:
                seen.add(key)
                _check_contraction(Site(program, item, loop))
    for phase, _ in phases_with_loops(program):
        if phase.task.split is not None:
            _check_split(program, phase, phase.task.split)
    ordering.Order(program, alike).check()
    worker_local.check(program)


def _extent(site: Site, role: str, side: int) -> np.ndarray:
    """Rows (0) or columns (1) of an operand's box, per task."""
    low, high = site.boxes[role]
    d = matrix_dims(site.operands[role].box.size)[side]
    return high[:, d] - low[:, d]


def _check_contraction(site: Site) -> None:
    """Owners are in range, and what a template contracts has one extent on both sides."""
    assign, task = site.phase.assign, site.phase.task
    if assign.owner is not None:
        owner = site.per_task(assign.owner)
        if (owner < 0).any() or (owner >= assign.owners).any():
            raise site.refuse("owners are in range", f"owners {owner.min()} to {owner.max()} of {assign.owners}")
    if problem := get(task.template).contraction(task, lambda role, side: _extent(site, role, side)):
        raise site.refuse("contractions agree", problem)


def _check_split(program: Program, phase: Phase, split: Split) -> None:
    """The parts cover the contraction without gap or overlap, and readers take all of them."""
    rule = "splits are complete"
    axis = next((a for a in phase.domain if a.var == split.axis), None)
    task = phase.task
    if axis is None or axis.extent != split.parts or split.parts < 1 or not get(task.template).filled:
        raise refuse(rule, f"is split into {split.parts} parts along {split.axis!r}, which is no such axis", phase)
    for result in task.results:
        if result.value != Acc(result.value.dtype):
            raise refuse(rule, "applies an epilogue to a partial result", phase)
    targets = {r.operand for r in task.results}
    for o in task.operands:
        if o.role in targets and (o.buffer != split.scratch or o.access != "partial"):
            raise refuse(rule, f"stores its parts to operand {o.role!r}, not as partial to {split.scratch!r}", phase)
    loops = {tuple(values.items()): values for item, values in program.trace() if item is phase}
    moving = any(depends(phase, name) for loop in loops for name, _ in loop)
    for loop in list(loops.values())[: None if moving else 1]:
        _check_parts(program, phase, split, loop)
    _check_readers(program, phase, split, list(loops.values()))


def _parts_of(site: Site, operand: Operand, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and last part of a scratch buffer that every task's box of it lies in."""
    low, high = site.boxes[operand.role]
    each = -(-site.buffer(operand).shape[0] // parts)
    return low[:, 0] // each, (high[:, 0] - 1) // each


def _check_parts(program: Program, phase: Phase, split: Split, loop: Mapping[str, int]) -> None:
    """For every tile, part 0 starts at the first element of K, each next one where the last ended, the last at K; and
    every part is stored in its place."""
    site = Site(program, phase, loop)
    number = site.frame.values[split.axis]
    others = np.stack([site.frame.values[a.var] for a in phase.domain if a.var != split.axis] or [number * 0])
    order = np.lexsort((number, *others))
    for role, column in (("a", True), ("b", False)):
        low, high = site.boxes[role]
        d = matrix_dims(site.operands[role].box.size)[int(column)]
        starts = low[order, d].reshape(-1, split.parts)
        ends = high[order, d].reshape(-1, split.parts)
        bound = site.operands[role].box.bound[d]
        if (starts[:, 1:] != ends[:, :-1]).any() or (ends[:, -1] != bound).any() or (starts[:, 0] != 0).any():
            raise refuse("splits are complete", f"the parts of operand {role!r} do not cover its {bound} terms", phase)
    for o in phase.task.operands:
        if o.access == "partial":
            first, _ = _parts_of(site, o, split.parts)  # the box of a ragged tile may reach into the next part
            if site.buffer(o).shape[0] % split.parts or (first != number).any():
                text = f"operand {o.role!r} is not part {split.axis!r} of {split.scratch!r}"
                raise refuse("splits are complete", text, phase)


def _check_readers(program: Program, phase: Phase, split: Split, loops: list[dict[str, int]]) -> None:
    """Somebody reads the partial results, and whoever does reads all parts."""
    rule, seen, readers = "splits are complete", set[object](), 0
    for scratch in dict.fromkeys(program.resolve(split.scratch, loop) for loop in loops):
        for reader, loop in program.trace():
            if not isinstance(reader, Phase):
                continue
            mine = [
                o for o in reader.task.operands if o.access == "read" and program.resolve(o.buffer, loop) == scratch
            ]
            readers += bool(mine)
            key = (reader.id, tuple(o.role for o in mine))
            if not mine or key in seen:
                continue
            seen.add(key)
            site = Site(program, reader, loop)
            spans = [_parts_of(site, o, split.parts) for o in mine]
            covered = [((first <= p) & (p <= last)) for p in range(split.parts) for first, last in spans]
            whole = np.array(covered).reshape(split.parts, len(spans), -1).any(axis=1)
            if not whole.all():
                raise refuse(rule, f"does not combine the {split.parts} parts in {scratch!r}", reader)
    if not readers:
        raise refuse(rule, f"nobody combines the parts in {split.scratch!r}", phase)
