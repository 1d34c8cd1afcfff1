"""Rounds of a loop that touch the same elements, each so many further on: the steps of a recurrence. One of them is
looked at for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from mononn_core.program.expr import Expr, Var, substitute, variables
from mononn_core.program.footprint import Site
from mononn_core.program.ir import Loop, Phase, Program
from mononn_core.program.memory import dim_tables
from mononn_core.program.proof import provable
from mononn_core.program.rules import phases_with_loops
from mononn_core.program.simplify import linear


class Rounds:
    """Of a Program's loops."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.loops = {phase.id: loop for phase, loop in phases_with_loops(program) if loop is not None}
        self._moves = dict[str, Mapping[str, int] | None]()

    def moves(self, phase: Phase) -> Mapping[str, int] | None:
        """How many elements further on each round touches the buffers of a loop's phase, by operands' roles; None where
        nothing moves at all, or rounds differ in more than that.

        Of a phase that moves everything is in its bounds and boxes in every round if it is in the first.
        """
        if phase.id not in self._moves:
            loop = self.loops.get(phase.id)
            self._moves[phase.id] = None if loop is None else self._found(phase, loop)
        return self._moves[phase.id]

    def _found(self, phase: Phase, loop: Loop) -> Mapping[str, int] | None:
        var = loop.var
        fixed = [e for wait in phase.waits for e in (*wait.index, wait.at_least)]
        fixed += [e for signal in phase.signals for e in signal.index]
        fixed += [phase.assign.owner] if phase.assign.owner is not None else []
        if any(var in variables(e) for e in fixed) or any(not isinstance(o.buffer, str) for o in phase.task.operands):
            return None
        ends = [Site(self.program, phase, {var: r}) for r in (0, loop.count - 1)]
        found, coefficients = dict[str, int](), dict[str, tuple[int, ...]]()
        for operand in phase.task.operands:
            steps = _steps(operand.box.offset, var)
            if steps is None:
                return None
            buffer, moved = ends[0].buffer(operand), [d for d, step in enumerate(steps) if step]
            for site in ends:
                low, high = site.boxes[operand.role]
                if any((high[:, d] - low[:, d] != operand.box.size[d]).any() for d in moved):
                    return None
            tables = dim_tables(buffer.layout, buffer.shape)
            strides = {d: np.unique(np.diff(tables[d])) for d in moved}
            if any(len(stride) > 1 for stride in strides.values()):
                return None
            found[operand.role] = sum(steps[d] * int(stride[0]) for d, stride in strides.items() if len(stride))
            coefficients[operand.role] = steps
        moving = any(map(any, coefficients.values()))
        return found if moving and self._stays(ends[0], loop, coefficients) else None

    def _stays(self, site: Site, loop: Loop, boxes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether each store moves as its box does, under conditions that do not change, and loads stay in theirs."""
        ranges = site.ranges | {loop.var: (0, loop.count - 1)}
        for place, store in site.stores():
            inside = ranges | {inner.var: (0, inner.extent - 1) for inner in place.loops}
            if _steps(store.index, loop.var, place.lets) != boxes[store.operand]:
                return False
            if any(loop.var in variables(g) and not provable(g, inside) for g in place.guards):
                return False
        return site.loads_stay(loop.count)


def _steps(index: Sequence[Expr], var: str, lets: Mapping[str, Expr] = MappingProxyType({})) -> tuple[int, ...] | None:
    """How much further on each expression is from one round to the next; None where that is no constant."""
    found = []
    for e in index:
        terms = dict(linear(substitute(e, lets))[0])
        step = terms.pop(Var(var), 0)
        if any(var in variables(atom) for atom in terms):
            return None
        found.append(step)
    return tuple(found)
