"""Converters of ONNX Runtime's own quantised operators, of domain com.microsoft: each computes on the real numbers that
its quantised inputs stand for, and quantises the result.

ONNX Runtime, docs/ContribOperators.md. What is multiplied in integers the passes find
(:mod:`mononn_core.passes.quantised`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np

from mononn_core.element import COMPUTE
from mononn_core.importer import quantisation
from mononn_core.importer.context import Context, Converted, Converter, converter_of, converts
from mononn_core.ops.weight_only import middle

DOMAIN = "com.microsoft"
ACTIVATIONS = {1: COMPUTE, 4: "int8"}
"""``accuracy_level`` of a product -> what its left side is rounded to; others leave that to who runs it."""


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
    opset = int(ctx.attr("opset", ctx.opset))  # a QLinearSoftmax's
    result = found(replace(ctx, node=replace(ctx.node, op_type=op_type, domain=""), operands=operands, opset=opset))
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


@converts("QLinearWhere", domain=DOMAIN)
def where(ctx: Context) -> str:
    """(condition, x, its scale and zero point, y, its, result's)."""
    x, y = (_real(ctx, *(ctx.input(p + i) for i in range(3))) for p in (1, 4))
    return _quantised(ctx, ctx.add("where", ctx.input(0), x, y), ctx.input(7), ctx.input(8), ctx.input(1))


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


@converts("MatMulNBits", domain=DOMAIN)
def block_matmul(ctx: Context) -> str:
    """(A, B [N, blocks, bytes], scales, zero points, g_idx, bias): B's rows are blocks of numbers of few bits, those in
    a byte's lowest bits first."""
    bits, block = int(ctx.attr("bits", 4)), int(ctx.attr("block_size", 0))
    n, k = int(ctx.attr("N", 0)), int(ctx.attr("K", 0))
    if ctx.has(4):
        raise ctx.unsupported("weights with an order of their own (g_idx) are not supported; quantise without it")
    b = _blocks(ctx, ctx.constant(1, "weights"), (n, k), block, bits)
    parts = _points_of_blocks(ctx, 2, (n, -(-k // block)), bits)
    weights = (ctx.make(v.T) for v in (b, *parts))
    level = ACTIVATIONS.get(int(ctx.attr("accuracy_level", 0)))
    said = {"activations": level} if level else {}
    real = ctx.add("dequantize_blocks", *weights, axis=0, block=block, **said)
    product = ctx.add("matmul", ctx.input(0), real)
    return ctx.add("add", product, ctx.input(5)) if ctx.has(5) else product


@converts("GatherBlockQuantized", domain=DOMAIN)
def gather_blocks(ctx: Context) -> str:
    """(data, indices, scales, zero points) of a table of uint8, two numbers of 4 bits a byte, or of 4-bit integers."""
    bits, block = int(ctx.attr("bits", 4)), int(ctx.attr("block_size", 128))
    data = ctx.constant(0, "table")
    axis = ctx.normal(ctx.attr("quantize_axis", 1), data.ndim)
    if data.ndim != 2 or axis != 1 or ctx.normal(ctx.attr("gather_axis", 0), data.ndim):
        raise ctx.unsupported("only rows of a table in blocks along its columns are gathered")
    packed = data.dtype == np.uint8 and bits == 4
    q = _numbers(data, bits) if packed else data
    points = (q.shape[0], -(-q.shape[1] // block))
    scale, zero = _points_of_blocks(ctx, 2, points, bits if data.dtype == np.uint8 else 0)
    if data.dtype != np.uint8:
        zero = ctx.constant(3, "zero points") if ctx.has(3) else np.zeros(points, scale.dtype)
    table = ctx.add("dequantize_blocks", *map(ctx.make, (q, scale, zero)), axis=1, block=block)
    return ctx.add("gather", table, ctx.input(1), axis=0)


def _numbers(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers of ``bits`` bits in bytes, lowest first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.ascontiguousarray(apart.reshape(*packed.shape[:-1], -1))


def _blocks(ctx: Context, packed: np.ndarray, shape: tuple[int, int], block: int, bits: int) -> np.ndarray:
    """The [N, K] numbers of MatMulNBits' weights: uint8, or uint4 where a byte holds two."""
    (n, k), count = shape, -(-shape[1] // max(block, 1))
    if bits not in (2, 4, 8) or block < 1 or packed.dtype != np.uint8 or packed.size * 8 != n * count * block * bits:
        raise ctx.unsupported(
            f"weights of {bits} bits in blocks of {block} do not fill [{n}, {k}]; is the file damaged?"
        )
    numbers = _numbers(packed.reshape(n, -1), bits)[:, :k]
    return numbers.astype(ml_dtypes.uint4) if bits == 4 else np.ascontiguousarray(numbers)


def _points_of_blocks(ctx: Context, first: int, shape: tuple[int, int], bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points of blocks, inputs from ``first`` on: these as reals, or packed in each row; the middle of
    the range where there are none."""
    scale = ctx.constant(first, "scales").reshape(shape)
    if not ctx.has(first + 1) or not bits:
        return scale, np.full(shape, middle(bits) if bits else 0, scale.dtype)
    zero = ctx.constant(first + 1, "zero points")
    if zero.dtype == np.uint8:
        zero = _numbers(zero.reshape(shape[0], -1), bits)[:, : shape[1]]
    return scale, np.ascontiguousarray(zero.reshape(shape)).astype(scale.dtype)


def _product(ctx: Context, a: str, b: str, points: tuple[str, str], bias: str) -> str:
    product = ctx.add("matmul", a, quantisation.real(ctx, b, *(_scalar(ctx, n) for n in points)))
    return ctx.add("add", product, bias) if bias else product
