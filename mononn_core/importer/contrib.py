"""Converters of ONNX Runtime's own quantised operators, of domain com.microsoft: each computes on the real numbers that
its quantised inputs stand for, and quantises the result.

ONNX Runtime, docs/ContribOperators.md. What is multiplied in integers the passes find
(:mod:`mononn_core.passes.quantised`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mononn_core.element import COMPUTE
from mononn_core.importer import quantisation
from mononn_core.importer.context import Context, Converted, Converter, converter_of, converts

DOMAIN = "com.microsoft"


def _scalar(ctx: Context, name: str) -> str:
    """A scale or zero point; of one element a scalar."""
    return ctx.reshape(name, ()) if name and ctx.type(name).size == 1 else name


def _real(ctx: Context, x: str, scale: str, zero: str) -> str:
    return quantisation.real(ctx, x, _scalar(ctx, scale), _scalar(ctx, zero))


def _quantised(ctx: Context, x: str, scale: str, zero: str, like: str) -> str:
    """x on the scale of a result; without a zero point of the type of ``like``."""
    dtype = ctx.type(zero or like).dtype
    return quantisation.quantised(ctx, x, _scalar(ctx, scale), _scalar(ctx, zero), dtype)


def _as(ctx: Context, op_type: str, *operands: str) -> str:
    """What ONNX's operator of that name computes of ``operands``, with this node's attributes."""
    found = converter_of("", op_type)
    assert found is not None
    result = found(replace(ctx, node=replace(ctx.node, op_type=op_type, domain=""), operands=operands))
    assert isinstance(result, str)
    return str(result)


@converts("QuantizeLinear", domain=DOMAIN)
def quantize(ctx: Context) -> Converted:
    return quantisation.quantize(ctx)


@converts("DequantizeLinear", domain=DOMAIN)
def dequantize(ctx: Context) -> Converted:
    return quantisation.dequantize(ctx)


def _binary(op: str) -> Converter:
    def convert(ctx: Context) -> str:
        a, b = (_real(ctx, *(ctx.input(p + i) for i in range(3))) for p in (0, 3))
        return _quantised(ctx, ctx.add(op, a, b), ctx.input(6), ctx.input(7), ctx.input(0))

    return convert


def _unary(op_type: str) -> Converter:
    def convert(ctx: Context) -> str:
        x = _real(ctx, ctx.input(0), ctx.input(1), ctx.input(2))
        return _quantised(ctx, _as(ctx, op_type, x), ctx.input(3), ctx.input(4), ctx.input(0))

    return convert


def _pooling(op_type: str) -> Converter:
    """Of images with channels first or, by an attribute, last."""
    one = _unary(op_type)

    def convert(ctx: Context) -> Converted:
        if ctx.attr("channels_last", 0):
            raise ctx.unsupported("images with channels last are not supported; export them with channels first")
        return one(ctx)

    return convert


def _register() -> None:
    forms: tuple[tuple[str, Callable[[str], Converter], str], ...] = (
        ("QLinearAdd", _binary, "add"),
        ("QLinearMul", _binary, "mul"),
        ("QLinearSigmoid", _unary, "Sigmoid"),
        ("QLinearLeakyRelu", _unary, "LeakyRelu"),
        ("QLinearSoftmax", _unary, "Softmax"),
        ("QLinearGlobalAveragePool", _pooling, "GlobalAveragePool"),
        ("QLinearAveragePool", _pooling, "AveragePool"),
    )
    for name, make, op in forms:
        converts(name, domain=DOMAIN)(make(op))


_register()


@converts("QLinearConcat", domain=DOMAIN)
def concat(ctx: Context) -> str:
    """Result's scale and zero point, then (x, scale, zero point) of each input."""
    parts = [_real(ctx, *(ctx.input(p + i) for i in range(3))) for p in range(2, ctx.count, 3)]
    axis = ctx.axis(0, ctx.type(parts[0]).rank)
    joined = ctx.add("concat", *parts, axis=axis)
    return _quantised(ctx, joined, ctx.input(0), ctx.input(1), ctx.input(2))


@converts("QGemm", domain=DOMAIN)
def gemm(ctx: Context) -> str:
    """alpha A' B' + C with an int32 C on the product of both scales; a real result where it has no scale."""
    columns = int(ctx.attr("transB", 0)) == 0
    scale, zero = (_per_column(ctx, ctx.input(p), columns) for p in (4, 5))
    a = _real(ctx, ctx.input(0), ctx.input(1), ctx.input(2))
    b = quantisation.real(ctx, ctx.input(3), scale, zero)
    operands = [a, b]
    if ctx.has(6):
        both = ctx.add("mul", _scalar(ctx, ctx.input(1)), _scalar(ctx, ctx.input(4)))
        operands.append(ctx.add("mul", ctx.add("cast", ctx.input(6), to=COMPUTE), both))
    result = _as(ctx, "Gemm", *operands)
    return _quantised(ctx, result, ctx.input(7), ctx.input(8), ctx.input(0)) if ctx.has(7) else result


def _per_column(ctx: Context, name: str, columns: bool) -> str:
    """A scale or zero point of a matrix: a scalar, or one a column (a row of a transposed one)."""
    size = ctx.type(name).size
    return ctx.reshape(name, () if size == 1 else (size,) if columns else (size, 1))


@converts("MatMulIntegerToFloat", domain=DOMAIN)
def integer_to_float(ctx: Context) -> str:
    """(A, B, scale of A, scale of B, zero point of A, of B, bias): a real product."""
    a = _real(ctx, ctx.input(0), ctx.input(2), ctx.input(4))
    return _product(ctx, a, ctx.input(1), (ctx.input(3), ctx.input(5)), ctx.input(6))


@converts("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_matmul(ctx: Context) -> str:
    """(A, B, scale of B, zero point of B, bias): A is quantised by the range of its numbers."""
    x, scale, zero = quantisation.dynamically(ctx, ctx.input(0))
    a = quantisation.real(ctx, x, scale, zero)
    return _product(ctx, a, ctx.input(1), (ctx.input(2), ctx.input(3)), ctx.input(4))


def _product(ctx: Context, a: str, b: str, points: tuple[str, str], bias: str) -> str:
    product = ctx.add("matmul", a, quantisation.real(ctx, b, *(_scalar(ctx, n) for n in points)))
    return ctx.add("add", product, bias) if bias else product
