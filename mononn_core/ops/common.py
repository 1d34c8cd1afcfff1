"""Helpers the operator families share: broadcasting, index arithmetic and argument checks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from mononn_core.errors import ShapeError, UnsupportedError
from mononn_core.graph import TensorType
from mononn_core.ops.registry import Attrs, Index
from mononn_core.program.expr import INDEX, Cast, Const, Expr, Load, add, floordiv, mod, mul, op, walk

BORDERS = ("pad", "border")
"""Operators that put something around a tensor."""
LARGE, BLOCK = 1 << 20, 128
"""Bytes from which arrays are copied in blocks, and elements of a block along each of two axes."""


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of that name; raises UnsupportedError for one NumPy and ml_dtypes lack."""
    try:
        return np.dtype(dtype)
    except TypeError as error:
        raise UnsupportedError(f"element type {dtype!r} is unknown to NumPy") from error


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays of one shape and dtype have the same bytes; views of one file need not be read for that."""
    if (a.ctypes.data, a.strides) == (b.ctypes.data, b.strides):
        return True
    one, other = (np.ascontiguousarray(value).reshape(-1).view(np.uint8) for value in (a, b))
    return np.array_equal(one, other)


def contiguous(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, or a copy, in C order; a large one is transposed in blocks, whose lines stay in a cache until all of
    them are read."""
    if x.flags.c_contiguous:
        return x
    wide = [axis for axis, extent in enumerate(x.shape) if extent > 1]
    near = min(wide, key=lambda axis: abs(x.strides[axis]))
    if x.nbytes < LARGE or near == wide[-1]:
        return np.ascontiguousarray(x)
    out = np.empty(x.shape, x.dtype)
    for first in range(0, x.shape[near], BLOCK):
        for second in range(0, x.shape[wide[-1]], BLOCK):
            at = [slice(None)] * x.ndim
            at[near], at[wide[-1]] = slice(first, first + BLOCK), slice(second, second + BLOCK)
            out[tuple(at)] = x[tuple(at)]
    return out


def present(types: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    """The inputs, all of which must be there."""
    found = tuple(t for t in types if t is not None)
    if len(found) != len(types):
        raise ShapeError("a required input is missing")
    return found


def broadcast(types: Sequence[TensorType]) -> tuple[int, ...]:
    """The common shape of several tensors by NumPy's rule; raises ShapeError where there is none."""
    found = types[0].shape if types else ()
    for t in types[1:]:
        if t.shape != found:
            found = _pair(found, t.shape, types)
    return found


def _pair(a: tuple[int, ...], b: tuple[int, ...], types: Sequence[TensorType]) -> tuple[int, ...]:
    """The common shape of two of ``types``."""
    short, long = sorted((a, b), key=len)
    extents = list(long)
    for axis, n in enumerate(short, len(long) - len(short)):
        if extents[axis] == 1:
            extents[axis] = n
        elif n not in (1, extents[axis]):
            shapes = " and ".join(str(list(t.shape)) for t in types)
            raise ShapeError(f"shapes {shapes} do not broadcast")
    return tuple(extents)


def aligned(index: Index, shape: tuple[int, ...]) -> Index:
    """The element of a broadcast input of ``shape`` that output element ``index`` reads."""
    tail = index[len(index) - len(shape) :] if shape else ()
    return tuple(Const(0) if extent == 1 else i for i, extent in zip(tail, shape, strict=True))


def linearise(index: Index, shape: tuple[int, ...]) -> Expr:
    """Row-major position of ``index`` in ``shape``."""
    position: Expr = Const(0)
    for i, extent in zip(index, shape, strict=True):
        position = add(mul(position, extent), i)
    return position


def delinearise(position: Expr, shape: tuple[int, ...]) -> Index:
    """The index at row-major ``position`` in ``shape``."""
    index: list[Expr] = []
    step = prod(shape)
    for extent in shape:
        step //= max(extent, 1)
        index.append(mod(floordiv(position, max(step, 1)), extent) if extent > 1 else Const(0))
    return tuple(index)


def guarded(index: Expr, extent: int) -> Expr:
    """An index that is used only where it lies in [0, extent), as a condition beside it says: what comes from data,
    which no proof can follow, is put there in any case."""
    if not any(isinstance(n, Load) for n in walk(index)):
        return index
    return op("min", op("max", index, Const(0)), Const(extent - 1))


def as_index(value: Expr) -> Expr:
    """An integer element as an index expression."""
    return value if value.dtype == INDEX else Cast(value, INDEX)


def axis_of(axis: int, rank: int) -> int:
    """``axis`` as a non-negative number; raises ShapeError when the tensor has no such axis."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} does not exist in a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def integer(attrs: Attrs, name: str) -> int:
    """An integer attribute."""
    value = attrs[name]
    assert isinstance(value, int), f"attribute {name!r} is {value!r}, not an integer"
    return value


def number(attrs: Attrs, name: str) -> float:
    """A numeric attribute as a float."""
    value = attrs[name]
    assert isinstance(value, (int, float)), f"attribute {name!r} is {value!r}, not a number"
    return float(value)


def integers(attrs: Attrs, name: str) -> tuple[int, ...]:
    """A tuple-of-integers attribute."""
    value = attrs[name]
    assert isinstance(value, tuple), f"attribute {name!r} is {value!r}, not a tuple"
    return tuple(int(v) for v in value)


def numbers(attrs: Attrs, name: str) -> tuple[float, ...]:
    """A tuple-of-numbers attribute."""
    value = attrs[name]
    assert isinstance(value, tuple), f"attribute {name!r} is {value!r}, not a tuple"
    return tuple(map(float, value))


def text(attrs: Attrs, name: str) -> str:
    """A string attribute."""
    value = attrs[name]
    assert isinstance(value, str), f"attribute {name!r} is {value!r}, not a string"
    return value


def fills_border(name: str, attrs: Attrs) -> bool:
    """Whether operator ``name`` puts constants around a tensor."""
    return name == "border" or (name == "pad" and text(attrs, "mode") == "constant")
