"""Scaled dot-product attention: softmax(scale q k^T + bias) v.

q is [B, H, S, D], k [B, H, T, D], v [B, H, T, E], bias broadcastable to [B, H, S, T]; the result is [B, H, S, E].
A row whose scores are all minus infinity is NaN, as softmax gives it, or zero with ``guard`` set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import broadcast, number
from mononn_core.ops.registry import Attrs, OpDef, register

Types = Sequence[TensorType | None]


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    q, k, v = types[:3]
    bias = types[3] if len(types) > 3 else None
    if q is None or k is None or v is None or not q.rank == k.rank == v.rank == 4:
        raise ShapeError("attention takes q, k and v of rank 4")
    b, h, s, d = q.shape
    if k.shape[:2] != (b, h) or v.shape[:2] != (b, h) or k.shape[3] != d or v.shape[2] != k.shape[2]:
        raise ShapeError(f"attention of q {q}, k {k} and v {v} does not exist")
    scores = TensorType(q.dtype, (b, h, s, k.shape[2]))
    if bias is not None and (broadcast((scores, bias)) != scores.shape or bias.dtype != q.dtype):
        raise ShapeError(f"an attention bias {bias} does not fit scores {scores}")
    return (TensorType(q.dtype, (b, h, s, v.shape[3])),)


def _evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    q, k, v = inputs[:3]
    bias = inputs[3] if len(inputs) > 3 else None
    scores = xp.matmul(q, xp.swapaxes(k, -1, -2)) * xp.asarray(number(attrs, "scale"), dtype=q.dtype)
    if bias is not None:
        scores = scores + bias
    powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = powers / xp.sum(powers, axis=-1, keepdims=True)
    if attrs.get("guard"):
        weights = xp.where(xp.isnan(weights), xp.zeros_like(weights), weights)
    return (xp.matmul(weights, v).astype(q.dtype),)


def _flops(types: Types, outputs: Sequence[TensorType], attrs: Attrs) -> int:
    q, k = types[0], types[1]
    if q is None or k is None:
        return 0
    scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    return scores * (2 * q.shape[3] + 5 + 2 * outputs[0].shape[3])


register(OpDef("attention", "contraction", _infer, _evaluate, flops=_flops))
