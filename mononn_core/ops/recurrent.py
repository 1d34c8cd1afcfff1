"""Recurrent layers: one cell applied step after step, and the arithmetic of that cell.

    recurrence(x, r, h, c, b, p, lengths, s; kind, reverse, activations, clip, coupled, after, rounded) -> states

kind "rnn", "gru" or "lstm" with G = 1, 3 or 4 gates in ONNX's order, H units, D directions (``reverse``: 1 for one that
starts at the last step), B sequences of T steps. x [T, B, D G H]: products of the inputs, input biases added;
r [D, H, G H]; h and, of an LSTM, c [D, B, H]: the states before the first step; optional ("", as c elsewhere):
b [D, G H], added to the products by r; p [D, 3 H], peepholes of the gates i, o, f; lengths [B], integers: later steps
keep the state; s [D, G H]: r is int8, and products by it are multiplied by s. The states [S, T, B, D H] after every
step: h, and of an LSTM c; of a GRU that multiplies the state in front of its last product also what that product takes,
reset * h, and the update gate.

``activations``: names of operators, or "identity", of every direction one after the other, between commas;
``clip`` > 0 bounds what an activation sees; ``coupled``: the forget gate is 1 - i; ``after``: the reset gate multiplies
the recurrent product, not the state in front of it; ``rounded``, if there: what is multiplied by r is rounded to that
type before, each row on a scale of its own (:func:`mononn_core.ops.weight_only.in_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops import registry
from mononn_core.ops.common import integers, number, text
from mononn_core.ops.registry import Attrs, OpDef, register
from mononn_core.ops.weight_only import STEPS, Numbers, in_steps

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
STATES = {"rnn": 1, "gru": 1, "lstm": 2}
ACTIVATIONS = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}
"""kind -> its activations where none are said."""
X, R, H, C, B, P, LENGTHS, SCALE = range(8)
INPUTS = 8
"""Positions of the inputs, and how many there are."""
ROUNDED = tuple(STEPS)
"""What states are rounded to, in so many bytes as its place in this says."""
V = TypeVar("V")


class Making(Protocol[V]):
    """Where operators are applied: on arrays, in a Graph, or on the elements of a loop."""

    def add(self, op: str, /, *inputs: V, **attrs: Any) -> V: ...
    def one(self, like: V) -> V: ...


class Cell:
    """The arithmetic of a step of one direction."""

    def __init__(self, attrs: Attrs, direction: int) -> None:
        self.kind = text(attrs, "kind")
        self.gates, self.states = GATES[self.kind], STATES[self.kind]
        names, count = text(attrs, "activations").split(","), len(ACTIVATIONS[self.kind])
        self.activations = names[direction * count :][:count]
        self.limit = number(attrs, "clip")
        self.coupled = bool(attrs["coupled"])
        self.twice = self.kind == "gru" and not attrs["after"]
        self.stored = self.states + (2 if self.twice else 0)

    def step(
        self,
        do: Making[V],
        x: Sequence[V],
        r: Sequence[V],
        states: Sequence[V],
        peepholes: Sequence[V] = (),
        product: Callable[[V], V] | None = None,
    ) -> tuple[V, ...]:
        """The states after a step, and what else is stored. ``x`` and ``r``: what the input and the state give each
        gate; ``product``: what a state gives a GRU's last gate, where its product is not in ``r``."""
        if self.kind == "rnn":
            return (self._apply(do, 0, do.add("add", x[0], r[0])),)
        if self.kind == "lstm":
            return self._lstm(do, x, r, states[1], peepholes)
        if product is None:
            update, reset = self._opened(do, x, r)
            return (self.renewed(do, x[2], do.add("mul", reset, r[2]), states[0], update),)
        seen, update = self.before_product(do, x, r, states[0])
        return (self.renewed(do, x[2], product(seen), states[0], update), seen, update)

    def before_product(self, do: Making[V], x: Sequence[V], r: Sequence[V], h: V) -> tuple[V, V]:
        """Of a GRU that multiplies twice a step: what its last product takes, and the update gate."""
        update, reset = self._opened(do, x, r)
        return do.add("mul", reset, h), update

    def renewed(self, do: Making[V], x: V, inner: V, h: V, update: V) -> V:
        """A GRU's state after a step: ``x`` and ``inner`` are what the input and the state give its last gate."""
        new = self._apply(do, 1, do.add("add", x, inner))
        kept = do.add("mul", do.add("sub", do.one(update), update), new)
        return do.add("add", kept, do.add("mul", update, h))

    def _apply(self, do: Making[V], which: int, v: V) -> V:
        if self.limit > 0:
            v = do.add("clip", v, low=-self.limit, high=self.limit)
        name = self.activations[which]
        return v if name == "identity" else do.add(name, v)

    def _opened(self, do: Making[V], x: Sequence[V], r: Sequence[V]) -> list[V]:
        """A GRU's update and reset gates."""
        return [self._apply(do, 0, do.add("add", x[g], r[g])) for g in range(2)]

    def _lstm(self, do: Making[V], x: Sequence[V], r: Sequence[V], c: V, peepholes: Sequence[V]) -> tuple[V, ...]:
        def gate(number: int, seen: V) -> V:
            total = do.add("add", x[number], r[number])
            if peepholes:
                total = do.add("add", total, do.add("mul", peepholes[number], seen))
            return self._apply(do, 0, total)

        entered = gate(0, c)
        kept = do.add("sub", do.one(entered), entered) if self.coupled else gate(2, c)
        proposed = self._apply(do, 1, do.add("add", x[3], r[3]))
        new = do.add("add", do.add("mul", kept, c), do.add("mul", entered, proposed))
        return do.add("mul", gate(1, new), self._apply(do, 2, new)), new


class Written(Making[V], Numbers[V], Protocol[V]):
    """Where whole tensors are computed."""

    def shape(self, name: V) -> tuple[int, ...]: ...
    def dtype(self, name: V) -> str: ...


class Unrolled:
    """A recurrence written step by step: the states as a stack of all steps'."""

    def __init__(self, do: Written[Any], inputs: Sequence[Any], attrs: Attrs) -> None:
        """``inputs``: as the operator's, an absent one None."""
        self.do, self.inputs, self.attrs = do, inputs, attrs
        self.steps, self.rows, _ = do.shape(inputs[X])
        self.units = do.shape(inputs[R])[1]

    def states(self) -> Any:
        """[S, T, B, D H]."""
        found = [self._direction(d, bool(back)) for d, back in enumerate(integers(self.attrs, "reverse"))]
        steps = [
            self._stack([self._stack([direction[t][s] for direction in found], 1) for t in range(self.steps)], 0)
            for s in range(len(found[0][0]))
        ]
        shape = (len(steps), self.steps, self.rows, len(found) * self.units)
        return self._reshape(self._stack(steps, 0), shape)

    def _direction(self, d: int, back: bool) -> list[tuple[Any, ...]]:
        """Of each step, in order of time, the states [B, H]."""
        do, cell, units = self.do, Cell(self.attrs, d), self.units
        x, r, *firsts, b, p, lengths, scale = self.inputs
        weights, width = self._one(r, d), cell.gates * units
        if scale is not None:
            scale, weights = self._one(scale, d), do.add("cast", weights, to=do.dtype(x))
        bias = None if b is None else self._one(b, d)
        peepholes = [self._part(self._one(p, d), 0, g * units, units) for g in range(3)] if p is not None else []
        states = tuple(self._one(first, d) for first in firsts[: cell.states])

        def product(state: Any, first: int, count: int) -> Any:
            if "rounded" in self.attrs:
                state = do.add("mul", *in_steps(do, state, text(self.attrs, "rounded"), 1))
            found = do.add("matmul", state, self._part(weights, 1, first * units, count * units))
            if scale is not None:
                found = do.add("mul", found, self._part(scale, 0, first * units, count * units))
            return found if bias is None else do.add("add", found, self._part(bias, 0, first * units, count * units))

        outputs: list[tuple[Any, ...]] = [()] * self.steps
        for t in reversed(range(self.steps)) if back else range(self.steps):
            seen = self._reshape(self._part(self._part(x, 0, t, 1), 2, d * width, width), (self.rows, width))
            found = product(states[0], 0, 2 if cell.twice else cell.gates)
            gates = range(cell.gates)
            xs = [self._part(seen, 1, g * units, units) for g in gates]
            rs = [self._part(found, 1, g * units, units) for g in (range(2) if cell.twice else gates)]
            new = cell.step(do, xs, rs, states, peepholes, (lambda v: product(v, 2, 1)) if cell.twice else None)
            if lengths is not None:
                alive = do.add("greater", self._reshape(lengths, (self.rows, 1)), do.number(t, lengths))
                kept = (do.add("where", alive, a, b) for a, b in zip(new, states, strict=False))
                new = (*kept, *new[len(states) :])
            outputs[t], states = new, new[: cell.states]
        return outputs

    def _one(self, tensor: Any, index: int) -> Any:
        """``tensor[index]``."""
        return self._reshape(self._part(tensor, 0, index, 1), self.do.shape(tensor)[1:])

    def _part(self, tensor: Any, axis: int, start: int, size: int) -> Any:
        sizes = list(self.do.shape(tensor))
        if sizes[axis] == size:
            return tensor
        starts = [start if d == axis else 0 for d in range(len(sizes))]
        sizes[axis] = size
        return self.do.add("slice", tensor, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * len(sizes))

    def _reshape(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        return tensor if self.do.shape(tensor) == shape else self.do.add("reshape", tensor, shape=shape)

    def _stack(self, parts: list[Any], axis: int) -> Any:
        return parts[0] if len(parts) == 1 else self.do.add("concat", *parts, axis=axis)


class Arrays:
    """Operators applied to arrays of a namespace."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def add(self, op: str, /, *inputs: Any, **attrs: Any) -> Any:
        return registry.get(op).evaluate(self.xp, inputs, attrs)[0]

    def one(self, like: Any) -> Any:
        return self.number(1, like)

    def number(self, value: float, like: Any) -> Any:
        return self.xp.asarray(value, dtype=like.dtype)

    def shape(self, name: Any) -> tuple[int, ...]:
        return tuple(name.shape)

    def dtype(self, name: Any) -> str:
        return str(name.dtype)


def _infer(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    given: list[TensorType | None] = [*types, *[None] * (INPUTS - len(types))]
    (x, r, h, c), (b, p, lengths, scale) = given[:B], given[B:]
    kind, directions = text(attrs, "kind"), len(integers(attrs, "reverse"))
    if x is None or r is None or h is None or x.rank != 3 or r.rank != 3 or (c is None) == (kind == "lstm"):
        raise ShapeError(f"a recurrence has inputs [T, B, D G H], weights [D, H, G H] and states, not {x} and {r}")
    if (r.dtype == "int8") != (scale is not None):
        raise ShapeError(f"weights of a recurrence of type {r.dtype} are{'' if scale is None else ' not'} on a scale")
    if attrs.get("rounded", ROUNDED[0]) not in ROUNDED:
        raise ShapeError(f"a recurrence rounds states to {' or '.join(ROUNDED)}, not {attrs['rounded']}")
    (steps, rows, _), units, gates = x.shape, r.shape[1], GATES[kind]
    wanted = (
        (x, (steps, rows, directions * gates * units)),
        (r, (directions, units, gates * units)),
        (b, (directions, gates * units)),
        (h, (directions, rows, units)),
        (c, (directions, rows, units)),
        (p, (directions, 3 * units)),
        (lengths, (rows,)),
        (scale, (directions, gates * units)),
    )
    for found, shape in wanted:
        if found is not None and found.shape != shape:
            raise ShapeError(f"a tensor {found} of a recurrence should have shape {shape}")
    return (TensorType(x.dtype, (Cell(attrs, 0).stored, steps, rows, directions * units)),)


def _evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    return (Unrolled(Arrays(xp), (*inputs, *(None,) * (INPUTS - len(inputs))), attrs).states(),)


def _flops(types: Sequence[TensorType | None], outputs: Sequence[TensorType], attrs: Attrs) -> int:
    x, r = types[:2]
    assert x is not None and r is not None
    return 2 * x.shape[0] * x.shape[1] * r.size


register(OpDef("recurrence", "row", _infer, _evaluate, flops=_flops))
