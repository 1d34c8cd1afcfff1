"""``quantize`` and ``dequantize``: between real numbers and integers of 8 bits (or others) on a linear scale;
``lookup``: between two of 8 bits, by a table.

    quantize(x, scale[, zero]; to) = saturate(round(x / scale) + zero)
    dequantize(q, scale[, zero]) = (q - zero) scale
    lookup(q; table, to) = table[q mod 256]

Rounding is half to even (ONNX, QuantizeLinear and DequantizeLinear). Scale and zero point broadcast over x. A quantised
constant is not folded into the larger tensor of reals that it stands for until nothing wants it as it is
(:mod:`mononn_core.passes.quantised`). Generated code multiplies by a constant scale's reciprocal: where x / scale lies
within a rounding of a half, the result may be the neighbouring integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from mononn_core.element import BYTES, COMPUTE, WIDE, WORD
from mononn_core.errors import ShapeError, UnsupportedError
from mononn_core.graph import TensorType
from mononn_core.graph.graph import Attr
from mononn_core.ops.common import integers, numpy_dtype, text
from mononn_core.ops.elementwise import elementwise
from mononn_core.ops.registry import Attrs
from mononn_core.program.expr import Cast, Const, Expr, LookupTable, Op, Select, op

MOST_TERMS = (1 << 31) // 255**2
"""Of a product whose sum an int32 holds whatever its factors, differences of integers of 8 bits, are."""


def limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest number of an integer type, of :mod:`ml_dtypes` too."""
    info = ml_dtypes.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


def _quantized_type(types: Sequence[TensorType], attrs: Attrs) -> str:
    if len(types) not in (2, 3) or types[0].dtype != types[1].dtype:
        raise ShapeError("quantize takes x, a scale of its type and perhaps a zero point")
    to = text(attrs, "to")
    if "int" not in to:
        raise UnsupportedError(f"numbers are quantised to integers, not to {to}")
    return to


def _dequantized_type(types: Sequence[TensorType], attrs: Attrs) -> str:
    if len(types) not in (2, 3):
        raise ShapeError("dequantize takes x, a scale and perhaps a zero point")
    return types[1].dtype


def _quantize(xp: Any, attrs: Attrs, x: Any, scale: Any, *zero: Any) -> Any:
    to = text(attrs, "to")
    low, high = limits(to)
    whole = xp.round(x / scale)
    if zero:
        whole = whole + zero[0].astype(x.dtype)
    return xp.clip(whole, low, high).astype(numpy_dtype(to))


def _quantize_point(attrs: Attrs, x: Expr, scale: Expr, *zero: Expr) -> Expr:
    to = text(attrs, "to")
    low, high = limits(to)
    whole = op("round", _in_steps(x, scale))
    if zero and not _is_zero(zero[0]):
        whole = op("add", whole, _as(zero[0], x.dtype))
    least, most = (Const(float(n), x.dtype) for n in (low, high))
    return Cast(op("min", op("max", whole, least), most), to)


def _dequantize(xp: Any, attrs: Attrs, x: Any, scale: Any, *zero: Any) -> Any:
    value = x.astype(scale.dtype)
    return (value - zero[0].astype(scale.dtype) if zero else value) * scale


def _dequantize_point(attrs: Attrs, x: Expr, scale: Expr, *zero: Expr) -> Expr:
    point = zero[0] if zero else Const(0)
    return op("mul", _distance(x, point, scale.dtype), scale)


def _distance(x: Expr, zero: Expr, dtype: str) -> Expr:
    """x - zero as a float."""
    passing = _passing(x, zero, dtype)
    if passing is not None:
        return passing
    return _as(x, dtype) if _is_zero(zero) else op("sub", _as(x, dtype), _as(zero, dtype))


def _passing(x: Expr, zero: Expr, dtype: str) -> Expr | None:
    """x - zero of an x that was quantised or looked up just now: never an integer on its way. Of a choice one may be
    so."""
    if isinstance(x, Select):
        if all(_passing(part, zero, dtype) is None for part in (x.then, x.otherwise)):
            return None
        return Select(x.condition, _distance(x.then, zero, dtype), _distance(x.otherwise, zero, dtype))
    if not isinstance(x, Cast):
        return None
    if _name(x.value) == "lookup":
        return _minus(x.value, zero, dtype)
    clamped = _parts(x.value, "min")
    raised = _parts(clamped[0], "max") if clamped else None
    if clamped is None or raised is None or x.value.dtype != dtype or not _is_whole(raised[0]):
        return None
    if (raised[1].value, clamped[1].value) != limits(x.dtype):
        return None
    whole, shift = _parts(raised[0], "add") or (raised[0], Const(0))
    if not isinstance(zero, Const) or shift.value != zero.value:
        return _minus(x.value, zero, dtype)
    least, most = (Const(float(n.value) - float(zero.value), dtype) for n in (raised[1], clamped[1]))
    return op("min", op("max", whole, least), most)


def _is_whole(e: Expr) -> bool:
    """Whether a float is a whole number: one that was rounded, of an integer type, or a sum of such."""
    match e:
        case Op("add", (a, b)):
            return _is_whole(a) and _is_whole(b)
        case Const():
            return float(e.value).is_integer()
        case Cast():
            return "int" in e.value.dtype
    return _name(e) == "round"


def _minus(x: Expr, zero: Expr, dtype: str) -> Expr:
    """x - zero of a whole number that is a float."""
    return x if _is_zero(zero) else op("sub", x, _as(zero, dtype))


def _parts(e: Expr, name: str) -> tuple[Expr, Const] | None:
    """The operands of operation ``name`` of something and a constant."""
    if not isinstance(e, Op) or e.name != name or not isinstance(e.args[1], Const):
        return None
    return e.args[0], e.args[1]


def _name(e: Expr) -> str:
    return e.name if isinstance(e, Op) else ""


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def _as(e: Expr, dtype: str) -> Expr:
    """``e`` as a float; a constant is one at once."""
    return Const(float(e.value), dtype) if isinstance(e, Const) else Cast(e, dtype)


def _in_steps(x: Expr, scale: Expr) -> Expr:
    """x / scale, or what is as good."""
    if isinstance(scale, Const) and scale.value == 1:
        return x
    reciprocal = _reciprocal(scale)
    return op("div", x, scale) if reciprocal is None else op("mul", x, reciprocal)


def _reciprocal(scale: Expr) -> Const | None:
    """1 / scale of a constant, rounded once; None where that is no finite number."""
    if not isinstance(scale, Const):
        return None
    with np.errstate(all="ignore"):
        value = (1 / np.asarray(scale.value, WIDE)).astype(numpy_dtype(scale.dtype))
    return Const(value.item(), scale.dtype) if np.isfinite(value) else None


def _lookup(xp: Any, attrs: Attrs, x: Any) -> Any:
    to = text(attrs, "to")
    return xp.asarray(integers(attrs, "table"), numpy_dtype(to))[x.astype(numpy_dtype(WORD)) & 255]


def _lookup_point(attrs: Attrs, x: Expr) -> Expr:
    whole = x.value if isinstance(x, Cast) and x.value.dtype == COMPUTE else Cast(x, COMPUTE)
    return Cast(op("lookup", whole, LookupTable(integers(attrs, "table"))), text(attrs, "to"))


def _lookup_type(types: Sequence[TensorType], attrs: Attrs) -> str:
    to = text(attrs, "to")
    if len(types) != 1 or types[0].dtype not in BYTES or to not in BYTES or len(integers(attrs, "table")) != 256:
        raise ShapeError("lookup takes bytes, and gives what a table of 256 numbers of 8 bits says")
    return to


elementwise("quantize", _quantize, _quantize_point, _quantized_type, cost=4)
elementwise("dequantize", _dequantize, _dequantize_point, _dequantized_type, cost=2, folds=False)
elementwise("lookup", _lookup, _lookup_point, _lookup_type)


@dataclass(frozen=True)
class Rounding:
    """What quantising and dequantising by one scale does: x becomes step times round(x / step), whose factor lies in
    [low, high], the integers' limits less their zero point."""

    step: float
    low: int
    high: int

    @property
    def parts(self) -> tuple[float, float, float]:
        """As an attribute of a node."""
        return self.step, float(self.low), float(self.high)

    def whole(self, xp: Any, x: Any) -> Any:
        """The factors for an array."""
        return xp.clip(xp.round(x / xp.asarray(self.step, x.dtype)), self.low, self.high)

    def point(self, x: Expr) -> Expr:
        """What x becomes."""
        step = Const(self.step, x.dtype)
        whole = op("round", _in_steps(x, step))
        least, most = (Const(float(n), x.dtype) for n in (self.low, self.high))
        return op("mul", op("min", op("max", whole, least), most), step)


class Adder(Protocol):
    """What appends nodes to a Graph: an importer's context, or a rewriter."""

    def add(self, op: str, /, *inputs: str, **attrs: Attr) -> str: ...
    def make(self, value: Any, dtype: str | None = None) -> str: ...
    def type(self, tensor: str) -> TensorType: ...
    def known(self, name: str) -> np.ndarray[Any, Any] | None: ...


def integer_matmul(to: Adder, a: str, b: str, a_zero: str, b_zero: str) -> str:
    """The int32 product (a - a_zero) (b - b_zero) of integers of 8 bits, by one of unsigned a and signed b.

    (a - z) (b - y) = a b - z sum over k of b - y sum over k of a + K z y: the second term is constant where b is.

    Args:
        a: [..., M, K]. b: [..., K, N].
        a_zero: a scalar, or [..., M, 1]. b_zero: a scalar, or [..., N] ("": 0, of both).
    """
    a, z = recentred(to, a, a_zero, "uint8")
    b, y = recentred(to, b, b_zero, "int8")
    total, terms = to.add("matmul", a, b), to.type(a).shape[-1]
    keep = min(to.type(a).rank, to.type(b).rank) > 1
    if z:
        sums = _column_sums(to, b, keep)
        if y:
            sums = to.add("sub", sums, to.add("mul", y, to.make(terms, WORD)))
        total = to.add("add", total, to.add("neg", to.add("mul", z, sums)))
    if y:
        rows = to.add("reduce_sum", to.add("cast", a, to=WORD), axes=(to.type(a).rank - 1,), keepdims=keep)
        total = to.add("sub", total, to.add("mul", rows, y))
    return total


def _column_sums(to: Adder, b: str, keep: bool) -> str:
    """The sums of b's columns, constant where b is."""
    axis, known = max(to.type(b).rank - 2, 0), to.known(b)
    if known is not None:
        return to.make(known.sum(axis, dtype=WORD, keepdims=keep))
    return to.add("reduce_sum", to.add("cast", b, to=WORD), axes=(axis,), keepdims=keep)


def recentred(to: Adder, x: str, zero: str, dtype: str) -> tuple[str, str]:
    """x as ``dtype``, moved by 128 where it is of the other signedness, and its zero point then: int32, "" for 0."""
    own = to.type(x).dtype
    point = to.add("cast", zero, to=WORD) if zero else ""
    if own != dtype:
        shift, value = to.make(-128 if dtype == "int8" else 128, WORD), to.known(x)
        if value is not None:
            x = to.make((value.astype(WORD) + (-128 if dtype == "int8" else 128)).astype(numpy_dtype(dtype)))
        else:
            x = to.add("cast", to.add("add", to.add("cast", x, to=WORD), shift), to=dtype)
        point = to.add("add", point, shift) if point else shift
    known = to.known(point) if point else None
    return x, "" if known is not None and not known.any() else point


def beyond(wide: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """What has to be taken off each output channel's weights, of 8 bits less their zero point, so that int8 holds them:
    0 where it does. ``axes``: all others."""
    return np.maximum(wide.max(axes) - 127, 0) + np.minimum(wide.min(axes) + 128, 0)
