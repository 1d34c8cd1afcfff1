"""Converters of ONNX operators that move data, and of those that only speak about shapes."""

from __future__ import annotations

from math import prod

import numpy as np

from mononn_core.errors import ShapeError
from mononn_core.importer.context import Context, converts

FAR = 1 << 62


@converts("Constant")
def constant(ctx: Context) -> str:
    attrs = ctx.node.attrs
    for key, dtype in (("value", None), ("value_float", "float32"), ("value_floats", "float32")):
        if key in attrs:
            return ctx.make(np.asarray(attrs[key], dtype=dtype))
    for key in ("value_int", "value_ints"):
        if key in attrs:
            return ctx.make(np.asarray(attrs[key], dtype="int64"))
    raise ctx.unsupported(f"a constant given by {', '.join(attrs)} is not supported")


@converts("Shape")
def shape(ctx: Context) -> str:
    dims = ctx.type(0).shape
    return ctx.make(np.asarray(dims[ctx.attr("start", 0) : ctx.attr("end", FAR)], dtype="int64"))


@converts("Size")
def size(ctx: Context) -> str:
    return ctx.make(np.asarray(ctx.type(0).size, dtype="int64"))


@converts("ConstantOfShape")
def constant_of_shape(ctx: Context) -> str:
    value = np.asarray(ctx.attr("value", np.zeros(1, dtype="float32"))).reshape(())
    target = tuple(int(n) for n in ctx.constant(0, "shape"))
    return ctx.add("expand", ctx.make(value), shape=target)


@converts("Range")
def arange(ctx: Context) -> str:
    names = ("start", "limit", "delta")
    start, limit, delta = (ctx.constant(i, what).reshape(()) for i, what in enumerate(names))
    count = max(int(np.ceil((limit - start) / delta)), 0)
    return ctx.make((start + np.arange(count) * delta).astype(start.dtype))


@converts("EyeLike")
def eye_like(ctx: Context) -> str:
    t = ctx.type(0)
    rows, columns = t.shape
    return ctx.make(np.eye(rows, columns, k=ctx.attr("k", 0), dtype=bool).astype(ctx.dtype("dtype", t.dtype)))


def target_shape(ctx: Context, wanted: list[int], source: tuple[int, ...], keep_zero: bool) -> tuple[int, ...]:
    """A Reshape target with its 0 (copy) and -1 (whatever is left) resolved."""
    dims = [source[d] if n == 0 and not keep_zero and d < len(source) else n for d, n in enumerate(wanted)]
    if dims.count(-1) > 1:
        raise ShapeError(f"{ctx.origin}: shape {wanted} has more than one -1; the model is damaged")
    if -1 in dims:
        rest = prod(n for n in dims if n != -1)
        dims[dims.index(-1)] = prod(source) // rest if rest else 0
    return tuple(dims)


@converts("Reshape")
def reshape(ctx: Context) -> str:
    wanted = ctx.integers("shape") or []
    return ctx.reshape(ctx.input(0), target_shape(ctx, wanted, ctx.type(0).shape, bool(ctx.attr("allowzero", 0))))


@converts("Flatten")
def flatten(ctx: Context) -> str:
    dims = ctx.type(0).shape
    axis = ctx.attr("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return ctx.reshape(ctx.input(0), (prod(dims[:axis]), prod(dims[axis:])))


@converts("Squeeze")
def squeeze(ctx: Context) -> str:
    dims = ctx.type(0).shape
    axes = ctx.integers("axes")
    gone = {d for d, n in enumerate(dims) if n == 1} if axes is None else {ctx.normal(a, len(dims)) for a in axes}
    if any(dims[d] != 1 for d in gone):
        raise ShapeError(f"{ctx.origin}: axes {sorted(gone)} of {ctx.type(0)} are not all 1; check the shapes given")
    return ctx.reshape(ctx.input(0), (n for d, n in enumerate(dims) if d not in gone))


@converts("Unsqueeze")
def unsqueeze(ctx: Context) -> str:
    dims = list(ctx.type(0).shape)
    axes = ctx.integers("axes") or []
    rank = len(dims) + len(axes)
    for axis in sorted(ctx.normal(a, rank) for a in axes):
        dims.insert(axis, 1)
    return ctx.reshape(ctx.input(0), dims)


@converts("Transpose")
def transpose(ctx: Context) -> str:
    rank = ctx.type(0).rank
    perm = tuple(int(p) for p in ctx.attr("perm", tuple(reversed(range(rank)))))
    return ctx.input(0) if perm == tuple(range(rank)) else ctx.add("transpose", ctx.input(0), perm=perm)


@converts("Expand")
def expand(ctx: Context) -> str:
    x = ctx.type(0)
    wanted = tuple(int(n) for n in ctx.constant(1, "shape"))
    try:
        target = tuple(int(n) for n in np.broadcast_shapes(x.shape, wanted))
    except ValueError as error:
        raise ShapeError(f"{ctx.origin}: {x} cannot be expanded to {list(wanted)}; check the shapes given") from error
    return ctx.input(0) if target == x.shape else ctx.add("expand", ctx.input(0), shape=target)


@converts("Concat")
def concat(ctx: Context) -> str:
    axis = ctx.axis(1, ctx.type(0).rank)
    parts = [n for n in ctx.inputs() if ctx.type(n).shape[axis]] or ctx.inputs()[:1]
    return parts[0] if len(parts) == 1 else ctx.add("concat", *parts, axis=axis)


def clamp(value: int, low: int, high: int) -> int:
    """``value`` moved into [low, high]."""
    return max(low, min(value, high))


@converts("Slice")
def slices(ctx: Context) -> str:
    """Starts and ends are clamped; sizes follow."""
    dims = ctx.type(0).shape
    starts, ends = ctx.integers("starts") or [], ctx.integers("ends") or []
    axes = ctx.integers("axes")
    steps = (ctx.integers("steps") if ctx.opset >= 10 else None) or [1] * len(starts)
    chosen = [ctx.normal(a, len(dims)) for a in (range(len(starts)) if axes is None else axes)]
    first, count, stride = [0] * len(dims), list(dims), [1] * len(dims)
    for axis, start, end, step in zip(chosen, starts, ends, steps, strict=True):
        extent = dims[axis]
        start, end = (v + extent if v < 0 else v for v in (start, end))
        start = clamp(start, 0, extent) if step > 0 else clamp(start, 0, extent - 1)
        end = clamp(end, 0, extent) if step > 0 else clamp(end, -1, extent - 1)
        size = max(-((start - end) // step), 0) if extent else 0
        first[axis], count[axis], stride[axis] = (start, size, step) if size else (0, 0, 1)
    return sliced(ctx, ctx.input(0), first, count, stride)


def sliced(ctx: Context, tensor: str, starts: list[int], sizes: list[int], steps: list[int]) -> str:
    """A slice over all axes; the tensor itself when it is whole."""
    whole = tuple(sizes) == ctx.type(tensor).shape and all(s == 1 for s in steps)
    if whole:
        return tensor
    return ctx.add("slice", tensor, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


def part(ctx: Context, tensor: str, axis: int, start: int, size: int) -> str:
    """``size`` elements from ``start`` along one axis."""
    dims = list(ctx.type(tensor).shape)
    starts = [0] * len(dims)
    starts[axis], dims[axis] = start, size
    return sliced(ctx, tensor, starts, dims, [1] * len(dims))


def split_sizes(ctx: Context, extent: int) -> list[int]:
    """Extents of the parts of a Split."""
    sizes = ctx.integers("split")
    if sizes is not None:
        return sizes
    count = int(ctx.attr("num_outputs", len(ctx.node.outputs)))
    step = -(-extent // count)
    return [max(min(step, extent - k * step), 0) for k in range(count)]


@converts("Split")
def split(ctx: Context) -> tuple[str, ...]:
    x = ctx.type(0)
    axis = ctx.axis(0, x.rank)
    sizes = split_sizes(ctx, x.shape[axis])
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    return tuple(part(ctx, ctx.input(0), axis, start, size) for start, size in zip(starts, sizes, strict=True))


@converts("Tile")
def tile(ctx: Context) -> str:
    repeats = tuple(ctx.integers("repeats") or ())
    return ctx.input(0) if all(r == 1 for r in repeats) else ctx.add("tile", ctx.input(0), repeats=repeats)


@converts("Pad")
def pad(ctx: Context) -> str:
    """Negative padding crops; it is done first."""
    x = ctx.input(0)
    rank = ctx.type(x).rank
    pads = ctx.integers("pads") or []
    axes = ctx.integers("axes") if ctx.opset >= 18 else None
    chosen = [ctx.normal(a, rank) for a in (range(rank) if axes is None else axes)]
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(chosen):
        before[axis], after[axis] = pads[position], pads[position + len(chosen)]
    dims = ctx.type(x).shape
    starts = [max(-b, 0) for b in before]
    sizes = [n - s - max(-a, 0) for n, s, a in zip(dims, starts, after, strict=True)]
    x = sliced(ctx, x, starts, sizes, [1] * rank)
    before, after = [max(b, 0) for b in before], [max(a, 0) for a in after]
    if not any(before) and not any(after):
        return x
    value = ctx.parameter("value")
    fill = 0.0 if value is None else value.reshape(-1)[0].item()
    dtype = ctx.type(x).dtype
    number = float(fill) if "float" in dtype else bool(fill) if dtype == "bool" else int(fill)
    mode = ctx.attr("mode", "constant")
    return ctx.add("pad", x, before=tuple(before), after=tuple(after), mode=mode, value=number)


@converts("Trilu")
def triangle(ctx: Context) -> str:
    k = int(ctx.constant(1, "diagonal").reshape(())) if ctx.has(1) else 0
    return ctx.add("trilu", ctx.input(0), k=k, upper=bool(ctx.attr("upper", 1)))


@converts("DepthToSpace", "SpaceToDepth")
def depth_space(ctx: Context) -> str:
    b = int(ctx.attr("blocksize"))
    n, c, h, w = ctx.type(0).shape
    if b < 1:
        raise ctx.unsupported(f"blocks of {b} by {b} pixels do not exist")
    if ctx.node.op_type == "SpaceToDepth":
        split = ctx.reshape(ctx.input(0), (n, c, h // b, b, w // b, b))
        perm = (0, 3, 5, 1, 2, 4) if ctx.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        return ctx.reshape(ctx.add("transpose", split, perm=perm), (n, c * b * b, h // b, w // b))
    if ctx.attr("mode", "DCR") == "DCR":
        split, perm = ctx.reshape(ctx.input(0), (n, b, b, c // (b * b), h, w)), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = ctx.reshape(ctx.input(0), (n, c // (b * b), b, b, h, w)), (0, 1, 4, 2, 5, 3)
    return ctx.reshape(ctx.add("transpose", split, perm=perm), (n, c // (b * b), h * b, w * b))
