"""Scatters and sorting: operators that write to, or order by, positions that come from data.

    scatter_elements(data, indices, updates; axis, reduction)       scatter_nd(data, indices, updates; reduction)
    order(x; axis, k, largest)      int64 positions of the k first elements in descending (or ascending) order
    scatter_runs(data, targets, updates; reduction)         the form of both scatters that a template computes: data
                                    [R, C] as runs of S elements, one after the other, S a divisor of C; update u, the
                                    u-th S elements of ``updates``, meets run number targets[u] (int64), or none

They have array semantics and no scalar expression: a schedule needs a form of its own for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mononn_core.errors import ShapeError, UnsupportedError
from mononn_core.graph import TensorType
from mononn_core.ops.common import integer, present, text
from mononn_core.ops.registry import Attrs, OpDef, register

Types = Sequence[TensorType | None]
COMBINE = {"add": "add", "mul": "multiply", "max": "max", "min": "min", "none": "set"}
"""How an element written twice is combined."""


def _put(xp: Any, data: Any, where: tuple[Any, ...], updates: Any, how: str) -> Any:
    """``data`` with ``updates`` combined in at ``where``; NumPy in place on a copy, JAX by ``.at``."""
    if xp is not np:
        return getattr(data.at[where], COMBINE[how])(updates)
    result = np.array(data)
    if how == "none":
        result[where] = updates
    else:
        function = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[how]
        function.at(result, where, updates)
    return result


def _elements_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices, updates = present(types)
    if indices.shape != updates.shape or indices.rank != data.rank:
        raise ShapeError(f"there is not one position of {indices} for each of {updates}, along an axis of {data}")
    return _like_data(types, attrs)


def _nd_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices, updates = present(types)
    depth = indices.shape[-1] if indices.rank else 0
    if not indices.rank or depth > data.rank or updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        raise ShapeError(f"there is not one position of {indices} for each of {updates}, in {data}")
    return _like_data(types, attrs)


def _like_data(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    data, _, updates = present(types)
    if data.dtype != updates.dtype:
        raise ShapeError(f"updates {updates} have another type than data {data}")
    if text(attrs, "reduction") not in COMBINE:
        raise UnsupportedError(f"scatter reduction {attrs['reduction']!r} is unknown")
    return (data,)


def _elements(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    data, indices, updates = inputs
    axis = integer(attrs, "axis")
    where = list(xp.meshgrid(*(xp.arange(n) for n in indices.shape), indexing="ij"))
    where[axis] = indices
    return (_put(xp, data, tuple(where), updates, text(attrs, "reduction")),)


def _nd(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    data, indices, updates = inputs
    where = tuple(indices[..., d] for d in range(indices.shape[-1]))
    return (_put(xp, data, where, updates, text(attrs, "reduction")),)


register(OpDef("scatter_elements", "gather", _elements_infer, _elements))
register(OpDef("scatter_nd", "gather", _nd_infer, _nd))


def _runs_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    data, targets, updates = present(types)
    size = updates.size // max(targets.size, 1)
    if (
        data.rank != 2
        or targets.dtype != "int64"
        or size * targets.size != updates.size
        or data.shape[1] % max(size, 1)
    ):
        raise ShapeError(f"updates {updates} at {targets} are no runs of data {data}")
    return _like_data(types, attrs)


def _runs(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    data, targets, updates = inputs
    runs = xp.reshape(data, (-1, updates.size // targets.size))
    rows = xp.reshape(updates, (-1, runs.shape[1]))
    (reached,) = xp.nonzero((targets.reshape(-1) >= 0) & (targets.reshape(-1) < runs.shape[0]))
    found = _put(xp, runs, (targets.reshape(-1)[reached],), rows[reached], text(attrs, "reduction"))
    return (xp.reshape(found, data.shape),)


register(OpDef("scatter_runs", "row", _runs_infer, _runs))


def _order_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    axis, k = integer(attrs, "axis"), integer(attrs, "k")
    if not 0 <= k <= x.shape[axis]:
        raise ShapeError(f"the first {k} of {x.shape[axis]} elements do not exist")
    return (TensorType("int64", (*x.shape[:axis], k, *x.shape[axis + 1 :])),)


def _order(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    """Positions of the k first elements in ascending or descending order; equal ones in order of position."""
    (x,) = inputs
    axis, k = integer(attrs, "axis"), integer(attrs, "k")
    if attrs["largest"]:
        flipped = xp.flip(x, axis=axis)
        order = x.shape[axis] - 1 - xp.flip(xp.argsort(flipped, axis=axis, stable=True), axis=axis)
    else:
        order = xp.argsort(x, axis=axis, stable=True)
    return (xp.take(order, xp.arange(k), axis=axis).astype("int64"),)


register(OpDef("order", "row", _order_infer, _order))
