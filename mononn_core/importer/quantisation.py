"""Converters of quantised ONNX operators: written out as real or integer arithmetic."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mononn_core.element import SMALL_FLOATS, is_float
from mononn_core.importer.context import Context, converts
from mononn_core.importer.convolution import convolve, frame
from mononn_core.ops.common import numpy_dtype


def limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest number of an integer type, 4- and 2-bit ones included."""
    info = ml_dtypes.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


def spread(ctx: Context, name: str, like: str, axis: int, block: int) -> str:
    """A scale or zero point shaped to broadcast over ``like``: scalar, per axis, or per block along it."""
    t, x = ctx.type(name), ctx.type(like)
    if t.size == 1 and t.rank <= 1:
        return ctx.reshape(name, ())
    if t.rank == 1 and not block:
        return ctx.reshape(name, (t.size, *(1,) * (x.rank - axis - 1)))
    if not block:
        return name
    count = t.shape[axis]
    wide = ctx.reshape(name, (*t.shape[: axis + 1], 1, *t.shape[axis + 1 :]))
    shape = (*t.shape[: axis + 1], block, *t.shape[axis + 1 :])
    flat = ctx.reshape(ctx.add("expand", wide, shape=shape), (*t.shape[:axis], count * block, *t.shape[axis + 1 :]))
    starts = (0,) * x.rank
    if ctx.type(flat).shape == x.shape:
        return flat
    return ctx.add("slice", flat, starts=starts, sizes=x.shape, steps=(1,) * x.rank)


def quantised(ctx: Context, x: str, scale: str, zero: str, dtype: str) -> str:
    """round(x / scale) + zero, clamped to ``dtype``; float8 targets are only cast."""
    ratio = ctx.add("div", x, scale)
    if dtype in SMALL_FLOATS:
        return ctx.add("cast", ratio, to=dtype, saturate=bool(ctx.attr("saturate", 1)))
    low, high = limits(dtype)
    whole = ctx.add("round", ratio)
    if zero:
        whole = ctx.add("add", whole, ctx.add("cast", zero, to=ctx.type(whole).dtype))
    return ctx.add("cast", ctx.add("clip", whole, low=float(low), high=float(high)), to=dtype)


@converts("QuantizeLinear")
def quantize(ctx: Context) -> str:
    x, scale, zero = ctx.input(0), ctx.input(1), ctx.input(2)
    default = ctx.dtype("output_dtype", "uint8")
    dtype = ctx.type(zero).dtype if zero else default
    precision = ctx.dtype(
        "precision", ctx.type(scale).dtype if ctx.type(scale).dtype != "float8_e8m0fnu" else "float32"
    )
    axis, block = _axis(ctx), int(ctx.attr("block_size", 0))
    x = _cast(ctx, x, precision)
    wide = spread(ctx, _cast(ctx, scale, precision), x, axis, block)
    return quantised(ctx, x, wide, spread(ctx, zero, x, axis, block) if zero else "", dtype)


def _axis(ctx: Context) -> int:
    rank = ctx.type(0).rank
    axis = int(ctx.attr("axis", 1))
    return axis + rank if axis < 0 else min(axis, max(rank - 1, 0))


def _cast(ctx: Context, name: str, to: str) -> str:
    return name if ctx.type(name).dtype == to else ctx.add("cast", name, to=to)


@converts("DequantizeLinear")
def dequantize(ctx: Context) -> str:
    """(x - zero) * scale in the scale's type."""
    x, scale, zero = ctx.input(0), ctx.input(1), ctx.input(2)
    axis, block = _axis(ctx), int(ctx.attr("block_size", 0))
    out = ctx.dtype("output_dtype", ctx.type(scale).dtype)
    middle = "float32" if not is_float(out) or ctx.type(scale).dtype == "float8_e8m0fnu" else ctx.type(scale).dtype
    value = _cast(ctx, x, middle)
    if zero and not ctx.type(x).dtype.startswith("float"):
        value = ctx.add("sub", value, spread(ctx, _cast(ctx, zero, middle), value, axis, block))
    result = ctx.add("mul", value, spread(ctx, _cast(ctx, scale, middle), value, axis, block))
    return _cast(ctx, result, out)


@converts("DynamicQuantizeLinear")
def dynamic_quantize(ctx: Context) -> tuple[str, str, str]:
    """uint8 over the range of x and zero."""
    x = ctx.input(0)
    axes = tuple(range(ctx.type(x).rank))
    zero = ctx.like(0, x)
    low = ctx.add("min", ctx.add("reduce_min", x, axes=axes, keepdims=False), zero)
    high = ctx.add("max", ctx.add("reduce_max", x, axes=axes, keepdims=False), zero)
    scale = ctx.add("div", ctx.add("sub", high, low), ctx.like(255, x))
    flat = ctx.add("equal", scale, zero)
    scale = ctx.add("where", flat, ctx.like(1, x), scale)
    point = ctx.add("clip", ctx.add("round", ctx.add("div", ctx.add("neg", low), scale)), low=0.0, high=255.0)
    offset = ctx.add("cast", point, to="uint8")
    return quantised(ctx, x, scale, offset, "uint8"), scale, offset


def _centred(ctx: Context, name: str, zero: str, row: bool) -> str:
    """An integer operand minus its zero point, as int32; per row (of a left operand) or per column."""
    wide = ctx.add("cast", name, to="int32")
    if not zero:
        return wide
    offset = ctx.add("cast", zero, to="int32")
    t = ctx.type(offset)
    if t.rank == 1 and t.size > 1 and row:
        offset = ctx.reshape(offset, (t.size, 1))
    elif t.size == 1:
        offset = ctx.reshape(offset, ())
    return ctx.add("sub", wide, offset)


@converts("MatMulInteger")
def matmul_integer(ctx: Context) -> str:
    a = _centred(ctx, ctx.input(0), ctx.input(2), True)
    return ctx.add("matmul", a, _centred(ctx, ctx.input(1), ctx.input(3), False))


@converts("QLinearMatMul")
def quantised_matmul(ctx: Context) -> str:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = ctx.inputs()
    product = ctx.add("matmul", _centred(ctx, a, a_zero, True), _centred(ctx, b, b_zero, False))
    scale = ctx.add(
        "div",
        ctx.add("mul", _cast(ctx, a_scale, "float32"), _cast(ctx, b_scale, "float32")),
        _cast(ctx, y_scale, "float32"),
    )
    real = ctx.add("mul", ctx.add("cast", product, to="float32"), scale)
    return quantised(ctx, real, ctx.make(1.0, "float32"), y_zero, ctx.type(y_zero).dtype)


@converts("ConvInteger")
def convolution_integer(ctx: Context) -> str:
    return _integer_convolution(ctx, ctx.input(0), ctx.input(2), ctx.input(1), ctx.input(3))


def _integer_convolution(ctx: Context, x: str, x_zero: str, w: str, w_zero: str) -> str:
    wide = _centred(ctx, x, x_zero, False)
    zero = ctx.add("cast", w_zero, to="int32") if w_zero else ""
    weight = ctx.add("cast", w, to="int32")
    if zero:
        rank = ctx.type(w).rank
        shape = (ctx.type(zero).size, *(1,) * (rank - 1)) if ctx.type(zero).size > 1 else ()
        weight = ctx.add("sub", weight, ctx.reshape(zero, shape))
    f = frame(ctx, ctx.type(w).shape[2:], ctx.type(x).shape[2:])
    return convolve(ctx, wide, weight, f, int(ctx.attr("group", 1)))


@converts("QLinearConv")
def quantised_convolution(ctx: Context) -> str:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = ctx.inputs()[:8]
    y = _integer_convolution(ctx, x, x_zero, w, w_zero)
    spatial = (1,) * (ctx.type(y).rank - 2)
    if ctx.has(8):
        y = ctx.add("add", y, ctx.reshape(ctx.input(8), (ctx.type(8).size, *spatial)))
    per_channel = ctx.reshape(w_scale, (ctx.type(w_scale).size, *spatial)) if ctx.type(w_scale).size > 1 else w_scale
    scale = ctx.add("div", ctx.add("mul", x_scale, per_channel), y_scale)
    real = ctx.add("mul", ctx.add("cast", y, to="float32"), scale)
    return quantised(ctx, real, ctx.make(np.float32(1)), y_zero, ctx.type(y_zero).dtype)
