"""Prints generated nests: For, Let, Reduce and Store, and the element functions of template epilogues."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cast import unrounded
from mononn_core.codegen.cstyle import LANES, ORDER, Printer, interval, varies, vectorisable
from mononn_core.codegen.writer import Writer
from mononn_core.element import COMPUTE, SIDE_BY_SIDE, WORD
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
from mononn_core.program.functions import FUNCTIONS
from mononn_core.program.ir import For, Let, Reduce, Result, Statement, Store
from mononn_core.program.simplify import linear, simplify

REDUCERS = {"add": "mn::Add", "mul": "mn::Mul", "max": "mn::Max", "min": "mn::Min"}
CHEAP_OPERATIONS = 4
SQUARE = 8
"""Rows and columns that are worth transposing in registers."""
TURNS = 4
"""Rows whose elements lie in turn, as the colours of a picture do, that are put in turn in registers."""
UNROLLED = 16
"""Reductions of so few terms, the taps of a pooling, are written out."""


def write_statements(out: Writer, body: tuple[Statement, ...], printer: Printer) -> None:
    """Print a body in order."""
    for statement in body:
        match statement:
            case For():
                _write_for(out, statement, printer)
            case Let():
                out.line(f"const {c_type(statement.value.dtype)} {statement.name} = {printer.scalar(statement.value)};")
            case Reduce():
                _write_reduce(out, statement, printer)
            case Store():
                write_store(out, statement, printer)


def _limit(loop: For, printer: Printer) -> Expr:
    if loop.bound is None:
        return Const(loop.extent)
    return simplify(minimum(Const(loop.extent), loop.bound), printer.ranges)


def _inside(printer: Printer, var: str, extent: int) -> Printer:
    return replace(printer, ranges={**printer.ranges, var: (0, extent - 1)})


def _write_for(out: Writer, loop: For, printer: Printer) -> None:
    if (found := transposition(loop, printer)) is not None:
        write_transposition(out, found, printer)
        return
    if _in_turn(loop, printer):
        _write_in_turn(out, loop, printer)
        return
    inner = _inside(printer, loop.var, loop.extent)
    limit = printer.index(_limit(loop, printer))
    vectors = _vectors(loop, inner) if loop.kind == "vector" else None
    if vectors is not None:
        with out.block(f"mn::each_lane({limit}, [&](auto tag, long {loop.var}) {{", "});"):
            out.line("using T = decltype(tag);")
            for statement in loop.body:
                write_vector(out, statement, replace(inner, vector=loop.var, bound=vectors))
        return
    with out.block(f"for (long {loop.var} = 0; {loop.var} < {limit}; ++{loop.var}) {{"):
        write_statements(out, loop.body, inner)


def _in_turn(rows: For, printer: Printer) -> bool:
    """Whether a nest stores the elements of few rows in turn, and computes each row in vectors."""
    columns, *more = rows.body
    if more or rows.bound is not None or not 1 < rows.extent <= TURNS or not isinstance(columns, For):
        return False
    inner = _inside(_inside(printer, rows.var, rows.extent), columns.var, columns.extent)
    store, *more = columns.body
    if more or columns.kind != "vector" or columns.bound is not None or not is_vector(store, columns.var, inner):
        return False
    assert isinstance(store, Store)
    pointer = printer.pointers[store.operand]
    read = {printer.pointers[e.operand].buffer for e in walk(store.value) if isinstance(e, Load)}
    offset = pointer.address(store.index, inner.ranges)
    apart = [replace(inner, vector=loop.var).stride(offset) for loop in (rows, columns)]
    return apart == [1, rows.extent] and pointer.buffer not in read


def _write_in_turn(out: Writer, rows: For, printer: Printer) -> None:
    (columns,) = rows.body
    assert isinstance(columns, For)
    (store,) = columns.body
    assert isinstance(store, Store)
    inner = _inside(_inside(printer, rows.var, rows.extent), columns.var, columns.extent)
    pointer, value = printer.pointers[store.operand], unrounded(store.value)
    first = substitute(pointer.address(store.index, inner.ranges), {rows.var: Const(0)})
    vector, lanes = replace(inner, vector=columns.var).value(value), "mn::Int<T>" if value.dtype == WORD else "T"
    with out.block(f"mn::each_lane({columns.extent}, [&](auto tag, long {columns.var}) {{", "});"):
        out.line("using T = decltype(tag);")
        at = f"{pointer.name} + {inner.index(simplify(first, inner.ranges))}"
        out.line(f"mn::store_in_turn<{lanes}, {rows.extent}>({at}, [&](long {rows.var}) {{ return {vector}; }});")


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
    loaded = [e for e in dict.fromkeys(walk(store.value)) if isinstance(e, Load)]
    written = printer.pointers[store.operand].buffer
    plain = not any(interval(e.condition, columns.var) for e in walk(store.value) if isinstance(e, Select))
    if not plain or any(printer.pointers[e.operand].buffer == written for e in loaded):  # rows may change places
        return None
    side_by_side = _vectors(columns, scope) is not None
    apart = [e for e in loaded if (_apart(e, columns.var, scope) > 1 if side_by_side else varies(e, columns.var))]
    for rows, own in nest if apart else ():
        outer = tuple((other, lets) for other, lets in nest if other is not rows)
        loops = [*(other for other, _ in outer), columns]
        fixed = not (rows.bound is not None and {o.var for o in loops} & variables(rows.bound)) and not any(
            other.bound is not None and varies(other.bound, rows.var) for other in loops
        )
        fixed = fixed and not own and not any(varies(s.value, rows.var) for _, lets in outer for s in lets)
        loads = tuple(e for e in apart if _apart(e, rows.var, scope) == 1)
        settled = _settled(store.value, rows.var, columns.var)
        if not fixed or not loads or rows.extent < SQUARE or settled is None:
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
        and all(_apart(e, row, printer) == 1 for e in loads)
        and replace(printer, vector=column).stride(offset) == 1
    )


def _apart(load: Load, var: str, printer: Printer) -> int:
    """Elements between neighbours along ``var``; 0 where they are not evenly spaced, or no float32."""
    offset = printer.pointers[load.operand].address(load.index, printer.ranges)
    return (replace(printer, vector=var).stride(offset) or 0) if load.dtype == COMPUTE else 0


def _settled(value: Expr, row: str, column: str) -> tuple[Expr, tuple[Expr, ...]] | None:
    """``value`` where all conditions hold that are those of whole rows, and these; None where they may hold for a row
    and for a later one, but not between."""
    conditions: list[Expr] = []

    def settle(e: Expr) -> Expr:
        if isinstance(e, Select) and not varies(e.condition, column):
            conditions.append(e.condition)
            return e.then
        return e

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


def write_transposition(out: Writer, found: Transposition, printer: Printer) -> None:
    """Squares are transposed in registers where their rows' conditions hold; what is left goes row by row."""
    rows, columns = found.rows, found.columns
    if found.outer:
        (first, lets), *others = found.outer
        inner = _inside(printer, first.var, first.extent)
        with out.block(
            f"for (long {first.var} = 0; {first.var} < {printer.index(_limit(first, printer))}; ++{first.var}) {{"
        ):
            write_statements(out, lets, inner)
            write_transposition(out, replace(found, outer=tuple(others)), inner)
        return
    inner = _inside(_inside(printer, rows.var, rows.extent), columns.var, columns.extent)
    (store,) = columns.body
    assert isinstance(store, Store)
    holds = " && ".join(inner.scalar(c) for c in found.conditions) or "true"
    end, width = (printer.index(_limit(loop, printer)) for loop in (rows, columns))
    at = f"long {rows.var}, long {columns.var}"
    kind, which = ("square", at) if found.loads else ("column", f"{at}, int count_")
    with out.block(f"mn::each_{kind}({end}, {width}, [&](long {rows.var}) {{ return {holds}; }}, [&]({which}) {{", ""):
        out.line("using T = mn::V;")
        if found.loads:
            _write_square(out, found, store, inner)
        else:
            _write_columns(out, found, store, inner)
    with out.block(f"}}, [&](auto tag, {at}) {{", "});"):
        out.line("using T = decltype(tag);")
        if found.loads or _gathered(store.value, columns.var):
            write_vector_store(out, store, replace(inner, vector=columns.var))
            return
        with out.block(f"for (long end_ = {columns.var} + mn::lanes<T>; {columns.var} < end_; ++{columns.var}) {{"):
            write_statements(out, columns.body, inner)


def _gathered(value: Expr, var: str) -> bool:
    """Whether ``value`` can be computed in vectors along ``var`` if loads take floats from where data says."""
    taken = Var("taken_", COMPUTE)
    known = transform(value, lambda e: taken if isinstance(e, Load) and e.dtype == COMPUTE else e)
    return vectorisable(known, var, frozenset({taken.name}))


def _write_square(out: Writer, found: Transposition, store: Store, printer: Printer) -> None:
    """A square of each load is transposed, and what is stored is computed in vectors of columns."""
    rows, columns = found.rows, found.columns
    names = {load: Var(f"s{n}_[row_]", COMPUTE) for n, load in enumerate(found.loads)}
    value = transform(found.value, lambda e: names.get(e, e) if isinstance(e, Load) else e)
    for load, name in names.items():
        pointer = printer.pointers[load.operand]
        offset = pointer.address(load.index, printer.ranges)
        array = name.name.removesuffix("[row_]")
        out.line(f"T {array}[mn::W];")
        out.line(
            f"mn::load_square({array}, {pointer.name} + {printer.index(offset)}, {_apart(load, columns.var, printer)});"
        )
    with out.block(f"MN_UNROLL for (int row_ = 0; row_ < mn::W; ++row_, ++{rows.var}) {{"):
        bound = frozenset(name.name for name in names.values())
        write_vector_store(out, replace(store, value=value), replace(printer, vector=columns.var, bound=bound))


def _write_columns(out: Writer, found: Transposition, store: Store, printer: Printer) -> None:
    """What is stored is computed in vectors of rows, a column after the other; the square of them is transposed."""
    rows, columns = found.rows, found.columns
    limit = _limit(rows, printer)
    along = replace(printer, vector=rows.var, guard=((), (limit,)))
    out.line("T s_[mn::W] = {};")
    with out.block(f"MN_NOUNROLL for (int column_ = 0; column_ < count_; ++column_, ++{columns.var}) {{"):
        out.line(f"s_[column_] = {along.value(unrounded(found.value))};")
    out.line(f"{columns.var} -= count_;")
    out.line("mn::transpose_square(s_);")
    pointer, end = printer.pointers[store.operand], printer.index(limit)
    offset = printer.index(pointer.address(store.index, printer.ranges))
    with out.block(f"MN_UNROLL for (int row_ = 0; row_ < mn::W; ++row_, ++{rows.var}) {{"):
        out.line(f"if ({rows.var} < {end}) mn::store_first<T>({pointer.name} + {offset}, s_[row_], count_);")


def _vectors(loop: For, printer: Printer) -> frozenset[str] | None:
    """The names that hold vectors where neighbours along the loop's variable can be computed side by side: scalars
    that vary along it, and one store; None where they cannot."""
    *before, store = loop.body
    bound: frozenset[str] = frozenset()
    for s in before:
        if not isinstance(s, (Let, Reduce)) or s.value.dtype != COMPUTE:
            return None
        if not vectorisable(s.value, loop.var, bound):
            return None
        bound |= {s.name}
    return bound if is_vector(store, loop.var, printer, bound) else None


def write_vector(out: Writer, statement: Statement, printer: Printer) -> None:
    """A statement of a vector loop; what it binds is a ``T``."""
    match statement:
        case Let():
            out.line(f"const T {statement.name} = {printer.value(statement.value)};")
        case Reduce():
            reducer = REDUCERS[statement.op]
            inner = _inside(printer, statement.var, statement.extent)
            out.line(f"T {statement.name} = mn::splat<T>({reducer}::identity);")
            unroll = "MN_UNROLL " if statement.extent <= UNROLLED else ""
            with out.block(
                f"{unroll}for (long {statement.var} = 0; {statement.var} < {statement.extent}; ++{statement.var}) {{"
            ):
                out.line(f"{statement.name} = {reducer}::apply<T>({statement.name}, {inner.value(statement.value)});")
        case Store():
            write_vector_store(out, statement, printer)


def is_vector(store: Statement, var: str, printer: Printer, bound: frozenset[str] = frozenset()) -> bool:
    if not isinstance(store, Store) or printer.pointers[store.operand].buffer.dtype not in SIDE_BY_SIDE:
        return False
    value = unrounded(store.value)
    return value.dtype in LANES and vectorisable(value, var, bound)


def write_vector_store(out: Writer, store: Store, printer: Printer) -> None:
    """Store a ``T`` along the printer's vector variable."""
    pointer = printer.pointers[store.operand]
    offset = pointer.address(store.index, printer.ranges)
    stride, known = printer.stride(offset), unrounded(store.value)
    value, lanes = printer.value(known), "mn::Int<T>" if known.dtype == WORD else "T"
    if stride == 1:
        out.line(f"mn::store<{lanes}>({pointer.name} + {printer.index(offset)}, {value});")
    elif stride is not None:
        out.line(f"mn::scatter<{lanes}>({pointer.name} + {printer.index(offset)}, {stride}, {value});")
    else:
        var = printer.vector
        at = f"[&](long {var}) {{ return {printer.index(offset)}; }}"
        out.line(f"mn::scatter_at({pointer.name}, {var}, {value}, {at});")


def write_store(out: Writer, store: Store, printer: Printer) -> None:
    pointer = printer.pointers[store.operand]
    offset = printer.index(pointer.address(store.index, printer.ranges))
    out.line(f"{pointer.name}[{offset}] = {printer.scalar(store.value)};")


def _write_reduce(out: Writer, statement: Reduce, printer: Printer) -> None:
    inner = _inside(printer, statement.var, statement.extent)
    kind = statement.value.dtype
    if kind == COMPUTE and vectorisable(statement.value, statement.var):
        value = replace(inner, vector=statement.var).value(statement.value)
        term = f"[&](auto tag, long {statement.var}) {{ using T = decltype(tag); return {value}; }}"
        out.line(f"const float {statement.name} = mn::reduce<{REDUCERS[statement.op]}>({statement.extent}, {term});")
        return
    name = c_type(kind)
    first = simplify_at(statement.value, statement.var, printer)
    start = {"add": "0", "mul": "1"}.get(statement.op, first)
    out.line(f"{name} {statement.name} = {start};")
    with out.block(f"for (long {statement.var} = 0; {statement.var} < {statement.extent}; ++{statement.var}) {{"):
        value = inner.scalar(statement.value)
        sign = {"add": "+", "mul": "*"}.get(statement.op)
        if sign:
            out.line(f"{statement.name} = {statement.name} {sign} {value};")
        else:
            cast = "(int64_t)" if "int" in kind else ""
            out.line(f"{statement.name} = mn::{statement.op}({cast}{statement.name}, {cast}{value});")


def simplify_at(e: Expr, var: str, printer: Printer) -> str:
    """``e`` printed with ``var`` at 0."""
    return printer.scalar(simplify(substitute(e, {var: Const(0)}), printer.ranges))


def is_cheap(result: Result) -> bool:
    """Whether an epilogue is short enough to be unrolled over a register tile."""
    operations = [n for n in walk(result.value) if isinstance(n, Op) and n.dtype == COMPUTE]
    return len(operations) <= CHEAP_OPERATIONS and not any(FUNCTIONS[o.name].slow for o in operations)


def score_text(score: Expr, printer: Printer) -> str:
    """The value of an attention score's expression along "j"; falls back to lanes where it is no vector."""
    if vectorisable(score, "j"):
        return replace(printer, vector="j").value(score)
    scalar = replace(printer, acc="v_[lane_]").scalar(score)
    return f"[&] {{ T r; for (int lane_ = 0; lane_ < mn::lanes<T>; ++lane_, ++j) r[lane_] = {scalar}; return r; }}()"
