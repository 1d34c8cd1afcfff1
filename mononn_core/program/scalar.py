"""Scalar expressions on NumPy grids: what an Expr means, evaluated for a whole tile at once.

A :class:`Frame` is the set of iterations that execute a statement together: one array axis per enclosing loop, values
of variables that broadcast over these axes, and a mask of the iterations that really take part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mononn_core.errors import InputError, VerifyError
from mononn_core.program.expr import Acc, Cast, Const, Expr, Load, LookupTable, Op, Select, Var
from mononn_core.program.functions import FUNCTIONS

Array = np.ndarray[Any, Any]
Reader = Callable[[Load, tuple[Array, ...], "Array | None"], Array]
"""``reader(load, index arrays, mask)``: the values loaded; only where ``mask`` (None: everywhere) is the index real."""


def _checked_index(index: Array, extent: Array, frame: Frame) -> Array:
    """An index taken from data: negative ones count from the end; raises InputError outside [-extent, extent)."""
    outside = np.asarray((index < -extent) | (index >= extent))
    if frame.mask is not None:
        outside = outside & frame.mask
    if outside.any():
        bad = int(np.broadcast_to(index, outside.shape)[outside][0])
        raise InputError(f"index {bad}, taken from the inputs, is out of range for an extent of {int(extent)}")
    return np.where((index < -extent) | (index >= extent), 0, np.where(index < 0, index + extent, index))


@dataclass
class Frame:
    """Iterations that run together. ``extents``: one array axis per enclosing vectorised loop; ``values``: arrays of
    as many leading axes as there were loops when they were bound; ``mask``: bool, or None when all take part."""

    extents: tuple[int, ...] = ()
    values: dict[str, Array] = field(default_factory=dict)
    mask: Array | None = None
    accumulator: Array | None = None

    @staticmethod
    def of(values: Mapping[str, int]) -> Frame:
        """A single iteration with these variables."""
        return Frame((), {k: np.asarray(v, dtype=np.int64) for k, v in values.items()})

    def inner(self) -> Frame:
        """The same iterations; what is bound in it is not bound outside."""
        return Frame(self.extents, dict(self.values), self.mask, self.accumulator)

    def loop(self, var: str, extent: int) -> Frame:
        """Every iteration times ``var`` in [0, extent): one axis more."""
        depth = len(self.extents)
        values = dict(self.values)
        values[var] = np.arange(extent, dtype=np.int64).reshape((1,) * depth + (extent,))
        mask = None if self.mask is None else self.mask[..., None]
        return Frame((*self.extents, extent), values, mask, self.accumulator)

    def where(self, condition: Array) -> Frame:
        """Only the iterations for which ``condition`` holds."""
        mask = condition if self.mask is None else self.mask & condition
        return Frame(self.extents, self.values, mask, self.accumulator)

    def lookup(self, name: str) -> Array:
        """A variable's values, with one axis per loop; raises VerifyError when it is not bound here."""
        if name not in self.values:
            raise VerifyError(f"variable {name!r} is not bound where it is used")
        value = self.values[name]
        return value.reshape(value.shape + (1,) * (len(self.extents) - value.ndim))

    def full(self, value: Array) -> Array:
        """``value`` broadcast over all iterations."""
        return np.broadcast_to(value, self.extents)


def evaluate(e: Expr, frame: Frame, reader: Reader) -> Array:
    """The value of ``e`` in every iteration of ``frame``, of the expression's dtype. Select is lazy: a branch is
    evaluated under the mask of the iterations that take it."""
    match e:
        case Const(value, dtype):
            return np.asarray(value, dtype=dtype)
        case LookupTable(numbers, dtype):
            return np.asarray(numbers, dtype=dtype)
        case Var(name):
            return frame.lookup(name)
        case Acc():
            if frame.accumulator is None:
                raise VerifyError("Acc stands where there is no accumulator")
            return np.asarray(frame.accumulator[e.part])
        case Load():
            return reader(e, tuple(evaluate(i, frame, reader) for i in e.index), frame.mask)
        case Op("index" | "known_index", (inner, limit)):
            return _checked_index(evaluate(inner, frame, reader), evaluate(limit, frame, reader), frame)
        case Op("bits", (inner,), dtype):
            return np.ascontiguousarray(evaluate(inner, frame, reader)).view(dtype)
        case Op(name, args, dtype):
            values = [evaluate(a, frame, reader) for a in args]
            compute = FUNCTIONS[name].compute
            assert compute is not None
            return np.asarray(compute(*values)).astype(dtype, copy=False)
        case Select(condition, then, otherwise):
            chosen = evaluate(condition, frame, reader).astype(bool)
            if chosen.ndim == 0 and frame.mask is None:
                return evaluate(then if chosen else otherwise, frame, reader)
            first = evaluate(then, frame.where(chosen), reader)
            return np.where(chosen, first, evaluate(otherwise, frame.where(~chosen), reader))
        case Cast(value, dtype):
            number = evaluate(value, frame, reader)
            return number != 0 if dtype == "bool" else number.astype(dtype)
