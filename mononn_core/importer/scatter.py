"""Converters of ONNX operators that write at, or sort by, data-dependent positions."""

from __future__ import annotations

import numpy as np

from mononn_core.importer.context import Context, converts
from mononn_core.importer.gather import indices


@converts("ScatterElements", "Scatter")
def scatter_elements(ctx: Context) -> str:
    axis = ctx.axis(0, ctx.type(0).rank)
    how = ctx.attr("reduction", "none")
    return ctx.add("scatter_elements", ctx.input(0), indices(ctx, 1), ctx.input(2), axis=axis, reduction=how)


@converts("ScatterND")
def scatter_nd(ctx: Context) -> str:
    if ctx.type(1).size == ctx.type(2).size == 0:  # exporters write an empty slice's assignment in any shape
        return ctx.input(0)
    return ctx.add("scatter_nd", ctx.input(0), indices(ctx, 1), ctx.input(2), reduction=ctx.attr("reduction", "none"))


@converts("TopK")
def top_k(ctx: Context) -> tuple[str, str]:
    """Always sorted; ``sorted = 0`` allows any order."""
    value = ctx.parameter("k")
    assert value is not None
    axis = ctx.axis(-1, ctx.type(0).rank)
    order = ctx.add("order", ctx.input(0), axis=axis, k=int(value.reshape(-1)[0]), largest=bool(ctx.attr("largest", 1)))
    return ctx.add("gather_elements", ctx.input(0), order, axis=axis), order


@converts("Compress")
def compress(ctx: Context) -> str:
    """By a condition known when compiling."""
    kept = np.flatnonzero(ctx.constant(1, "condition")).astype("int64")
    if "axis" not in ctx.node.attrs:
        return ctx.add("gather", ctx.reshape(ctx.input(0), (ctx.type(0).size,)), ctx.make(kept), axis=0)
    return ctx.add("gather", ctx.input(0), ctx.make(kept), axis=ctx.axis(0, ctx.type(0).rank))


@converts("ReverseSequence")
def reverse_sequence(ctx: Context) -> str:
    """Element t of a sequence of length n is its element n - 1 - t, for t < n."""
    x = ctx.type(0)
    time, batch = int(ctx.attr("time_axis", 0)), int(ctx.attr("batch_axis", 1))
    lengths = ctx.reshape(indices(ctx, 1), tuple(n if d == batch else 1 for d, n in enumerate(x.shape)))
    dtype = ctx.type(lengths).dtype
    steps = np.arange(x.shape[time]).reshape([-1 if d == time else 1 for d in range(x.rank)])
    t = ctx.make(steps, dtype)
    mirrored = ctx.add("sub", ctx.add("sub", lengths, ctx.make(1, dtype)), t)
    position = ctx.add("where", ctx.add("less", t, lengths), mirrored, t)
    return ctx.add("gather_elements", ctx.input(0), ctx.add("expand", position, shape=x.shape), axis=time)


@converts("TensorScatter")
def tensor_scatter(ctx: Context) -> str:
    """Writes a block into a cache at each sequence's position: every cache row reads its update, or itself."""
    cache, update = ctx.type(0), ctx.type(1)
    axis = ctx.axis(-2, cache.rank)
    length, count = cache.shape[axis], update.shape[axis]
    rows = np.arange(length).reshape([-1 if d == axis else 1 for d in range(cache.rank)])
    start = (
        ctx.reshape(indices(ctx, 2), (-1 if ctx.type(2).size == 0 else ctx.type(2).size, *(1,) * (cache.rank - 1)))
        if ctx.has(2)
        else ctx.make(0, "int64")
    )
    dtype = ctx.type(start).dtype
    offset = ctx.add("sub", ctx.make(rows, dtype), start)
    if ctx.attr("mode", "linear") == "circular":
        offset = ctx.add("mod", offset, ctx.make(length, dtype), fmod=False)
    inside = ctx.add(
        "and", ctx.add("greater_equal", offset, ctx.make(0, dtype)), ctx.add("less", offset, ctx.make(count, dtype))
    )
    position = ctx.add("expand", ctx.add("clip", offset, low=0, high=count - 1), shape=cache.shape)
    moved = ctx.add("gather_elements", ctx.input(1), position, axis=axis)
    return ctx.add("where", inside, moved, ctx.input(0))


@converts("Unique")
def unique(ctx: Context) -> tuple[str, ...]:
    """Of constants: the result's shape depends on the data."""
    axis = ctx.attr("axis")
    values, first, inverse, counts = np.unique(
        ctx.constant(0, "result's shape"), return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    if not ctx.attr("sorted", 1):
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return tuple(
        ctx.make(v if v is values else v.reshape(-1).astype("int64")) for v in (values, first, inverse, counts)
    )
