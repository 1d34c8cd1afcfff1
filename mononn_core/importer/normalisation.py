"""Converters of the normalisations that work over channels or chosen axes."""

from __future__ import annotations

from mononn_core.graph import Node
from mononn_core.importer.context import Context, converts


def per_channel(ctx: Context, name: str, rank: int) -> str:
    """A vector of channels, shaped to broadcast over [N, C, ...]."""
    size = ctx.type(name).size
    return ctx.reshape(name, (size, *(1,) * (rank - 2))) if rank > 1 else name


@converts("BatchNormalization")
def batch_normalization(ctx: Context) -> tuple[str, ...]:
    """Inference: x * a + b with a = scale / sqrt(var + epsilon), b = bias - mean a (constants, when those are).
    Training mode also gives the running mean and variance."""
    x, rank = ctx.input(0), ctx.type(0).rank
    scale, bias, mean, variance = (ctx.input(i) for i in range(1, 5))
    running: tuple[str, ...] = ()
    if ctx.attr("training_mode", 0):
        axes = (0, *range(2, rank))
        now = ctx.add("reduce_mean", x, axes=axes, keepdims=False)
        centred = ctx.add("sub", x, per_channel(ctx, now, rank))
        spread = ctx.add("reduce_mean", ctx.add("mul", centred, centred), axes=axes, keepdims=False)
        running = (_blend(ctx, mean, now), _blend(ctx, variance, spread))
        mean, variance = now, spread
    scale, bias = (_as(ctx, name, mean) for name in (scale, bias))
    deviation = ctx.add("sqrt", ctx.add("add", variance, ctx.like(ctx.attr("epsilon", 1e-5), variance)))
    factor = ctx.add("div", scale, deviation)
    offset = ctx.add("sub", bias, ctx.add("mul", mean, factor))
    product = ctx.add("mul", x, per_channel(ctx, _as(ctx, factor, x), rank))
    return (ctx.add("add", product, per_channel(ctx, _as(ctx, offset, x), rank)), *running)


def _blend(ctx: Context, old: str, new: str) -> str:
    momentum = ctx.attr("momentum", 0.9)
    kept = ctx.add("mul", old, ctx.like(momentum, old))
    return ctx.add("add", kept, ctx.add("mul", new, ctx.like(1 - momentum, new)))


def _as(ctx: Context, name: str, like: str) -> str:
    """``name`` in another tensor's element type."""
    to = ctx.type(like).dtype
    return name if ctx.type(name).dtype == to else ctx.add("cast", name, to=to)


def standardised(ctx: Context, x: str, axes: tuple[int, ...], epsilon: float) -> str:
    """(x - mean) / sqrt(variance + epsilon) over some axes."""
    centred = ctx.add("sub", x, ctx.add("reduce_mean", x, axes=axes, keepdims=True))
    variance = ctx.add("reduce_mean", ctx.add("mul", centred, centred), axes=axes, keepdims=True)
    return ctx.add("div", centred, ctx.add("sqrt", ctx.add("add", variance, ctx.like(epsilon, x))))


@converts("InstanceNormalization")
def instance_normalization(ctx: Context) -> str:
    """Over all but the first two axes; of an image whose channels were joined in groups, as exporters write a group
    norm, without joining them (:func:`_grouped`)."""
    x, t = ctx.input(0), ctx.type(0)
    image = _image_behind(ctx, x)
    if image:
        return ctx.reshape(_grouped(ctx, image, t.shape[1]), t.shape)
    y = standardised(ctx, x, tuple(range(2, t.rank)), ctx.attr("epsilon", 1e-5))
    y = ctx.add("mul", y, per_channel(ctx, ctx.input(1), t.rank))
    return ctx.add("add", y, per_channel(ctx, ctx.input(2), t.rank))


def _image_behind(ctx: Context, x: str) -> str:
    """The image [N, C, n..] that was reshaped to x [N, groups, rest]; "" where x is none. What quantises x and
    dequantises it again, by one scale, does so with the image."""
    shape = ctx.type(x).shape
    node, between = _producer(ctx, x), list[Node]()
    while (
        node is not None
        and node.op in ("quantize", "dequantize")
        and all(ctx.type(i).size == 1 for i in node.inputs[1:] if i)
    ):
        between.append(node)
        node = _producer(ctx, node.inputs[0])
    if node is None or node.op != "reshape" or len(shape) != 3:
        return ""
    image = node.inputs[0]
    source = ctx.type(image).shape
    if len(source) < 3 or source[0] != shape[0] or source[1] % shape[1]:
        return ""
    for step in reversed(between):
        image = ctx.add(step.op, image, *step.inputs[1:], **dict(step.attrs))
    return image


def _producer(ctx: Context, name: str) -> Node | None:
    return next((n for n in reversed(ctx.builder.nodes) if name in n.outputs), None)


def _grouped(ctx: Context, image: str, groups: int) -> str:
    """(x - mean) / sqrt(variance + epsilon) scale + bias of an image [N, C, n..], means and variances of groups of
    channels: those of channels, and then of these."""
    n, c, *spatial = ctx.type(image).shape
    if len(spatial) == 1:  # a sequence is an image of one column, as it is for a convolution
        return _grouped(ctx, ctx.reshape(image, (n, c, *spatial, 1)), groups)
    each, axes, ones = c // groups, tuple(range(2, 2 + len(spatial))), (1,) * len(spatial)

    def mean(x: str) -> str:
        parts = ctx.reshape(ctx.add("reduce_mean", x, axes=axes, keepdims=True), (n, groups, each))
        whole = ctx.add("reduce_mean", parts, axes=(2,), keepdims=True)
        return ctx.reshape(ctx.add("expand", whole, shape=(n, groups, each)), (n, c, *ones))

    def of_channels(vector: str) -> str:
        wide = ctx.add("expand", ctx.reshape(vector, (groups, 1)), shape=(groups, each))
        return ctx.reshape(wide, (c, *ones))

    centred = ctx.add("sub", image, mean(image))
    variance = mean(ctx.add("mul", centred, centred))
    epsilon = ctx.like(ctx.attr("epsilon", 1e-5), image)
    factor = ctx.add("div", of_channels(ctx.input(1)), ctx.add("sqrt", ctx.add("add", variance, epsilon)))
    return ctx.add("add", ctx.add("mul", centred, factor), of_channels(ctx.input(2)))


@converts("MeanVarianceNormalization")
def mean_variance(ctx: Context) -> str:
    rank = ctx.type(0).rank
    axes, x = tuple(sorted(ctx.normal(a, rank) for a in ctx.attr("axes", [0, 2, 3]))), ctx.input(0)
    centred = ctx.add("sub", x, ctx.add("reduce_mean", x, axes=axes, keepdims=True))
    variance = ctx.add("reduce_mean", ctx.add("mul", centred, centred), axes=axes, keepdims=True)
    return ctx.add("div", centred, ctx.add("add", ctx.add("sqrt", variance), ctx.like(1e-9, x)))


@converts("LpNormalization")
def lp_normalization(ctx: Context) -> str:
    """x divided by its 1- or 2-norm along an axis; zero where the norm is."""
    x, axis = ctx.input(0), (ctx.axis(-1, ctx.type(0).rank),)
    if int(ctx.attr("p", 2)) == 1:
        norm = ctx.add("reduce_sum", ctx.add("abs", x), axes=axis, keepdims=True)
    else:
        norm = ctx.add("sqrt", ctx.add("reduce_sum", ctx.add("mul", x, x), axes=axis, keepdims=True))
    none = ctx.add("equal", norm, ctx.like(0, x))
    quotient = ctx.add("div", x, ctx.add("where", none, ctx.like(1, x), norm))
    return ctx.add("where", none, ctx.like(0, x), quotient)


@converts("LRN")
def local_response(ctx: Context) -> str:
    """x / (bias + alpha / size * sum of squares over ``size`` neighbouring channels) ** beta."""
    x, t = ctx.input(0), ctx.type(0)
    size = int(ctx.attr("size"))
    before = (size - 1) // 2
    rank = t.rank
    square = ctx.add("transpose", ctx.add("mul", x, x), perm=(0, *range(2, rank), 1))
    low = (*(0,) * (rank - 1), before)
    high = (*(0,) * (rank - 1), size - 1 - before)
    wide = ctx.add("pad", square, before=low, after=high, mode="constant", value=0.0)
    windows = ctx.add("windows", wide, axis=rank - 1, kernel=(size,), strides=(1,), dilations=(1,))
    total = ctx.add("reduce_sum", windows, axes=(rank - 1,), keepdims=False)
    total = ctx.add("transpose", total, perm=(0, rank - 1, *range(1, rank - 1)))
    scaled = ctx.add("mul", total, ctx.like(ctx.attr("alpha", 1e-4) / size, x))
    base = ctx.add("add", scaled, ctx.like(ctx.attr("bias", 1.0), x))
    return ctx.add("div", x, ctx.add("pow", base, ctx.like(ctx.attr("beta", 0.75), x)))


@converts("CumSum", "CumProd")
def cumulative(ctx: Context) -> str:
    axis = ctx.normal(int(ctx.constant(1, "axis").reshape(())), ctx.type(0).rank)
    flags = {name: bool(ctx.attr(name, 0)) for name in ("exclusive", "reverse")}
    return ctx.add("cumulative", ctx.input(0), axis=axis, product=ctx.node.op_type == "CumProd", **flags)
