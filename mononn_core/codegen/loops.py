"""Prints generated nests: For, Let, Reduce and Store, and the element functions of template epilogues."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mononn_core.codegen.c import c_type, widest
from mononn_core.codegen.cast import as_bytes, rounded, table_text, unrounded
from mononn_core.codegen.cstyle import Pointer, Printer, vectorisable
from mononn_core.codegen.steps import run_along
from mononn_core.codegen.vectors import (
    Transposition,
    copied,
    gathered,
    in_turn,
    inside,
    interchanged,
    limit_of,
    reads_own,
    squared_along,
    transposition,
    turned,
    vectors_of,
)
from mononn_core.codegen.writer import Writer
from mononn_core.element import BYTES, COMPUTE, SHORT, SIDE_BY_SIDE, WORD
from mononn_core.program.expr import Cast, Const, Expr, Load, Op, Var, substitute, transform, walk
from mononn_core.program.functions import FUNCTIONS
from mononn_core.program.hoist import unswitched
from mononn_core.program.ir import Buffer, For, Layout, Let, Reduce, Result, Statement, Store
from mononn_core.program.simplify import simplify

REDUCERS = {"add": "mn::Add", "mul": "mn::Mul", "max": "mn::Max", "min": "mn::Min"}
CHEAP_OPERATIONS = 4
LINE = 16
"""Numbers in a cache line, and the most rows that are kept until they are stored transposed."""
UNROLLED = 16
"""Reductions of so few terms, the taps of a pooling, are written out."""


LONGEST_KEPT = 4096
"""Elements of a row that is kept between a reduction and the loop that stores it."""


def write_statements(out: Writer, body: tuple[Statement, ...], printer: Printer) -> None:
    """Print a body in order."""
    kept = _kept(body, printer)
    for statement in body:
        match statement:
            case Reduce() if kept and statement is kept.terms:
                out.line(f"alignas(64) float kept_[{statement.extent}];")
                _write_reduce(out, statement, printer, "kept_")
            case For() if kept and statement is kept.loop:
                first = f"const T again_ = mn::load<T>(kept_ + {statement.var});"
                _write_vectors(out, kept.again, printer, kept.vectors, first)
            case For():
                _write_for(out, statement, printer)
            case Let():
                out.line(f"const {c_type(statement.value.dtype)} {statement.name} = {printer.scalar(statement.value)};")
            case Reduce():
                _write_reduce(out, statement, printer)
            case Store():
                write_store(out, statement, printer)


def _write_for(out: Writer, loop: For, printer: Printer) -> None:
    parts = _distributed(loop)
    if len(parts) > 1 and not reads_own(loop, printer) and any(transposition(part, printer) for part in parts):
        for part in parts:
            _write_for(out, part, printer)
        return
    loop = interchanged(loop, printer) or loop
    if (square := transposition(loop, printer)) is not None:
        write_transposition(out, square, printer)
        return
    if in_turn(loop, printer):
        _write_in_turn(out, loop, printer)
        return
    if (offset := turned(loop, printer)) is not None:
        _write_turned(out, loop, offset, printer)
        return
    inner = inside(printer, loop.var, loop.extent)
    limit = printer.index(limit_of(loop, printer))
    vectors = vectors_of(loop, inner) if loop.kind == "vector" else None
    if vectors is not None and (found := unswitched(loop)) is not None:
        condition, then, otherwise = found
        with out.block(f"if ({printer.index(condition)}) {{", "}"):
            write_statements(out, then, printer)
        with out.block("else {", "}"):
            write_statements(out, otherwise, printer)
        return
    if vectors is not None:
        _write_vectors(out, loop, printer, vectors)
        return
    if (copy := copied(loop, printer)) is not None:
        offset, load = copy
        (store,) = loop.body
        assert isinstance(store, Store)
        to, source = (printer.pointers[role] for role in (store.operand, load.operand))
        first = f"{source.name} + {printer.index(source.address(load.index, printer.ranges))}"
        nbytes = f"{limit} * sizeof({c_type(to.buffer.dtype)})"
        out.line(f"__builtin_memcpy({to.name} + {printer.index(offset)}, {first}, {nbytes});")
        return
    with out.block(f"for (long {loop.var} = 0; {loop.var} < {limit}; ++{loop.var}) {{"):
        write_statements(out, loop.body, inner)


def _distributed(loop: For) -> tuple[For, ...]:
    """A nest around several loops, one after the other, that store, as one nest for each."""
    parts = [s for s in loop.body if isinstance(s, For)]
    if len(parts) < len(loop.body):
        return (loop,)
    inside = _distributed(parts[0]) if len(parts) == 1 else tuple(parts)
    return tuple(replace(loop, body=(part,)) for part in inside)


def _write_vectors(out: Writer, loop: For, printer: Printer, vectors: frozenset[str], first: str = "") -> None:
    """A loop of vectors, as those of ``vectors`` are; ``first``: a line before its body."""
    inner = inside(printer, loop.var, loop.extent)
    limit = printer.index(limit_of(loop, printer))
    each = f"each_lane<{loop.extent}>(" if loop.bound is None else f"each_lane({limit}, "
    with out.block(f"mn::{each}[&](auto tag, long {loop.var}) {{", "});"):
        out.line("using T = decltype(tag);")
        if first:
            out.line(first)
        for statement in loop.body:
            write_vector(out, statement, replace(inner, vector=loop.var, bound=vectors, aligned=loop.var))


class _Kept(NamedTuple):
    """A reduction whose ``terms`` a later ``loop`` over the same row computes again; that loop where it reads them, as
    "again_", and the names that are ``vectors`` there."""

    terms: Reduce
    loop: For
    again: For
    vectors: frozenset[str]


def _kept(body: tuple[Statement, ...], printer: Printer) -> _Kept | None:
    """The first terms of a body that take long (the exponentials of a softmax) and are computed again."""
    for place, reduce in enumerate(body):
        if not isinstance(reduce, Reduce) or reduce.extent > LONGEST_KEPT or reduce.value.dtype != COMPUTE:
            continue
        slow = isinstance(reduce.value, Op) and FUNCTIONS[reduce.value.name].slow
        if not slow or not vectorisable(reduce.value, reduce.var):
            continue
        for loop in body[place + 1 :]:
            if not isinstance(loop, For) or (loop.kind, loop.extent, loop.bound) != ("vector", reduce.extent, None):
                continue
            known = substitute(reduce.value, {reduce.var: Var(loop.var)})
            again = replace(loop, body=tuple(_read_again(statement, known) for statement in loop.body))
            inner = inside(printer, loop.var, loop.extent)
            vectors = vectors_of(again, replace(inner, bound=frozenset({"again_"})))
            if again.body != loop.body and vectors is not None and unswitched(loop) is None:
                return _Kept(reduce, loop, again, vectors)
    return None


def _read_again(statement: Statement, known: Expr) -> Statement:
    """``statement`` with "again_" for ``known``."""
    if not isinstance(statement, Let | Store):
        return statement
    again = Var("again_", COMPUTE)
    return replace(statement, value=transform(statement.value, lambda e: again if e == known else e))


def _write_in_turn(out: Writer, rows: For, printer: Printer) -> None:
    (columns,) = rows.body
    assert isinstance(columns, For)
    (store,) = columns.body
    assert isinstance(store, Store)
    inner = inside(inside(printer, rows.var, rows.extent), columns.var, columns.extent)
    pointer, value = printer.pointers[store.operand], unrounded(store.value)
    first = substitute(pointer.address(store.index, inner.ranges), {rows.var: Const(0)})
    vector, lanes = replace(inner, vector=columns.var).value(value), "mn::Int<T>" if value.dtype == WORD else "T"
    with out.block(f"mn::each_lane<{columns.extent}>([&](auto tag, long {columns.var}) {{", "});"):
        out.line("using T = decltype(tag);")
        at = f"{pointer.name} + {inner.index(simplify(first, inner.ranges))}"
        out.line(f"mn::store_in_turn<{lanes}, {rows.extent}>({at}, [&](long {rows.var}) {{ return {vector}; }});")


def _write_turned(out: Writer, rows: For, offset: Expr, printer: Printer) -> None:
    """As many rows as a vector has lanes are computed, and kept; their squares are transposed in registers. ``offset``:
    where an element belongs."""
    *before, columns = rows.body
    assert isinstance(columns, For)
    *inside_columns, store = columns.body
    assert isinstance(store, Store)
    inner = inside(printer, rows.var, rows.extent)
    extent = columns.extent
    apart = (extent + LINE - 1) // LINE * LINE + LINE  # so that rows do not share a few sets of a cache
    kept = Buffer("turned_", COMPUTE, (LINE, extent), Layout((((LINE, apart),), ((extent, 1),)), LINE * apart), "task")
    keeping = replace(inner, pointers={**printer.pointers, kept.id: Pointer(kept.id, kept)})
    keep = Store(kept.id, (Var(rows.var) - Var("block_"), Var(columns.var)), unrounded(store.value))
    pointer, limit = printer.pointers[store.operand], printer.index(limit_of(rows, printer))
    step = replace(inside(inner, columns.var, extent), vector=columns.var).stride(offset)
    start = simplify(substitute(offset, {rows.var: Var("block_"), columns.var: Const(0)}), inner.ranges)
    with out.block("{"):
        out.line(f"alignas(64) float {kept.id}[mn::W * {apart}];")
        with out.block(f"for (long block_ = 0; block_ < {limit}; block_ += mn::W) {{"):
            out.line(f"const long until_ = block_ + mn::W < {limit} ? block_ + mn::W : {limit};")
            with out.block(f"for (long {rows.var} = block_; {rows.var} < until_; ++{rows.var}) {{"):
                write_statements(out, (*before, replace(columns, body=(*inside_columns, keep))), keeping)
            at = f"{pointer.name} + {printer.index(start)}"
            out.line(f"mn::store_turned<{extent}>({at}, {step}, {kept.id}, {apart}, until_ - block_);")


def write_transposition(out: Writer, found: Transposition, printer: Printer) -> None:
    """Squares are transposed in registers where their rows' conditions hold; what is left goes row by row."""
    rows, columns = found.rows, found.columns
    if found.outer:
        (first, lets), *others = found.outer
        inner = inside(printer, first.var, first.extent)
        with out.block(
            f"for (long {first.var} = 0; {first.var} < {printer.index(limit_of(first, printer))}; ++{first.var}) {{"
        ):
            write_statements(out, lets, inner)
            write_transposition(out, replace(found, outer=tuple(others)), inner)
        return
    inner = inside(inside(printer, rows.var, rows.extent), columns.var, columns.extent)
    (store,) = columns.body
    assert isinstance(store, Store)
    holds = " && ".join(inner.scalar(c) for c in found.conditions) or "true"
    end, width = (printer.index(limit_of(loop, printer)) for loop in (rows, columns))
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
        if found.loads or gathered(store.value, columns.var):
            write_vector_store(out, store, replace(inner, vector=columns.var))
            return
        with out.block(f"for (long end_ = {columns.var} + mn::lanes<T>; {columns.var} < end_; ++{columns.var}) {{"):
            write_statements(out, columns.body, inner)


def _write_square(out: Writer, found: Transposition, store: Store, printer: Printer) -> None:
    """A square of each load is transposed, and what is stored is computed in vectors of columns."""
    rows, columns = found.rows, found.columns
    names = {load: Var(f"s{n}_[row_]", COMPUTE) for n, load in enumerate(found.loads)}
    known: dict[Expr, Expr] = dict(names.items())
    known |= {Cast(name, COMPUTE): name for name in names.values()}
    value = transform(found.value, lambda e: known.get(e, e) if isinstance(e, Load | Cast) else e)
    for load, name in names.items():
        pointer = printer.pointers[load.operand]
        offset = pointer.address(load.index, printer.ranges)
        array = name.name.removesuffix("[row_]")
        out.line(f"T {array}[mn::W];")
        stride = squared_along(load, columns.var, printer)
        out.line(f"mn::load_square({array}, {pointer.name} + {printer.index(offset)}, {stride});")
    with out.block(f"MN_UNROLL for (int row_ = 0; row_ < mn::W; ++row_, ++{rows.var}) {{"):
        bound = frozenset(name.name for name in names.values())
        write_vector_store(out, replace(store, value=value), replace(printer, vector=columns.var, bound=bound))


def _write_columns(out: Writer, found: Transposition, store: Store, printer: Printer) -> None:
    """What is stored is computed in vectors of rows, a column after the other; the square of them is transposed."""
    rows, columns = found.rows, found.columns
    limit = limit_of(rows, printer)
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


def write_vector(out: Writer, statement: Statement, printer: Printer) -> None:
    """A statement of a vector loop; what it binds is a ``T``."""
    match statement:
        case Let():
            out.line(f"const T {statement.name} = {printer.value(statement.value)};")
        case Reduce():
            reducer = REDUCERS[statement.op]
            inner = inside(printer, statement.var, statement.extent)
            value = inner.value(statement.value)
            if statement.extent > UNROLLED:
                term = f"[&](long {statement.var}) {{ return {value}; }}"
                out.line(f"const T {statement.name} = mn::fold<{reducer}, T, {statement.extent}>({term});")
                return
            out.line(f"T {statement.name} = mn::splat<T>({reducer}::identity);")
            with out.block(
                f"MN_UNROLL for (long {statement.var} = 0; {statement.var} < {statement.extent}; ++{statement.var}) {{"
            ):
                out.line(f"{statement.name} = {reducer}::apply<T>({statement.name}, {value});")
        case Store():
            write_vector_store(out, statement, printer)


def write_vector_store(out: Writer, store: Store, printer: Printer, count: str = "") -> None:
    """Store a ``T`` along the printer's vector variable; of neighbours in even steps the first ``count``, if given."""
    pointer = printer.pointers[store.operand]
    offset = pointer.address(store.index, printer.ranges)
    stride, known = printer.stride(offset), unrounded(store.value)
    whole = rounded(known) if known.dtype == COMPUTE and pointer.buffer.dtype in SHORT else None
    found = isinstance(known, Op) and known.name == "lookup" and pointer.buffer.dtype in SHORT
    lanes = "mn::Int<T>" if whole or found or known.dtype == WORD else "T"
    value = f"mn::nearest<T>({printer.value(whole[0])}) + {whole[1]}" if whole else printer.value(known)
    if isinstance(known, Op) and found:
        value = printer.looked_up(known)
    if stride == 1 and not count and pointer.buffer.dtype in BYTES and (quantised := as_bytes(known)) is not None:
        x, more, kind, table = quantised
        name, last = ("store_looked_up", f", {table_text(table)}") if table else ("store_nearest", "")
        at = f"{pointer.name} + {printer.index(offset)}"
        out.line(f"mn::{name}<{more}, {c_type(kind)}>({at}, {printer.value(x)}{last});")
    elif stride == 1:
        which, last = ("store_first", f", {count}") if count else ("store", "")
        out.line(f"mn::{which}<{lanes}>({pointer.name} + {printer.index(offset)}, {value}{last});")
    elif stride is not None:
        last = f", {count}" if count else ""
        out.line(f"mn::scatter<{lanes}>({pointer.name} + {printer.index(offset)}, {stride}, {value}{last});")
    else:
        var, lies = printer.vector, printer.aligned == printer.vector and pointer.buffer.dtype in SIDE_BY_SIDE
        at = f"[&](long {var}) {{ return {printer.index(offset)}; }}"
        run = run_along(offset, var) if lies else ""
        out.line(f"mn::scatter_at<{lanes}{run}>({pointer.name}, {var}, {value}, {at});")


def write_store(out: Writer, store: Store, printer: Printer) -> None:
    pointer = printer.pointers[store.operand]
    offset = printer.index(pointer.address(store.index, printer.ranges))
    out.line(f"{pointer.name}[{offset}] = {printer.scalar(store.value)};")


def _write_reduce(out: Writer, statement: Reduce, printer: Printer, kept: str = "") -> None:
    """``kept``: an array that gets the terms."""
    inner = inside(printer, statement.var, statement.extent)
    kind = statement.value.dtype
    if kind == COMPUTE and vectorisable(statement.value, statement.var):
        value = replace(inner, vector=statement.var).value(statement.value)
        keeps = f"const T term_ = {value}; mn::store<T>({kept} + {statement.var}, term_); return term_;"
        returns = keeps if kept else f"return {value};"
        term = f"[&](auto tag, long {statement.var}) {{ using T = decltype(tag); {returns} }}"
        folded = f"{REDUCERS[statement.op]}, {statement.extent}"
        out.line(f"const float {statement.name} = mn::reduce<{folded}>({term});")
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
            cast = widest(kind)
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
