"""Nests that differ in nothing but the tensors that they read and store: one is built, the others name theirs in it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from mononn_core.program.expr import INDEX, Const, Expr, Load, transform, walk
from mononn_core.program.ir import Let, Reduce, Statement, Task
from mononn_core.schedule.binder import TaskBuilder

Element = tuple[tuple[Statement, ...], tuple[Expr, ...], Expr]
"""Statements before it, where it is stored, and the value."""


def once(builder: TaskBuilder, form: Hashable, stored: str, element: Element, make: Callable[[], Task]) -> Task:
    """The task that ``make`` gives for an ``element`` of tensor ``stored``, or a known one with other names. ``form``:
    all that a task depends on besides."""
    prelude, at, value = element
    values = [statement.value for statement in prelude if isinstance(statement, (Let, Reduce))]
    nodes = [node for e in (*values, *at, value) for node in walk(e)]
    names = tuple(dict.fromkeys((stored, *(node.operand for node in nodes if isinstance(node, Load)))))
    numbers = {name: str(number) for number, name in enumerate(names)}

    def numbered(e: Expr) -> Expr:
        return transform(e, lambda n: replace(n, operand=numbers[n.operand]) if isinstance(n, Load) else n)

    kinds = tuple((builder.views.type(n), builder.storage.get(n), builder.views.graph.is_constant(n)) for n in names)
    statements = tuple(replace(st, value=numbered(e)) for st, e in zip(prelude, values, strict=True))  # type: ignore[arg-type]
    digits = tuple(str(node.value) for node in nodes if isinstance(node, Const) and node.dtype != INDEX)  # -0.0 is 0.0
    key = (form, kinds, statements, *map(numbered, at), numbered(value), digits)
    if key not in builder.nests:
        builder.nests[key] = names, make()
    known, task = builder.nests[key]
    other = dict(zip(known, names, strict=True))
    return replace(task, operands=tuple(replace(o, buffer=other[str(o.buffer)]) for o in task.operands))
