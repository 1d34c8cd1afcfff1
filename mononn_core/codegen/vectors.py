"""What of a generated nest can be computed in vectors, along which loop, and how its vectors meet memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mononn_core.codegen.cast import unrounded
from mononn_core.codegen.cstyle import LANES, ORDER, Printer, interval, varies, vectorisable
from mononn_core.element import COMPUTE, NARROW, SHORT, SIDE_BY_SIDE
from mononn_core.program.expr import (
    INDEX,
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    minimum,
    op,
    substitute,
    transform,
    variables,
    walk,
)
from mononn_core.program.ir import For, Let, Reduce, Statement, Store
from mononn_core.program.rules import IN_TURN, body_expressions
from mononn_core.program.simplify import linear, simplify

SQUARE, FEWEST = 8, 3
"""Rows and columns that are worth transposing in registers, and rows that are worth it where what is stored is computed
in vectors of them."""
WIDEST = 1024
"""Columns of rows that are kept until there is a square of them."""


def limit_of(loop: For, printer: Printer) -> Expr:
    if loop.bound is None:
        return Const(loop.extent)
    return simplify(minimum(Const(loop.extent), loop.bound), printer.ranges)


def inside(printer: Printer, var: str, extent: int) -> Printer:
    return replace(printer, ranges={**printer.ranges, var: (0, extent - 1)})


def is_vector(store: Statement, var: str, printer: Printer, bound: frozenset[str] = frozenset()) -> bool:
    if not isinstance(store, Store) or printer.pointers[store.operand].buffer.dtype not in SIDE_BY_SIDE:
        return False
    value = unrounded(store.value)
    return value.dtype in LANES and vectorisable(value, var, bound)


def vectors_of(loop: For, printer: Printer) -> frozenset[str] | None:
    """The names that hold vectors where neighbours along the loop's variable can be computed side by side: scalars
    that vary along it, and one store; None where they cannot."""
    *before, store = loop.body
    bound = printer.bound
    for s in before:
        if not isinstance(s, (Let, Reduce)) or s.value.dtype != COMPUTE:
            return None
        if not vectorisable(s.value, loop.var, bound):
            return None
        bound |= {s.name}
    return bound if is_vector(store, loop.var, printer, bound) else None


def copied(loop: For, printer: Printer) -> tuple[Expr, Load] | None:
    """The offset of the first element that a loop stores, and the load of it, where neighbours become neighbours of a
    type that is not computed in vectors, as they are; None of any other."""
    (store, *more), scope = loop.body, replace(inside(printer, loop.var, loop.extent), vector=loop.var)
    if more or not isinstance(store, Store) or not isinstance(load := store.value, Load):
        return None
    to, source = (printer.pointers[role] for role in (store.operand, load.operand))
    if to.buffer.dtype in LANES or source.buffer.dtype != to.buffer.dtype or source.buffer == to.buffer:
        return None
    offset = to.address(store.index, scope.ranges)
    if scope.stride(offset) != 1 or _stride_along(load, loop.var, scope) != 1:
        return None
    first = {loop.var: Const(0)}
    return substitute(offset, first), replace(load, index=tuple(substitute(i, first) for i in load.index))


def interchanged(loop: For, printer: Printer) -> For | None:
    """A nest whose loop of vectors is another of its loops, along which neighbours lie side by side wherever they are
    loaded and where they are stored, but for the few of the innermost loop between those that are stored
    (:func:`in_turn`), which may lie between those that are loaded, too; None where neighbours along the innermost lie
    side by side and are not few, or along no loop."""
    nest = [loop]
    while len(nest[-1].body) == 1 and isinstance(inner := nest[-1].body[0], For):
        nest.append(inner)
    *outer, last = nest
    store, ranges = last.body[-1], {**printer.ranges, **{n.var: (0, n.extent - 1) for n in nest}}
    scope = replace(printer, ranges=ranges)
    if last.kind != "vector" or not isinstance(store, Store):
        return None
    pointer = scope.pointers[store.operand]
    offset = pointer.address(store.index, ranges)
    values = (s.value for s in last.body if isinstance(s, (Let, Reduce, Store)))
    loads = [e for value in values for e in walk(value) if isinstance(e, Load)]
    step = last.extent if replace(scope, vector=last.var).stride(offset) == 1 else 1
    if step > IN_TURN or any(scope.pointers[e.operand].buffer == pointer.buffer for e in loads):
        return None
    for chosen in outer:
        vectors = replace(last, var=chosen.var, extent=chosen.extent, bound=chosen.bound)
        near = replace(scope, vector=chosen.var).stride(offset) == step and all(
            apart_along(e, chosen.var, scope) == 1 or (step > 1 and _stride_along(e, chosen.var, scope) == step)
            for e in loads
            if any(varies(i, chosen.var) for i in e.index)
        )
        free = not any(n.bound is not None and varies(n.bound, chosen.var) for n in nest)
        if near and free and chosen.extent >= SQUARE and vectors_of(vectors, scope) is not None:
            found = vectors
            for other in reversed([*(n for n in outer if n is not chosen), replace(last, kind="serial")]):
                found = replace(other, body=(found,))
            return found
    return None


def in_turn(rows: For, printer: Printer) -> bool:
    """Whether a nest stores the elements of few rows in turn, and computes each row in vectors."""
    columns, *more = rows.body
    if more or rows.bound is not None or not 1 < rows.extent <= IN_TURN or not isinstance(columns, For):
        return False
    inner = inside(inside(printer, rows.var, rows.extent), columns.var, columns.extent)
    store, *more = columns.body
    if more or columns.kind != "vector" or columns.bound is not None or not is_vector(store, columns.var, inner):
        return False
    assert isinstance(store, Store)
    pointer = printer.pointers[store.operand]
    read = {printer.pointers[e.operand].buffer for e in walk(store.value) if isinstance(e, Load)}
    offset = pointer.address(store.index, inner.ranges)
    apart = [replace(inner, vector=loop.var).stride(offset) for loop in (rows, columns)]
    return apart == [1, rows.extent] and pointer.buffer not in read


def reads_own(loop: For, printer: Printer) -> bool:
    """Whether a nest loads from a buffer that it stores to."""
    loaded = {
        printer.pointers[n.operand].buffer for e in body_expressions(loop.body) for n in walk(e) if isinstance(n, Load)
    }
    pending: list[Statement] = list(loop.body)
    for statement in pending:
        pending += statement.body if isinstance(statement, For) else ()
    return any(isinstance(s, Store) and printer.pointers[s.operand].buffer in loaded for s in pending)


def turned(rows: For, printer: Printer) -> Expr | None:
    """Where the elements lie that a loop over rows computes in vectors of columns, if neighbours along rows lie side by
    side there, those along columns in other even steps, and both are many: they are better stored in squares."""
    *before, columns = rows.body
    if not isinstance(columns, For) or columns.kind != "vector" or columns.bound is not None:
        return None
    if not all(isinstance(s, (Let, Reduce)) for s in before) or not isinstance(store := columns.body[-1], Store):
        return None
    inner = inside(inside(printer, rows.var, rows.extent), columns.var, columns.extent)
    if min(rows.extent, columns.extent) < SQUARE or columns.extent > WIDEST or vectors_of(columns, inner) is None:
        return None
    pointer, value = printer.pointers[store.operand], unrounded(store.value)
    if reads_own(rows, printer):
        return None
    offset = pointer.address(store.index, inner.ranges)
    down, along = (replace(inner, vector=loop.var).stride(offset) for loop in (rows, columns))
    floats = value.dtype == COMPUTE and pointer.buffer.dtype in (COMPUTE, *NARROW)
    return offset if floats and down == 1 and along not in (None, 0, 1) else None


@dataclass(frozen=True)
class Transposition:
    """A nest whose vectors' neighbours lie apart in ``loads``, and whose ``rows`` are neighbours there.

    Attributes:
        outer: the other loops, the outermost first, each with what its body binds before the next loop.
        rows, columns: the loops of a square. columns is the loop of vectors, and holds the store.
        loads: those that are read in squares; none where what is stored is computed in vectors of rows, and squares of
            that are transposed: neighbours along columns lie where data says.
        value, conditions: what is stored where all of these hold, which are conditions of whole rows.
    """

    outer: tuple[tuple[For, tuple[Let, ...]], ...]
    rows: For
    columns: For
    loads: tuple[Load, ...]
    value: Expr
    conditions: tuple[Expr, ...]


def transposition(loop: For, printer: Printer) -> Transposition | None:
    """``loop`` as a :class:`Transposition`, if it is one that is worth squares."""
    nest: list[tuple[For, tuple[Let, ...]]] = []
    columns, ranges = loop, {**printer.ranges, loop.var: (0, loop.extent - 1)}
    while isinstance(inner := columns.body[-1], For):
        lets = tuple(s for s in columns.body if isinstance(s, Let))
        if len(lets) + 1 < len(columns.body):
            return None
        nest.append((columns, lets))
        columns, ranges = inner, {**ranges, inner.var: (0, inner.extent - 1)}
    store, scope = columns.body[0], replace(printer, ranges=ranges)
    alone = len(columns.body) == 1 and columns.kind == "vector" and columns.extent >= SQUARE
    if not nest or not alone or not isinstance(store, Store):
        return None
    store = replace(store, value=unrounded(store.value, chosen=True))  # copied as floats where it is copied
    columns = replace(columns, body=(store,))
    loaded = [e for e in dict.fromkeys(walk(store.value)) if isinstance(e, Load)]
    written = printer.pointers[store.operand].buffer
    plain = not any(interval(e.condition, columns.var) for e in walk(store.value) if isinstance(e, Select))
    if not plain or any(printer.pointers[e.operand].buffer == written for e in loaded):  # rows may change places
        return None
    side_by_side = vectors_of(columns, scope) is not None
    apart = [
        e for e in loaded if (squared_along(e, columns.var, scope) > 1 if side_by_side else varies(e, columns.var))
    ]
    for rows, own in nest if apart else ():
        outer = tuple((other, lets) for other, lets in nest if other is not rows)
        loops = [*(other for other, _ in outer), columns]
        fixed = not (rows.bound is not None and {o.var for o in loops} & variables(rows.bound)) and not any(
            other.bound is not None and varies(other.bound, rows.var) for other in loops
        )
        fixed = fixed and not any(varies(s.value, rows.var) for _, lets in outer for s in lets)
        value = store.value
        for let in reversed(own):  # what is one for a row is computed with each of its vectors
            value = substitute(value, {let.name: let.value})
        columns = replace(columns, body=(replace(store, value=value),))
        loads = tuple(e for e in apart if squared_along(e, rows.var, scope) == 1)
        settled = _settled(value, rows.var, columns.var)
        if not fixed or not loads or rows.extent < (SQUARE if side_by_side else FEWEST) or settled is None:
            continue
        if side_by_side:
            return Transposition(outer, rows, columns, loads, *settled)
        if _along(unrounded(settled[0]), store, rows.var, columns.var, scope):
            return Transposition(outer, rows, columns, (), *settled)
    return None


def _along(value: Expr, store: Store, row: str, column: str, printer: Printer) -> bool:
    """Whether ``value`` can be computed in vectors of rows that are neighbours wherever they are loaded, and stored in
    vectors of columns."""
    loads = [e for e in walk(value) if isinstance(e, Load) and varies(e, row)]
    offset = printer.pointers[store.operand].address(store.index, printer.ranges)
    return (
        value.dtype == COMPUTE
        and vectorisable(value, row)
        and all(apart_along(e, row, printer) == 1 for e in loads)
        and replace(printer, vector=column).stride(offset) == 1
    )


def apart_along(load: Load, var: str, printer: Printer) -> int:
    """Elements between neighbours along ``var``; 0 where they are not evenly spaced, or no float32."""
    return _stride_along(load, var, printer) if load.dtype == COMPUTE else 0


def squared_along(load: Load, var: str, printer: Printer) -> int:
    """The same, of what squares of floats are loaded from."""
    return _stride_along(load, var, printer) if load.dtype in (COMPUTE, *NARROW, *SHORT) else 0


def _stride_along(load: Load, var: str, printer: Printer) -> int:
    """:func:`apart_along` of any type."""
    offset = printer.pointers[load.operand].address(load.index, printer.ranges)
    return replace(printer, vector=var).stride(offset) or 0


def _settled(value: Expr, row: str, column: str) -> tuple[Expr, tuple[Expr, ...]] | None:
    """``value`` where all conditions hold that are those of whole rows, and these; None where they may hold for a row
    and for a later one, but not between."""
    conditions: list[Expr] = []

    def settle(e: Expr) -> Expr:
        if not isinstance(e, Select) or varies(e.condition, column):
            return e
        loads = [any(isinstance(n, Load) for n in walk(part)) for part in (e.then, e.otherwise)]
        if loads == [False, True] and not varies(e.condition, row):
            conditions.append(op("not", e.condition))
            return e.otherwise
        conditions.append(e.condition)
        return e.then

    settled = transform(value, settle)
    return (settled, tuple(conditions)) if all(_convex(c, row) for c in conditions) else None


def _convex(condition: Expr, var: str) -> bool:
    """Whether a condition that holds for two values of ``var`` holds for all between them: comparisons that are linear
    in it, joined by and."""
    if not varies(condition, var):
        return True
    if isinstance(condition, Op) and condition.name == "and":
        return all(_convex(a, var) for a in condition.args)
    if not isinstance(condition, Op) or condition.name not in ORDER or condition.args[0].dtype != INDEX:
        return False
    terms, _ = linear(op("sub", *condition.args))
    return not any(varies(t, var) for t in terms if t != Var(var))


def gathered(value: Expr, var: str) -> bool:
    """Whether ``value`` can be computed in vectors along ``var`` if loads take floats from where data says."""
    taken = Var("taken_", COMPUTE)
    known = transform(value, lambda e: taken if isinstance(e, Load) and e.dtype == COMPUTE else e)
    return vectorisable(known, var, frozenset({taken.name}))
