"""Converters of recurrent networks: the products of all steps' inputs, and the recurrence over them.

Weights W [D, G H, I], R [D, G H, H], biases B [D, 2 G H], peepholes P [D, 3 H] as ONNX lays them out; D directions.
"""

from __future__ import annotations

import numpy as np

from mononn_core.importer.context import Context, converts
from mononn_core.importer.movement import part
from mononn_core.ops.recurrent import ACTIVATIONS, STATES

APPLIED = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu", "softplus": "softplus", "affine": "identity"}
"""ONNX's activations -> operators."""


@converts("RNN", "GRU", "LSTM")
def recurrent(ctx: Context) -> tuple[str, ...]:
    kind, batch_first = ctx.node.op_type.lower(), bool(ctx.attr("layout", 0))
    mode = ctx.attr("direction", "forward")
    reverse = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}[mode]
    x = _turned(ctx, ctx.input(0), batch_first)
    steps, rows, features = ctx.type(x).shape
    directions, width, units = ctx.type(2).shape
    weight = ctx.reshape(ctx.add("transpose", ctx.input(1), perm=(2, 0, 1)), (features, directions * width))
    products, after = ctx.add("matmul", x, weight), bool(ctx.attr("linear_before_reset", 0))
    bias = ""
    if ctx.has(3):
        first, second = (part(ctx, ctx.input(3), 1, n * width, width) for n in range(2))
        if kind == "gru":
            bias = second
        else:
            first = ctx.add("add", first, second)
        products = ctx.add("add", products, ctx.reshape(first, (directions * width,)))
    inputs = (
        products,
        ctx.add("transpose", ctx.input(2), perm=(0, 2, 1)),
        _first(ctx, 5, (directions, rows, units), batch_first),
        _first(ctx, 6, (directions, rows, units), batch_first) if kind == "lstm" else "",
        bias,
        ctx.input(7) if ctx.has(7) else "",
        ctx.input(4) if ctx.has(4) else "",
    )
    rounded = {"rounded": ctx.attr("rounded")} if ctx.attr("rounded") else {}  # by a DynamicQuantizeLSTM
    states = ctx.add(
        "recurrence",
        *inputs,
        kind=kind,
        reverse=reverse,
        activations=_activations(ctx, kind, directions),
        clip=float(ctx.attr("clip") or 0),
        coupled=bool(ctx.attr("input_forget", 0)),
        after=after,
        **rounded,
    )
    apart = ctx.reshape(states, (ctx.type(states).shape[0], steps, rows, directions, units))
    y = part(ctx, apart, 0, 0, 1)
    ends = [_ends(ctx, part(ctx, apart, 0, s, 1), reverse) for s in range(STATES[kind])]
    if ctx.has(4):
        lengths = ctx.reshape(ctx.input(4), (1, 1, rows, 1, 1))
        numbers = ctx.reshape(ctx.make(list(range(steps)), ctx.type(4).dtype), (1, steps, 1, 1, 1))
        y = ctx.add("where", ctx.add("greater", lengths, numbers), y, ctx.like(0, y))
    y = ctx.reshape(y, (steps, rows, directions, units))
    y = ctx.add("transpose", y, perm=(1, 0, 2, 3) if batch_first else (0, 2, 1, 3))
    return (y, *(_turned(ctx, e, batch_first) for e in ends))


def _turned(ctx: Context, tensor: str, batch_first: bool) -> str:
    """The first two axes change places where the batch comes first."""
    return ctx.add("transpose", tensor, perm=(1, 0, 2)) if batch_first else tensor


def _first(ctx: Context, position: int, shape: tuple[int, ...], batch_first: bool) -> str:
    """The states [D, B, H] before the first step."""
    if ctx.has(position):
        return _turned(ctx, ctx.input(position), batch_first)
    return ctx.make(np.zeros(shape), ctx.type(0).dtype)


def _ends(ctx: Context, state: str, reverse: tuple[int, ...]) -> str:
    """The last states of [1, T, B, D, H]: [D, B, H]."""
    _, steps, rows, _, units = ctx.type(state).shape
    found = []
    for d, back in enumerate(reverse):
        one = part(ctx, part(ctx, state, 3, d, 1), 1, 0 if back else steps - 1, 1)
        found.append(ctx.reshape(one, (1, rows, units)))
    return found[0] if len(found) == 1 else ctx.add("concat", *found, axis=0)


def _activations(ctx: Context, kind: str, directions: int) -> str:
    names = [str(n).lower() for n in ctx.attr("activations") or ACTIVATIONS[kind] * directions]
    if len(names) != len(ACTIVATIONS[kind]) * directions:
        raise ctx.unsupported(f"it has {len(names)} activations, not {len(ACTIVATIONS[kind])} a direction")
    for name in names:
        if name not in APPLIED:
            raise ctx.unsupported(f"activation {name!r} is not supported; {', '.join(sorted(APPLIED))} are")
    given = [float(v) for key in ("activation_alpha", "activation_beta") for v in ctx.attr(key) or ()]
    if "affine" in names and given not in ([], [1.0] * names.count("affine") + [0.0] * names.count("affine")):
        raise ctx.unsupported("activation 'affine' with a factor or a summand is not supported")
    return ",".join(APPLIED[name] for name in names)
