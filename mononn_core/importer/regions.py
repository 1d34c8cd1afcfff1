"""Converters of operators on regions of images: samples between pixels, gathered and weighted."""

from __future__ import annotations

from itertools import product

import numpy as np

from mononn_core.importer.context import Context, converts
from mononn_core.importer.gather import indices
from mononn_core.importer.movement import part

Taps = list[tuple[str, str]]
"""(whole position, weight) of the pixels on both sides of samples, [regions, samples] each."""


def samples(ctx: Context, axis: int, bins: int, grid: int) -> Taps:
    """Where the ``grid`` samples of each of ``bins`` equal parts of every region lie along an axis (0: rows), between
    which pixels; no weight for what is more than a pixel outside."""
    rois, extent = ctx.input(1), ctx.type(0).shape[2 + axis]
    like = ctx.like
    half = ctx.attr("coordinate_transformation_mode", "half_pixel" if ctx.opset >= 16 else "output_half_pixel")
    ends = [
        ctx.add("mul", part(ctx, rois, 1, c, 1), like(ctx.attr("spatial_scale", 1.0), rois))
        for c in (1 - axis, 3 - axis)
    ]
    if half == "half_pixel":
        ends = [ctx.add("sub", end, like(0.5, end)) for end in ends]
    length = ctx.add("sub", ends[1], ends[0])
    if half != "half_pixel":
        length = ctx.add("max", length, like(1.0, length))
    steps = ctx.make(((np.arange(bins * grid) + 0.5) / (bins * grid)).reshape(1, -1), ctx.type(rois).dtype)
    x = ctx.add("add", ends[0], ctx.add("mul", length, steps))
    inside = ctx.add(
        "and", ctx.add("greater_equal", x, like(-1.0, x)), ctx.add("less_equal", x, like(float(extent), x))
    )
    x = ctx.add("clip", x, low=0.0, high=float(extent - 1))
    low = ctx.add("floor", x)
    upper = ctx.add("sub", x, low)
    taps = []
    for position, weight in ((low, ctx.add("sub", like(1.0, x), upper)), (ctx.add("add", low, like(1.0, x)), upper)):
        place = ctx.add("cast", ctx.add("clip", position, low=0.0, high=float(extent - 1)), to="int64")
        taps.append((place, ctx.add("where", inside, weight, like(0.0, x))))
    return taps


@converts("RoiAlign")
def roi_align(ctx: Context) -> str:
    """Mean, or the greatest weighted pixel, of the samples of each bin (He et al., "Mask R-CNN", 2017)."""
    grid, mode = int(ctx.attr("sampling_ratio", 0)), ctx.attr("mode", "avg")
    if grid < 1:
        raise ctx.unsupported("as many samples as a region has pixels are not supported; give a sampling_ratio")
    _, channels, height, width = ctx.type(0).shape
    bins = [int(ctx.attr(name, 1)) for name in ("output_height", "output_width")]
    regions, (down, right) = ctx.type(1).shape[0], (n * grid for n in bins)
    image = ctx.add("transpose", ctx.input(0), perm=(0, 2, 3, 1))
    pixels = ctx.reshape(image, (ctx.type(0).shape[0] * height * width, channels))
    first = ctx.reshape(ctx.add("cast", indices(ctx, 2), to="int64"), (regions, 1, 1))
    first = ctx.add("mul", first, ctx.make(height * width, "int64"))
    rows, columns = (samples(ctx, axis, bins[axis], grid) for axis in range(2))
    found = []
    for (y, wy), (x, wx) in product(rows, columns):
        y, wy = (ctx.reshape(name, (regions, down, 1)) for name in (y, wy))
        x, wx = (ctx.reshape(name, (regions, 1, right)) for name in (x, wx))
        place = ctx.add("add", first, ctx.add("add", ctx.add("mul", y, ctx.make(width, "int64")), x))
        weight = ctx.reshape(ctx.add("mul", wy, wx), (regions, down, right, 1))
        found.append(ctx.add("mul", ctx.add("gather", pixels, place, axis=0), weight))
    total = found[0]
    for value in found[1:]:
        total = ctx.add("max" if mode == "max" else "add", total, value)
    total = ctx.reshape(total, (regions, bins[0], grid, bins[1], grid, channels))
    total = ctx.add("reduce_max" if mode == "max" else "reduce_mean", total, axes=(2, 4), keepdims=False)
    return ctx.add("transpose", total, perm=(0, 3, 1, 2))
