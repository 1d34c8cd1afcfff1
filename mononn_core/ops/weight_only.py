"""Weights in blocks: whole numbers of few bits with a scale, and a zero point, for every block of one axis.

    dequantize_blocks(q, scale[, zero]; axis, block)[.., i, ..] = (q[.., i, ..] - zero[.., i // block, ..]) scale[..]
    weight_only_matmul(a, q, scale, zero; block, bits) = a dequantize_blocks(q, scale, zero; axis 0)
    weight_only_bytes(a, q, scale, zero, x, y; block, run, bits) = weight_only_matmul(b, q, scale, zero; block, bits),
        b[.., k] = w[.., k] x[.., k // run], y[.., i] = the sum of b's block i,
        w = a, or 256 a[.., :K] + a[.., K:] where a has twice as many columns as q rows

(ONNX's DequantizeLinear with ``block_size``, ONNX Runtime's MatMulNBits.) In the products q is uint8, numbers of
``bits`` bits, and a product never makes the matrix of reals that it stands for; a of the last is int8, whose runs see
:func:`run_of`. ``activations`` at a dequantize_blocks is the type that a product by it shall round its left side to.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Protocol, TypeVar

from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import integer, present
from mononn_core.ops.quantise import MOST_TERMS
from mononn_core.ops.registry import Attrs, OpDef, register

Types = Sequence[TensorType | None]
V = TypeVar("V")
STEPS = {"int8": 127, "int16": 127 * 256}
"""Steps on each side of zero that the largest magnitude of a run is where it is rounded to a type."""
LEAST_MAGNITUDE = 1e-30
"""What that magnitude at least counts as."""


class Numbers(Protocol[V]):
    """Where operators are applied to whole tensors."""

    def add(self, op: str, /, *inputs: V, **attrs: Any) -> V: ...
    def number(self, value: float, like: V) -> V: ...


def in_steps(do: Numbers[V], values: V, dtype: str, axis: int) -> tuple[V, V]:
    """``values`` as whole numbers that ``dtype`` holds, and the scale of each run along ``axis``, which stays."""
    most = do.add("reduce_max", do.add("abs", values), axes=(axis,), keepdims=True)
    most, steps = do.add("max", most, do.number(LEAST_MAGNITUDE, values)), do.number(STEPS[dtype], values)
    whole = do.add("round", do.add("mul", values, do.add("div", steps, most)))
    return whole, do.add("div", most, steps)


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
"""Terms of a step of a product of bytes, and the most of a run where all terms have one scale of weights; else those in
which smaller blocks end."""
FEWEST_TERMS = 32
"""Of a run, where there is a choice."""


def run_of(terms: int, block: int, most: int = RUN) -> int:
    """Terms that share a scale of the left side in a product of bytes: those of a block of the weights, or, where all
    terms are one, at most ``most``, as many as divide them. 0: there are no such runs in whole steps."""
    if block < terms:
        whole = block > 0 and terms % block == 0 and block % STEP == 0 and RUN % min(block, RUN) == 0
        return block if whole and block <= MOST_TERMS else 0
    first = min(most, terms) // STEP * STEP
    return next((n for n in range(first, min(first, FEWEST_TERMS) - 1, -STEP) if n and terms % n == 0), 0)


def _bytes_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    a, *weights, x, y = present(types)
    block, run, terms = integer(attrs, "block"), integer(attrs, "run"), weights[0].shape[0]
    pieces = a.shape[-1] // max(terms, 1)
    if a.dtype != "int8" or pieces not in (1, 2) or a.shape[-1] != pieces * terms or run not in range(STEP, terms + 1):
        raise ShapeError(f"{a} in runs of {run} has not one or two bytes for each row of {weights[0]}")
    wanted = [(*a.shape[:-1], ceil(terms / part)) for part in (run, block)]
    if run != run_of(terms, block, run) or [x.shape, y.shape] != wanted:
        raise ShapeError(f"{a} has scales and sums of shapes {wanted} in whole runs of {run}, not {x} and {y}")
    (product,) = _product_type([TensorType(x.dtype, (*a.shape[:-1], terms)), *weights], attrs)
    return (product,)


def _bytes_product(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    a, *weights, x, _ = inputs
    terms, whole = weights[0].shape[0], a.astype(x.dtype)
    if a.shape[-1] > terms:
        whole = 256 * whole[..., :terms] + whole[..., terms:]
    return _product(xp, [whole * _spread(xp, x, -1, integer(attrs, "run"), terms), *weights], attrs)


def _flops(types: Types, outputs: Sequence[TensorType], attrs: Attrs) -> int:
    return 2 * outputs[0].size * types[0].shape[-1] if types[0] is not None else 0


def middle(bits: int) -> int:
    """The number of ``bits`` bits that stands for zero where nothing else is said."""
    return 1 << (bits - 1)


register(OpDef("dequantize_blocks", "gather", _blocks_type, _dequantized, folds=False))
register(OpDef("weight_only_matmul", "contraction", _product_type, _product, flops=_flops))
register(OpDef("weight_only_bytes", "contraction", _bytes_type, _bytes_product, flops=_flops))
