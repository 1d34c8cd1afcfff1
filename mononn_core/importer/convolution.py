"""Converters of convolutions.

Convolutions of one to three axes of floats or bytes become ``conv``, which has its channels last; all others a product
over sliding windows. The transpositions around them, and around poolings, meet and cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np

from mononn_core.element import BYTES
from mononn_core.errors import ShapeError
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


MOST_PHASES = 16
"""Of a transposed convolution of channels alone, a convolution each."""
PLACE = {"kernel": 1, "strides": 1, "dilations": 1, "before": 0, "after": 0, "overhang": 0}
"""What a frame is along an axis of one place."""


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


def convolve(ctx: Context, x: str, w: str, f: Frame, group: int, bias: str = "") -> str:
    """Grouped convolution of x [N, C, n..] with w [M, C / group, kernel..], plus a bias [M] when there is one."""
    t, m = ctx.type(x), ctx.type(w).shape[0]
    c = t.shape[1]
    if c % group or m % group or ctx.type(w).shape[1] != c // group:
        raise ShapeError(
            f"{ctx.origin}: {t} and weight {ctx.type(w)} do not fit {group} groups; check the shapes given"
        )
    images = "float" in t.dtype or t.dtype in BYTES
    if f.rank == 1 and images:  # an image of one column, since image rows are what workers share
        column = Frame(*((*getattr(f, field), new) for field, new in PLACE.items()))
        y = convolve(ctx, ctx.reshape(x, (*t.shape, 1)), ctx.reshape(w, (*ctx.type(w).shape, 1)), column, group, bias)
        return ctx.reshape(y, ctx.type(y).shape[:3])
    if f.rank <= 3 and images:
        y = _of_images(ctx, channels_last(ctx, x), w, f, group)
        return channels_first(ctx, ctx.add("add", y, bias) if bias else y)
    y = _product_of_windows(ctx, x, w, f, group)
    return ctx.add("add", y, ctx.reshape(bias, (m, *(1,) * f.rank))) if bias else y


def _of_images(ctx: Context, x: str, w: str, f: Frame, group: int) -> str:
    """Convolution of x [N, n.., C] with w [M, C / group, kernel..] of two or three axes, as one of images: the slices
    of a volume that a window reaches are channels of one image, or, in groups, images of their own whose results are
    added up."""
    n, *spatial, c = ctx.type(x).shape
    m, per_group = ctx.type(w).shape[:2]
    taps = ctx.add("transpose", w, perm=(*range(2, 2 + f.rank), 1, 0))

    def images(planes: str, weight: str, f: Frame) -> str:
        planes, weight, f = _clipped(ctx, planes, weight, f)
        planes = padded(ctx, planes, f, 0.0, axis=1)
        return ctx.add("conv", planes, weight, strides=f.strides, dilations=f.dilations, group=group)

    if f.rank == 2:
        return images(x, taps, f)
    along, plane = (Frame(*(getattr(f, field)[part] for field in PLACE)) for part in (slice(0, 1), slice(1, 3)))
    x = padded(ctx, x, along, 0.0, axis=1)
    (depth,), (stride,), (dilation,) = along.kernel, along.strides, along.dilations
    count = (ctx.type(x).shape[1] - (depth - 1) * dilation - 1) // stride + 1
    slices = []
    for i in range(depth):
        starts, steps = (0, i * dilation, 0, 0, 0), (1, stride, 1, 1, 1)
        part = ctx.add("slice", x, starts=starts, sizes=(n, count, *spatial[1:], c), steps=steps)
        slices.append(ctx.reshape(part, (n * count, *spatial[1:], c)))
    if group == 1:
        weight = ctx.add("transpose", taps, perm=(1, 2, 0, 3, 4))
        beside = ctx.add("concat", *slices, axis=3)
        y = images(beside, ctx.reshape(weight, (*plane.kernel, depth * c, m)), plane)
    else:
        each = (sliced(ctx, taps, [i, 0, 0, 0, 0], [1, *ctx.type(taps).shape[1:]], [1] * 5) for i in range(depth))
        weights = (ctx.reshape(part, (*plane.kernel, per_group, m)) for part in each)
        parts = (images(part, weight, plane) for part, weight in zip(slices, weights, strict=True))
        y = reduce(lambda a, b: ctx.add("add", a, b), parts)
    return ctx.reshape(y, (n, count, *ctx.type(y).shape[1:]))


def _clipped(ctx: Context, x: str, taps: str, f: Frame) -> tuple[str, str, Frame]:
    """Images x [N, n.., C], weights [kernel.., C / group, M] and their frame without the first and last taps that, for
    every output, see zeros around the image alone: those of a dilation that is larger than the image."""
    before, after, kernel, starts = list(f.before), list(f.after), list(f.kernel), [0] * f.rank
    shape = ctx.type(x).shape
    for i, (n, stride, wide) in enumerate(zip(shape[1:-1], f.strides, f.dilations, strict=True)):
        last = n + before[i] + after[i] - (kernel[i] - 1) * wide - 1
        reach = last // stride * stride - before[i]
        seen = [k for k in range(kernel[i]) if k * wide + reach >= 0 and k * wide - before[i] < n]
        if last < 0 or len(seen) in (0, kernel[i]):
            continue
        before[i] -= seen[0] * wide
        after[i] -= (kernel[i] - 1 - seen[-1]) * wide
        starts[i], kernel[i] = seen[0], seen[-1] - seen[0] + 1
    if tuple(kernel) == f.kernel:
        return x, taps, f
    taps = sliced(ctx, taps, [*starts, 0, 0], [*kernel, *ctx.type(taps).shape[-2:]], [1] * (f.rank + 2))
    low, high = ([0, *(max(-edge, 0) for edge in edges), 0] for edges in (before, after))  # of the image itself
    if any(low) or any(high):
        sizes = [n - a - b for n, a, b in zip(shape, low, high, strict=True)]
        x = sliced(ctx, x, low, sizes, [1] * len(shape))
    first, final = (tuple(max(edge, 0) for edge in edges) for edges in (before, after))
    return x, taps, Frame(tuple(kernel), f.strides, f.dilations, first, final, f.overhang)


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
    """A convolution with the flipped kernel over the input with ``stride - 1`` zeros between its elements, or, without
    dilations and of one group or as many as channels, what :func:`_in_phases` makes of it."""
    x, w = ctx.input(0), ctx.input(1)
    t, group = ctx.type(x), int(ctx.attr("group", 1))
    c, per_group, *kernel = ctx.type(w).shape
    d = len(kernel)
    strides = [int(v) for v in ctx.attr("strides", [1] * d)]
    dilations = [int(v) for v in ctx.attr("dilations", [1] * d)]
    extra = [int(v) for v in ctx.attr("output_padding", [0] * d)]
    spans = [(k - 1) * w_ + 1 for k, w_ in zip(kernel, dilations, strict=True)]
    begins, ends = _transposed_pads(ctx, t.shape[2:], strides, spans, extra)
    alone = group == c > per_group == 1 and prod(strides) <= MOST_PHASES
    if (group == 1 or alone) and max(strides) > 1 and max(dilations) == 1 and "float" in t.dtype:
        lost = [a + b - e for a, b, e in zip(begins, ends, extra, strict=True)]
        if d > 1:
            return _in_phases(ctx, x, w, strides, begins, lost)
        x, w = (ctx.reshape(name, (*ctx.type(name).shape, 1)) for name in (x, w))  # an image, as convolutions have it
        y = _in_phases(ctx, x, w, [*strides, 1], [*begins, 0], [*lost, 0])
        return ctx.reshape(y, ctx.type(y).shape[:-1])
    x = _spread(ctx, x, strides)
    for axis in range(d):
        before = spans[axis] - 1 - begins[axis]
        after = spans[axis] - 1 - ends[axis] + extra[axis]
        x = fit(ctx, x, 2 + axis, before, after)
    split = ctx.reshape(w, (group, c // group, per_group, *kernel))
    swapped = ctx.add("transpose", split, perm=(0, 2, 1, *range(3, 3 + d)))
    weight = ctx.reshape(swapped, (group * per_group, c // group, *kernel))
    starts = [0, 0, *(k - 1 for k in kernel)]
    weight = sliced(ctx, weight, starts, list(ctx.type(weight).shape), [1, 1, *(-1 if k > 1 else 1 for k in kernel)])
    plain = Frame(tuple(kernel), (1,) * d, tuple(dilations), (0,) * d, (0,) * d, (0,) * d)
    return convolve(ctx, x, weight, plain, group, _optional(ctx, 2))


def _in_phases(ctx: Context, x: str, w: str, strides: list[int], begins: list[int], lost: list[int]) -> str:
    """A transposed convolution as one of stride 1: the ``strides`` output pixels that begin at an input pixel are
    channels of its result, every one of them by its own part of the kernel (Shi et al., "Is the deconvolution layer the
    same as a convolutional layer?", 2016). ``begins`` elements are cut off in front, ``lost`` of all.
    Of channels alone each phase is a convolution of its own.
    """
    c, m, *kernel = ctx.type(w).shape
    n, _, *spatial = ctx.type(x).shape
    d, alone = len(kernel), int(ctx.attr("group", 1)) > 1
    places = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    for axis, (k, j, s) in enumerate(zip(kernel, places, strides, strict=True), start=2):
        w = fit(ctx, w, axis, 0, j * s - k)
    pairs = [extent for pair in zip(places, strides, strict=True) for extent in pair]
    w = ctx.reshape(w, (c, m, *pairs))
    backwards = [-1 if a >= 2 and a % 2 == 0 and e > 1 else 1 for a, e in enumerate((c, m, *pairs))]
    starts = [e - 1 if step < 0 else 0 for e, step in zip((c, m, *pairs), backwards, strict=True)]
    w = sliced(ctx, w, starts, [c, m, *pairs], backwards)
    margin = tuple(j - 1 for j in places)
    f = Frame(tuple(places), (1,) * d, (1,) * d, margin, margin, (0,) * d)
    if alone:  # one a phase, whose results lie side by side
        w = ctx.add("transpose", w, perm=(*range(3, 3 + 2 * d, 2), 0, 1, *range(2, 2 + 2 * d, 2)))
        w, one = ctx.reshape(w, (prod(strides), c, 1, *places)), (c, 1, *places)
        cut = [sliced(ctx, w, [p, *[0] * (d + 2)], [1, *one], [1] * (d + 3)) for p in range(prod(strides))]
        parts = [channels_last(ctx, convolve(ctx, x, ctx.reshape(part, one), f, c)) for part in cut]
        y, m = ctx.add("concat", *parts, axis=1 + d), c
    else:
        w = ctx.add("transpose", w, perm=(*range(3, 3 + 2 * d, 2), 1, 0, *range(2, 2 + 2 * d, 2)))
        y = channels_last(ctx, convolve(ctx, x, ctx.reshape(w, (prod(strides) * m, c, *places)), f, 1))
    counts = [size + j - 1 for size, j in zip(spatial, places, strict=True)]
    y = ctx.reshape(y, (n, *counts, *strides, m))
    beside = [axis for i in range(d) for axis in (1 + i, 1 + d + i)]
    y = ctx.add("transpose", y, perm=(0, *beside, 1 + 2 * d))
    y = channels_first(ctx, ctx.reshape(y, (n, *(q * s for q, s in zip(counts, strides, strict=True)), m)))
    for axis, (size, k, s, q) in enumerate(zip(spatial, kernel, strides, counts, strict=True)):
        wanted = (size - 1) * s + k - lost[axis]
        y = fit(ctx, y, 2 + axis, -begins[axis], wanted + begins[axis] - q * s)
    return ctx.add("add", y, ctx.reshape(ctx.input(2), (m, *(1,) * d))) if ctx.has(2) else y


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
        x = fit(ctx, x, axis, 0, 1 - stride)
    return x


def fit(ctx: Context, x: str, axis: int, before: int, after: int) -> str:
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
