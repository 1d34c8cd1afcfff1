"""Nests, and what ends products, that differ in nothing but the tensors that they read and store: one is built, the
others name theirs in it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mononn_core.program.expr import Const, Expr, Load, Ranges, transform, walk
from mononn_core.program.ir import Let, Operand, Reduce, Statement, Task

if TYPE_CHECKING:
    from mononn_core.schedule.binder import OperandBinder, TaskBuilder

Element = tuple[tuple[Statement, ...], tuple[Expr, ...], Expr]
"""Statements before it, where it is stored, and the value."""
Stored = tuple[tuple[Expr, ...], Expr]
"""Where a template's element is stored, (row, column), and its value."""


def once(builder: TaskBuilder, form: Hashable, stored: str, element: Element, make: Callable[[], Task]) -> Task:
    """The task that ``make`` gives for an ``element`` of tensor ``stored``, or a known one with other names. ``form``:
    all that a task depends on besides."""
    if (stored, element) not in builder.said:
        builder.said[stored, element] = _said(builder, stored, element)
    names, said = builder.said[stored, element]
    key = (form, said)
    if key not in builder.nests:
        builder.nests[key] = names, make()
    known, task = builder.nests[key]
    return replace(task, operands=_renamed(task.operands, known, names))


def _said(builder: TaskBuilder, stored: str, element: Element) -> tuple[tuple[str, ...], Hashable]:
    """As :func:`_numbered`, of all that an ``element`` of tensor ``stored`` is."""
    prelude, at, value = element
    values = [statement.value for statement in prelude if isinstance(statement, (Let, Reduce))]
    names, said = _numbered(builder, (stored,), (*values, *at, value))
    return names, (tuple(replace(st, value=Const(0)) for st in prelude), said)  # type: ignore[call-arg,arg-type]


def stored_once(
    builder: TaskBuilder, binder: OperandBinder, stored: str, at: tuple[Expr, ...], value: Expr, inner: Ranges,
    make: Callable[[], Stored],
) -> Stored:  # fmt: skip
    """What ``make`` gives for the element ``at`` of tensor ``stored`` that is ``value``, with the operands that it adds
    to ``binder``, or a known one with other names."""
    names, said = _numbered(builder, (stored, *(str(o.buffer) for o in binder.operands)), (*at, value))
    before = len(binder.operands)
    operands = _renamed(binder.operands, names, tuple(map(str, range(len(names)))))
    key = (said, operands, tuple(inner.items()), tuple(binder.outer.items()), tuple(binder.positions.items()))
    if key not in builder.ends:
        made = make()
        builder.ends[key] = names, made, tuple(binder.operands[before:])
        return made
    known, made, added = builder.ends[key]
    binder.operands += _renamed(added, known, names)
    return made


def _numbered(
    builder: TaskBuilder, first: Sequence[str], expressions: Sequence[Expr]
) -> tuple[tuple[str, ...], Hashable]:
    """Names, the ``first`` and those that expressions load, and what is said when numbers stand for them."""
    nodes = [node for e in expressions for node in walk(e)]
    names = tuple(dict.fromkeys((*first, *(node.operand for node in nodes if isinstance(node, Load)))))
    numbers = {name: str(number) for number, name in enumerate(names)}

    def numbered(e: Expr) -> Expr:
        return transform(e, lambda n: replace(n, operand=numbers[n.operand]) if isinstance(n, Load) else n)

    types, graph = builder.types, builder.views.graph
    kinds = tuple((types.get(n), builder.storage.get(n), graph.is_constant(n)) for n in names)
    return names, (kinds, tuple(map(numbered, expressions)))


def _renamed(operands: Sequence[Operand], known: Sequence[str], names: Sequence[str]) -> tuple[Operand, ...]:
    """The operands with other ``names`` for the ``known`` ones."""
    other = dict(zip(known, names, strict=True))
    return tuple(replace(o, buffer=other[str(o.buffer)]) for o in operands)
