"""Converters of convolutions and poolings.

Two-dimensional convolutions in floating point become ``conv``, which has its channels last; all others a product over
sliding windows. Poolings are reductions of windows, channels last too. The transpositions around them meet and cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.importer.context import Context, converts
from mononn_core.importer.movement import sliced


@dataclass(frozen=True)
class Frame:
    """Geometry of sliding windows over d spatial axes; ``after`` includes what ceil_mode adds."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    overhang: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)


def frame(ctx: Context, kernel: tuple[int, ...], spatial: tuple[int, ...]) -> Frame:
    """Strides, dilations and padding of a Conv or a pooling node."""
    d = len(kernel)
    strides = tuple(int(v) for v in ctx.attr("strides", [1] * d))
    dilations = tuple(int(v) for v in ctx.attr("dilations", [1] * d))
    pads = [int(v) for v in ctx.attr("pads", [0] * 2 * d)]
    spans = [(k - 1) * w + 1 for k, w in zip(kernel, dilations, strict=True)]
    mode = ctx.attr("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        totals = [max((-(-n // s) - 1) * s + span - n, 0) for n, s, span in zip(spatial, strides, spans, strict=True)]
        small = [t // 2 for t in totals]
        large = [t - t // 2 for t in totals]
        pads = small + large if mode == "SAME_UPPER" else large + small
    elif mode == "VALID":
        pads = [0] * 2 * d
    before, after = pads[:d], pads[d:]
    overhang = [0] * d
    if ctx.attr("ceil_mode", 0):
        for i, (n, s, span) in enumerate(zip(spatial, strides, spans, strict=True)):
            room = n + before[i] + after[i] - span
            count = -(-room // s) + 1
            if (count - 1) * s >= n + before[i]:
                count -= 1
            overhang[i] = max((count - 1) * s - room, 0)
    return Frame(kernel, strides, dilations, tuple(before), tuple(after), tuple(overhang))


def padded(ctx: Context, x: str, f: Frame, value: float | int, axis: int = 2) -> str:
    """``x`` padded over the axes of the frame, which begin at ``axis``."""
    lead, tail = (0,) * axis, (0,) * (ctx.type(x).rank - axis - f.rank)
    after = tuple(a + o for a, o in zip(f.after, f.overhang, strict=True))
    if not any(f.before) and not any(after):
        return x
    widths = {"before": lead + f.before + tail, "after": lead + after + tail}
    return ctx.add("pad", x, **widths, mode="constant", value=value)


def windowed(ctx: Context, x: str, f: Frame, value: float | int = 0.0, axis: int = 2) -> str:
    """All windows of padded ``x``: [lead.., kernel.., outputs.., tail..]."""
    x = padded(ctx, x, f, value, axis)
    return ctx.add("windows", x, axis=axis, kernel=f.kernel, strides=f.strides, dilations=f.dilations)


def channels_last(ctx: Context, x: str) -> str:
    """[N, C, n..] as [N, n.., C]."""
    return ctx.add("transpose", x, perm=(0, *range(2, ctx.type(x).rank), 1))


def channels_first(ctx: Context, x: str) -> str:
    """[N, n.., C] as [N, C, n..]."""
    rank = ctx.type(x).rank
    return ctx.add("transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))


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
    f = clipped(f, ctx.type(x).shape[2:])
    windows = windowed(ctx, channels_last(ctx, x), f, value, axis=1)
    taps = tuple(range(1, 1 + f.rank))
    return channels_first(ctx, ctx.add(op, windows, axes=taps, keepdims=False))


def convolve(ctx: Context, x: str, w: str, f: Frame, group: int, bias: str = "") -> str:
    """Grouped convolution of x [N, C, n..] with w [M, C / group, kernel..], plus a bias [M] when there is one."""
    t, m = ctx.type(x), ctx.type(w).shape[0]
    c = t.shape[1]
    if c % group or m % group or ctx.type(w).shape[1] != c // group:
        raise ShapeError(
            f"{ctx.origin}: {t} and weight {ctx.type(w)} do not fit {group} groups; check the shapes given"
        )
    if f.rank == 2 and "float" in t.dtype:
        planes = padded(ctx, channels_last(ctx, x), f, 0.0, axis=1)
        kernel = ctx.add("transpose", w, perm=(2, 3, 1, 0))
        y = ctx.add("conv", planes, kernel, strides=f.strides, dilations=f.dilations, group=group)
        return channels_first(ctx, ctx.add("add", y, bias) if bias else y)
    y = _product_of_windows(ctx, x, w, f, group)
    return ctx.add("add", y, ctx.reshape(bias, (m, *(1,) * f.rank))) if bias else y


def _product_of_windows(ctx: Context, x: str, w: str, f: Frame, group: int) -> str:
    t, m = ctx.type(x), ctx.type(w).shape[0]
    n, c = t.shape[:2]
    zero = 0.0 if "float" in t.dtype else 0
    windows = windowed(ctx, x, f, zero)
    outputs = ctx.type(windows).shape[2 + f.rank :]
    taps = c // group * prod(f.kernel)
    columns = ctx.reshape(windows, (n, group, taps, prod(outputs)))
    rows = ctx.reshape(w, (group, m // group, taps))
    return ctx.reshape(ctx.add("matmul", rows, columns), (n, m, *outputs))


def _optional(ctx: Context, position: int) -> str:
    return ctx.input(position) if ctx.has(position) else ""


@converts("Conv")
def convolution(ctx: Context) -> str:
    kernel = ctx.type(1).shape[2:]
    f = frame(ctx, kernel, ctx.type(0).shape[2:])
    return convolve(ctx, ctx.input(0), ctx.input(1), f, int(ctx.attr("group", 1)), _optional(ctx, 2))


@converts("ConvTranspose")
def transposed_convolution(ctx: Context) -> str:
    """A convolution with the flipped kernel over the input with ``stride - 1`` zeros between its elements."""
    x, w = ctx.input(0), ctx.input(1)
    t, group = ctx.type(x), int(ctx.attr("group", 1))
    c, per_group, *kernel = ctx.type(w).shape
    d = len(kernel)
    strides = [int(v) for v in ctx.attr("strides", [1] * d)]
    dilations = [int(v) for v in ctx.attr("dilations", [1] * d)]
    extra = [int(v) for v in ctx.attr("output_padding", [0] * d)]
    spans = [(k - 1) * w_ + 1 for k, w_ in zip(kernel, dilations, strict=True)]
    begins, ends = _transposed_pads(ctx, t.shape[2:], strides, spans, extra)
    x = _spread(ctx, x, strides)
    for axis in range(d):
        before = spans[axis] - 1 - begins[axis]
        after = spans[axis] - 1 - ends[axis] + extra[axis]
        x = _fit(ctx, x, 2 + axis, before, after)
    split = ctx.reshape(w, (group, c // group, per_group, *kernel))
    swapped = ctx.add("transpose", split, perm=(0, 2, 1, *range(3, 3 + d)))
    weight = ctx.reshape(swapped, (group * per_group, c // group, *kernel))
    starts = [0, 0, *(k - 1 for k in kernel)]
    weight = sliced(ctx, weight, starts, list(ctx.type(weight).shape), [1, 1, *(-1 if k > 1 else 1 for k in kernel)])
    plain = Frame(tuple(kernel), (1,) * d, tuple(dilations), (0,) * d, (0,) * d, (0,) * d)
    return convolve(ctx, x, weight, plain, group, _optional(ctx, 2))


def _transposed_pads(
    ctx: Context, spatial: tuple[int, ...], strides: list[int], spans: list[int], extra: list[int]
) -> tuple[list[int], list[int]]:
    d = len(spatial)
    full = [s * (n - 1) + e + span for n, s, e, span in zip(spatial, strides, extra, spans, strict=True)]
    shape, mode = ctx.attr("output_shape"), ctx.attr("auto_pad", "NOTSET")
    if shape is None and not mode.startswith("SAME"):
        pads = [int(v) for v in ctx.attr("pads", [0] * 2 * d)]
        return pads[:d], pads[d:]
    wanted = (
        [int(v) for v in shape[-d:]] if shape is not None else [n * s for n, s in zip(spatial, strides, strict=True)]
    )
    totals = [max(f - w, 0) for f, w in zip(full, wanted, strict=True)]
    for i in range(d):
        extra[i] += max(wanted[i] - full[i], 0)
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def _spread(ctx: Context, x: str, strides: list[int]) -> str:
    """``stride - 1`` zeros after each element but the last, along each spatial axis."""
    for axis, stride in enumerate(strides, start=2):
        dims = ctx.type(x).shape
        if stride == 1:
            continue
        x = ctx.reshape(x, (*dims[: axis + 1], 1, *dims[axis + 1 :]))
        after = tuple(stride - 1 if a == axis + 1 else 0 for a in range(len(dims) + 1))
        value = 0.0 if "float" in ctx.type(x).dtype else 0
        x = ctx.add("pad", x, before=(0,) * (len(dims) + 1), after=after, mode="constant", value=value)
        x = ctx.reshape(x, (*dims[:axis], dims[axis] * stride, *dims[axis + 1 :]))
        x = _fit(ctx, x, axis, 0, 1 - stride)
    return x


def _fit(ctx: Context, x: str, axis: int, before: int, after: int) -> str:
    """``x`` padded with zeros along one axis, or cropped where a number is negative."""
    dims = list(ctx.type(x).shape)
    starts = [0] * len(dims)
    starts[axis] = max(-before, 0)
    dims[axis] += min(before, 0) + min(after, 0)
    x = sliced(ctx, x, starts, dims, [1] * len(dims))
    if before <= 0 and after <= 0:
        return x
    low = tuple(max(before, 0) if a == axis else 0 for a in range(len(dims)))
    high = tuple(max(after, 0) if a == axis else 0 for a in range(len(dims)))
    value = 0.0 if "float" in ctx.type(x).dtype else 0
    return ctx.add("pad", x, before=low, after=high, mode="constant", value=value)


def _lowest(dtype: str) -> float | int:
    return float("-inf") if "float" in dtype else int(np.iinfo(dtype).min)


@converts("MaxPool")
def max_pool(ctx: Context) -> tuple[str, ...]:
    """The second output holds the position of each maximum in the flattened input."""
    x = ctx.type(0)
    f = frame(ctx, tuple(int(k) for k in ctx.attr("kernel_shape")), x.shape[2:])
    if len(ctx.node.outputs) < 2 or not ctx.node.outputs[1]:
        return (pooled(ctx, "reduce_max", ctx.input(0), f, _lowest(x.dtype)),)
    windows = windowed(ctx, ctx.input(0), f, _lowest(x.dtype))
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
        y = _fit(ctx, y, axis, 0, output[axis] - inferred[axis])
    return y


@converts("Col2Im")
def columns_to_image(ctx: Context) -> str:
    """Adds every column block back at its position: a scatter of sums over constant positions."""
    image = tuple(int(n) for n in ctx.constant(1, "image shape"))
    block = tuple(int(n) for n in ctx.constant(2, "block shape"))
    f = frame(ctx, block, image)
    n, ck, count = ctx.type(0).shape
    c = ck // prod(block)
    whole = tuple(a + i + b for a, i, b in zip(f.before, image, f.after, strict=True))
    numbers = np.arange(n * c * prod(whole), dtype="int64").reshape(n, c, *whole)
    spread = {"strides": f.strides, "dilations": f.dilations}
    positions = ctx.add("windows", ctx.make(numbers), axis=2, kernel=f.kernel, **spread)
    size = n * ck * count
    x = ctx.reshape(ctx.input(0), (size,))
    empty = ctx.make(np.zeros(n * c * prod(whole)), ctx.type(x).dtype)
    y = ctx.add("scatter_elements", empty, ctx.reshape(positions, (size,)), x, axis=0, reduction="add")
    starts = [0, 0, *f.before]
    return sliced(ctx, ctx.reshape(y, (n, c, *whole)), starts, [n, c, *image], [1] * len(starts))
