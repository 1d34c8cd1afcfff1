"""Epilogues of templates on a CPU: a function of the sums, in vectors where what it computes allows it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cast import as_bytes, unrounded
from mononn_core.codegen.cstyle import Printer, varies
from mononn_core.codegen.loops import write_store, write_vector, write_vector_store
from mononn_core.codegen.storage import row_stride
from mononn_core.codegen.vectors import is_vector
from mononn_core.codegen.writer import Writer
from mononn_core.element import BYTES, COMPUTE, WORD
from mononn_core.program.expr import Acc, Load, Op, Select, Var, walk
from mononn_core.program.ir import Let, Result, Store
from mononn_core.program.simplify import linear

PAIRED = ("add", "sub", "mul", "min", "max", "neg")
"""What two vectors of floats are computed with as one."""
LINE = 16
"""Numbers in a cache line: as many, or a part of them, are a vector."""


def write_element(out: Writer, result: Result, printer: Printer, ragged: bool = False) -> bool:
    """The function ``element_(row, ..., column, v_)``, ``v_`` neighbours along the last axis. One of ``ragged`` ends
    takes how many of them there are as well (see ``mn::ragged``), where it can store the first ones alone; whether it
    does."""
    axes = ", ".join(f"long {a}" for a in result.axes)
    counted = ragged and _in_part(result, printer)
    more, count = (", int count_ = mn::W", "count_") if counted else ("", "")
    before, behind = ("mn::in_pairs(", ")") if _in_pairs(result, printer) else ("", "")
    with out.block(f"auto element_ = {before}[&]({axes}, auto v_{more}) {{", f"}}{behind};"):
        _write_body(out, result, printer, count)
    return counted


def _in_pairs(result: Result, printer: Printer) -> bool:
    """Whether it can be computed two vectors at a time, and becomes bytes at last: sums, products and bounds alone."""
    var, pointer = result.axes[-1], printer.pointers[result.operand]
    value = unrounded(result.value)
    found = as_bytes(value) if pointer.buffer.dtype in BYTES and value.dtype == COMPUTE else None
    if found is None:
        return False
    parts = list(walk(found[0]))
    known = all(e.name in PAIRED for e in parts if isinstance(e, Op) and e.dtype == COMPUTE)
    places = [(result.operand, result.index), *((e.operand, e.index) for e in parts if isinstance(e, Load))]
    addresses = (printer.pointers[role].address(index, printer.ranges) for role, index in places)
    first, *others = (replace(printer, vector=var).stride(address) for address in addresses)
    plain = known and not any(isinstance(e, Select) for e in parts)
    return plain and first == 1 and all(stride in (0, 1) for stride in others)


def _write_body(out: Writer, result: Result, printer: Printer, count: str) -> None:
    """``count``: C text of how many neighbours there are; empty: all."""
    var = result.axes[-1]
    store = Store(result.operand, result.index, result.value)
    integers = any(isinstance(e, Acc) and e.dtype == WORD for e in walk(result.value))
    out.line(f"using T = {'mn::Float<decltype(v_)>' if integers else 'decltype(v_)'};")
    if is_vector(store, var, printer):
        write_vector_store(out, store, replace(printer, vector=var, aligned=var), count)
        return
    with out.block(f"for (int lane_ = 0; lane_ < mn::lanes<T>; ++lane_, ++{var}) {{"):
        write_store(out, store, replace(printer, acc="v_[lane_]"))


def _in_part(result: Result, printer: Printer) -> bool:
    """Whether a vector's last lanes may be left out where it is stored: they lie in even steps, and what of them is
    loaded is a constant of one row, which has the rest of its cache line."""
    var = result.axes[-1]
    store = Store(result.operand, result.index, result.value)
    offset = printer.pointers[result.operand].address(result.index, printer.ranges)
    loads = [e for e in walk(result.value) if isinstance(e, Load) and any(varies(i, var) for i in e.index)]
    even = replace(printer, vector=var, aligned=var).stride(offset) is not None
    return even and all(_in_line(e, var, printer) for e in loads) and is_vector(store, var, printer)


def _in_line(load: Load, var: str, printer: Printer) -> bool:
    """Whether neighbours along ``var`` are those of a constant of one row, vectors of which begin with a cache line."""
    buffer = printer.pointers[load.operand].buffer
    terms, first = linear(load.index[-1])
    lines = terms.pop(Var(var), 0) == 1 and all(k % LINE == 0 for k in (first, *terms.values()))
    return lines and buffer.space == "weight" and prod(buffer.shape) == buffer.shape[-1]


def into_padding(result: Result, columns: int, panel: int, printer: Printer) -> str:
    """C text of a constant: whether the last vector of a row of so many ``columns``, in such panels, may be loaded and
    stored whole, with what pads that row behind its end; empty: it may not. Of an odd number of columns a reader that
    multiplies pairs of 16 bits takes the first one of the padding with it."""
    var, own = result.axes[-1], result.index[-1]
    terms, first = linear(own)
    whole = first == 0 and all(e == Var(var) or k % panel == 0 for e, k in terms.items())
    if columns % 2 or not whole or not is_vector(Store(result.operand, result.index, result.value), var, printer):
        return ""
    loads = [e for e in walk(result.value) if isinstance(e, Load) and any(varies(i, var) for i in e.index)]
    rooms = set[int]()
    for role, index in ((result.operand, result.index), *((e.operand, e.index) for e in loads)):
        buffer = printer.pointers[role].buffer
        row = buffer.layout.dims[-1] == ((columns, 1),) and not any(varies(i, var) for i in index[:-1])
        if index[-1] != own or not row or buffer.space not in ("arena", "weight"):
            return ""
        if buffer.space == "arena":
            rooms.add(row_stride(buffer))
        elif prod(buffer.shape) != columns:  # a constant of one row has the rest of its cache line
            return ""
    return f"{min(rooms)} >= ({columns} + mn::W - 1) / mn::W * mn::W" if rooms else ""


def write_edge(out: Writer, axes: tuple[str, ...], counted: bool, padded: str, known: str = "") -> None:
    """A function ``edge_`` that hands vectors of rows that end at column ``end_`` to ``element_``; ``counted`` as of
    :func:`write_element`, ``padded`` as of :func:`into_padding`, ``known``: C text of a constant: whether none reaches
    further than that."""
    *_, row, n = axes
    parameters, arguments = (", ".join(f"{kind}{a}" for a in axes) for kind in ("long ", ""))
    before = "".join(f"{a}, " for a in axes[:-1])
    more, count = (", int count_ = mn::W", ", count_") if counted else ("", "")
    one = f"[&](long, long at_, auto w_{more}) {{ element_({before}at_, w_{count}); }}"
    text = f"mn::ragged({row}, {n}, end_, v_, {one});"
    if padded:
        text = f"if constexpr ({padded}) {{ if ({n} < end_) element_({arguments}, v_); }} else {text}"
    if known:
        text = f"if constexpr ({known}) element_({arguments}, v_); else {text}"
    out.line(f"auto edge_ = [&]({parameters}, auto v_) {{ {text} }};")


def write_elements(out: Writer, results: tuple[Result, ...], printer: Printer, end: str = "") -> None:
    """The body of a function of several results that are computed before any of them is stored. ``end``: a variable;
    nothing is read or stored from there on along the results' last axis."""
    var = results[0].axes[-1]
    stores = [Store(r.operand, r.index, r.value) for r in results]
    inner = replace(printer, vector=var, aligned=var, guard=((), (Var(end),)) if end else printer.guard)
    offsets = [printer.pointers[s.operand].address(s.index, printer.ranges) for s in stores]
    out.line("using T = decltype(v_);")
    even = not end or all(inner.stride(offset) is not None for offset in offsets)
    if even and all(is_vector(store, var, printer) for store in stores):
        lets = [Let(f"r{n}_", store.value) for n, store in enumerate(stores)]
        for let in lets:
            write_vector(out, let, inner)
        bound = frozenset(let.name for let in lets)
        for let, store in zip(lets, stores, strict=True):
            named = replace(store, value=Var(let.name, let.value.dtype))
            write_vector_store(out, named, replace(inner, bound=bound), f"{end} - {var}" if end else "")
        return
    within = f" && {var} < {end}" if end else ""
    with out.block(f"for (int lane_ = 0; lane_ < mn::lanes<T>{within}; ++lane_, ++{var}) {{"):
        inner = replace(printer, acc="v_[lane_]")
        for n, store in enumerate(stores):
            out.line(f"const {c_type(store.value.dtype)} r{n}_ = {inner.scalar(store.value)};")
        for n, store in enumerate(stores):
            write_store(out, replace(store, value=Var(f"r{n}_", store.value.dtype)), inner)
