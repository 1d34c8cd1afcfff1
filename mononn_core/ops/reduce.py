"""Reductions: some axes collapse; and those of the elements up to each position.

    reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_prod(x; axes, keepdims)     of the input's type
    argmax, argmin(x; axis, keepdims, last)                                             int64
    cumulative(x; axis, product, exclusive, reverse)                                    of the input's type

``cumulative`` sums up, or multiplies (``product``), the elements up to each position, or before it (``exclusive``), or
from it on (``reverse``). ``axes`` is sorted and non-negative; ``keepdims`` keeps them with extent 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from mononn_core.element import is_float
from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import integer, integers, numpy_dtype, present
from mononn_core.ops.registry import Attrs, OpDef, register

Types = Sequence[TensorType | None]


def reduced(x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    """Shape of ``x`` after its ``axes`` collapse."""
    axes = integers(attrs, "axes")
    if list(axes) != sorted(set(axes)) or any(not 0 <= a < x.rank for a in axes):
        raise ShapeError(f"axes {list(axes)} do not fit {x}")
    if attrs["keepdims"]:
        return tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    return tuple(n for d, n in enumerate(x.shape) if d not in axes)


def reduction(name: str, function: Callable[[Any, Any, tuple[int, ...], bool], Any]) -> None:
    """Register a reduction whose result has its input's type; ``function(xp, x, axes, keepdims)``."""

    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        (x,) = present(types)
        return (TensorType(x.dtype, reduced(x, attrs)),)

    def evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
        (x,) = inputs
        return (xp.asarray(function(xp, x, integers(attrs, "axes"), bool(attrs["keepdims"]))).astype(x.dtype),)

    def flops(types: Types, outputs: Sequence[TensorType], attrs: Attrs) -> int:
        return types[0].size if types[0] is not None else 0

    register(OpDef(name, "reduction", infer, evaluate, flops=flops, loop=True))


def _mean(xp: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if is_float(str(x.dtype)):
        return xp.mean(x, axis=axes, keepdims=keepdims)
    count = prod(x.shape[a] for a in axes)
    return xp.sum(x, axis=axes, keepdims=keepdims) // max(count, 1)


def _extreme(largest: bool) -> Callable[[Any, Any, tuple[int, ...], bool], Any]:
    def apply(xp: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        function = xp.max if largest else xp.min
        if prod(x.shape[a] for a in axes):
            return function(x, axis=axes, keepdims=keepdims)
        return function(x, axis=axes, keepdims=keepdims, initial=neutral(str(x.dtype), largest))

    return apply


def neutral(dtype: str, largest: bool) -> Any:
    """What the maximum (``largest``) or minimum of nothing is: no value changes when it is compared with that."""
    if dtype == "bool":
        return not largest
    if is_float(dtype):
        return float("-inf") if largest else float("inf")
    limits = np.iinfo(numpy_dtype(dtype))
    return limits.min if largest else limits.max


reduction("reduce_sum", lambda xp, x, axes, keep: xp.sum(x, axis=axes, keepdims=keep))
reduction("reduce_prod", lambda xp, x, axes, keep: xp.prod(x, axis=axes, keepdims=keep))
reduction("reduce_mean", _mean)
reduction("reduce_max", _extreme(True))
reduction("reduce_min", _extreme(False))


def _arg(name: str, function: str) -> None:
    """argmax / argmin over one ``axis``: int64; the first of equals, or the last with ``last`` set."""

    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        (x,) = present(types)
        axis = (integer(attrs, "axis"),)
        return (TensorType("int64", reduced(x, {"axes": axis, "keepdims": attrs["keepdims"]})),)

    def evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
        (x,) = inputs
        axis = integer(attrs, "axis")
        find = getattr(xp, function)
        if attrs.get("last"):
            found = x.shape[axis] - 1 - find(xp.flip(x, axis=axis), axis=axis)
        else:
            found = find(x, axis=axis)
        found = xp.asarray(found).astype("int64")
        return (xp.expand_dims(found, axis) if attrs["keepdims"] else found,)

    register(OpDef(name, "reduction", infer, evaluate))


_arg("argmax", "argmax")
_arg("argmin", "argmin")


def _cumulative_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    if not 0 <= integer(attrs, "axis") < x.rank:
        raise ShapeError(f"axis {attrs['axis']} does not fit {x}")
    return (x,)


def _cumulative(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    (x,), axis = inputs, integer(attrs, "axis")
    kind = x.dtype
    x = xp.flip(x, axis=axis) if attrs["reverse"] else x
    found = (xp.cumprod if attrs["product"] else xp.cumsum)(x, axis=axis).astype(kind)
    if attrs["exclusive"] and x.shape[axis]:
        first = xp.full_like(xp.take(x, xp.arange(1), axis=axis), 1 if attrs["product"] else 0)
        found = xp.take(xp.concatenate([first, found], axis=axis), xp.arange(x.shape[axis]), axis=axis)
    return (xp.flip(found, axis=axis) if attrs["reverse"] else found,)


def _cumulative_flops(types: Types, outputs: Sequence[TensorType], attrs: Attrs) -> int:
    return outputs[0].size


register(OpDef("cumulative", "row", _cumulative_infer, _cumulative, flops=_cumulative_flops))
