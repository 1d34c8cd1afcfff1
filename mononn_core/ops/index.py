"""Gathers: operators whose read position comes from data. Negative indices count from the end.

gather(data, indices; axis)                     numpy.take
gather_elements(data, indices; axis)            numpy.take_along_axis, indices may be smaller than data
gather_nd(data, indices; batch_dims)            the last axis of indices is a position in data
one_hot(indices, values; axis, depth)           values is (off, on); an index out of range is off everywhere
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import as_index, integer, present
from mononn_core.ops.registry import Attrs, Index, OpDef, Reader, register
from mononn_core.program.expr import Const, Expr, Select, add, op

Types = Sequence[TensorType | None]
Readers = Sequence[Reader]


def wrapped(position: Expr, extent: int) -> Expr:
    """A position as an index; negative ones count from the end. One that depends on data is checked in every run, as is
    a constant one that is out of range."""
    if isinstance(position, Const) and -extent <= position.value < extent:
        return Const(int(position.value) % extent)
    return op("index", as_index(position), Const(extent))


def _check_indices(t: TensorType) -> None:
    if t.dtype not in ("int32", "int64"):
        raise ShapeError(f"indices are {t.dtype}, not int32 or int64")


def _gather_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices = present(types)
    _check_indices(indices)
    axis = integer(attrs, "axis")
    return (TensorType(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])),)


def _gather_evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    return (xp.take(inputs[0], inputs[1], axis=integer(attrs, "axis")),)


def _gather_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    data, indices = types
    axis = integer(attrs, "axis")
    rank = indices.rank
    position = wrapped(readers[1](index[axis : axis + rank]), data.shape[axis])
    return readers[0]((*index[:axis], position, *index[axis + rank :]))


register(OpDef("gather", "gather", _gather_infer, _gather_evaluate, _gather_point))


def _elements_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices = present(types)
    _check_indices(indices)
    if data.rank != indices.rank:
        raise ShapeError(f"indices {indices} have another rank than data {data}")
    axis = integer(attrs, "axis") % data.rank
    if any(i > n for d, (i, n) in enumerate(zip(indices.shape, data.shape, strict=True)) if d != axis):
        raise ShapeError(f"indices {indices} reach beyond data {data} in an axis that they do not index")
    return (TensorType(data.dtype, indices.shape),)


def _elements_evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    data, indices = inputs
    axis = integer(attrs, "axis")
    where = list(xp.meshgrid(*(xp.arange(n) for n in indices.shape), indexing="ij"))
    where[axis] = indices
    return (data[tuple(where)],)


def _elements_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    axis = integer(attrs, "axis")
    position = wrapped(readers[1](index), types[0].shape[axis])
    return readers[0]((*index[:axis], position, *index[axis + 1 :]))


register(OpDef("gather_elements", "gather", _elements_infer, _elements_evaluate, _elements_point))


def _nd_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices = present(types)
    _check_indices(indices)
    batch, depth = integer(attrs, "batch_dims"), indices.shape[-1]
    if batch + depth > data.rank or data.shape[:batch] != indices.shape[:batch]:
        raise ShapeError(f"indices {indices} with {batch} batch dimensions do not fit data {data}")
    return (TensorType(data.dtype, (*indices.shape[:-1], *data.shape[batch + depth :])),)


def _nd_evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    data, indices = inputs
    batch, depth = integer(attrs, "batch_dims"), indices.shape[-1]
    grid_shape = indices.shape[:-1]
    batches = tuple(
        xp.reshape(xp.arange(grid_shape[d]), tuple(-1 if e == d else 1 for e in range(len(grid_shape))))
        for d in range(batch)
    )
    where = (*batches, *(indices[..., d] for d in range(depth)))
    return (data[where] if where else xp.broadcast_to(data, (*grid_shape, *data.shape)),)


def _nd_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    data, indices = types
    batch, depth = integer(attrs, "batch_dims"), indices.shape[-1]
    lead = index[: indices.rank - 1]
    positions = (wrapped(readers[1]((*lead, Const(d))), data.shape[batch + d]) for d in range(depth))
    return readers[0]((*index[:batch], *positions, *index[indices.rank - 1 :]))


register(OpDef("gather_nd", "gather", _nd_infer, _nd_evaluate, _nd_point))


def _one_hot_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    indices, values = present(types)
    axis, depth = integer(attrs, "axis"), integer(attrs, "depth")
    if values.shape != (2,):
        raise ShapeError(f"one-hot values are {values}, not an off and an on value")
    return (TensorType(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:])),)


def _one_hot_evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    indices, values = inputs
    axis, depth = integer(attrs, "axis"), integer(attrs, "depth")
    classes = xp.reshape(xp.arange(depth), tuple(depth if d == axis else 1 for d in range(indices.ndim + 1)))
    whole = indices.astype(xp.int64)
    hit = xp.expand_dims(xp.where(whole < 0, whole + depth, whole), axis) == classes
    return (xp.where(hit, values[1], values[0]),)


def _one_hot_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    axis, depth = integer(attrs, "axis"), integer(attrs, "depth")
    i = as_index(readers[0]((*index[:axis], *index[axis + 1 :])))
    position = Select(op("lt", i, Const(0)), add(i, depth), i)
    return Select(op("eq", position, index[axis]), readers[1]((Const(1),)), readers[1]((Const(0),)))


register(OpDef("one_hot", "gather", _one_hot_infer, _one_hot_evaluate, _one_hot_point))
