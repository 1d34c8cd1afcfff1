"""A Program as text: readable, complete, and the same bytes for the same Program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from mononn_core.element import COMPUTE
from mononn_core.program.expr import INDEX, Acc, Cast, Const, Expr, Load, LookupTable, Op, Select, Var
from mononn_core.program.ir import (
    Barrier,
    Box,
    Buffer,
    For,
    Layout,
    Let,
    Loop,
    Operand,
    Phase,
    Program,
    Reduce,
    Slot,
    Statement,
    Store,
    Task,
)

INFIX = {
    "add": ("+", 4),
    "sub": ("-", 4),
    "mul": ("*", 5),
    "div": ("/", 5),
    "floordiv": ("//", 5),
    "mod": ("%", 5),
    "lt": ("<", 3),
    "le": ("<=", 3),
    "gt": (">", 3),
    "ge": (">=", 3),
    "eq": ("==", 3),
    "ne": ("!=", 3),
    "and": ("and", 2),
    "or": ("or", 1),
}
"""Operation -> (sign, precedence)."""


def expr_text(e: Expr, outer: int = 0) -> str:
    """An expression in infix form, with brackets where precedence needs them."""
    match e:
        case Const(value, dtype):
            return f"{value}" if dtype in (INDEX, "bool", COMPUTE) else f"{dtype}({value})"
        case LookupTable(values):
            return f"table {bytes(value & 255 for value in values).hex()}"
        case Var(name):
            return name
        case Acc():
            return f"acc{e.part}" if e.part else "acc"
        case Load(operand, index):
            return f"{operand}[{_list(index)}]"
        case Op(name, (a, b)) if name in INFIX:
            sign, strength = INFIX[name]
            text = f"{expr_text(a, strength)} {sign} {expr_text(b, strength + 1)}"
            return f"({text})" if strength < outer else text
        case Op(name, args):
            return f"{name}({_list(args)})"
        case Select(condition, then, otherwise):
            return f"select({_list((condition, then, otherwise))})"
        case Cast(value, dtype):
            return f"{dtype}({expr_text(value)})"
        case _:
            assert_never(e)


def to_text(program: Program) -> str:
    """The whole Program. Ends with a newline."""
    return "\n".join(_program(program)) + "\n"


def _list(parts: tuple[Expr, ...]) -> str:
    return ", ".join(expr_text(p) for p in parts)


def _program(p: Program) -> Iterator[str]:
    yield f"program {p.name}({', '.join(p.inputs)}) -> ({', '.join(p.outputs)})"
    yield f"memory: arena {p.arena_bytes}, weights {p.weight_bytes}, worker-local {p.scratch_bytes} bytes"
    yield "buffers:"
    width = max((len(b.id) for b in p.buffers), default=0)
    yield from (f"  {b.id:<{width}} {_buffer(b)}" for b in p.buffers)
    for table in p.tables:
        yield f"table {table.id}: {', '.join(table.columns)}"
        yield from (f"  {n}: {', '.join(row)}" for n, row in enumerate(table.rows))
    for counter in p.counters:
        yield f"counter {counter.id}{list(counter.shape)}"
    for item in p.body:
        if isinstance(item, Loop):
            yield f"loop {item.var} in {item.count}" + (f" over table {item.table}" if item.table else "")
            for inner in item.body:
                yield from ("  " + line for line in _step(inner))
        else:
            yield from _step(item)


def _buffer(b: Buffer) -> str:
    place = f"#{b.offset}" if b.space in ("input", "output") else f"@{b.offset}, {b.nbytes} bytes, align {b.align}"
    layout = "" if b.layout == Layout.row_major(b.shape) else f", {_layout(b.layout)}"
    return f"{b.dtype}{list(b.shape)} {b.space} {place}{layout}"


def _layout(layout: Layout) -> str:
    dims = " x ".join("(" + ", ".join(f"{f}:{s}" for f, s in dim) + ")" for dim in layout.dims)
    return f"layout {dims} of {layout.size} elements"


def _step(item: Phase | Barrier) -> Iterator[str]:
    if isinstance(item, Barrier):
        yield f"barrier {item.id}"
        return
    origin = ", ".join(str(o) for o in item.origin)
    yield f"phase {item.id}" + (f"  # {origin}" if origin else "")
    domain = ", ".join(f"{a.var} in {a.extent}" for a in item.domain) or "one task"
    yield f"  tasks: {domain}; {_assign(item)}" + (f"; {item.flops} flops" if item.flops else "")
    for p in item.prefetches:
        yield f"  prefetch {p.phase}.{p.role}" + (f" into {p.into}" if p.into else "")
    for w in item.waits:
        yield f"  wait {w.counter}[{_list(w.index)}] >= {expr_text(w.at_least)}"
    yield from ("  " + line for line in _task(item.task))
    for s in item.signals:
        yield f"  signal {s.counter}[{_list(s.index)}] += {s.add}"


def _assign(phase: Phase) -> str:
    a = phase.assign
    owner = "" if a.owner is None else f" in group {a.group} by {expr_text(a.owner)} of {a.owners}"
    return a.kind + owner + (f", order {', '.join(a.order)}" if a.order else "")


def _task(task: Task) -> Iterator[str]:
    params = ", ".join(f"{k}={task.params[k]}" for k in sorted(task.params))
    yield task.template + (f" {params}" if params else "")
    yield from ("  " + _operand(o) for o in task.operands)
    if task.local:
        yield f"  local {', '.join(task.local)}"
    if task.mainloop is not None:
        loop = task.mainloop
        yield f"  main loop over {loop.axis} by {loop.step}, {loop.stages} stages, {loop.mechanism}"
    if task.split is not None:
        split = task.split
        scratch = _name(split.scratch)
        yield f"  split {split.axis} into {split.parts} parts in {scratch}"
    for name in sorted(task.prologue):
        yield f"  {name} = {expr_text(task.prologue[name])}"
    yield from ("  " + line for line in _body(task.body))
    for r in task.results:
        ends = [f"{a} < {expr_text(b)}" for a, b in zip(r.axes, r.bounds, strict=False) if b is not None]
        bounds = f" while {' and '.join(ends)}" if ends else ""
        yield f"  for {', '.join(r.axes)}{bounds}: {r.operand}[{_list(r.index)}] = {expr_text(r.value)}"


def _operand(o: Operand) -> str:
    return f"{o.access} {o.role} = {_name(o.buffer)}{_box(o.box)}" + (" stable" if o.stable else "")


def _name(buffer: str | Slot) -> str:
    return f"{buffer.table}.{buffer.column}" if isinstance(buffer, Slot) else buffer


def _box(box: Box) -> str:
    """Per dimension ``offset ..+size <bound``, or only the size where the box takes all."""
    dims = (
        f"{size}" if isinstance(o, Const) and o.value == 0 and size == bound else f"{expr_text(o)} ..+{size} <{bound}"
        for o, size, bound in zip(box.offset, box.size, box.bound, strict=True)
    )
    return f"[{', '.join(dims)}]"


def _body(body: tuple[Statement, ...]) -> Iterator[str]:
    for s in body:
        match s:
            case For():
                bound = "" if s.bound is None else f" while {s.var} < {expr_text(s.bound)}"
                yield f"for {s.var} in {s.extent}{bound} ({s.kind})"
                yield from ("  " + line for line in _body(s.body))
            case Let():
                yield f"{s.name} = {expr_text(s.value)}"
            case Reduce():
                yield f"{s.name} = {s.op} over {s.var} in {s.extent} of {expr_text(s.value)}"
            case Store():
                yield f"{s.operand}[{_list(s.index)}] = {expr_text(s.value)}"
