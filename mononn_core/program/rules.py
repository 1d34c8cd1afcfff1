"""What all checks share: the error of a broken rule, and walks over a Program's phases and expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from mononn_core.errors import VerifyError
from mononn_core.program.expr import Expr, variables
from mononn_core.program.ir import Barrier, For, Item, Let, Loop, Phase, Program, Reduce, Statement, Store

IN_TURN = 4
"""Elements that lie in turn, as the colours of a picture do, at most, if they are to be put in turn in registers."""


def refuse(rule: str, text: str, phase: Phase | None = None) -> VerifyError:
    """The error for a broken rule, with the phase and the ONNX node it comes from."""
    where = ""
    if phase is not None:
        where = f"phase {phase.id!r}" + (f" from {phase.origin[0]}" if phase.origin else "") + ": "
    return VerifyError(f"{where}{text} (rule: {rule})")


def phases_with_loops(program: Program) -> Iterator[tuple[Phase, Loop | None]]:
    """Every phase as written, with the loop around it."""
    for item in program.body:
        yield from ((phase, item if isinstance(item, Loop) else None) for phase in phases_in(item))


def phases_in(item: Item) -> Iterator[Phase]:
    """The phase that an item is, or those that its loop holds."""
    yield from (i for i in (item.body if isinstance(item, Loop) else (item,)) if isinstance(i, Phase))


def changed(program: Program, change: Callable[[Phase], Phase]) -> Program:
    """The Program with every phase, as written, replaced."""

    def inner(item: Phase | Barrier) -> Phase | Barrier:
        return change(item) if isinstance(item, Phase) else item

    body = (replace(i, body=tuple(map(inner, i.body))) if isinstance(i, Loop) else inner(i) for i in program.body)
    return replace(program, body=tuple(body))


def expressions(phase: Phase) -> Iterator[Expr]:
    """Every expression of a phase."""
    task = phase.task
    if phase.assign.owner is not None:
        yield phase.assign.owner
    for operand in task.operands:
        yield from operand.box.offset
    for w in phase.waits:
        yield from (*w.index, w.at_least)
    for s in phase.signals:
        yield from s.index
    yield from task.prologue.values()
    for r in task.results:
        yield from (*r.index, r.value, *(b for b in r.bounds if b is not None))
    yield from body_expressions(task.body)


def body_expressions(body: tuple[Statement, ...]) -> Iterator[Expr]:
    """Every expression of a nest."""
    for statement in body:
        match statement:
            case For(body=inner, bound=bound):
                if bound is not None:
                    yield bound
                yield from body_expressions(inner)
            case Store(index=index, value=value):
                yield from (*index, value)
            case Let(value=value) | Reduce(value=value):
                yield value


def depends(phase: Phase, var: str) -> bool:
    """Whether any expression of the phase uses the variable (a loop's)."""
    return any(var in variables(e) for e in expressions(phase))


def matrix_dims(size: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of a box that make it a matrix: unit dimensions are dropped from the left until two are left.
    (More or fewer than two when the box is no matrix.)"""
    dims = list(range(len(size)))
    while len(dims) > 2 and (unit := next((d for d in dims if size[d] == 1), None)) is not None:
        dims.remove(unit)
    return tuple(dims)
