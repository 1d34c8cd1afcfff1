"""Rows: operators where each output row depends on a whole input row.

    softmax, log_softmax(x; axis)
    layer_norm(x, gamma, beta; epsilon)     (x - mean) / sqrt(variance + epsilon) gamma + beta over the last axis
    rms_norm(x, gamma; epsilon)             x / sqrt(mean of squares + epsilon) gamma over the last axis

gamma and beta are vectors of the last axis, or absent (""). Rows of a narrow type are normalised in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mononn_core.element import COMPUTE, NARROW, is_float
from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import integer, number
from mononn_core.ops.registry import Attrs, Evaluate, OpDef, register

Types = Sequence[TensorType | None]


def _like_first(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = types[0]
    if x is None or not is_float(x.dtype):
        raise ShapeError(f"a floating-point tensor is needed, not {x}")
    return (x,)


def _row(name: str, evaluate: Evaluate, cost: int, norm: bool = False) -> None:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        (x,) = _like_first(types, attrs)
        if norm:
            for t in types[1:]:
                if t is not None and (t.shape != x.shape[-1:] or t.dtype != x.dtype):
                    raise ShapeError(f"{name} of {x} takes a vector of the last axis, not {t}")
        elif not 0 <= integer(attrs, "axis") < x.rank:
            raise ShapeError(f"axis {attrs['axis']} does not exist in {x}")
        return (x,)

    def flops(types: Types, outputs: Sequence[TensorType], attrs: Attrs) -> int:
        return cost * outputs[0].size

    register(OpDef(name, "row", infer, evaluate, flops=flops, loop=True))


def _softmax(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    (x,) = inputs
    axis = integer(attrs, "axis")
    powers = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return ((powers / xp.sum(powers, axis=axis, keepdims=True)).astype(x.dtype),)


def _log_softmax(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    (x,) = inputs
    axis = integer(attrs, "axis")
    centred = x - xp.max(x, axis=axis, keepdims=True)
    return ((centred - xp.log(xp.sum(xp.exp(centred), axis=axis, keepdims=True))).astype(x.dtype),)


def _widened(x: Any) -> Any:
    return x.astype(COMPUTE) if str(x.dtype) in NARROW else x


def _scaled(y: Any, inputs: Sequence[Any]) -> Any:
    y = y.astype(inputs[0].dtype)
    if inputs[1] is not None:
        y = y * inputs[1]
    return y + inputs[2] if len(inputs) > 2 and inputs[2] is not None else y


def _layer_norm(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    x = _widened(inputs[0])
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    epsilon = xp.asarray(number(attrs, "epsilon"), dtype=x.dtype)
    return (_scaled(centred / xp.sqrt(variance + epsilon), inputs),)


def _rms_norm(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    x = _widened(inputs[0])
    square = xp.mean(x * x, axis=-1, keepdims=True)
    epsilon = xp.asarray(number(attrs, "epsilon"), dtype=x.dtype)
    return (_scaled(x / xp.sqrt(square + epsilon), inputs),)


_row("softmax", _softmax, 5)
_row("log_softmax", _log_softmax, 5)
_row("layer_norm", _layer_norm, 8, norm=True)
_row("rms_norm", _rms_norm, 5, norm=True)
