"""A phase whose tensors lie in other buffers than their own, rows further up or down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mononn_core.program.expr import Expr, Load, transform
from mononn_core.program.ir import Box, For, Let, Phase, Reduce, Statement, Store, Task
from mononn_core.program.simplify import simplify


@dataclass(frozen=True)
class Place:
    """Where a tensor lies instead: in the first ``rows`` of ``buffer``, ``shift`` further down."""

    buffer: str
    shift: Expr
    rows: int


def moved(phase: Phase, places: Mapping[str, Place]) -> Phase:
    """``phase`` with the tensors that have a place there."""
    shifts, operands = dict[str, Expr](), []
    ranges = {axis.var: (0, axis.extent - 1) for axis in phase.domain}
    for o in phase.task.operands:
        place = places.get(str(o.buffer))
        if place is not None:
            shifts[o.role] = place.shift
            offset = simplify(o.box.offset[0] + place.shift, ranges)
            box = Box((offset, o.box.offset[1]), o.box.size, (place.rows, o.box.bound[1]))
            o = replace(o, buffer=place.buffer, box=box)
        operands.append(o)
    return replace(phase, task=_shifted(replace(phase.task, operands=tuple(operands)), shifts)) if shifts else phase


def _shifted(task: Task, shifts: Mapping[str, Expr]) -> Task:
    """``task`` with the rows of some roles moved."""

    def index(role: str, given: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (simplify(given[0] + shifts[role], {}), *given[1:]) if role in shifts else given

    def loads(e: Expr) -> Expr:
        return transform(e, lambda n: replace(n, index=index(n.operand, n.index)) if isinstance(n, Load) else n)

    def stored(role: str, given: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return index(role, tuple(map(loads, given)))

    def statement(s: Statement) -> Statement:
        match s:
            case For():
                return replace(s, body=tuple(map(statement, s.body)))
            case Store():
                return replace(s, index=stored(s.operand, s.index), value=loads(s.value))
            case Let() | Reduce():
                return replace(s, value=loads(s.value))

    results = [replace(r, index=stored(r.operand, r.index), value=loads(r.value)) for r in task.results]
    prologue = {name: loads(e) for name, e in task.prologue.items()}
    return replace(task, results=tuple(results), body=tuple(map(statement, task.body)), prologue=prologue)
