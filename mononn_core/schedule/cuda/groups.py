"""A prepared network as fusion groups: what a Schedule of a GPU decides about, and the phases that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mononn_core.element import COMPUTE
from mononn_core.gpu import Gpu
from mononn_core.graph import Graph
from mononn_core.ops.registry import is_template
from mononn_core.options import Options
from mononn_core.program.ir import Phase
from mononn_core.schedule.border import build_border
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.parts import PartsViews
from mononn_core.schedule.cuda.schedule import CudaGroup, CudaSchedule
from mononn_core.schedule.cuda.template import SUM, PlannedPhase, cuda_scheduled
from mononn_core.schedule.cuda.tiles import GRIDS, Target
from mononn_core.schedule.fuse import fuse
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.stages import FusionGroup, border_of, dependencies
from mononn_core.schedule.views import Views, stored_behind

NORMS = ("layer_norm", "rms_norm")
BORDER = 32
"""Channels that a task of an image's border fills, or more."""


class CudaGroups:
    """The groups of a network for one GPU in ``options.precision``.

    Attributes:
        needs: a group's stored tensor to those that it reads. readers: a stored tensor to the groups that read it.
    """

    def __init__(self, graph: Graph, options: Options, gpu: Gpu) -> None:
        self.graph, self.precision, self.gpu = graph, options.precision, gpu
        multiple = Target(gpu, options.precision, *GRIDS[0]).multiple
        self.stages, self.views = fuse(graph, options.fuse, options.epilogues, multiple)
        self.by_name = {stage.own: (number, stage) for number, stage in enumerate(self.stages)}
        self.by_stored = {s.stored: s for s in self.stages}
        self.needs = {s.stored: dependencies(s, self.views) for s in self.stages}
        self.readers: dict[str, list[FusionGroup]] = {}
        for stage in self.stages:
            for tensor in sorted(self.needs[stage.stored]):
                self.readers.setdefault(tensor, []).append(stage)

    def target(self, schedule: CudaSchedule) -> Target:
        """The launch of a Schedule."""
        return Target(self.gpu, self.precision, schedule.threads, schedule.blocks_per_sm)

    def builder(self, phases: Sequence[PlannedPhase], target: Target) -> CudaBuilder:
        """A builder that knows which products of ``phases`` lie in parts, and which are stored nowhere else."""
        products = [(planned.stage.root, planned.tile) for planned in phases]
        parts = {root.output: tile.parts for root, tile in products if root and tile and tile.parts > 1}
        virtual = frozenset(planned.adds for planned in phases if planned.adds and not planned.also)
        views = PartsViews(self.graph, self.views.stored - virtual, parts)
        return CudaBuilder(views, storage_of(self.stages, self.views, target), target)

    def planned(self, group: CudaGroup) -> PlannedPhase:
        """The phase that a decision is about."""
        stage = self.by_name[group.group][1]
        if group.template == SUM:
            return adder(stage)
        fill = self.by_name[group.fill][1] if group.fill else None
        return PlannedPhase(
            stage, group.tile, fill,
            keep=fill is not None and self.keeps(fill, stage),
            adds=group.adds, also=bool(group.adds) and self.stores(group.adds, stage),
        )  # fmt: skip

    def keeps(self, fill: FusionGroup, product: FusionGroup) -> bool:
        """Whether a product that ``fill`` is computed in has to store it: others read it too."""
        return self.readers[fill.stored] != [product]

    def stores(self, tensor: str, norm: FusionGroup) -> bool:
        """Whether a norm that adds the parts of ``tensor`` has to store the sums: others read them too."""
        return tensor in self.graph.outputs or self.readers.get(tensor, []) not in ([], [norm])


def build_phases(
    builder: CudaBuilder, phases: Sequence[PlannedPhase], groups: Sequence[CudaGroup]
) -> Mapping[CudaGroup, tuple[Phase, ...]]:
    """Planned phases as decided, numbered in the order given: each its own, and one for the border of the image it
    stores. (The parts of a product are no image yet: what adds them stores border and inside.)"""
    found: dict[CudaGroup, tuple[Phase, ...]] = {}
    for number, (planned, group) in enumerate(zip(phases, groups, strict=True)):
        phase = cuda_scheduled(group.template).build_cuda(builder, planned, group, f"{number:03d}_{planned.op}")
        found[group] = (phase,)
        if border_of(planned.stage) is not None and (planned.tile is None or planned.tile.parts == 1):
            tasks = border_tasks(builder.types[planned.stage.stored].shape[-1], builder.target)
            border = build_border(builder, planned.stage, tasks, phase, apart=True)
            found[group] += () if border is None else (border,)
    return found


def border_tasks(channels: int, target: Target) -> Partition:
    """Of the border of an image: as many as can have :data:`BORDER` channels of every pixel, in whole 16 bytes."""
    tasks = max(1, channels // BORDER)
    while channels % (tasks * target.multiple) and tasks > 1:
        tasks -= 1
    return Partition("rows" if tasks > 1 else "single", tasks)


def adder(product: FusionGroup) -> PlannedPhase:
    """The phase that adds the parts of a product, with the end of its chain."""
    assert product.root is not None
    last = product.chain[-1] if product.chain else product.root
    return PlannedPhase(FusionGroup(product.stored, None, (last,)), sums=True)


def storage_of(stages: tuple[FusionGroup, ...], views: Views, target: Target) -> dict[str, str]:
    """Tensors stored in another type than their own: in 16-bit precisions whatever a template or a norm computes, and
    what a template multiplies. (Outputs keep their types; what only generated loops touch, as masks, stays float32.)"""
    if target.storage == COMPUTE:
        return {}
    graph, narrow = views.graph, set[str]()
    for stage in stages:
        if stage.root is not None and (is_template(stage.root, graph) or stage.root.op in NORMS):
            narrow.add(stage.stored)
        if stage.root is not None and is_template(stage.root, graph):
            matrices = stage.root.inputs[: 2 if stage.root.op == "matmul" else 3]
            narrow |= stored_behind(matrices, views)
    kept = {t for t in narrow if t in views.stored and t not in graph.outputs and graph.types[t].dtype == COMPUTE}
    return dict.fromkeys(sorted(kept), target.storage)
