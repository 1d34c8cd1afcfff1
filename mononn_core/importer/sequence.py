"""Converters of ONNX sequences and optionals, which exist only while importing."""

from __future__ import annotations

from collections.abc import Sequence

from mononn_core.importer.context import Context, Value, converts
from mononn_core.importer.movement import part


def items(ctx: Context, position: int) -> tuple[str, ...]:
    """The tensors of a sequence input."""
    value = ctx.operands[position]
    if isinstance(value, str):
        raise ctx.unsupported(f"input {position} is a tensor where a sequence is needed")
    return value


def place(ctx: Context, position: int, size: int) -> int:
    """A (constant) position in a sequence."""
    index = int(ctx.constant(position, "position").reshape(()))
    return index + size if index < 0 else index


@converts("SequenceEmpty", "SequenceConstruct")
def construct(ctx: Context) -> Sequence[Value]:
    return [tuple(ctx.inputs())]


@converts("SequenceAt")
def at(ctx: Context) -> str:
    parts = items(ctx, 0)
    return parts[place(ctx, 1, len(parts))]


@converts("SequenceLength")
def length(ctx: Context) -> str:
    return ctx.make(len(items(ctx, 0)), "int64")


@converts("SequenceInsert")
def insert(ctx: Context) -> Sequence[Value]:
    parts = list(items(ctx, 0))
    parts.insert(place(ctx, 2, len(parts)) if ctx.has(2) else len(parts), ctx.input(1))
    return [tuple(parts)]


@converts("SequenceErase")
def erase(ctx: Context) -> Sequence[Value]:
    parts = list(items(ctx, 0))
    del parts[place(ctx, 1, len(parts)) if ctx.has(1) else -1]
    return [tuple(parts)]


@converts("ConcatFromSequence")
def concatenate(ctx: Context) -> str:
    parts = items(ctx, 0)
    rank = ctx.type(parts[0]).rank
    if not ctx.attr("new_axis", 0):
        return ctx.add("concat", *parts, axis=ctx.axis(0, rank))
    axis = ctx.axis(0, rank + 1)
    shapes = [ctx.type(p).shape for p in parts]
    lifted = [ctx.reshape(p, (*s[:axis], 1, *s[axis:])) for p, s in zip(parts, shapes, strict=True)]
    return ctx.add("concat", *lifted, axis=axis)


@converts("SplitToSequence")
def split(ctx: Context) -> Sequence[Value]:
    x = ctx.type(0)
    axis = ctx.axis(0, x.rank)
    extent = x.shape[axis]
    if ctx.has(1):
        value = ctx.constant(1, "split")
        step = int(value.reshape(-1)[0])
        sizes = [int(n) for n in value] if value.ndim else [min(step, extent - k) for k in range(0, extent, step)]
        keep = True
    else:
        sizes, keep = [1] * extent, bool(ctx.attr("keepdims", 1))
    parts = [part(ctx, ctx.input(0), axis, sum(sizes[:k]), n) for k, n in enumerate(sizes)]
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [tuple(parts if keep else (ctx.reshape(p, shape) for p in parts))]


@converts("Optional", "OptionalGetElement")
def optional(ctx: Context) -> Sequence[Value]:
    if not ctx.has(0):
        raise ctx.unsupported("empty optionals are not supported")
    return [ctx.operands[0]]


@converts("OptionalHasElement")
def has_element(ctx: Context) -> str:
    return ctx.make(ctx.has(0), "bool")
