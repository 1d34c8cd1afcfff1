"""Converters of ONNX control flow and sequences, where everything is known when compiling."""

from __future__ import annotations

from mononn_core.importer.context import Context, OnnxGraph, Value, converts

UNROLL_LIMIT = 256


@converts("If")
def branch(ctx: Context) -> list[Value]:
    condition = ctx.constant(0, "condition")
    body: OnnxGraph = ctx.attr("then_branch" if bool(condition) else "else_branch")
    return ctx.inline(body, {})


def _plain(ctx: Context, values: list[Value]) -> list[str]:
    if any(not isinstance(v, str) for v in values):
        raise ctx.unsupported("sequences of tensors as results are not supported")
    return [v for v in values if isinstance(v, str)]


@converts("Loop")
def loop(ctx: Context) -> list[str]:
    """Unrolled; the trip count and every condition must be known when compiling."""
    body: OnnxGraph = ctx.attr("body")
    limit = int(ctx.constant(0, "trip count").reshape(())) if ctx.has(0) else UNROLL_LIMIT + 1
    going = bool(ctx.constant(1, "condition")) if ctx.has(1) else True
    carried = ctx.inputs()[2:]
    scans: list[list[str]] = []
    step = 0
    while going and step < limit:
        if step == UNROLL_LIMIT:
            raise ctx.unsupported(f"it makes more than {UNROLL_LIMIT} steps, too many to unroll")
        given = [ctx.make(step, "int64"), ctx.make(going, "bool"), *carried]
        results = _plain(ctx, ctx.inline(body, dict(zip(body.inputs, given, strict=True))))
        condition = ctx.known(results[0])
        going = bool(ctx.unknown(results[0], "condition") if condition is None else condition)
        carried, scanned = results[1 : 1 + len(carried)], results[1 + len(carried) :]
        scans.append([ctx.reshape(name, (1, *ctx.type(name).shape)) for name in scanned])
        step += 1
    if not scans and len(ctx.node.outputs) > len(carried):
        raise ctx.unsupported("it makes no step, so the shapes of its scan outputs are unknown")
    return [*carried, *(_joined(ctx, list(column), 0) for column in zip(*scans, strict=True))]


def _joined(ctx: Context, parts: list[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else ctx.add("concat", *parts, axis=axis)


@converts("Scan")
def scan(ctx: Context) -> list[str]:
    """Unrolled along the scan axes."""
    if ctx.opset < 9:
        raise ctx.unsupported("Scan before opset 9 is not supported; export with a newer opset")
    body: OnnxGraph = ctx.attr("body")
    count = int(ctx.attr("num_scan_inputs"))
    carried, sources = ctx.inputs()[:-count], ctx.inputs()[-count:]
    outputs = len(body.outputs) - len(carried)
    in_axes = [
        ctx.normal(a, ctx.type(s).rank) for a, s in zip(ctx.attr("scan_input_axes", [0] * count), sources, strict=True)
    ]
    in_flags = ctx.attr("scan_input_directions", [0] * count)
    length = ctx.type(sources[0]).shape[in_axes[0]]
    if not 0 < length <= UNROLL_LIMIT:
        raise ctx.unsupported(f"it makes {length} steps; 1 to {UNROLL_LIMIT} can be unrolled")
    rows: list[list[str]] = []
    for step in range(length):
        elements = []
        for source, axis, backwards in zip(sources, in_axes, in_flags, strict=True):
            position = ctx.make(length - 1 - step if backwards else step, "int64")
            elements.append(ctx.add("gather", source, position, axis=axis))
        given = dict(zip(body.inputs, [*carried, *elements], strict=True))
        results = _plain(ctx, ctx.inline(body, given))
        carried = results[: len(carried)]
        rows.append(results[len(carried) :])
    out_axes, out_flags = ctx.attr("scan_output_axes", [0] * outputs), ctx.attr("scan_output_directions", [0] * outputs)
    scanned = []
    for column, axis, backwards in zip(zip(*rows, strict=True), out_axes, out_flags, strict=True):
        axis = ctx.normal(axis, ctx.type(column[0]).rank + 1)
        parts = [_unsqueezed(ctx, name, axis) for name in (reversed(column) if backwards else column)]
        scanned.append(_joined(ctx, parts, axis))
    return [*carried, *scanned]


def _unsqueezed(ctx: Context, name: str, axis: int) -> str:
    dims = list(ctx.type(name).shape)
    dims.insert(axis, 1)
    return ctx.reshape(name, dims)
