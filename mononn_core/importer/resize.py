"""Converter of Resize and Upsample: each axis is a gather (nearest) or a product with a constant matrix.

Coordinates and coefficients follow the operator's specification; cubic is Keys' kernel (1981).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mononn_core.importer.context import Context, converts

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Axis:
    """One axis: extent in and out, scale, and region of interest (begin, end as fractions)."""

    size: int
    output: int
    scale: float
    region: tuple[float, float]


def source_positions(axis: Axis, mode: str) -> Floats:
    """The input coordinate of each output element."""
    x = np.arange(axis.output, dtype=np.float64)
    n, m, scale = axis.size, axis.output, axis.scale
    if mode == "align_corners":
        length = scale * n
        return x * (n - 1) / (length - 1) if length != 1 else np.zeros(m)
    if mode == "asymmetric":
        return x / scale
    if mode == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if m > 1 else np.zeros(m)
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if mode == "tf_crop_and_resize":
        begin, end = axis.region
        if m > 1:
            return begin * (n - 1) + x * (end - begin) * (n - 1) / (m - 1)
        return np.full(m, 0.5 * (begin + end) * (n - 1))
    if mode == "half_pixel_symmetric":
        adjustment = m / (scale * n)
        return n / 2 * (1 - adjustment) + (x + 0.5) / scale - 0.5
    return (x + 0.5) / scale - 0.5


def nearest(positions: Floats, size: int, rounding: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Input index of each output element."""
    if rounding in ("floor", "ceil"):
        rounded = np.floor(positions) if rounding == "floor" else np.ceil(positions)
    else:
        rounded = np.floor(positions + 0.5) if rounding == "round_prefer_ceil" else np.ceil(positions - 0.5)
    return np.clip(rounded, 0, size - 1).astype(np.int64)


def kernel_weights(distance: Floats, mode: str, a: float) -> Floats:
    """The triangle (linear) or Keys' cubic kernel at a distance."""
    d = np.abs(distance)
    if mode == "linear":
        return np.maximum(1 - d, 0.0)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def interpolation(axis: Axis, positions: Floats, mode: str, a: float, antialias: bool, exclude: bool) -> Floats:
    """The [output, input] matrix of linear or cubic interpolation; rows sum to one."""
    stretch = min(axis.scale, 1.0) if antialias else 1.0
    reach = int(np.ceil((1 if mode == "linear" else 2) / stretch))
    matrix = np.zeros((axis.output, axis.size))
    for row, position in enumerate(positions):
        taps = np.arange(int(np.floor(position)) - reach + 1, int(np.floor(position)) + reach + 1)
        weights = kernel_weights((taps - position) * stretch, mode, a)
        if exclude:
            weights = np.where((taps >= 0) & (taps < axis.size), weights, 0.0)
        if antialias or exclude:
            weights = weights / weights.sum()
        np.add.at(matrix[row], np.clip(taps, 0, axis.size - 1), weights)
    return matrix


def axes_of(ctx: Context) -> dict[int, Axis]:
    """The resized axes by number, from scales or sizes; ``keep_aspect_ratio_policy`` applied."""
    dims = ctx.type(0).shape
    old = ctx.node.op_type == "Upsample" or ctx.opset < 11
    numbers = [ctx.normal(a, len(dims)) for a in ctx.attr("axes", range(len(dims)))]
    roi = None if old or not ctx.has(1) else ctx.constant(1, "region").reshape(-1)
    if roi is None or roi.size != 2 * len(numbers):
        roi = np.asarray([0.0] * len(numbers) + [1.0] * len(numbers))
    regions = [(float(roi[i]), float(roi[i + len(numbers)])) for i in range(len(numbers))]
    if "scales" in ctx.node.attrs:
        scales = [float(s) for s in ctx.attr("scales")]
    else:
        position = 1 if old else 2
        scales = [float(s) for s in ctx.constant(position, "scales")] if ctx.has(position) else []
    if scales:
        sizes = [
            int(
                np.floor(
                    dims[n] * s * ((e - b) if ctx.attr("coordinate_transformation_mode") == "tf_crop_and_resize" else 1)
                )
            )
            for n, s, (b, e) in zip(numbers, scales, regions, strict=True)
        ]
    else:
        sizes = [int(n) for n in ctx.constant(3, "sizes")]
        scales = [size / dims[n] for n, size in zip(numbers, sizes, strict=True)]
        policy = ctx.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            scales = [scale] * len(scales)
            sizes = [int(np.floor(scale * dims[n] + 0.5)) for n in numbers]
    return {
        n: Axis(dims[n], size, scale, region)
        for n, size, scale, region in zip(numbers, sizes, scales, regions, strict=True)
    }


FEW_TAPS = 2
"""Neighbours that are added up one by one; of more, as antialiasing and cubic interpolation have, a product is made."""


@converts("Resize", "Upsample")
def resize(ctx: Context) -> str:
    """Axis after axis; outside the region of tf_crop_and_resize stands the extrapolation value. Integers are
    interpolated as floats, and rounded to the nearest, ties to even, as ONNX's reference does it."""
    x, dtype = ctx.input(0), ctx.type(0).dtype
    mode = ctx.attr("mode", "nearest")
    if mode != "nearest" and "int" in dtype:
        x = ctx.add("cast", x, to="float32")
    old = ctx.node.op_type == "Upsample" or ctx.opset < 11
    transform = "asymmetric" if old else ctx.attr("coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if old else ctx.attr("nearest_mode", "round_prefer_floor")
    for number, axis in sorted(axes_of(ctx).items()):
        if axis.output == axis.size and axis.scale == 1.0 and transform != "tf_crop_and_resize":
            continue
        positions = source_positions(axis, transform)
        if mode == "nearest":
            index = nearest(positions, axis.size, rounding)
            x = ctx.add("gather", x, ctx.make(index), axis=number)
        else:
            x = _interpolated(ctx, x, number, axis, positions, mode)
        if transform == "tf_crop_and_resize":
            x = _extrapolated(ctx, x, number, positions, axis)
    if ctx.type(x).dtype == dtype:
        return x
    most, high = np.iinfo(dtype), np.float32(np.iinfo(dtype).max)
    high = high if int(high) <= most.max else np.nextafter(high, np.float32(0))
    whole = ctx.add("clip", ctx.add("round", x), low=float(most.min), high=float(high))
    return ctx.add("cast", whole, to=dtype)


def _interpolated(ctx: Context, x: str, number: int, axis: Axis, positions: Floats, mode: str) -> str:
    matrix = interpolation(
        axis,
        positions,
        mode,
        float(ctx.attr("cubic_coeff_a", -0.75)),
        bool(ctx.attr("antialias", 0)),
        bool(ctx.attr("exclude_outside", 0)),
    )
    t = ctx.type(x)
    if (np.count_nonzero(matrix, axis=1) <= FEW_TAPS).all():
        return _of_neighbours(ctx, x, number, matrix)
    weight = ctx.make(matrix.T, t.dtype)
    if number == t.rank - 1:
        return ctx.add("matmul", x, weight)
    perm = [d for d in range(t.rank) if d != number] + [number]
    y = ctx.add("matmul", ctx.add("transpose", x, perm=tuple(perm)), weight)
    return ctx.add("transpose", y, perm=tuple(int(p) for p in np.argsort(perm)))


def _of_neighbours(ctx: Context, x: str, number: int, matrix: Floats) -> str:
    """The sum of weighted neighbours along an axis, :data:`FEW_TAPS` at most, by the matrix of their weights."""
    t = ctx.type(x)
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :FEW_TAPS]  # those that are not zero, by position
    total = ""
    for tap in range(min(FEW_TAPS, matrix.shape[1])):
        index = order[:, tap]
        factors = matrix[np.arange(len(matrix)), index]
        if tap and not factors.any():
            break
        neighbour = ctx.add("gather", x, ctx.make(index.astype("int64")), axis=number)
        weights = ctx.make(factors.reshape(-1, *(1,) * (t.rank - number - 1)), t.dtype)
        part = ctx.add("mul", neighbour, weights)
        total = ctx.add("add", total, part) if total else part
    return total


def _extrapolated(ctx: Context, x: str, number: int, positions: Floats, axis: Axis) -> str:
    outside = (positions < 0) | (positions > axis.size - 1)
    if not outside.any():
        return x
    mask = ctx.make(outside.reshape(-1, *(1,) * (ctx.type(x).rank - number - 1)))
    return ctx.add("where", mask, ctx.like(float(ctx.attr("extrapolation_value", 0.0)), x), x)
