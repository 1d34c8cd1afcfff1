"""Convolution templates on a GPU: image rows and panels of channels are dealt to tasks, and what that costs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any, TypeVar

from mononn_core.codegen.cuda_storage import CudaTemplate
from mononn_core.cost.cuda import Work
from mononn_core.graph import Graph, Node
from mononn_core.program.expr import Var
from mononn_core.program.ir import Phase
from mononn_core.program.windows import Pair
from mononn_core.schedule.binder import BATCH, BLOCK, PANEL, unit_axes
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.schedule import CudaGroup
from mononn_core.schedule.cuda.template import CudaScheduled, PlannedPhase
from mononn_core.schedule.cuda.tiles import Target
from mononn_core.schedule.stages import FusionGroup
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.windowed import Windowed, WindowParams

PANELS = (16, 32, 64, 128, 256)
"""Channels of a task, beside all of them."""

P = TypeVar("P", bound=WindowParams)


class CudaWindowed(Windowed[P], CudaTemplate, CudaScheduled):
    """What differs is which nodes it serves, the instructions of a task, and the call. A task's image rows read the
    rows that its windows share with the next task's: a tile of few rows gives many blocks work, one of many reads
    little twice."""

    @abstractmethod
    def serves(self, node: Node, graph: Graph) -> bool: ...

    @abstractmethod
    def operations(self, conv: Conv, tile: Pair, target: Target) -> float:
        """Scalar instructions of a task of ``tile`` (image rows, channels), idle threads' included."""

    def work(self, node: Node, graph: Graph, target: Target, group: CudaGroup | None = None) -> Work:
        conv = Conv.of_node(node, graph.types)
        tile = (group.rows, group.panel) if group is not None else block_tiles(self, conv, target)[0]
        return tile_work(self, conv, tile, target)

    def decided(self, builder: CudaBuilder, planned: PlannedPhase) -> CudaGroup:
        rows, panel = block_tiles(self, Conv.of(planned.stage, builder), builder.target)[0]
        return CudaGroup(planned.stage.own, self.name, rows=rows, panel=panel)

    def problem_cuda(self, builder: CudaBuilder, stage: FusionGroup, group: CudaGroup) -> str:
        conv, multiple = Conv.of(stage, builder), builder.target.multiple
        n, height, _, channels = conv.out
        if not 1 <= group.rows <= height:
            return f"{group.rows} image rows are not 1 to {height}"
        if n > 1 and height % group.rows:
            return f"{group.rows} image rows do not divide the {height} of each image"
        if group.panel % multiple or not multiple <= group.panel <= ceil(channels / multiple) * multiple:
            return f"a panel of {group.panel} channels is no multiple of {multiple} that {channels} fill"
        return ""

    def alternatives(self, builder: CudaBuilder, stage: FusionGroup, group: CudaGroup) -> Iterator[CudaGroup]:
        tiles = block_tiles(self, Conv.of(stage, builder), builder.target)
        return (replace(group, rows=rows, panel=panel) for rows, panel in tiles)

    def build_cuda(self, builder: CudaBuilder, planned: PlannedPhase, group: CudaGroup, name: str) -> Phase:
        """Over images b, blocks of image rows r and panels of channels p."""
        conv, rows, panel = Conv.of(planned.stage, builder), group.rows, group.panel
        n, height, _, channels = conv.out
        extents = {BATCH: n, BLOCK: ceil(height / rows), PANEL: ceil(channels / panel)}
        binder, unit = builder.binder(extents), unit_axes(extents)
        image, y0, n0 = (binder.fix(e, unit) for e in (Var(BATCH), Var(BLOCK) * rows, Var(PANEL) * panel))
        task = self.task(builder, planned.stage, (rows, panel), binder, (image, y0, n0))
        return builder.task_phase(name, planned.stage, extents, task, conv.flops)


@lru_cache(maxsize=1024)
def block_tiles(template: CudaWindowed[Any], conv: Conv, target: Target) -> tuple[Pair, ...]:
    """Tiles (image rows, channels) of tasks, the cheapest first; of equal ones that with more channels."""
    n, height, _, channels = conv.out
    whole = ceil(channels / target.multiple) * target.multiple
    panels = {whole, *(p for p in PANELS if p < whole)}
    rows = {ceil(height / blocks) for blocks in range(1, height + 1)}
    found = [(r, p) for r in rows for p in panels if n == 1 or height % r == 0]

    def seconds(tile: Pair) -> float:
        work = tile_work(template, conv, tile, target)
        return round(work.seconds(target.gpu, target.threads, target.blocks_per_sm), 9)

    return tuple(sorted(found, key=lambda tile: (seconds(tile), -tile[1], -tile[0])))


def tile_work(template: CudaWindowed[Any], conv: Conv, tile: Pair, target: Target) -> Work:
    """What the cost model is told of a convolution in tiles."""
    (rows, panel), (n, height, width, channels), size = tile, conv.out, target.itemsize
    windows, used = conv.windows(conv.x[2], rows), min(panel, channels)
    lines = (rows - 1) * conv.strides[0] + windows.span[0]
    weights = conv.taps * conv.of_group[0] * size
    return Work(
        n * ceil(height / rows) * ceil(channels / panel),
        read_bytes=lines * windows.reach * template.reads(conv, panel) * size + weights * used,
        written_bytes=rows * width * used * size,
        operations=template.operations(conv, tile, target),
        stream_bytes=weights * channels,
    )
