"""Scaled dot-product attention: softmax(scale q k^T + bias) v.

q is [B, H, S, D], k [B, H, T, D], v [B, H, T, E], bias broadcastable to [B, H, S, T]; the result is [B, H, S, E].
A row whose scores are all minus infinity is NaN, as softmax gives it, or zero with ``guard`` set.

Of integers of 8 bits, q unsigned, the result is the int32 product of quantised probabilities and v. Attributes beside
``guard``: ``zeros``, the zero points of q, k and v; ``probability``, (step, low, high) of the probabilities'
:class:`~mononn_core.ops.quantise.Rounding`; ``steps``, from the integers' product to the scores, three numbers each:
(factor, 0, 0), (step, low, high) of a rounding, or (0, 1, 0), where the bias is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mononn_core.element import BYTES, COMPUTE, WORD, accumulator
from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import broadcast, integers, number, numbers
from mononn_core.ops.quantise import Rounding
from mononn_core.ops.registry import Attrs, OpDef, register

Types = Sequence[TensorType | None]


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    q, k, v = types[:3]
    bias = types[3] if len(types) > 3 else None
    whole = [t is not None and t.dtype in BYTES for t in (q, k, v)]
    if q is None or k is None or v is None or not q.rank == k.rank == v.rank == 4:
        raise ShapeError("attention takes q, k and v of rank 4")
    b, h, s, d = q.shape
    if k.shape[:2] != (b, h) or v.shape[:2] != (b, h) or k.shape[3] != d or v.shape[2] != k.shape[2]:
        raise ShapeError(f"attention of q {q}, k {k} and v {v} does not exist")
    if any(whole) and not (all(whole) and q.dtype == "uint8" and "zeros" in attrs):
        raise ShapeError("attention of integers takes unsigned q, k and v of 8 bits, and their zero points")
    scores = TensorType(COMPUTE if any(whole) else q.dtype, (b, h, s, k.shape[2]))
    if bias is not None and (broadcast((scores, bias)) != scores.shape or bias.dtype != scores.dtype):
        raise ShapeError(f"an attention bias {bias} does not fit scores {scores}")
    return (TensorType(accumulator(q.dtype) if any(whole) else q.dtype, (b, h, s, v.shape[3])),)


def _evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    q, k, v = inputs[:3]
    bias = inputs[3] if len(inputs) > 3 else None
    if "zeros" not in attrs:
        return (xp.matmul(_weights(xp, xp.matmul(q, xp.swapaxes(k, -1, -2)), bias, attrs), v).astype(q.dtype),)
    q, k, v = (x.astype(WORD) - zero for x, zero in zip((q, k, v), integers(attrs, "zeros"), strict=True))
    sums = xp.matmul(q, xp.swapaxes(k, -1, -2)).astype(COMPUTE if bias is None else bias.dtype)
    step, low, high = numbers(attrs, "probability")
    whole = Rounding(step, int(low), int(high)).whole(xp, _weights(xp, sums, bias, attrs))
    return (xp.matmul(whole.astype(WORD), v),)


def _weights(xp: Any, scores: Any, bias: Any, attrs: Attrs) -> Any:
    """The probabilities that sums of products stand for."""
    for step in score_steps(attrs, bias is not None):
        if isinstance(step, Rounding):
            scores = step.whole(xp, scores) * xp.asarray(step.step, scores.dtype)
        else:
            scores = scores + bias if step is None else scores * xp.asarray(step, scores.dtype)
    powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = powers / xp.sum(powers, axis=-1, keepdims=True)
    return xp.where(xp.isnan(weights), xp.zeros_like(weights), weights) if attrs.get("guard") else weights


def score_steps(attrs: Attrs, biased: bool) -> Iterator[float | Rounding | None]:
    """From a sum of products to its score: factors, roundings, and None where the bias is added."""
    if "steps" not in attrs:
        if number(attrs, "scale") != 1.0:
            yield number(attrs, "scale")
        if biased:
            yield None
        return
    for step, low, high in zip(*[iter(numbers(attrs, "steps"))] * 3, strict=True):
        if low > high:
            yield None
        else:
            yield Rounding(step, int(low), int(high)) if low < high else step


def _flops(types: Types, outputs: Sequence[TensorType], attrs: Attrs) -> int:
    q, k = types[0], types[1]
    if q is None or k is None:
        return 0
    scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    return scores * (2 * q.shape[3] + 5 + 2 * outputs[0].shape[3])


register(OpDef("attention", "contraction", _infer, _evaluate, flops=_flops))
