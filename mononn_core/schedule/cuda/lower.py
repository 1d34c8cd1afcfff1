"""Graph to the Program of one cooperative kernel: stages, launch, intervals between barriers, memory, loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from mononn_core.errors import OptionError, UnsupportedError
from mononn_core.gpu import Gpu
from mononn_core.graph import Graph
from mononn_core.options import Options
from mononn_core.program.ir import Barrier, Buffer, Item, Layout, Phase, Program
from mononn_core.schedule import memory
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.intervals import schedule as schedule_phases
from mononn_core.schedule.cuda.parts import PartsViews
from mononn_core.schedule.cuda.plan import FEWER_PHASES, NORMS, Plan, Planner, adder
from mononn_core.schedule.cuda.schedule import CudaGroup, CudaSchedule
from mononn_core.schedule.cuda.space import problem_of, template_of
from mononn_core.schedule.cuda.template import SUM, Step, cuda_scheduled
from mononn_core.schedule.cuda.tiles import LAUNCHES, Target, Variant
from mononn_core.schedule.fuse import FusionGroup, fuse
from mononn_core.schedule.prefetch import prefetch_weights
from mononn_core.schedule.prepare import is_template
from mononn_core.schedule.roll import roll
from mononn_core.schedule.views import Views, matrix_shape

ALIGN = 128


@dataclass(frozen=True)
class CudaLowered:
    """A Program, the constants its weight buffers hold (buffer id -> logical matrix in the buffer's shape and dtype),
    the launch it is made for, threads of a block and blocks of a multiprocessor, and the Schedule it was lowered by."""

    program: Program
    weights: Mapping[str, np.ndarray]
    threads: int
    blocks_per_sm: int
    schedule: CudaSchedule


def lower(
    graph: Graph, options: Options, gpu: Gpu, variant: Variant | None = None, schedule: CudaSchedule | None = None
) -> CudaLowered:
    """A prepared network (:func:`mononn_core.passes.pipeline.prepare`) as one Program for ``gpu`` in
    ``options.precision``; ``variant`` or ``schedule`` in place of the model's choice.

    Raises:
        UnsupportedError: a product fits no tile, or a weight is too large for the precision; the message names the node
            or tensor.
        OptionError: ``schedule`` is not one of this network, or a decision is not legal; the message says why.
            (Whether its barriers suffice the verifier says of the Program.)
    """
    lowering = CudaLowering(graph, options, gpu)
    if schedule is None:
        return lowering.program(lowering.decide(variant))
    lowering.check(schedule)
    return lowering.program(schedule)


class CudaLowering:
    """A prepared network on its way to a Program for one GPU: its groups, what is decided, what follows from that."""

    def __init__(self, graph: Graph, options: Options, gpu: Gpu) -> None:
        self.graph, self.precision, self.gpu = graph, options.precision, gpu
        multiple = Target(gpu, options.precision, *LAUNCHES[0]).multiple
        self.stages, self.views = fuse(graph, options.fuse, options.epilogues, multiple)
        self.by_name = {stage.own: (number, stage) for number, stage in enumerate(self.stages)}

    def decide(self, variant: Variant | None = None) -> CudaSchedule:
        """The cheapest Schedule by the cost model, or that of a variant."""
        launches = [Variant(*launch, 0) for launch in LAUNCHES] if variant is None else [variant]
        targets = [Target(self.gpu, self.precision, v.threads, v.blocks_per_sm, v.rank) for v in launches]
        plans: list[tuple[Plan, Target]] = []
        problem: UnsupportedError | None = None
        for target in targets:
            try:
                plans.append((Planner(self.stages, self.views, target).plan(), target))
            except UnsupportedError as error:
                problem = problem or error
        for plan, target in _ranked(plans):
            builder = self._builder(plan.parts, plan.virtual, target)
            try:
                groups = {name: self._group(step, builder) for name, step in _named(plan.steps)}
                phases = [build_phase(builder, step, groups[name], name) for name, step in _named(plan.steps)]
            except UnsupportedError as error:
                problem = problem or error
                continue
            intervals = schedule_phases(phases, builder.locals)
            decided = tuple(tuple(groups[phase.id] for phase in interval) for interval in intervals)
            return CudaSchedule(self.graph.name, target.threads, target.blocks_per_sm, decided)
        assert problem is not None
        raise problem

    def check(self, schedule: CudaSchedule) -> None:
        """Raises OptionError where a Schedule is not one of this network, or names a decision that is not legal."""
        launch = (schedule.threads, schedule.blocks_per_sm)
        if launch not in LAUNCHES:
            known = " or ".join(f"{threads} x {blocks}" for threads, blocks in LAUNCHES)
            raise OptionError(f"the schedule's launch of {launch[0]} threads x {launch[1]} blocks is not {known}")
        planner = Planner(self.stages, self.views, self._target(schedule))
        builder = self._builder({}, frozenset(), planner.target)
        filled = [group.fill for group in schedule.groups if group.fill]
        seen: set[str] = set()
        for group in schedule.groups:
            name = f"{group.group} (sum)" if group.template == SUM else group.group
            if group.group not in self.by_name:
                raise OptionError(f"the schedule has a group {group.group!r}, which {self.graph.name} has not")
            if name in seen:
                raise OptionError(f"the schedule has group {name!r} twice")
            seen.add(name)
            if reason := problem_of(group, self.by_name[group.group][1], schedule, planner, builder):
                raise OptionError(f"the schedule of group {name!r} is not legal: {reason}")
        for own in self.by_name:
            if (own in seen) == (own in filled):
                how = "no group" if own not in seen else "filled in and a group of its own,"
                raise OptionError(f"the schedule has {how} {own!r}")

    def program(self, schedule: CudaSchedule) -> CudaLowered:
        """What follows from a legal Schedule."""
        target = self._target(schedule)
        planner = Planner(self.stages, self.views, target)
        steps = {group: self._step(group, planner) for group in schedule.groups}
        products = [(s.stage.root, s.tile) for s in steps.values()]
        parts = {root.output: tile.parts for root, tile in products if root and tile and tile.parts > 1}
        virtual = frozenset(step.adds for step in steps.values() if step.adds and not step.also)
        builder = self._builder(parts, virtual, target)
        order = sorted(schedule.groups, key=lambda g: (self.by_name[g.group][0], g.template == SUM))
        named = _named([steps[group] for group in order])
        phases = {g: build_phase(builder, step, g, name) for g, (name, step) in zip(order, named, strict=True)}
        intervals = [[phases[group] for group in interval] for interval in schedule.intervals]
        return _assemble(self.graph, intervals, builder, target, schedule)

    def _target(self, schedule: CudaSchedule) -> Target:
        return Target(self.gpu, self.precision, schedule.threads, schedule.blocks_per_sm)

    def _builder(self, parts: Mapping[str, int], virtual: frozenset[str], target: Target) -> CudaBuilder:
        views = PartsViews(self.graph, self.views.stored - virtual, parts)
        return CudaBuilder(views, storage_of(self.stages, self.views, target), target)

    def _group(self, step: Step, builder: CudaBuilder) -> CudaGroup:
        return cuda_scheduled(template_of(step.stage, self.graph)).decided(builder, step)

    def _step(self, group: CudaGroup, planner: Planner) -> Step:
        stage = self.by_name[group.group][1]
        if group.template == SUM:
            return adder(stage)
        fill = self.by_name[group.fill][1] if group.fill else None
        return Step(
            stage, group.tile, fill,
            keep=fill is not None and planner.keeps(fill, stage),
            adds=group.adds, also=bool(group.adds) and planner.stores(group.adds, stage),
        )  # fmt: skip


def build_phase(builder: CudaBuilder, step: Step, group: CudaGroup, name: str) -> Phase:
    """The phase of a step as decided."""
    return cuda_scheduled(group.template).build_cuda(builder, step, group, name)


def _named(steps: Sequence[Step]) -> list[tuple[str, Step]]:
    """Steps with the names of their phases."""
    return [(f"{number:03d}_{step.op}", step) for number, step in enumerate(steps)]


def _ranked(plans: list[tuple[Plan, Target]]) -> list[tuple[Plan, Target]]:
    """The cheapest first; among those that the model cannot tell apart the one of fewest phases, then the one whose
    launch is listed first."""
    least = min((plan.seconds for plan, _ in plans), default=0.0) * FEWER_PHASES
    near = [p for p in plans if p[0].seconds <= least]
    far = [p for p in plans if p[0].seconds > least]
    return sorted(near, key=lambda p: len(p[0].steps)) + sorted(far, key=lambda p: p[0].seconds)


def storage_of(stages: tuple[FusionGroup, ...], views: Views, target: Target) -> dict[str, str]:
    """Tensors stored in another type than their own: in 16-bit precisions whatever a template or a norm computes, and
    what a template multiplies. (Outputs keep their types; what only generated loops touch, as masks, stays float32.)"""
    if target.precision == "fp32":
        return {}
    graph, narrow = views.graph, set[str]()
    for stage in stages:
        if stage.root is not None and (is_template(stage.root, graph) or stage.root.op in NORMS):
            narrow.add(stage.stored)
        if stage.root is not None and is_template(stage.root, graph):
            matrices = stage.root.inputs[: 2 if stage.root.op == "matmul" else 3]
            narrow |= {t for n in matrices for t in _shown(n, views)}
    kept = {t for t in narrow if t in views.stored and t not in graph.outputs and graph.types[t].dtype == "float32"}
    return dict.fromkeys(sorted(kept), target.storage)


def _shown(name: str, views: Views) -> set[str]:
    """The stored tensors that ``name`` is or shows."""
    pending, found, producers = [name], set[str](), views.graph.producers()
    while pending:
        name = pending.pop()
        if name in views.stored:
            found.add(name)
        elif name in producers:
            pending.extend(n for n in producers[name].inputs if n)
    return found


def _assemble(
    graph: Graph, intervals: list[list[Phase]], builder: CudaBuilder, target: Target, schedule: CudaSchedule
) -> CudaLowered:
    items: list[Item] = []
    for number, interval in enumerate(intervals):
        items += [Barrier(number - 1)] if number else []
        items += interval
    spans: dict[str, memory.Span] = {}
    for number, interval in enumerate(intervals):
        for operand in (o for phase in interval for o in phase.task.operands):
            tensor = str(operand.buffer)
            if tensor in spans:
                spans[tensor] = replace(spans[tensor], last=number)
            elif operand.access != "read" and tensor not in graph.outputs and tensor not in builder.locals:
                spans[tensor] = memory.Span(_activation(tensor, builder), number, number)
    arena, arena_bytes = memory.plan_arena(spans, ALIGN)
    tensors = dict.fromkeys(str(o.buffer) for i in items if isinstance(i, Phase) for o in i.task.operands)
    weights, values, weight_bytes = _weights(graph, list(tensors), builder)
    edges = [
        Buffer(n, graph.types[n].dtype, s := matrix_shape(graph.types[n].shape), Layout.row_major(s), space, at)
        for space, names in (("input", graph.inputs), ("output", graph.outputs))
        for at, n in enumerate(names)
    ]
    program = Program(
        graph.name,
        (*edges, *(arena[n] for n in spans), *builder.locals.values(), *weights),
        tuple(items),
        inputs=graph.inputs,
        outputs=graph.outputs,
        arena_bytes=arena_bytes,
        weight_bytes=weight_bytes,
        scratch_bytes=max((b.nbytes for b in builder.locals.values()), default=0),
    )
    program = prefetch_weights(roll(program, moving=True))
    return CudaLowered(program, values, target.threads, target.blocks_per_sm, schedule)


def _activation(name: str, builder: CudaBuilder) -> Buffer:
    """An arena buffer; rows start at multiples of 16 bytes."""
    kind = builder.views.type(name)
    rows, columns = matrix_shape(kind.shape)
    dtype = builder.storage.get(name, kind.dtype)
    multiple = max(1, 16 // np.dtype(dtype).itemsize)
    stride = ceil(columns / multiple) * multiple if rows > 1 else columns
    layout = Layout((((rows, stride),), ((columns, 1),)), max(rows * stride, 1))
    return Buffer(name, dtype, (rows, columns), layout, "arena", align=ALIGN)


def _weights(graph: Graph, tensors: list[str], builder: CudaBuilder) -> tuple[list[Buffer], dict[str, np.ndarray], int]:
    """Weight buffers in the order of their use, their logical matrices, and their total bytes."""
    buffers: list[Buffer] = []
    values: dict[str, np.ndarray] = {}
    for name in tensors:
        if name in builder.packed:
            buffer, value = builder.packed[name]
            values[name] = _narrow(name, value, buffer.dtype)
        elif graph.is_constant(name):
            shape = matrix_shape(graph.types[name].shape)
            buffer = Buffer(name, graph.types[name].dtype, shape, Layout.row_major(shape), "weight")
            values[name] = graph.constants[name].reshape(shape)
        else:
            continue
        buffers.append(replace(buffer, align=ALIGN))
    placed, total = memory.plan_weights(buffers, ALIGN)
    return placed, values, total


def _narrow(name: str, value: np.ndarray, dtype: str) -> np.ndarray:
    """A weight in the type it is stored in; raises UnsupportedError where a finite one becomes infinite."""
    with np.errstate(over="ignore"):
        found = np.asarray(value).astype(dtype)
    if dtype != "float32" and not np.isfinite(found.astype(np.float32)[np.isfinite(value)]).all():
        raise UnsupportedError(f"weight {name!r} has values beyond {dtype}; compile with precision bf16 or fp32")
    return found


__all__ = ["CudaLowered", "lower"]
