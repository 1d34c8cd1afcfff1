"""Converters of elementwise ONNX operators."""

from __future__ import annotations

from functools import reduce as fold

import numpy as np

from mononn_core.element import SMALL_FLOATS, is_float
from mononn_core.importer.context import Context, Converter, converts
from mononn_core.ops import registry


def _direct(op: str) -> Converter:
    return lambda ctx: ctx.add(op, *ctx.inputs())


for _definition in map(registry.get, registry.names()):
    if _definition.onnx:
        converts(_definition.onnx)(_direct(_definition.name))


@converts("Max", "Min", "Sum", "Mean")
def variadic(ctx: Context) -> str:
    """Folded pairwise from the left."""
    op = {"Max": "max", "Min": "min"}.get(ctx.node.op_type, "add")
    total = fold(lambda a, b: ctx.add(op, a, b), ctx.inputs())
    if ctx.node.op_type == "Mean":
        return ctx.add("div", total, ctx.like(ctx.count, total))
    return total


@converts("Identity")
def identity(ctx: Context) -> str:
    return ctx.input(0)


@converts("Dropout")
def dropout(ctx: Context) -> tuple[str, ...]:
    """Inference: the data itself, and a mask that keeps everything."""
    training = ctx.known(ctx.input(2)) if ctx.has(2) else None
    ratio = ctx.parameter("ratio")
    if ctx.has(2) and (training is None or bool(training)) and (ratio is None or float(ratio) != 0.0):
        raise ctx.unsupported("dropout in training mode is random; export the model for inference")
    data = ctx.input(0)
    if len(ctx.node.outputs) < 2 or not ctx.node.outputs[1]:
        return (data,)
    mask_type = "bool" if ctx.opset >= 10 else ctx.type(data).dtype
    return data, ctx.make(np.ones(ctx.type(data).shape, dtype=mask_type))


@converts("Cast", "CastLike")
def cast(ctx: Context) -> str:
    to = ctx.type(1).dtype if ctx.node.op_type == "CastLike" else ctx.dtype("to", "float32")
    if ctx.type(0).dtype == to:
        return ctx.input(0)
    if to == "float8_e8m0fnu" and ctx.attr("round_mode", "up") != "nearest":
        raise ctx.unsupported("powers of two are rounded to the nearest alone (round_mode)")
    if to in SMALL_FLOATS:
        return ctx.add("cast", ctx.input(0), to=to, saturate=bool(ctx.attr("saturate", 1)))
    return ctx.add("cast", ctx.input(0), to=to)


@converts("BitCast")
def bit_cast(ctx: Context) -> str:
    return ctx.add("bitcast", ctx.input(0), to=ctx.dtype("to", "float32"))


@converts("Clip")
def clip(ctx: Context) -> str:
    """Constant bounds become attributes; others a maximum and a minimum."""
    x = ctx.input(0)
    dtype = ctx.type(x).dtype
    bounds: dict[str, float | int] = {}
    for position, (name, key) in enumerate((("min", "low"), ("max", "high")), start=1):
        if name in ctx.node.attrs:
            bounds[key] = float(ctx.node.attrs[name])
        elif ctx.has(position):
            value = ctx.known(ctx.input(position))
            if value is None:
                x = ctx.add("max" if key == "low" else "min", x, ctx.input(position))
            else:
                bounds[key] = float(value.item()) if is_float(dtype) else int(value.item())
    return ctx.add("clip", x, **bounds) if bounds else x


@converts("Mod")
def modulo(ctx: Context) -> str:
    return ctx.add("mod", *ctx.inputs(), fmod=bool(ctx.attr("fmod", 0)))


@converts("IsInf")
def is_infinite(ctx: Context) -> str:
    flags = {"positive": bool(ctx.attr("detect_positive", 1)), "negative": bool(ctx.attr("detect_negative", 1))}
    return ctx.add("isinf", ctx.input(0), **flags)


@converts("BitShift")
def bit_shift(ctx: Context) -> str:
    return ctx.add("shift", *ctx.inputs(), left=ctx.attr("direction") == "LEFT")


@converts("Gelu")
def gelu(ctx: Context) -> str:
    return ctx.add("gelu", ctx.input(0), approximate=ctx.attr("approximate", "none"))


@converts("PRelu")
def parametric_relu(ctx: Context) -> str:
    x, slope = ctx.inputs()
    return ctx.add("where", ctx.add("less", x, ctx.like(0, x)), ctx.add("mul", x, slope), x)


@converts("LeakyRelu")
def leaky_relu(ctx: Context) -> str:
    x = ctx.input(0)
    scaled = ctx.add("mul", x, ctx.like(ctx.attr("alpha", 0.01), x))
    return ctx.add("where", ctx.add("less", x, ctx.like(0, x)), scaled, x)


@converts("ThresholdedRelu")
def thresholded_relu(ctx: Context) -> str:
    x = ctx.input(0)
    return ctx.add("where", ctx.add("greater", x, ctx.like(ctx.attr("alpha", 1.0), x)), x, ctx.like(0, x))


@converts("Elu", "Selu", "Celu")
def exponential_linear(ctx: Context) -> str:
    """gamma x for x > 0, otherwise gamma alpha (exp(x / s) - 1), with s = alpha for Celu and 1 for the others."""
    x, kind = ctx.input(0), ctx.node.op_type
    selu = kind == "Selu"
    alpha = ctx.attr("alpha", 1.67326319217681884765625 if selu else 1.0)
    gamma = ctx.attr("gamma", 1.05070102214813232421875) if selu else 1.0
    inner = ctx.add("div", x, ctx.like(alpha, x)) if kind == "Celu" else x
    bounded = ctx.add("min", inner, ctx.like(0, x))
    negative = ctx.add("mul", ctx.add("sub", ctx.add("exp", bounded), ctx.like(1, x)), ctx.like(alpha, x))
    y = ctx.add("where", ctx.add("greater", x, ctx.like(0, x)), x, negative)
    return ctx.add("mul", y, ctx.like(gamma, x)) if selu else y


@converts("HardSigmoid", "HardSwish")
def hard_sigmoid(ctx: Context) -> str:
    """clip(alpha x + beta, 0, 1), times x for HardSwish (whose alpha is 1/6)."""
    x, swish = ctx.input(0), ctx.node.op_type == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if swish else (ctx.attr("alpha", 0.2), ctx.attr("beta", 0.5))
    line = ctx.add("add", ctx.add("mul", x, ctx.like(alpha, x)), ctx.like(beta, x))
    y = ctx.add("clip", line, low=0.0, high=1.0)
    return ctx.add("mul", x, y) if swish else y


@converts("Softsign")
def softsign(ctx: Context) -> str:
    x = ctx.input(0)
    return ctx.add("div", x, ctx.add("add", ctx.add("abs", x), ctx.like(1, x)))


@converts("Mish", "Swish")
def gated(ctx: Context) -> str:
    """x tanh(softplus(x)), or x sigmoid(alpha x)."""
    x = ctx.input(0)
    if ctx.node.op_type == "Mish":
        return ctx.add("mul", x, ctx.add("tanh", ctx.add("softplus", x)))
    alpha = ctx.attr("alpha", 1.0)
    inner = x if alpha == 1.0 else ctx.add("mul", x, ctx.like(alpha, x))
    return ctx.add("mul", x, ctx.add("sigmoid", inner))


@converts("Shrink")
def shrink(ctx: Context) -> str:
    given = ctx.type(0).dtype
    x = ctx.input(0) if is_float(given) else ctx.add("cast", ctx.input(0), to="float64")
    bias, limit = ctx.attr("bias", 0.0), ctx.attr("lambd", 0.5)
    above = ctx.add(
        "where", ctx.add("greater", x, ctx.like(limit, x)), ctx.add("sub", x, ctx.like(bias, x)), ctx.like(0, x)
    )
    shrunk = ctx.add("where", ctx.add("less", x, ctx.like(-limit, x)), ctx.add("add", x, ctx.like(bias, x)), above)
    return shrunk if is_float(given) else ctx.add("cast", shrunk, to=given)
