"""Prints what one thread computes for V neighbours along a variable: bindings, short reductions and stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cast import unrounded
from mononn_core.codegen.cuda_expressions import (
    LANE,
    WIDTHS,
    CudaPointer,
    CudaPrinter,
    address,
    loadable,
    neighbours,
    unguarded_loads,
)
from mononn_core.codegen.loops import REDUCERS
from mononn_core.codegen.writer import Writer
from mononn_core.element import COMPUTE, NARROW, SIDE_BY_SIDE, computed, is_float
from mononn_core.program.expr import INDEX, Cast, Expr
from mononn_core.program.ir import Let, Reduce, Result, Statement, Store
from mononn_core.program.memory import PRIVATE

UNROLLED = 8
"""Reductions of so few terms inside a thread are written out."""


def reduced_in(dtype: str) -> str:
    """The C type that values of a dtype are reduced in; integers in the widest."""
    return c_type(computed(dtype) if is_float(dtype) else INDEX)


def store_width(stores: Iterable[Store | Result], var: str, extent: int, printer: CudaPrinter) -> int:
    """Most neighbours along ``var`` that all stores can take at once; divides ``extent``."""
    scope = printer.within(var, extent)
    for width in WIDTHS:
        fits = True
        for store in stores:
            pointer = printer.pointers[store.operand]
            assert isinstance(pointer, CudaPointer)
            if width > 1 and pointer.buffer.dtype not in SIDE_BY_SIDE:
                fits = False
            fits = fits and neighbours(pointer, store.index, var, width, scope.ranges)
        if extent % width == 0 and fits:
            return width
    return 1


def load_lanes(
    out: Writer,
    values: Iterable[Expr],
    var: str,
    width: str,
    most: int,
    printer: CudaPrinter,
    prefix: str = "in",
    valid: str = "",
) -> CudaPrinter:
    """Load what ``values`` need along ``var``, ``width`` (C text, at most ``most``) neighbours at once, under the
    condition ``valid`` if there is one."""
    loaded = dict(printer.loaded)
    for e in dict.fromkeys(load for value in values for load in unguarded_loads(value, printer.loaded)):
        if loadable(e, var, most, printer):
            name = f"{prefix}{len(loaded)}_"
            load = f"load_if<{width}>({valid}, " if valid else f"load<{width}>("
            out.line(f"const auto {name} = mn::{load}{address(e, printer)});")
            loaded[e] = f"{name}[{LANE}]"
    return replace(printer, loaded=loaded)


def write_lanes(
    out: Writer, body: tuple[Statement, ...], var: str, width: str, most: int, printer: CudaPrinter
) -> None:
    """Let, Reduce and Store for the ``width`` lanes from ``var`` on. What is bound has one value a lane."""
    for number, statement in enumerate(body):
        match statement:
            case Let(name, value):
                printer = load_lanes(out, [value], var, width, most, printer)
                out.line(f"{c_type(value.dtype)} {name}[{width}];")
                _each_lane(out, f"{name}[{LANE}] = {printer.scalar(value)};", var, width)
                printer = replace(printer, lanes=printer.lanes | {name})
            case Reduce():
                _write_reduce(out, statement, var, width, most, printer)
                printer = replace(printer, lanes=printer.lanes | {statement.name})
            case Store():
                write_store(out, statement, var, width, most, printer, f"out{number}_")
            case _:
                raise AssertionError(f"{statement} stands inside lanes")


def keep_lanes(out: Writer, name: str, value: Expr, var: str, width: int, printer: CudaPrinter) -> CudaPrinter:
    """``name = value``, C text of a lane's, for the lanes from ``var`` on."""
    printer = load_lanes(out, [value], var, str(width), width, printer)
    _each_lane(out, f"{name} = {printer.scalar(value)};", var, str(width))
    return printer


def _each_lane(out: Writer, text: str, var: str, width: str) -> None:
    """One line of text for every lane; ``var`` is the lane's own inside."""
    with out.block(f"MN_UNROLL for (int {LANE} = 0, first_ = {var}; {LANE} < {width}; ++{LANE}) {{"):
        out.line(f"[[maybe_unused]] const int {var} = first_ + {LANE};")
        out.line(text)


def _write_reduce(out: Writer, s: Reduce, var: str, width: str, most: int, printer: CudaPrinter) -> None:
    kind, reducer = reduced_in(s.value.dtype), REDUCERS[s.op]
    out.line(f"{kind} {s.name}[{width}];")
    _each_lane(out, f"{s.name}[{LANE}] = {reducer}::identity<{kind}>();", var, width)
    unroll = "MN_UNROLL" if s.extent <= UNROLLED else "MN_UNROLL_BY(4)"
    with out.block(f"{unroll} for (int {s.var} = 0; {s.var} < {s.extent}; ++{s.var}) {{"):
        inner = load_lanes(out, [s.value], var, width, most, printer.within(s.var, s.extent), "term")
        value = f"({kind})({inner.scalar(s.value)})"
        _each_lane(out, f"{s.name}[{LANE}] = {reducer}::apply<{kind}>({s.name}[{LANE}], {value});", var, width)


def write_store(
    out: Writer, store: Store | Result, var: str, width: str, most: int, printer: CudaPrinter, name: str = "out_"
) -> None:
    """Store ``width`` neighbours along ``var`` at once; where they are no neighbours ``most`` is 1."""
    pointer = printer.pointers[store.operand]
    value = unrounded(store.value)
    kind = c_type(computed(pointer.buffer.dtype))  # the vocabulary rounds what it stores
    if value.dtype in NARROW:
        value = Cast(value, COMPUTE)
    printer = load_lanes(out, [value], var, width, most, printer)
    out.line(f"{kind} {name}[{width}];")
    _each_lane(out, f"{name}[{LANE}] = {printer.scalar(value)};", var, width)
    at = printer.index(pointer.address(store.index, printer.ranges))
    out.line(f"mn::store<{width}, {str(pointer.buffer.space != PRIVATE).lower()}>({pointer.name} + {at}, {name});")


def write_element(out: Writer, results: tuple[Result, ...], width: int, printer: CudaPrinter) -> None:
    """An epilogue (see ``mn::Visit``): loads for neighbours along the last of the results' axes, from a position on,
    and what stores their values."""
    axes, columns = results[0].axes, results[0].axes[-1]
    with out.block(f"auto element_ = [&]({', '.join(f'int {a}' for a in axes)}, auto width_, bool valid_) {{", "};"):
        out.line("constexpr int V = decltype(width_)::value;")
        out.line(", ".join(f"(void){a}" for a in (*axes, "valid_")) + ";")
        values = [r.value for r in results]
        inner = load_lanes(out, values, columns, "V", width, printer, valid="valid_")
        with out.block("return [=, &call](const float (&v_)[V]) {", "};"):
            out.line("(void)call;")
            for number, result in enumerate(results):
                write_store(out, result, columns, "V", width, replace(inner, acc=f"v_[{LANE}]"), f"out{number}_")
