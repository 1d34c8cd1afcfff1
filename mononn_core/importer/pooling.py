"""Converters of poolings: reductions of windows, channels last as convolutions have them."""

from __future__ import annotations

from math import prod

import numpy as np

from mononn_core.graph import TensorType
from mononn_core.importer.context import Context, converts
from mononn_core.importer.convolution import PLACE, Frame, channels_first, channels_last, fit, frame, windowed
from mononn_core.ops.reduce import neutral

MOST_COMPARISONS = 0.5
"""Of those of windows, that are made along one axis after the other: what is between is stored."""


def clipped(f: Frame, spatial: tuple[int, ...]) -> Frame:
    """The frame without the first and last places of its windows that lie outside the image in each of them; for
    reductions that these do not count in."""
    axes = [_clipped_axis(f, axis, n) for axis, n in enumerate(spatial)]
    kernel, before, after = (tuple(column) for column in zip(*axes, strict=True))
    return Frame(kernel, f.strides, f.dilations, before, after, (0,) * f.rank)


def _clipped_axis(f: Frame, axis: int, n: int) -> tuple[int, int, int]:
    """(kernel, before, after) of one axis of n pixels; what ceil_mode adds lies in the last."""
    k, s, d, before = f.kernel[axis], f.strides[axis], f.dilations[axis], f.before[axis]
    after = f.after[axis] + f.overhang[axis]
    last = (n + before + after - (k - 1) * d - 1) // s * s - before  # where the last window starts
    first_place, end_place = max(0, -last // d), min(k, (n - 1 + before) // d + 1)
    if first_place >= end_place:
        return k, before, after
    kernel, start = end_place - first_place, before - first_place * d
    room = last + before + (kernel - 1) * d + 1 - start - n
    unlike = start < 0 or (room < 0 and -room >= s)  # the image would have to be cut, or have another window
    return (k, before, after) if unlike else (kernel, start, max(room, 0))


def pooled(ctx: Context, op: str, x: str, f: Frame, value: float | int = 0.0) -> str:
    """The windows of [N, C, n..] reduced by ``op``, which ``value`` outside the image does not change."""
    if f.rank == 1:  # an image of one column, as a convolution has it
        shape, column = ctx.type(x).shape, Frame(*((*getattr(f, name), one) for name, one in PLACE.items()))
        y = pooled(ctx, op, ctx.reshape(x, (*shape, 1)), column, value)
        return ctx.reshape(y, ctx.type(y).shape[:-1])
    f, taps = clipped(f, ctx.type(x).shape[2:]), tuple(range(1, 1 + f.rank))
    x = channels_last(ctx, x)
    for part in along_axes(f) if op == "reduce_max" else [f]:
        x = ctx.add(op, windowed(ctx, x, part, value, axis=1), axes=taps, keepdims=False)
    return channels_first(ctx, x)


def along_axes(f: Frame) -> list[Frame]:
    """Frames of one axis each, one after the other, whose largest elements are those of ``f``, where that makes far
    fewer comparisons: the last axis first, of all rows, since few of them are left out."""
    comparisons, pixels, found = 0.0, float(prod(f.strides)), []
    for axis in reversed(range(f.rank)):
        alone = Frame(
            *((place,) * axis + (getattr(f, n)[axis],) + (place,) * (f.rank - 1 - axis) for n, place in PLACE.items())
        )
        pixels /= f.strides[axis]
        if any(getattr(f, name)[axis] != place for name, place in PLACE.items()):
            comparisons += f.kernel[axis] * pixels
            found.append(alone)
    return found if len(found) > 1 and comparisons <= MOST_COMPARISONS * prod(f.kernel) else [f]


@converts("MaxPool")
def max_pool(ctx: Context) -> tuple[str, ...]:
    """The second output holds the position of each maximum in the flattened input."""
    x = ctx.type(0)
    f = frame(ctx, tuple(int(k) for k in ctx.attr("kernel_shape")), x.shape[2:])
    if len(ctx.node.outputs) < 2 or not ctx.node.outputs[1]:
        return (pooled(ctx, "reduce_max", ctx.input(0), f, neutral(x.dtype, largest=True)),)
    windows = windowed(ctx, ctx.input(0), f, neutral(x.dtype, largest=True))
    taps = tuple(range(2, 2 + f.rank))
    top = ctx.add("reduce_max", windows, axes=taps, keepdims=False)
    order = tuple(range(2)) + tuple(reversed(taps)) if ctx.attr("storage_order", 0) else tuple(range(x.rank))
    numbers = np.arange(x.size, dtype="int64").reshape([x.shape[a] for a in order]).transpose(np.argsort(order))
    positions = windowed(ctx, ctx.make(numbers), f, 0)
    outputs = ctx.type(top).shape
    flat = (*outputs[:2], prod(f.kernel), *outputs[2:])
    chosen = ctx.add("argmax", ctx.reshape(windows, flat), axis=2, keepdims=True)
    found = ctx.add("gather_elements", ctx.reshape(positions, flat), chosen, axis=2)
    return top, ctx.reshape(found, outputs)


@converts("AveragePool")
def average_pool(ctx: Context) -> str:
    """Over the elements inside the input, or inside its padding with ``count_include_pad``."""
    x = ctx.type(0)
    f = frame(ctx, tuple(int(k) for k in ctx.attr("kernel_shape")), x.shape[2:])
    if not any((*f.before, *f.after, *f.overhang)):
        return pooled(ctx, "reduce_mean", ctx.input(0), f)
    total = pooled(ctx, "reduce_sum", ctx.input(0), f)
    counts = ctx.make(1, x.dtype)
    for axis, extent in enumerate(ctx.type(total).shape[2:]):
        counts = ctx.add("mul", counts, ctx.make(_counted(ctx, f, axis, extent, x), x.dtype))
    return ctx.add("div", total, counts)


def _counted(ctx: Context, f: Frame, axis: int, windows: int, x: TensorType) -> np.ndarray:
    """How many places of each window along an axis count: those inside the image, or inside its padding too; shaped to
    broadcast over [N, C, ..]."""
    n, inclusive = x.shape[2 + axis], bool(ctx.attr("count_include_pad", 0))
    low, high = (-f.before[axis], n + f.after[axis]) if inclusive else (0, n)
    starts = np.arange(windows)[:, None] * f.strides[axis] - f.before[axis]
    places = starts + np.arange(f.kernel[axis]) * f.dilations[axis]
    counts = ((places >= low) & (places < high)).sum(1)
    return np.asarray(counts.reshape(-1, *(1,) * (f.rank - axis - 1)))


@converts("LpPool")
def lp_pool(ctx: Context) -> str:
    f = frame(ctx, tuple(int(k) for k in ctx.attr("kernel_shape")), ctx.type(0).shape[2:])
    windows = windowed(ctx, ctx.input(0), clipped(f, ctx.type(0).shape[2:]))
    return _lp(ctx, windows, tuple(range(2, 2 + f.rank)), False)


def _lp(ctx: Context, x: str, axes: tuple[int, ...], keepdims: bool) -> str:
    """The p-norm over some axes."""
    p = float(ctx.attr("p", 2))
    size = ctx.add("abs", x)
    if p == 1.0:
        return ctx.add("reduce_sum", size, axes=axes, keepdims=keepdims)
    total = ctx.add("reduce_sum", ctx.add("pow", size, ctx.like(p, x)), axes=axes, keepdims=keepdims)
    return ctx.add("pow", total, ctx.like(1 / p, x))


@converts("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(ctx: Context) -> str:
    axes = tuple(range(2, ctx.type(0).rank))
    if ctx.node.op_type == "GlobalLpPool":
        return _lp(ctx, ctx.input(0), axes, True)
    op = "reduce_mean" if ctx.node.op_type == "GlobalAveragePool" else "reduce_max"
    return ctx.add(op, ctx.input(0), axes=axes, keepdims=True)


@converts("MaxUnpool")
def max_unpool(ctx: Context) -> str:
    """Scatters the values back to the positions MaxPool reported."""
    x = ctx.type(0)
    kernel = [int(k) for k in ctx.attr("kernel_shape")]
    d = len(kernel)
    strides, pads = ctx.attr("strides", [1] * d), ctx.attr("pads", [0] * 2 * d)
    sizes = [
        (n - 1) * s - a - b + k for n, s, a, b, k in zip(x.shape[2:], strides, pads[:d], pads[d:], kernel, strict=True)
    ]
    inferred = (*x.shape[:2], *sizes)
    output = tuple(int(n) for n in ctx.constant(2, "output shape")) if ctx.has(2) else inferred
    empty = ctx.make(np.zeros(prod(inferred)), x.dtype)
    flat = [ctx.reshape(ctx.input(i), (x.size,)) for i in range(2)]
    y = ctx.reshape(ctx.add("scatter_elements", empty, flat[1], flat[0], axis=0, reduction="none"), inferred)
    for axis in range(2, 2 + d):
        y = fit(ctx, y, axis, 0, output[axis] - inferred[axis])
    return y
