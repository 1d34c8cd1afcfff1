"""Matrix products. ``matmul`` follows numpy.matmul; with ``transpose_b`` the last two axes of b are swapped first. Of
integers of 8 bits the result is int32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mononn_core.element import product_type
from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import broadcast, present
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


register(OpDef("matmul", "contraction", _infer, _evaluate, flops=_flops))
