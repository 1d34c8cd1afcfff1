"""Elementwise operators: output element i depends on element i of each (broadcast) input.

Each is one row of a table: its array semantics and the scalar expression of one element. With attributes:

    cast(x; to, saturate)   bitcast(x; to)   clip(x; low, high)   gelu(x; approximate)   isinf(x; positive, negative)
    mod(a, b; fmod)         shift(a, b; left)

Integer ``div`` rounds towards zero (ONNX and C); ``mod`` has the divisor's sign, or the dividend's with ``fmod`` set;
``pow`` has its base's type; a missing bound of ``clip`` is None or absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from mononn_core.element import COMPUTE, SMALL_FLOATS, WIDE, is_float
from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import aligned, broadcast, numpy_dtype, present, text
from mononn_core.ops.numeric import erf, power, sigmoid, softplus, truncated_division
from mononn_core.ops.registry import Attrs, Index, OpDef, Reader, register
from mononn_core.program.expr import Cast, Const, Expr, Op, Select, const, op

Array = Any
Semantics = Callable[..., Array]
"""``f(xp, attrs, *arrays)``"""
Scalar = Callable[..., Expr]
"""``f(attrs, *elements)``"""
ResultType = Callable[[Sequence[TensorType], Attrs], str]


def same(types: Sequence[TensorType], attrs: Attrs) -> str:
    """The result has the type of all inputs, which must agree."""
    if len({t.dtype for t in types}) != 1:
        raise ShapeError(f"inputs have different element types: {', '.join(t.dtype for t in types)}")
    return types[0].dtype


def first(types: Sequence[TensorType], attrs: Attrs) -> str:
    """The result has the first input's type."""
    return types[0].dtype


def boolean(types: Sequence[TensorType], attrs: Attrs) -> str:
    """The result is boolean; the inputs agree in type."""
    same(types, attrs)
    return "bool"


def elementwise(
    name: str,
    semantics: Semantics,
    scalar: Scalar | None,
    result: ResultType = same,
    cost: int = 1,
    arity: int = 0,
    onnx: str = "",
    folds: bool = True,
) -> OpDef:
    """Register an elementwise operator of ``cost`` flops an element (and ``arity`` inputs; 0: whatever is given)."""

    def infer(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
        found = present(types)
        if arity and len(found) != arity:
            raise ShapeError(f"{name} takes {arity} inputs, not {len(found)}")
        return (TensorType(result(found, attrs), broadcast(found)),)

    def evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
        value = xp.asarray(semantics(xp, attrs, *inputs))
        types = [TensorType(str(x.dtype), tuple(x.shape)) for x in inputs if x is not None]
        wanted = numpy_dtype(result(types, attrs))
        return (value if value.dtype == wanted else value.astype(wanted),)  # a root of integers is one

    def point(
        readers: Sequence[Reader], types: Sequence[TensorType], output: TensorType, attrs: Attrs, index: Index
    ) -> Expr:
        assert scalar is not None
        return scalar(attrs, *(read(aligned(index, t.shape)) for read, t in zip(readers, types, strict=True)))

    def flops(types: Sequence[TensorType | None], outputs: Sequence[TensorType], attrs: Attrs) -> int:
        return cost * outputs[0].size

    how = point if scalar is not None else None
    return register(
        OpDef(name, "elementwise", infer, evaluate, how, None, flops if cost else None, onnx=onnx, folds=folds)
    )


def _onnx_name(name: str) -> str:
    """Most are called so: bitwise_and is BitwiseAnd."""
    return name.title().replace("_", "")


def unary(
    name: str, function: str | Semantics, scalar: str | Scalar | None = None, cost: int = 1, onnx: str | None = None
) -> None:
    """A one-input operator of the same type; ``function`` and ``scalar`` may be names in xp and in FUNCTIONS;
    ``onnx`` as of an OpDef, by default what the name says."""
    semantics: Semantics = (lambda xp, attrs, x: getattr(xp, function)(x)) if isinstance(function, str) else function
    expression = scalar or name
    lowered: Scalar = (lambda attrs, x: op(expression, x)) if isinstance(expression, str) else expression
    elementwise(name, semantics, lowered, same, cost, 1, _onnx_name(name) if onnx is None else onnx)


def binary(
    name: str, function: str | Semantics, scalar: str | Scalar, result: ResultType = same, onnx: str | None = None
) -> None:
    """A two-input operator; ``function`` and ``scalar`` may be names in xp and in FUNCTIONS; ``onnx`` as of
    :func:`unary`."""
    semantics: Semantics = (
        (lambda xp, attrs, a, b: getattr(xp, function)(a, b)) if isinstance(function, str) else function
    )
    lowered: Scalar = (lambda attrs, a, b: op(scalar, a, b)) if isinstance(scalar, str) else scalar
    elementwise(name, semantics, lowered, result, 1, 2, _onnx_name(name) if onnx is None else onnx)


def _zero(x: Expr) -> Expr:
    return const(0.0 if is_float(x.dtype) else 0, x.dtype)


def _division(xp: Any, attrs: Attrs, a: Array, b: Array) -> Array:
    return xp.divide(a, b) if is_float(str(a.dtype)) else truncated_division(xp, a, b)


def _modulo(xp: Any, attrs: Attrs, a: Array, b: Array) -> Array:
    return xp.fmod(a, b) if attrs.get("fmod") else xp.remainder(a, b)


def _clip(xp: Any, attrs: Attrs, x: Array) -> Array:
    low, high = attrs.get("low"), attrs.get("high")
    if low is not None:
        x = xp.maximum(x, xp.asarray(low, dtype=x.dtype))
    return x if high is None else xp.minimum(x, xp.asarray(high, dtype=x.dtype))


def _clip_point(attrs: Attrs, x: Expr) -> Expr:
    low, high = attrs.get("low"), attrs.get("high")
    if isinstance(low, (int, float)):
        x = op("max", x, const(low, x.dtype))
    return op("min", x, const(high, x.dtype)) if isinstance(high, (int, float)) else x


def _cast(xp: Any, attrs: Attrs, x: Array) -> Array:
    to = text(attrs, "to")
    if to == "bool":
        return x != 0
    if to in SMALL_FLOATS and attrs.get("saturate", True) and xp is np:
        top = float(ml_dtypes.finfo(numpy_dtype(to)).max)
        x = np.clip(x.astype(COMPUTE), -top, top)
    return x.astype(numpy_dtype(to))


def _cast_point(attrs: Attrs, x: Expr) -> Expr:
    to = text(attrs, "to")
    if to == x.dtype:
        return x
    return op("ne", x, _zero(x)) if to == "bool" else Cast(x, to)


def _is_infinite(xp: Any, attrs: Attrs, x: Array) -> Array:
    found = xp.isinf(x)
    if not attrs.get("positive", True):
        found = found & (x < 0)
    return found if attrs.get("negative", True) else found & (x > 0)


def _is_infinite_point(attrs: Attrs, x: Expr) -> Expr:
    found: Expr = op("isinf", x)
    if not attrs.get("positive", True):
        found = op("and", found, op("lt", x, _zero(x)))
    return found if attrs.get("negative", True) else op("and", found, op("gt", x, _zero(x)))


_TANH_SCALE, _TANH_CUBIC = math.sqrt(2.0 / math.pi), 0.044715


def _gelu(xp: Any, attrs: Attrs, x: Array) -> Array:
    if text(attrs, "approximate") == "tanh":
        inner = xp.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x))
    else:
        inner = erf(xp, x * math.sqrt(0.5))
    return (0.5 * x * (1.0 + inner)).astype(x.dtype)


def _gelu_point(attrs: Attrs, x: Expr) -> Expr:
    """x/2 (1 + erf(x / sqrt 2)), or Hendrycks and Gimpel's tanh approximation (arXiv 1606.08415)."""

    def c(value: float) -> Expr:
        return const(value, x.dtype)

    if text(attrs, "approximate") == "tanh":
        cubic = op("mul", op("mul", op("mul", x, x), x), c(_TANH_CUBIC))
        inner = op("tanh", op("mul", op("add", x, cubic), c(_TANH_SCALE)))
    else:
        inner = op("erf", op("mul", x, c(math.sqrt(0.5))))
    return op("mul", op("mul", x, c(0.5)), op("add", inner, c(1.0)))


def _where_type(types: Sequence[TensorType], attrs: Attrs) -> str:
    if types[0].dtype != "bool":
        raise ShapeError(f"where needs a boolean condition, not {types[0].dtype}")
    return same(types[1:], attrs)


def _bitcast_type(types: Sequence[TensorType], attrs: Attrs) -> str:
    to = text(attrs, "to")
    if TensorType(to, ()).itemsize != types[0].itemsize:
        raise ShapeError(f"{types[0].dtype} and {to} have elements of different sizes")
    return to


def _bits(attrs: Attrs, x: Expr) -> Expr:
    return op("bits", x, dtype=text(attrs, "to"))


def _cast_type(types: Sequence[TensorType], attrs: Attrs) -> str:
    return text(attrs, "to")


def _is_true(types: Sequence[TensorType], attrs: Attrs) -> str:
    return "bool"


def _shift(xp: Any, attrs: Attrs, a: Array, b: Array) -> Array:
    return xp.left_shift(a, b) if attrs.get("left") else xp.right_shift(a, b)


def _register() -> None:
    unary("identity", lambda xp, attrs, x: x, lambda attrs, x: x, cost=0, onnx="")
    unary("neg", "negative")
    unary("abs", "abs")
    unary("sign", "sign")
    for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "tan", "sinh", "cosh", "floor", "ceil", "round"):
        unary(name, name)
    for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
        unary(name, "arc" + name[1:])
    unary("reciprocal", lambda xp, attrs, x: xp.asarray(1, dtype=x.dtype) / x)
    unary("erf", lambda xp, attrs, x: erf(xp, x))
    unary("sigmoid", lambda xp, attrs, x: sigmoid(xp, x), cost=4)
    unary("softplus", lambda xp, attrs, x: softplus(xp, x), cost=4)
    unary("relu", lambda xp, attrs, x: xp.maximum(x, xp.zeros_like(x)), lambda attrs, x: op("max", x, _zero(x)))
    unary("gelu", _gelu, _gelu_point, cost=8, onnx="")
    unary("clip", _clip, _clip_point, onnx="")
    unary("not", "logical_not")
    unary("bitwise_not", "bitwise_not", "bitnot")
    elementwise("cast", _cast, _cast_point, _cast_type, 0, 1)
    elementwise("bitcast", lambda xp, attrs, x: x.view(numpy_dtype(text(attrs, "to"))), _bits, _bitcast_type, 0, 1)
    elementwise("isnan", lambda xp, attrs, x: xp.isnan(x), lambda attrs, x: op("isnan", x), _is_true, 1, 1, "IsNaN")
    elementwise("isinf", _is_infinite, _is_infinite_point, _is_true, 1, 1)
    for name, function in (("add", "add"), ("sub", "subtract"), ("mul", "multiply")):
        binary(name, function, name)
    binary("div", _division, "div")
    binary("min", "minimum", "min", onnx="")
    binary("max", "maximum", "max", onnx="")
    binary("pow", lambda xp, attrs, a, b: power(xp, a, b), _power_point, first)
    binary("mod", _modulo, lambda attrs, a, b: op("fmod" if attrs.get("fmod") else "mod", a, b), onnx="")
    for name, scalar in (("equal", "eq"), ("less", "lt"), ("greater", "gt")):
        binary(name, name, scalar, boolean)
    binary("less_equal", "less_equal", "le", boolean, "LessOrEqual")
    binary("greater_equal", "greater_equal", "ge", boolean, "GreaterOrEqual")
    for name in ("and", "or", "xor"):
        binary(name, "logical_" + name, name, boolean)
        binary("bitwise_" + name, "bitwise_" + name, "bit" + name)
    binary("shift", _shift, lambda attrs, a, b: op("shl" if attrs.get("left") else "shr", a, b), onnx="")
    chosen: Scalar = lambda attrs, c, a, b: Select(c, a, b)  # noqa: E731
    elementwise("where", lambda xp, attrs, c, a, b: xp.where(c, a, b), chosen, _where_type, 1, 3, "Where")


def _power_point(attrs: Attrs, a: Expr, b: Expr) -> Expr:
    """An exponent of another type is converted to the base's (both to float64 for an integer base). Integers: 1 of a
    negative exponent, as of 0. The third power, GELU's, is two products."""
    if "int" in a.dtype and "int" in b.dtype:
        positive = b if b.dtype.startswith("u") else op("max", b, const(0, b.dtype))
        return op("pow", a, Cast(positive, a.dtype))
    if a.dtype == COMPUTE and isinstance(b, Const) and b.value == 3:
        return op("cube", a)
    if a.dtype == b.dtype:
        return op("pow", a, b)
    if is_float(a.dtype):
        return op("pow", a, Cast(b, a.dtype))
    return Cast(Op("pow", (Cast(a, WIDE), Cast(b, WIDE)), WIDE), a.dtype)


_register()
