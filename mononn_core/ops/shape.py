"""Movements: operators that only re-index their inputs, or choose between inputs by index.

reshape(x; shape)       transpose(x; perm)      expand(x; shape)        concat(x, ..; axis)
slice(x; starts, sizes, steps)                  one of each an axis; steps may be negative, starts are not
pad(x; before, after, mode, value)              mode: "constant", "reflect", "edge" or "wrap"
border(x, values; before, after)                padded by a value for each channel: values [x's last axis]
tile(x; repeats)        trilu(x; k, upper)      the upper or lower triangle of the last two axes, zero elsewhere
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import aligned, broadcast, delinearise, guarded, integer, integers, linearise, present, text
from mononn_core.ops.registry import Attrs, Forward, Index, Infer, OpDef, Point, Reader, register
from mononn_core.program.expr import Const, Expr, Op, Select, add, const, mod, mul, op

Types = Sequence[TensorType | None]
Readers = Sequence[Reader]


def movement(name: str, infer: Infer, evaluate: Any, point: Point, forward: Forward | None = None) -> None:
    """Register a movement; ``evaluate(xp, attrs, *arrays)`` gives the one output."""
    register(OpDef(name, "movement", infer, lambda xp, inputs, attrs: (evaluate(xp, attrs, *inputs),), point, forward))


def _reshape_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    shape = integers(attrs, "shape")
    if prod(shape) != x.size:
        raise ShapeError(f"{x} cannot be reshaped to {list(shape)}")
    return (TensorType(x.dtype, shape),)


def _reshape_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    return readers[0](delinearise(linearise(index, out.shape), types[0].shape))


def _reshape_forward(x: TensorType, out: TensorType, attrs: Attrs, index: Index) -> Index:
    return delinearise(linearise(index, x.shape), out.shape)


movement(
    "reshape",
    _reshape_infer,
    lambda xp, attrs, x: xp.reshape(x, integers(attrs, "shape")),
    _reshape_point,
    _reshape_forward,
)


def _transpose_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    perm = integers(attrs, "perm")
    if sorted(perm) != list(range(x.rank)):
        raise ShapeError(f"permutation {list(perm)} does not fit {x}")
    return (TensorType(x.dtype, tuple(x.shape[p] for p in perm)),)


def _transpose_point(
    readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index
) -> Expr:
    source: list[Expr] = [Const(0)] * len(index)
    for i, p in zip(index, integers(attrs, "perm"), strict=True):
        source[p] = i
    return readers[0](tuple(source))


def _transpose_forward(x: TensorType, out: TensorType, attrs: Attrs, index: Index) -> Index:
    return tuple(index[p] for p in integers(attrs, "perm"))


movement(
    "transpose",
    _transpose_infer,
    lambda xp, attrs, x: xp.transpose(x, integers(attrs, "perm")),
    _transpose_point,
    _transpose_forward,
)


def _slice_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    starts, sizes, steps = (integers(attrs, k) for k in ("starts", "sizes", "steps"))
    if not len(starts) == len(sizes) == len(steps) == x.rank:
        raise ShapeError(f"a slice needs one start, size and step for each axis of {x}")
    for extent, start, size, step in zip(x.shape, starts, sizes, steps, strict=True):
        last = start + (size - 1) * step
        if size < 0 or (size > 0 and not (0 <= start < extent and 0 <= last < extent)):
            raise ShapeError(f"a slice of {size} from {start} by {step} leaves an axis of extent {extent}")
    return (TensorType(x.dtype, sizes),)


def _slice_evaluate(xp: Any, attrs: Attrs, x: Any) -> Any:
    starts, sizes, steps = (integers(attrs, k) for k in ("starts", "sizes", "steps"))
    parts = []
    for start, size, step in zip(starts, sizes, steps, strict=True):
        stop = start + size * step
        parts.append(slice(start, None if stop < 0 else stop, step) if size else slice(0, 0))
    return x[tuple(parts)]


def _slice_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    starts, steps = integers(attrs, "starts"), integers(attrs, "steps")
    return readers[0](tuple(add(mul(i, step), start) for i, start, step in zip(index, starts, steps, strict=True)))


movement("slice", _slice_infer, _slice_evaluate, _slice_point)


def _expand_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    shape = integers(attrs, "shape")
    if broadcast((x, TensorType(x.dtype, shape))) != shape:
        raise ShapeError(f"{x} cannot be expanded to {list(shape)}")
    return (TensorType(x.dtype, shape),)


movement(
    "expand",
    _expand_infer,
    lambda xp, attrs, x: xp.broadcast_to(x, integers(attrs, "shape")),
    lambda readers, types, out, attrs, index: readers[0](aligned(index, types[0].shape)),
)


def _concat_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    found = present(types)
    axis, head = integer(attrs, "axis"), found[0]
    for t in found:
        fits = t.rank == head.rank and all(
            a == b for d, (a, b) in enumerate(zip(t.shape, head.shape, strict=True)) if d != axis
        )
        if not fits or t.dtype != head.dtype:
            raise ShapeError(f"{t} and {head} cannot be joined along axis {axis}")
    total = sum(t.shape[axis] for t in found)
    return (TensorType(head.dtype, (*head.shape[:axis], total, *head.shape[axis + 1 :])),)


FEW = 16
"""Parts of a concatenation that are told apart one after the other."""


def _concat_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    axis = integer(attrs, "axis")
    ends = tuple(accumulate(t.shape[axis] for t in types))

    def element(k: int) -> Expr:
        extent = types[k].shape[axis]
        local = Const(0) if extent == 1 else guarded(add(index[axis], extent - ends[k]), extent)
        return readers[k]((*index[:axis], local, *index[axis + 1 :]))

    def chosen(parts: Sequence[int]) -> Expr:
        """Of a few parts one after the other is asked for, of many each time the middle one."""
        if len(parts) == 1:
            return element(parts[0])
        first = 1 if len(parts) <= FEW else len(parts) // 2
        here = op("lt", index[axis], Const(ends[parts[first - 1]]))
        return Select(here, chosen(parts[:first]), chosen(parts[first:]))

    return chosen([k for k, t in enumerate(types) if t.shape[axis] > 0])


movement(
    "concat",
    _concat_infer,
    lambda xp, attrs, *xs: xp.concatenate(xs, axis=integer(attrs, "axis")),
    _concat_point,
)


def _pad_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    before, after = integers(attrs, "before"), integers(attrs, "after")
    if not len(before) == len(after) == x.rank or min((*before, *after, 0)) < 0:
        raise ShapeError(f"padding {list(before)} and {list(after)} does not fit {x}")
    return (TensorType(x.dtype, tuple(b + n + a for b, n, a in zip(before, x.shape, after, strict=True))),)


def _pad_evaluate(xp: Any, attrs: Attrs, x: Any) -> Any:
    widths = list(zip(integers(attrs, "before"), integers(attrs, "after"), strict=True))
    mode = text(attrs, "mode")
    if mode == "constant":
        return xp.pad(x, widths, mode="constant", constant_values=attrs["value"])
    return xp.pad(x, widths, mode=mode)


def _inside(mode: str, i: Expr, before: int, extent: int) -> Expr:
    """The input position that padded position ``i`` repeats, for the modes without a constant."""
    shifted = add(i, -before)
    if mode == "wrap":
        return mod(shifted, extent)
    if mode == "edge":
        return Op("min", (Op("max", (shifted, Const(0)), "int64"), Const(extent - 1)), "int64")
    period = max(2 * (extent - 1), 1)
    folded = mod(shifted, period)
    mirrored = add(mul(folded, -1), period)
    return Op("min", (folded, mirrored), "int64") if extent > 1 else Const(0)


def _pad_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    mode, before, x = text(attrs, "mode"), integers(attrs, "before"), types[0]
    if mode != "constant":
        return readers[0](tuple(_inside(mode, i, b, n) for i, b, n in zip(index, before, x.shape, strict=True)))
    value = attrs["value"]
    assert isinstance(value, (int, float))
    return _inside_or(const(value, x.dtype), readers[0], x, out, before, index)


def _inside_or(
    outside: Expr, reader: Reader, x: TensorType, out: TensorType, before: Sequence[int], index: Index
) -> Expr:
    """Element ``index`` of an x with so much before it, or ``outside``."""
    inside: Expr | None = None
    for i, b, n, total in zip(index, before, x.shape, out.shape, strict=True):
        if n == total:
            continue
        test = op("and", op("ge", i, Const(b)), op("lt", i, Const(b + n)))
        inside = test if inside is None else op("and", inside, test)
    element = reader(tuple(guarded(add(i, -b), n) for i, b, n in zip(index, before, x.shape, strict=True)))
    return element if inside is None else Select(inside, element, outside)


def _pad_forward(x: TensorType, out: TensorType, attrs: Attrs, index: Index) -> Index:
    return tuple(add(i, b) for i, b in zip(index, integers(attrs, "before"), strict=True))


movement("pad", _pad_infer, _pad_evaluate, _pad_point, _pad_forward)


def _border_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, values = present(types)
    (out,) = _pad_infer((x,), attrs)
    if x.rank == 0 or out.shape[-1] != x.shape[-1] or values != TensorType(x.dtype, x.shape[-1:]):
        raise ShapeError(f"{values} is not one value for each channel of {x}, or channels are padded")
    return (out,)


def _border_evaluate(xp: Any, attrs: Attrs, x: Any, values: Any) -> Any:
    widths = list(zip(integers(attrs, "before"), integers(attrs, "after"), strict=True))
    return xp.where(xp.pad(xp.ones(x.shape, bool), widths), xp.pad(x, widths), values)


def _border_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    return _inside_or(readers[1]((index[-1],)), readers[0], types[0], out, integers(attrs, "before"), index)


movement("border", _border_infer, _border_evaluate, _border_point, _pad_forward)


def _tile_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    repeats = integers(attrs, "repeats")
    if len(repeats) != x.rank:
        raise ShapeError(f"{len(repeats)} repeats do not fit {x}")
    return (TensorType(x.dtype, tuple(n * r for n, r in zip(x.shape, repeats, strict=True))),)


movement(
    "tile",
    _tile_infer,
    lambda xp, attrs, x: xp.tile(x, integers(attrs, "repeats")),
    lambda readers, types, out, attrs, index: readers[0](
        tuple(mod(i, n) for i, n in zip(index, types[0].shape, strict=True))
    ),
)


def _trilu_evaluate(xp: Any, attrs: Attrs, x: Any) -> Any:
    return xp.triu(x, integer(attrs, "k")) if attrs["upper"] else xp.tril(x, integer(attrs, "k"))


def _trilu_point(readers: Readers, types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    shifted = add(index[-2], integer(attrs, "k"))
    kept = op("ge" if attrs["upper"] else "le", index[-1], shifted)
    zero = const(0.0 if "float" in out.dtype else 0, out.dtype)
    return Select(kept, readers[0](index), zero)


def _trilu_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    if x.rank < 2:
        raise ShapeError(f"a tensor {x} has no triangle; it takes two axes")
    return (x,)


movement("trilu", _trilu_infer, _trilu_evaluate, _trilu_point)
