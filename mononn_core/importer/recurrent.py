"""Converters of recurrent networks: unrolled over their (static) sequence length.

Weights W [D, G H, I], R [D, G H, H], biases B [D, 2 G H] as ONNX lays them out; D directions. All steps' input
products are one matmul.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mononn_core.importer.context import Context, converts
from mononn_core.importer.control import UNROLL_LIMIT
from mononn_core.importer.movement import part

States = tuple[str, ...]
Step = Callable[[str, States], States]
"""``step(input products [B, G H], states) -> states``; the first state is the output."""
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass(frozen=True)
class Direction:
    """One direction's tensors: ``recurrent`` [H, G H] transposed, biases [G H] ("" when absent)."""

    number: int
    hidden: int
    recurrent: str
    input_bias: str
    recurrent_bias: str
    activations: tuple[str, ...]


def activate(ctx: Context, name: str, x: str) -> str:
    """One of the activations ONNX allows, after clipping its argument if asked to."""
    limit = ctx.attr("clip")
    if limit:
        x = ctx.add("clip", x, low=-float(limit), high=float(limit))
    table = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu", "softplus": "softplus"}
    if name.lower() == "affine":
        return x
    if name.lower() not in table:
        raise ctx.unsupported(f"activation {name!r} is not supported; Sigmoid, Tanh, Relu and Softplus are")
    return ctx.add(table[name.lower()], x)


def take(ctx: Context, name: str, index: int) -> str:
    """``name[index]``."""
    return ctx.reshape(part(ctx, name, 0, index, 1), ctx.type(name).shape[1:])


def gate(ctx: Context, x: str, number: int, hidden: int) -> str:
    """The columns of one gate."""
    return part(ctx, x, ctx.type(x).rank - 1, number * hidden, hidden)


def rnn_step(ctx: Context, d: Direction) -> Step:
    def step(x: str, states: States) -> States:
        total = ctx.add("add", x, _recurrent(ctx, d, states[0], 0, 1))
        return (activate(ctx, d.activations[0], total),)

    return step


def _recurrent(ctx: Context, d: Direction, state: str, first: int, count: int) -> str:
    """h R^T + b for gates first .. first + count."""
    columns = part(ctx, d.recurrent, 1, first * d.hidden, count * d.hidden)
    product = ctx.add("matmul", state, columns)
    if not d.recurrent_bias:
        return product
    return ctx.add("add", product, part(ctx, d.recurrent_bias, 0, first * d.hidden, count * d.hidden))


def gru_step(ctx: Context, d: Direction) -> Step:
    """Gates z, r, h; with ``linear_before_reset`` the reset gate multiplies the recurrent product."""
    f, g = d.activations
    after = bool(ctx.attr("linear_before_reset", 0))

    def step(x: str, states: States) -> States:
        h = states[0]
        both = ctx.add("add", part(ctx, x, 1, 0, 2 * d.hidden), _recurrent(ctx, d, h, 0, 2))
        z, r = (activate(ctx, f, gate(ctx, both, k, d.hidden)) for k in range(2))
        if after:
            inner = ctx.add("mul", r, _recurrent(ctx, d, h, 2, 1))
        else:
            inner = _recurrent(ctx, d, ctx.add("mul", r, h), 2, 1)
        new = activate(ctx, g, ctx.add("add", gate(ctx, x, 2, d.hidden), inner))
        kept = ctx.add("mul", ctx.add("sub", ctx.like(1, z), z), new)
        return (ctx.add("add", kept, ctx.add("mul", z, h)),)

    return step


def lstm_step(ctx: Context, d: Direction) -> Step:
    """Gates i, o, f, c, with peepholes P [3 H] for i, o, f."""
    f, g, h = d.activations
    peepholes = take(ctx, ctx.input(7), d.number) if ctx.has(7) else ""

    def peep(x: str, cell: str, number: int) -> str:
        if not peepholes:
            return x
        return ctx.add("add", x, ctx.add("mul", part(ctx, peepholes, 0, number * d.hidden, d.hidden), cell))

    def step(x: str, states: States) -> States:
        total = ctx.add("add", x, _recurrent(ctx, d, states[0], 0, 4))
        cell = states[1]
        i, o, forget, c = (gate(ctx, total, k, d.hidden) for k in range(4))
        entered = activate(ctx, f, peep(i, cell, 0))
        if ctx.attr("input_forget", 0):
            kept = ctx.add("sub", ctx.like(1, entered), entered)
        else:
            kept = activate(ctx, f, peep(forget, cell, 2))
        new = ctx.add("add", ctx.add("mul", kept, cell), ctx.add("mul", entered, activate(ctx, g, c)))
        shown = activate(ctx, f, peep(o, new, 1))
        return ctx.add("mul", shown, activate(ctx, h, new)), new

    return step


STEPS = {"RNN": rnn_step, "GRU": gru_step, "LSTM": lstm_step}


def direction(ctx: Context, number: int, kind: str) -> Direction:
    hidden = ctx.type(2).shape[2]
    gates = GATES[kind]
    biases = take(ctx, ctx.input(3), number) if ctx.has(3) else ""
    names = ctx.attr("activations") or DEFAULTS[kind] * ctx.type(1).shape[0]
    count = len(DEFAULTS[kind])
    return Direction(
        number,
        hidden,
        ctx.add("transpose", take(ctx, ctx.input(2), number), perm=(1, 0)),
        part(ctx, biases, 0, 0, gates * hidden) if biases else "",
        part(ctx, biases, 0, gates * hidden, gates * hidden) if biases else "",
        tuple(names[number * count : (number + 1) * count]),
    )


def unroll(ctx: Context, x: str, d: Direction, step: Step, states: States, backwards: bool) -> tuple[list[str], States]:
    """The output of each step (in time order) and the last states; sequences that have ended keep theirs."""
    weight = ctx.add("transpose", take(ctx, ctx.input(1), d.number), perm=(1, 0))
    products = ctx.add("matmul", x, weight)
    if d.input_bias:
        products = ctx.add("add", products, d.input_bias)
    length = ctx.type(x).shape[0]
    outputs = [""] * length
    for t in reversed(range(length)) if backwards else range(length):
        new = step(take(ctx, products, t), states)
        shown = new[0]
        if ctx.has(4):
            lengths = ctx.reshape(ctx.input(4), (ctx.type(4).size, 1))
            alive = ctx.add("greater", lengths, ctx.make(t, ctx.type(lengths).dtype))
            shown = ctx.add("where", alive, shown, ctx.like(0, shown))
            new = tuple(ctx.add("where", alive, a, b) for a, b in zip(new, states, strict=True))
        states, outputs[t] = new, shown
    return outputs, states


def joined(ctx: Context, parts: list[str], axis: int) -> str:
    """Tensors stacked along a new axis."""
    shape = ctx.type(parts[0]).shape
    lifted = [ctx.reshape(p, (*shape[:axis], 1, *shape[axis:])) for p in parts]
    return lifted[0] if len(lifted) == 1 else ctx.add("concat", *lifted, axis=axis)


@converts("RNN", "GRU", "LSTM")
def recurrent(ctx: Context) -> tuple[str, ...]:
    kind, batch_first = ctx.node.op_type, bool(ctx.attr("layout", 0))
    x = ctx.add("transpose", ctx.input(0), perm=(1, 0, 2)) if batch_first else ctx.input(0)
    length, batch, _ = ctx.type(x).shape
    if length > UNROLL_LIMIT:
        raise ctx.unsupported(f"a sequence of {length} steps is too long to unroll (at most {UNROLL_LIMIT})")
    mode = ctx.attr("direction", "forward")
    flags = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[mode]
    outputs, finals = [], []
    for number, backwards in enumerate(flags):
        d = direction(ctx, number, kind)
        states = tuple(
            _initial(ctx, 5 + s, number, batch, d.hidden, batch_first) for s in range(2 if kind == "LSTM" else 1)
        )
        steps, last = unroll(ctx, x, d, STEPS[kind](ctx, d), states, backwards)
        outputs.append(joined(ctx, steps, 0))
        finals.append(last)
    y = joined(ctx, outputs, 1)
    ends = [joined(ctx, [f[s] for f in finals], 0) for s in range(len(finals[0]))]
    if batch_first:
        y = ctx.add("transpose", y, perm=(2, 0, 1, 3))
        ends = [ctx.add("transpose", e, perm=(1, 0, 2)) for e in ends]
    return (y, *ends)


def _initial(ctx: Context, position: int, number: int, batch: int, hidden: int, batch_first: bool) -> str:
    if not ctx.has(position):
        return ctx.add("expand", ctx.like(0, ctx.input(0)), shape=(batch, hidden))
    state = ctx.input(position)
    if batch_first:
        state = ctx.add("transpose", state, perm=(1, 0, 2))
    return take(ctx, state, number)
