"""Matrix products. ``matmul`` follows numpy.matmul; with ``transpose_b`` the last two axes of b are swapped first. Of
integers of 8 bits the result is int32.

``bytes_matmul`` is the exact int32 product (a - zeros[0]) (b - zeros[1]) of a, uint8, and b, uint8 or int8, both of
which are computed; both have rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mononn_core.element import BYTES, WORD, product_type
from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import broadcast, integers, present
from mononn_core.ops.registry import Attrs, OpDef, register

Types = Sequence[TensorType | None]


def _swapped(t: TensorType) -> TensorType:
    return TensorType(t.dtype, (*t.shape[:-2], t.shape[-1], t.shape[-2])) if t.rank > 1 else t


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    a, b = present(types)
    if attrs.get("transpose_b"):
        b = _swapped(b)
    summed = product_type(a.dtype, b.dtype)
    if a.rank == 0 or b.rank == 0 or not summed or a.shape[-1] != b.shape[-2 if b.rank > 1 else 0]:
        raise ShapeError(f"a matrix product of {a} and {b} does not exist")
    batch = broadcast((TensorType(a.dtype, a.shape[:-2]), TensorType(b.dtype, b.shape[:-2])))
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if b.rank > 1 else ()
    return (TensorType(summed, (*batch, *rows, *columns)),)


def _evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    a, b = inputs
    if attrs.get("transpose_b") and b.ndim > 1:
        b = xp.swapaxes(b, -1, -2)
    summed = product_type(str(a.dtype), str(b.dtype))
    wide = summed if summed != str(a.dtype) else a.dtype
    return (xp.asarray(xp.matmul(a.astype(wide), b.astype(wide))).astype(wide),)


def _flops(types: Types, outputs: Sequence[TensorType], attrs: Attrs) -> int:
    return 2 * outputs[0].size * types[0].shape[-1] if types[0] is not None else 0


def _infer_bytes(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    a, b = present(types)
    if a.dtype != "uint8" or b.dtype not in BYTES or min(a.rank, b.rank) < 2:
        raise ShapeError(f"a product of bytes of {a} and {b} does not exist")
    return _infer(types, attrs)


def _evaluate_bytes(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    a, b = (x.astype(WORD) - zero for x, zero in zip(inputs, integers(attrs, "zeros"), strict=True))
    return (xp.matmul(a, xp.swapaxes(b, -1, -2) if attrs.get("transpose_b") else b),)


register(OpDef("matmul", "contraction", _infer, _evaluate, flops=_flops))
register(OpDef("bytes_matmul", "contraction", _infer_bytes, _evaluate_bytes, flops=_flops))
