"""Converters of quantised ONNX operators: written out as real or integer arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from mononn_core.element import BYTES, SHORT, SMALL_FLOATS, WORD, is_float
from mononn_core.graph import Node
from mononn_core.importer.context import Context, converts
from mononn_core.importer.convolution import Frame, channels_first, channels_last, convolve, frame, padded, windowed
from mononn_core.ops import registry
from mononn_core.ops.builder import Builder
from mononn_core.ops.quantise import MOST_TERMS, beyond, integer_matmul, recentred

FOUR_BITS = ("int4", "uint4")
WHOLE = (*FOUR_BITS, *BYTES)
POSITIVE = ("relu", "abs", "exp", "sqrt", "sigmoid", "softmax")
KEEPING = ("max", "min", "add", "mul", "div", "reduce_max", "reduce_min", "reduce_mean", "reduce_sum", "clip")
"""Operators whose results are never negative, and those whose results are where an operand is."""


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
    if dtype in SMALL_FLOATS:
        return ctx.add("cast", ctx.add("div", x, scale), to=dtype, saturate=bool(ctx.attr("saturate", 1)))
    return ctx.add("quantize", x, scale, *((zero,) if zero else ()), to=dtype)


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
    if out == ctx.type(scale).dtype and (in_blocks := _in_blocks(ctx, axis, block)):
        return in_blocks
    if ctx.type(x).dtype in SHORT and is_float(out) and ctx.type(scale).dtype == out:
        parts = (spread(ctx, name, x, axis, block) for name in (scale, zero) if name)
        return ctx.add("dequantize", x, *parts)
    middle = "float32" if not is_float(out) or ctx.type(scale).dtype == "float8_e8m0fnu" else ctx.type(scale).dtype
    value = _cast(ctx, x, middle)
    if zero and not ctx.type(x).dtype.startswith("float"):
        value = ctx.add("sub", value, spread(ctx, _cast(ctx, zero, middle), value, axis, block))
    result = ctx.add("mul", value, spread(ctx, _cast(ctx, scale, middle), value, axis, block))
    return _cast(ctx, result, out)


def _in_blocks(ctx: Context, axis: int, block: int) -> str:
    """A constant matrix in blocks, or of 4 bits with a scale for all or one a row or column; "" of anything else."""
    values = [ctx.known(ctx.input(i)) for i in range(ctx.count) if ctx.has(i)]
    if any(v is None for v in values) or not is_float(ctx.type(1).dtype) or ctx.type(0).dtype not in WHOLE:
        return ""
    q, *parts = (v for v in values if v is not None)
    if not block:
        if q.ndim != 2 or ctx.type(0).dtype not in FOUR_BITS or any(p.ndim > 1 for p in parts):
            return ""
        axis, block = 1 - axis, q.shape[1 - axis]  # one block along the other axis
        wanted = tuple(1 if d == axis else n for d, n in enumerate(q.shape))
        turned = (-1, 1) if axis == 1 else (1, -1)
        parts = [np.ascontiguousarray(np.broadcast_to(p.reshape(turned), wanted)) for p in parts]
    return ctx.add("dequantize_blocks", ctx.input(0), *map(ctx.make, parts), axis=axis, block=block)


@converts("DynamicQuantizeLinear")
def dynamic_quantize(ctx: Context) -> tuple[str, str, str]:
    return dynamically(ctx, ctx.input(0))


def dynamically(ctx: Context, x: str) -> tuple[str, str, str]:
    """x as uint8 over the range of x and zero, its scale and zero point: 0 where nothing of x is below zero."""
    axes = tuple(range(ctx.type(x).rank))
    zero = ctx.like(0, x)
    if has_no_negative(ctx.builder, x):
        low = zero
    else:
        low = ctx.add("min", ctx.add("reduce_min", x, axes=axes, keepdims=False), zero)
    high = ctx.add("max", ctx.add("reduce_max", x, axes=axes, keepdims=False), zero)
    scale = ctx.add("div", ctx.add("sub", high, low), ctx.like(255, x))
    flat = ctx.add("equal", scale, zero)
    scale = ctx.add("where", flat, ctx.like(1, x), scale)
    if low == zero:
        offset = ctx.make(0, "uint8")
    else:
        point = ctx.add("clip", ctx.add("round", ctx.add("div", ctx.add("neg", low), scale)), low=0.0, high=255.0)
        offset = ctx.add("cast", point, to="uint8")
    return quantised(ctx, x, scale, offset, "uint8"), scale, offset


def has_no_negative(builder: Builder, x: str) -> bool:
    """Whether the operators that ``x`` comes from show that nothing of it is below zero (or it is no number)."""
    made = {output: node for node in builder.nodes for output in node.outputs}
    seen, waiting = {x}, [x]
    while waiting:
        name = waiting.pop()
        needed = _negative_where(made.get(name), builder.constants.get(name), builder)
        if needed is None:
            return False
        waiting += set(needed) - seen
        seen |= set(needed)
    return True


def _negative_where(node: Node | None, value: np.ndarray[Any, Any] | None, builder: Builder) -> Sequence[str] | None:
    """The tensors one of which is below zero where a node's output, or a constant ``value``, is (none: it never is);
    None: not known."""
    if node is None or value is not None:
        return () if value is not None and not (value < 0).any() else None
    known = [builder.constants.get(name) for name in node.inputs]
    above = node.op == "max" and any(v is not None and (v >= 0).all() for v in known)
    if above or node.op in POSITIVE or (node.op == "clip" and float(str(node.attrs.get("low", -1))) >= 0):
        return ()
    fills = node.op == "pad" and node.attrs["mode"] == "constant" and float(str(node.attrs["value"])) < 0
    return node.inputs if node.op in KEEPING or (registry.get(node.op).kind == "movement" and not fills) else None


def _points(ctx: Context, zero: str, row: bool) -> str:
    """A product's zero point: a scalar, or one a row (of a left operand) or a column."""
    if not zero or ctx.type(zero).rank == 0:
        return zero
    size = ctx.type(zero).size
    if size == 1:
        return ctx.reshape(zero, ())
    return ctx.reshape(zero, (size, 1)) if row and ctx.type(zero).rank == 1 else zero


@converts("MatMulInteger")
def matmul_integer(ctx: Context) -> str:
    a_zero, b_zero = _points(ctx, ctx.input(2), True), _points(ctx, ctx.input(3), False)
    return integer_matmul(ctx, ctx.input(0), ctx.input(1), a_zero, b_zero)


@converts("QLinearMatMul")
def quantised_matmul(ctx: Context) -> str:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = ctx.inputs()
    left = real(ctx, a, _points(ctx, a_scale, True), _points(ctx, a_zero, True))
    right = real(ctx, b, _points(ctx, b_scale, False), _points(ctx, b_zero, False))
    return quantised(
        ctx, ctx.add("matmul", left, right), _cast(ctx, y_scale, "float32"), y_zero, ctx.type(y_zero).dtype
    )


def real(ctx: Context, x: str, scale: str, zero: str) -> str:
    """What x stands for, in float32; its scale and zero point ("": 0) broadcast over it."""
    return ctx.add("dequantize", x, _cast(ctx, scale, "float32"), *((zero,) if zero else ()))


@converts("ConvInteger")
def convolution_integer(ctx: Context) -> str:
    return _integer_convolution(ctx, ctx.input(0), ctx.input(2), ctx.input(1), ctx.input(3))


def _integer_convolution(ctx: Context, x: str, x_zero: str, w: str, w_zero: str) -> str:
    f, group = frame(ctx, ctx.type(w).shape[2:], ctx.type(x).shape[2:]), int(ctx.attr("group", 1))
    terms = ctx.type(w).size // ctx.type(w).shape[0]
    if f.rank <= 3 and terms <= MOST_TERMS and (not x_zero or ctx.type(x_zero).size == 1):
        if (centred := _centred(ctx, w, w_zero)) is not None:
            return _of_bytes(ctx, x, x_zero, _by_constants(ctx, centred), f)
        if not w_zero or ctx.type(w_zero).size == 1:
            return _of_bytes(ctx, x, x_zero, _by_computed(ctx, w, w_zero), f)
    wide = ctx.add("cast", x, to="int32")
    if x_zero:
        wide = ctx.add("sub", wide, ctx.add("cast", _scalar(ctx, x_zero), to="int32"))
    zero = ctx.add("cast", w_zero, to="int32") if w_zero else ""
    weight = ctx.add("cast", w, to="int32")
    if zero:
        rank = ctx.type(w).rank
        shape = (ctx.type(zero).size, *(1,) * (rank - 1)) if ctx.type(zero).size > 1 else ()
        weight = ctx.add("sub", weight, ctx.reshape(zero, shape))
    return convolve(ctx, wide, weight, f, group)


def _centred(ctx: Context, w: str, zero: str) -> np.ndarray[Any, Any] | None:
    """Constant weights [M, ...] less their zero point, int32; None where that is not known."""
    value, point = ctx.known(w), ctx.known(zero) if zero else np.zeros((), WORD)
    if value is None or point is None:
        return None
    point = point.astype(WORD)
    return value.astype(WORD) - (point.reshape(-1, *(1,) * (value.ndim - 1)) if point.size > 1 else point)


@dataclass(frozen=True)
class SignedWeights:
    """Weights of a convolution of bytes: ``small`` [M, ...] of int8, what ``part`` adds to all of an output channel's
    (empty: nothing), and the ``sums`` of both over each channel; int32, shaped to broadcast over channels first."""

    small: str
    part: str
    sums: str


def _by_constants(ctx: Context, weight: np.ndarray[Any, Any]) -> SignedWeights:
    """Those of int32 of 8 bits less a zero point; what int8 does not hold is a part of its channel's."""
    part, channels = beyond(weight, tuple(range(1, weight.ndim))), (-1, *(1,) * (weight.ndim - 2))
    small = ctx.make((weight - part.reshape(-1, *(1,) * (weight.ndim - 1))).astype("int8"))
    sums = weight.reshape(len(weight), -1).sum(1, dtype=WORD).reshape(channels)
    return SignedWeights(small, ctx.make(part.reshape(channels)) if part.any() else "", ctx.make(sums))


def _by_computed(ctx: Context, w: str, zero: str) -> SignedWeights:
    """Those of bytes w around a zero point."""
    small, point = recentred(ctx, w, ctx.reshape(zero, ()) if zero else "", "int8")
    m, *rest = ctx.type(w).shape
    sums = ctx.add("reduce_sum", ctx.add("cast", small, to=WORD), axes=tuple(range(1, 1 + len(rest))), keepdims=False)
    sums = ctx.reshape(sums, (m, *(1,) * (len(rest) - 1)))
    if not point:
        return SignedWeights(small, "", sums)
    sums = ctx.add("sub", sums, ctx.add("mul", point, ctx.make(prod(rest), WORD)))
    return SignedWeights(small, ctx.add("neg", point), sums)


def _of_bytes(ctx: Context, x: str, x_zero: str, w: SignedWeights, f: Frame) -> str:
    """The int32 sums of windows over the bytes x, less those of their zero point: x is padded by that. What is part of
    all of a channel's weights is multiplied by the sums of the windows."""
    zero, group = ctx.reshape(x_zero, ()) if x_zero else "", int(ctx.attr("group", 1))
    x, point = recentred(ctx, _bordered(ctx, x, x_zero, f), zero, "uint8")
    none = (0,) * f.rank
    inside = replace(f, before=none, after=none, overhang=none)
    total = convolve(ctx, x, w.small, inside, group)
    if w.part:
        windows = channels_last(ctx, _windows(ctx, x, inside, ctx.type(w.small).shape, group))
        part = ctx.add("mul", windows, ctx.reshape(w.part, (ctx.type(w.part).size,)))
        total = ctx.add("add", total, channels_first(ctx, part))
    return ctx.add("sub", total, ctx.add("mul", point, w.sums)) if point else total


def _windows(ctx: Context, x: str, f: Frame, weights: tuple[int, ...], group: int) -> str:
    """The int32 sums of the windows over the bytes x that each output channel reads, by ``weights`` of that shape:
    [N, M or 1, n..]."""
    if group != 1:
        return convolve(ctx, x, ctx.make(np.ones(weights, "int8")), f, group)
    summed = ctx.add("reduce_sum", ctx.add("cast", x, to=WORD), axes=(1,), keepdims=True)
    return ctx.add("reduce_sum", windowed(ctx, summed, f, 0), axes=tuple(range(2, 2 + f.rank)), keepdims=False)


def _bordered(ctx: Context, x: str, zero: str, f: Frame) -> str:
    """Bytes x [N, C, n..] with a border of their zero point; what zero is quantised as, where x is quantised here."""
    known = ctx.known(zero) if zero else np.zeros((), WORD)
    if known is not None:
        return padded(ctx, x, f, int(known.reshape(())))
    source = next((n for n in reversed(ctx.builder.nodes) if x in n.outputs), None)
    if source is not None and source.op == "quantize" and zero in source.inputs[2:]:
        wide = padded(ctx, source.inputs[0], f, 0.0)
        return ctx.add("quantize", wide, *source.inputs[1:], **dict(source.attrs))
    inside = padded(ctx, ctx.make(np.ones((1, 1, *ctx.type(x).shape[2:]), bool)), f, False)
    return ctx.add("where", inside, padded(ctx, x, f, 0), ctx.reshape(zero, ()))


@converts("QLinearConv")
def quantised_convolution(ctx: Context) -> str:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = ctx.inputs()[:8]
    scales, zeros = (_per_output(ctx, n, ctx.type(w).rank) for n in (w_scale, w_zero))
    f = frame(ctx, ctx.type(w).shape[2:], ctx.type(x).shape[2:])
    left, right = real(ctx, x, _scalar(ctx, x_scale), _scalar(ctx, x_zero)), real(ctx, w, scales, zeros)
    y = convolve(ctx, left, right, f, int(ctx.attr("group", 1)))
    if ctx.has(8):
        spatial = (1,) * (ctx.type(y).rank - 2)
        scale = ctx.add("mul", _scalar(ctx, x_scale), w_scale)
        bias = ctx.add("mul", ctx.add("cast", ctx.input(8), to="float32"), scale)
        y = ctx.add("add", y, ctx.reshape(bias, (ctx.type(8).size, *spatial)))
    y_scale = _scalar(ctx, _cast(ctx, y_scale, "float32"))
    return quantised(ctx, y, y_scale, _scalar(ctx, y_zero), ctx.type(y_zero).dtype)


def _scalar(ctx: Context, name: str) -> str:
    return ctx.reshape(name, ()) if ctx.type(name).size == 1 else name


def _per_output(ctx: Context, name: str, rank: int) -> str:
    """A scale or zero point of a weight [M, ...], shaped to broadcast."""
    size = ctx.type(name).size
    return ctx.reshape(name, (size, *(1,) * (rank - 1)) if size > 1 else ())
