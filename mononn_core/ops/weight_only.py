"""Weights in blocks: whole numbers of few bits with a scale, and a zero point, for every block of one axis.

    dequantize_blocks(q, scale[, zero]; axis, block)[.., i, ..] = (q[.., i, ..] - zero[.., i // block, ..]) scale[..]
    weight_only_matmul(a, q, scale, zero; block, bits) = a dequantize_blocks(q, scale, zero; axis 0)
    weight_only_bytes(a, q, scale, zero, x, y; block, bits) = weight_only_matmul(b, q, scale, zero; block, bits),
        b[.., k] = a[.., k] x[.., k // block], y[.., i] = the sum of b's block i

(ONNX's DequantizeLinear with ``block_size``, ONNX Runtime's MatMulNBits.) In the products q is uint8, numbers of
``bits`` bits, and a product never makes the matrix of reals that it stands for; a of the last is int8, see
:func:`in_whole_steps`. ``bytewise`` at a dequantize_blocks lets a product by it round its left side so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import integer, present
from mononn_core.ops.registry import Attrs, OpDef, register

Types = Sequence[TensorType | None]


def _blocks_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    q, scale, *zero = present(types)
    axis, block = integer(attrs, "axis"), integer(attrs, "block")
    if not 0 <= axis < q.rank or block < 1:
        raise ShapeError(f"{q} has no blocks of {block} along axis {axis}")
    wanted = (*q.shape[:axis], ceil(q.shape[axis] / block), *q.shape[axis + 1 :])
    for t in (scale, *zero):
        if t.shape != wanted:
            raise ShapeError(
                f"blocks of {block} along axis {axis} of {q} have scales and zero points of shape {wanted}"
            )
    return (TensorType(scale.dtype, q.shape),)


def _dequantized(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    q, scale, *zero = inputs
    axis, block = integer(attrs, "axis"), integer(attrs, "block")
    scale, *zero = (_spread(xp, part, axis, block, q.shape[axis]) for part in (scale, *zero))
    value = q.astype(scale.dtype)
    return ((value - zero[0].astype(scale.dtype) if zero else value) * scale,)


def _spread(xp: Any, parts: Any, axis: int, block: int, extent: int) -> Any:
    """A number of a block for each of its elements along ``axis``."""
    return xp.take(parts, xp.arange(extent) // block, axis=axis)


def _product_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    a, q, scale, zero = present(types)
    block, bits = integer(attrs, "block"), integer(attrs, "bits")
    if a.rank < 2 or q.rank != 2 or a.shape[-1] != q.shape[0] or bits not in (4, 8):
        raise ShapeError(f"a product of {a} and {q} of {bits} bits does not exist")
    if {scale.shape, zero.shape} != {(ceil(q.shape[0] / block), q.shape[1])}:
        raise ShapeError(f"{q} in blocks of {block} has not scales {scale} and zero points {zero}")
    return (TensorType(a.dtype, (*a.shape[:-1], q.shape[1])),)


def _product(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    a, *weights = inputs
    (b,) = _dequantized(xp, weights, {"axis": 0, "block": attrs["block"]})
    return (xp.asarray(xp.matmul(a, b.astype(a.dtype))),)


STEP, RUN = 8, 256
"""Terms of a step of a product of bytes, and those of a run, in which smaller blocks end."""


def in_whole_steps(terms: int, block: int) -> bool:
    """Whether so many terms are whole blocks, and these whole steps of a product of bytes."""
    return block > 0 and terms % block == 0 and block % STEP == 0 and RUN % min(block, RUN) == 0


def _bytes_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    a, *weights, x, y = present(types)
    wanted = (*a.shape[:-1], a.shape[-1] // integer(attrs, "block"))
    whole = in_whole_steps(a.shape[-1], integer(attrs, "block"))
    if a.dtype != "int8" or not whole or {x.shape, y.shape} != {wanted}:
        raise ShapeError(f"{a} has scales and sums of shape {wanted} in whole blocks of bytes, not {x} and {y}")
    (product,) = _product_type([a, *weights], attrs)
    return (TensorType(x.dtype, product.shape),)


def _bytes_product(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    a, *weights, x, _ = inputs
    block = integer(attrs, "block")
    return _product(xp, [a.astype(x.dtype) * _spread(xp, x, -1, block, a.shape[-1]), *weights], attrs)


def _flops(types: Types, outputs: Sequence[TensorType], attrs: Attrs) -> int:
    return 2 * outputs[0].size * types[0].shape[-1] if types[0] is not None else 0


def middle(bits: int) -> int:
    """The number of ``bits`` bits that stands for zero where nothing else is said."""
    return 1 << (bits - 1)


register(OpDef("dequantize_blocks", "gather", _blocks_type, _dequantized, folds=False))
register(OpDef("weight_only_matmul", "contraction", _product_type, _product, flops=_flops))
register(OpDef("weight_only_bytes", "contraction", _bytes_type, _bytes_product, flops=_flops))
