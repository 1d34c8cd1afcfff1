"""Graph to Program: fuse into stages, decide a Schedule, and lower that: phases, places of buffers, rolled layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mononn_core.cost.analytic import Cost
from mononn_core.errors import OptionError
from mononn_core.graph import Graph
from mononn_core.machine import Machine
from mononn_core.options import Options
from mononn_core.program.ir import Barrier, Buffer, Item, Layout, Phase, Program
from mononn_core.program.template import NEST
from mononn_core.schedule import memory, ownership, space
from mononn_core.schedule.border import build_border
from mononn_core.schedule.decisions import row_stride
from mononn_core.schedule.fuse import FusionGroup, dependencies, fuse
from mononn_core.schedule.parts import with_parts
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.roll import roll
from mononn_core.schedule.schedule import GroupSchedule, Schedule
from mononn_core.schedule.template import scheduled
from mononn_core.schedule.views import matrix_shape


@dataclass(frozen=True)
class Lowered:
    """A Program, the constants its weight buffers hold (buffer id -> logical matrix in the buffer's shape), and the
    Schedule it was lowered by (None for a Program written by hand)."""

    program: Program
    weights: Mapping[str, np.ndarray]
    schedule: Schedule | None = None


def lower(graph: Graph, options: Options, machine: Machine, schedule: Schedule | None = None) -> Lowered:
    """A prepared network (:func:`mononn_core.passes.pipeline.prepare`) as one Program, balanced for ``options.threads``
    workers; ``schedule`` in place of the one that the cost model would choose.

    Raises:
        OptionError: ``schedule`` is not one of this network, or a decision is not legal; the message says why.
            (Whether its barriers suffice the verifier says of the Program.)
    """
    lowering = Lowering(graph, options, machine)
    if schedule is None:
        return lowering.program(lowering.decide())
    lowering.check(schedule)
    return lowering.program(schedule)


class Lowering:
    """A prepared network on its way to a Program: its stages, what may be decided, and what follows from a Schedule."""

    def __init__(self, graph: Graph, options: Options, machine: Machine) -> None:
        self.graph, self.owners, self.machine = graph, options.threads, machine
        self.stages, self.views = fuse(graph, options.fuse, options.epilogues, joined=True)
        self.builder = PhaseBuilder(self.views, machine)
        self.by_name = {stage.own: (number, stage) for number, stage in enumerate(self.stages)}
        self.cost = Cost(machine, sum(c.nbytes for c in graph.constants.values()))
        self._built: dict[GroupSchedule, tuple[Phase, ...]] = {}
        self._candidates: dict[GroupSchedule, ownership.Candidate] = {}

    def decide(self, fixed: Mapping[str, GroupSchedule] | None = None) -> Schedule:
        """The cheapest Schedule by the cost model; groups in ``fixed`` (by name) are computed as it says.

        Raises:
            OptionError: the fixed decisions do not go together.
        """
        fixed = fixed or {}
        groups = {
            s.own: (fixed[s.own],) if s.own in fixed else space.preferred(s, self.builder, self.owners)
            for s in self.stages
        }
        for own, more in with_parts(self.stages, groups, self.phases, self.builder).items():
            groups[own] += () if own in fixed else tuple(more)
        chosen = {own: tuple(map(self._candidate, found)) for own, found in groups.items()}
        return Schedule(self.graph.name, self.owners, ownership.plan(self.stages, chosen, self.cost))

    def price(self, schedule: Schedule) -> float:
        """Seconds of a run by the cost model; no Program is built."""
        return ownership.price([tuple(map(self._candidate, interval)) for interval in schedule.intervals], self.cost)

    def _candidate(self, group: GroupSchedule) -> ownership.Candidate:
        if group not in self._candidates:
            found = ownership.candidate(group, self.phases(group), self._shape(group), self.cost)
            self._candidates[group] = found
        return self._candidates[group]

    def check(self, schedule: Schedule) -> None:
        """Raises OptionError where a Schedule is not one of this network, names a decision that is not legal, or has a
        group before one that it reads. Whether its barriers suffice the verifier says of the Program."""
        if schedule.owners != self.owners:
            raise OptionError(f"the schedule is for {schedule.owners} owners, not {self.owners}; compile with as many")
        ready: dict[str, int] = {}
        for group in schedule.groups:
            if group.group not in self.by_name:
                raise OptionError(f"the schedule has a group {group.group!r}, which {self.graph.name} has not")
            if group.group in ready:
                raise OptionError(f"the schedule has group {group.group!r} twice")
            ready[group.group] = len(ready)
            stage = self.by_name[group.group][1]
            plain = replace(group, partition=replace(group.partition, parts=None))
            if reason := space.problem(stage, self.builder, plain):
                raise OptionError(f"the schedule of group {group.group!r} is not legal: {reason}")
        self._check_parts(schedule)
        if missing := [name for name in self.by_name if name not in ready]:
            raise OptionError(f"the schedule has no group {missing[0]!r}")
        writers: dict[str, list[str]] = {}
        for stage in self.stages:
            writers.setdefault(stage.stored, []).append(stage.own)
        for stage in self.stages:
            for tensor in sorted(dependencies(stage, self.views)):
                late = [w for w in writers[tensor] if w != stage.own and ready[w] > ready[stage.own]]
                if late and tensor != stage.stored:
                    raise OptionError(f"the schedule has group {stage.own!r} before {late[0]!r}, which it reads")

    def _check_parts(self, schedule: Schedule) -> None:
        """Raises OptionError where an image in parts is not one that its writer and its reader meet in."""
        plain = {g.group: (replace(g, partition=replace(g.partition, parts=None)),) for g in schedule.groups}
        if len(plain) < len(self.stages):
            return
        allowed = with_parts(self.stages, plain, self.phases, self.builder)
        for group in schedule.groups:
            parts = group.partition.parts
            both = sum(other.partition.parts == parts for other in schedule.groups)
            if parts is not None and (group not in allowed.get(group.group, ()) or both != 2):
                raise OptionError(
                    f"the schedule of group {group.group!r} is not legal: {parts.buffer} is not what a map and the one "
                    "convolution that reads it, both dealt by rows, share in parts"
                )

    def phases(self, group: GroupSchedule) -> tuple[Phase, ...]:
        """The phases of a group: its own, and one for the border of the image it stores."""
        if group not in self._built:
            number, stage = self.by_name[group.group]
            name = f"{number:03d}_{stage.root.op if stage.root else stage.chain[-1].op}"
            self._built[group] = build_phases(self.builder, stage, group, name)
        return self._built[group]

    def program(self, schedule: Schedule) -> Lowered:
        """What follows from a legal Schedule."""
        graph = self.graph
        items: list[Item] = []
        spans: dict[str, memory.Span] = {}
        for number, interval in enumerate(schedule.intervals):
            items += [Barrier(number - 1)] if number else []
            items += [phase for group in interval for phase in self.phases(group)]
            for group in interval:
                stage = self.by_name[group.group][1]
                operands = self.phases(group)[0].task.operands
                if stage.stored not in graph.outputs:
                    stored = [str(o.buffer) for o in operands if o.access == "write"][-1]
                    buffer = self._activation(stored, graph.types[stage.stored].dtype, self._shape(group))
                    known = spans.get(stored, memory.Span(buffer, number, number))
                    spans[stored] = replace(known, last=number)
                for read in (str(o.buffer) for o in operands if o.access != "write" and not o.stable):
                    if read in spans:
                        spans[read] = replace(spans[read], last=number)
        arena, arena_bytes = memory.plan_arena(spans)
        tensors = dict.fromkeys(str(o.buffer) for i in items if isinstance(i, Phase) for o in i.task.operands)
        weights, values, weight_bytes = _weights(graph, list(tensors), self.builder)
        edges = [
            Buffer(n, graph.types[n].dtype, s := matrix_shape(graph.types[n].shape), Layout.row_major(s), space_, at)
            for space_, names in (("input", graph.inputs), ("output", graph.outputs))
            for at, n in enumerate(names)
        ]
        program = Program(
            graph.name,
            (*edges, *(arena[n] for n in spans), *weights),
            tuple(items),
            inputs=graph.inputs,
            outputs=graph.outputs,
            arena_bytes=arena_bytes,
            weight_bytes=weight_bytes,
        )
        return Lowered(roll(program), values, schedule)

    def _shape(self, group: GroupSchedule) -> tuple[int, int]:
        """Of the matrix that a group stores; in parts, of all of them."""
        stage, parts = self.by_name[group.group][1], group.partition.parts
        rows, columns = matrix_shape(self.graph.types[stage.stored].shape)
        mine = parts is not None and writes_parts(stage, group)
        return (parts.size * group.partition.owners if parts is not None and mine else rows), columns

    def _activation(self, name: str, dtype: str, shape: tuple[int, int]) -> Buffer:
        rows, columns = shape
        stride = row_stride(columns, self.machine) if rows > 1 else columns
        layout = Layout((((rows, stride),), ((columns, 1),)), max(rows * stride, 1))
        return Buffer(name, dtype, (rows, columns), layout, "arena")


def build_phases(builder: PhaseBuilder, stage: FusionGroup, group: GroupSchedule, name: str) -> tuple[Phase, ...]:
    """The phases of ``stage`` as decided: its own, and one for the border of the image it stores."""
    phase = scheduled(group.template).build(builder, stage, group, name)
    border = build_border(builder, stage, group.partition, phase)
    return (phase,) if border is None else (phase, border)


def writes_parts(stage: FusionGroup, group: GroupSchedule) -> bool:
    """Whether a group that is dealt in parts stores them; else it reads them."""
    return group.partition.parts is not None and group.template == NEST


def _weights(
    graph: Graph, tensors: list[str], builder: PhaseBuilder
) -> tuple[list[Buffer], dict[str, np.ndarray], int]:
    """Weight buffers in the order of their use, their logical matrices, and their total bytes."""
    buffers: list[Buffer] = []
    values: dict[str, np.ndarray] = {}
    for name in tensors:
        if name in builder.packed:
            buffer, values[name] = builder.packed[name]
        elif graph.is_constant(name):
            shape = matrix_shape(graph.types[name].shape)
            buffer = Buffer(name, graph.types[name].dtype, shape, Layout.row_major(shape), "weight")
            values[name] = graph.constants[name].reshape(shape)
        else:
            continue
        buffers.append(buffer)
    placed, total = memory.plan_weights(buffers)
    return placed, values, total


__all__ = ["Lowered", "Lowering", "lower"]
