"""Schedule to Program, as a visible list of steps; what a target does in its own way it says as a :class:`Lowering`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from mononn_core.element import NARROW
from mononn_core.errors import UnsupportedError
from mononn_core.graph import Graph
from mononn_core.lower import memory
from mononn_core.lower.lives import lives
from mononn_core.lower.prefetch import prefetch_weights
from mononn_core.lower.roll import roll as roll_layers
from mononn_core.lower.rounding import rounded
from mononn_core.program.ir import Barrier, Buffer, Item, Layout, Program
from mononn_core.schedule.cuda.schedule import CudaSchedule
from mononn_core.schedule.schedule import Schedule
from mononn_core.schedule.views import matrix_shape

S = TypeVar("S", Schedule, CudaSchedule)


@dataclass(frozen=True)
class Lowered(Generic[S]):
    """A Program, the constants its weight buffers hold (buffer id -> logical matrix in the buffer's shape and dtype),
    and the Schedule it was lowered by."""

    program: Program
    weights: Mapping[str, np.ndarray]
    schedule: S


@dataclass
class Lowering(ABC):
    """A network on its way from a Schedule to a Program.

    Attributes:
        graph: the prepared Graph.
        intervals: what stands between two barriers each: phases, and loops that may hold barriers of their own.
        packed: packed weights that they use: id to (buffer, what gives the logical matrix).
        align: bytes that buffers are aligned to.
        prefetch: whether weights are asked for before a barrier.
        passing: tensors that every round of a loop writes before it reads them.
        weights: what the step of that name puts into the weight buffers.
    """

    graph: Graph
    intervals: Sequence[Sequence[Item]]
    packed: Mapping[str, tuple[Buffer, Callable[[], np.ndarray]]]
    align: int
    prefetch: bool
    passing: Collection[str] = ()
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    @abstractmethod
    def activation(self, tensor: str) -> Buffer:
        """The arena buffer of a stored tensor, not placed yet."""

    @property
    def locals(self) -> Mapping[str, Buffer]:
        """Worker-local buffers that tasks read back, not placed yet."""
        return {}

    @abstractmethod
    def scratch(self, program: Program) -> Program:
        """``program`` with its worker-local memory placed, and with what templates work in."""


Step = Callable[[Program, Lowering], Program]


def phases(program: Program, lowering: Lowering) -> Program:
    """Groups as phases, a barrier between two intervals."""
    items: list[Item] = []
    for number, interval in enumerate(lowering.intervals):
        items += [Barrier(number - 1)] if number else []
        items += interval
    return replace(program, body=tuple(items))


def edges(program: Program, lowering: Lowering) -> Program:
    """The callers' arrays."""
    graph = lowering.graph
    found = [
        Buffer(n, graph.types[n].dtype, s := matrix_shape(graph.types[n].shape), Layout.row_major(s), space, at)
        for space, names in (("input", graph.inputs), ("output", graph.outputs))
        for at, n in enumerate(names)
    ]
    return replace(program, buffers=tuple(found), inputs=graph.inputs, outputs=graph.outputs)


def arena(program: Program, lowering: Lowering) -> Program:
    """Activations: who lives from when to when, and where in the arena."""
    kept = {*program.outputs, *lowering.locals}
    found = lives(lowering.intervals, kept, lowering.passing, lowering.activation)
    placed, nbytes = memory.plan_arena(found, lowering.align)
    return replace(program, buffers=(*program.buffers, *placed), arena_bytes=nbytes)


def weights(program: Program, lowering: Lowering) -> Program:
    """Constants in the order of their use, packed where a template wants them so."""
    graph, found = lowering.graph, []
    for name in dict.fromkeys(str(o.buffer) for phase in program.phases() for o in phase.task.operands):
        if name in lowering.packed:
            buffer, matrix = lowering.packed[name]
            lowering.weights[name] = _stored(name, matrix(), buffer.dtype)
        elif graph.is_constant(name):
            shape = matrix_shape(graph.types[name].shape)
            buffer = Buffer(name, graph.types[name].dtype, shape, Layout.row_major(shape), "weight")
            lowering.weights[name] = graph.constants[name].reshape(shape)
        else:
            continue
        found.append(replace(buffer, align=lowering.align))
    placed, nbytes = memory.plan_weights(found, lowering.align)
    return replace(program, buffers=(*program.buffers, *placed), weight_bytes=nbytes)


def _stored(name: str, value: np.ndarray, dtype: str) -> np.ndarray:
    """A weight in the type it is stored in; raises UnsupportedError where a finite one becomes infinite."""
    if dtype not in NARROW:
        return value.astype(dtype, copy=False)
    found = rounded(value, dtype)
    if not (finite := np.isfinite(found)).all() and np.isfinite(value[~finite]).any():
        raise UnsupportedError(f"weight {name!r} has values beyond {dtype}; compile with precision bf16 or fp32")
    return found


def roll(program: Program, lowering: Lowering) -> Program:
    """Repeated layers as loops over a table of buffers."""
    return roll_layers(program)


def prefetch(program: Program, lowering: Lowering) -> Program:
    """Weights asked for before a barrier."""
    return prefetch_weights(program) if lowering.prefetch else program


def local(program: Program, lowering: Lowering) -> Program:
    """What tasks keep in their worker's own memory."""
    return replace(program, buffers=(*program.buffers, *lowering.locals.values()))


def scratch(program: Program, lowering: Lowering) -> Program:
    """Where that lies, beside what templates work in."""
    return lowering.scratch(program)


STEPS: tuple[tuple[str, Step], ...] = (
    ("phases", phases),
    ("edges", edges),
    ("arena", arena),
    ("weights", weights),
    ("local", local),
    ("roll", roll),
    ("prefetch", prefetch),
    ("scratch", scratch),
)
"""(name, step) in order, for every target."""


def run(lowering: Lowering, schedule: S) -> Lowered[S]:
    """All steps.

    Raises:
        UnsupportedError: a weight is too large for its type, or what a target's ``scratch`` says.
    """
    program = Program(lowering.graph.name, (), ())
    for _, step in STEPS:
        program = step(program, lowering)
    return Lowered(program, lowering.weights, schedule)
