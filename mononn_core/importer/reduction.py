"""Converters of ONNX reductions, softmax and norms."""

from __future__ import annotations

from math import prod

from mononn_core.element import COMPUTE, NARROW, is_float
from mononn_core.importer.context import Context, converts

SIMPLE = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}


@converts(*SIMPLE, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
def reduction(ctx: Context) -> str:
    x, kind = ctx.input(0), ctx.node.op_type
    t = ctx.type(x)
    axes = ctx.integers("axes")
    everything = () if ctx.attr("noop_with_empty_axes", 0) else tuple(range(t.rank))
    chosen = tuple(sorted({ctx.normal(a, t.rank) for a in axes})) if axes else everything
    keep = bool(ctx.attr("keepdims", 1))
    if kind in SIMPLE:
        return _reduce(ctx, SIMPLE[kind], x, chosen, keep)
    if kind == "ReduceL1":
        return _reduce(ctx, "sum", ctx.add("abs", x), chosen, keep)
    if kind in ("ReduceL2", "ReduceSumSquare"):
        total = _reduce(ctx, "sum", ctx.add("mul", x, x), chosen, keep)
        return _root(ctx, total) if kind == "ReduceL2" else total
    if kind == "ReduceLogSum":
        return ctx.add("log", _reduce(ctx, "sum", x, chosen, keep))
    return _log_sum_exp(ctx, x, chosen, keep)


def _root(ctx: Context, total: str) -> str:
    """The square root, of integers rounded down."""
    kind = ctx.type(total).dtype
    if is_float(kind):
        return ctx.add("sqrt", total)
    return ctx.add("cast", ctx.add("sqrt", ctx.add("cast", total, to="float64")), to=kind)


def _reduce(ctx: Context, op: str, x: str, axes: tuple[int, ...], keep: bool) -> str:
    if not axes:
        return x
    if op in ("max", "min") and ctx.type(x).dtype == "bool":
        as_bytes = ctx.add("reduce_" + op, ctx.add("cast", x, to="uint8"), axes=axes, keepdims=keep)
        return ctx.add("cast", as_bytes, to="bool")
    return ctx.add("reduce_" + op, x, axes=axes, keepdims=keep)


def _log_sum_exp(ctx: Context, x: str, axes: tuple[int, ...], keep: bool) -> str:
    """Shifted by the maximum (when there is one and it is finite), so that nothing overflows."""
    if prod(ctx.type(x).shape) == 0 or not axes:
        return ctx.add("log", _reduce(ctx, "sum", ctx.add("exp", x), axes, keep))
    top = _reduce(ctx, "max", x, axes, True)
    finite = ctx.add("where", ctx.add("isinf", top), ctx.like(0, top), top)
    total = ctx.add("log", _reduce(ctx, "sum", ctx.add("exp", ctx.add("sub", x, finite)), axes, True))
    result = ctx.add("add", total, finite)
    if keep:
        return result
    return ctx.reshape(result, (n for d, n in enumerate(ctx.type(x).shape) if d not in axes))


@converts("ArgMax", "ArgMin")
def arg_extreme(ctx: Context) -> str:
    return ctx.add(
        ctx.node.op_type.lower(),
        ctx.input(0),
        axis=ctx.axis(0, ctx.type(0).rank),
        keepdims=bool(ctx.attr("keepdims", 1)),
        last=bool(ctx.attr("select_last_index", 0)),
    )


def _along(ctx: Context, x: str) -> tuple[str, int, tuple[int, ...]]:
    """The tensor and axis a softmax works on; before opset 13 everything from ``axis`` on is one axis."""
    dims = ctx.type(x).shape
    if ctx.opset >= 13:
        return x, ctx.axis(-1, len(dims)), dims
    axis = ctx.axis(1, len(dims))
    if axis == len(dims) - 1:
        return x, axis, dims
    return ctx.reshape(x, (prod(dims[:axis]), prod(dims[axis:]))), 1, dims


@converts("Softmax", "LogSoftmax")
def softmax(ctx: Context) -> str:
    x, axis, dims = _along(ctx, ctx.input(0))
    op = "softmax" if ctx.node.op_type == "Softmax" else "log_softmax"
    return ctx.reshape(ctx.add(op, x, axis=axis), dims)


@converts("Hardmax")
def hardmax(ctx: Context) -> str:
    """One where the first maximum stands, zero elsewhere."""
    x, axis, dims = _along(ctx, ctx.input(0))
    t = ctx.type(x)
    position = ctx.add("argmax", x, axis=axis, keepdims=False)
    values = ctx.make([0, 1], t.dtype)
    return ctx.reshape(ctx.add("one_hot", position, values, axis=axis, depth=t.shape[axis]), dims)


@converts("LayerNormalization")
def layer_normalization(ctx: Context) -> tuple[str, ...]:
    """Over all axes from ``axis`` on: they are made one first. Mean and 1/deviation only when somebody reads them."""
    x = ctx.input(0)
    t = ctx.type(x)
    axis = ctx.axis(-1, t.rank)
    epsilon = float(ctx.attr("epsilon", 1e-5))
    if len([n for n in ctx.node.outputs if n]) > 1:
        return _layer_norm_outputs(ctx, x, tuple(range(axis, t.rank)), epsilon)
    return (_trailing_norm(ctx, "layer_norm", axis, epsilon),)


def _trailing_norm(ctx: Context, op: str, axis: int, epsilon: float) -> str:
    """A norm over the axes from ``axis`` on, as one over the last axis."""
    t = ctx.type(0)
    width = prod(t.shape[axis:])
    x = ctx.reshape(ctx.input(0), (*t.shape[:axis], width))
    vectors = [_vector(ctx, ctx.input(i), t.shape[axis:]) for i in range(1, 3 if op == "layer_norm" else 2)]
    full = all(not n or ctx.type(n).shape == (width,) for n in vectors)
    if full:
        return ctx.reshape(ctx.add(op, x, *vectors, epsilon=epsilon), t.shape)
    y = ctx.reshape(ctx.add(op, x, *([""] * len(vectors)), epsilon=epsilon), t.shape)
    for i, name in enumerate(ctx.inputs()[1:]):
        if name:
            y = ctx.add("add" if i else "mul", y, name)
    return y


def _vector(ctx: Context, name: str, shape: tuple[int, ...]) -> str:
    """A scale or bias flattened over the normalised axes; unchanged when it does not have exactly their shape."""
    if not name:
        return ""
    dims = ctx.type(name).shape
    width = prod(shape)
    return ctx.reshape(name, (width,)) if prod(dims) == width and dims[-len(shape) :] == shape else name


def _layer_norm_outputs(ctx: Context, x: str, axes: tuple[int, ...], epsilon: float) -> tuple[str, ...]:
    given = ctx.type(x).dtype
    x = ctx.add("cast", x, to=COMPUTE) if given in NARROW else x  # in which stash_type says that these are computed
    mean = ctx.add("reduce_mean", x, axes=axes, keepdims=True)
    centred = ctx.add("sub", x, mean)
    variance = ctx.add("reduce_mean", ctx.add("mul", centred, centred), axes=axes, keepdims=True)
    inverse = ctx.add("reciprocal", ctx.add("sqrt", ctx.add("add", variance, ctx.like(epsilon, x))))
    y = ctx.add("mul", centred, inverse)
    y = ctx.add("mul", ctx.add("cast", y, to=given) if given in NARROW else y, ctx.input(1))
    return (ctx.add("add", y, ctx.input(2)) if ctx.has(2) else y), mean, inverse


@converts("RMSNormalization")
def rms_normalization(ctx: Context) -> str:
    return _trailing_norm(ctx, "rms_norm", ctx.axis(-1, ctx.type(0).rank), float(ctx.attr("epsilon", 1e-5)))
