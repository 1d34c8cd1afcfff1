"""What the schedule of a GPU asks of a template: what is decided for a group, and its phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from mononn_core.cost.cuda import Work
from mononn_core.graph import Graph, Node
from mononn_core.ops.served import GpuServing
from mononn_core.ops.served import serving as served
from mononn_core.program.ir import Phase
from mononn_core.program.template import NEST, get
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.schedule import CudaGroup
from mononn_core.schedule.cuda.tiles import BlockTile, Target
from mononn_core.schedule.stages import FusionGroup

SUM = "sum"
"""What a Schedule calls the loops that add the parts of a product."""


@dataclass(frozen=True)
class PlannedPhase:
    """One phase to build: a stage; a product's ``tile``; the stage that ``fill``s its left side, and whether that is
    stored too (``keep``); the tensor whose parts a norm ``adds``, and whether it stores it (``also``). A step that
    ``sums`` adds the parts of the product of its stage."""

    stage: FusionGroup
    tile: BlockTile | None = None
    fill: FusionGroup | None = None
    keep: bool = False
    adds: str = ""
    also: bool = False
    sums: bool = False

    @property
    def op(self) -> str:
        """What the phase is named after."""
        return (self.stage.root or self.stage.chain[-1]).op


class CudaScheduled(GpuServing, ABC):
    """A template on a GPU."""

    name: ClassVar[str]

    def work(self, node: Node, graph: Graph, target: Target, group: CudaGroup | None = None) -> Work | None:
        """What the cost model is told of ``node``, as decided or before that; None: as of a map of the result."""
        return None

    @abstractmethod
    def decided(self, builder: CudaBuilder, planned: PlannedPhase) -> CudaGroup:
        """A step with all that is left to decide; raises UnsupportedError where nothing fits a block."""

    def problem_cuda(self, builder: CudaBuilder, stage: FusionGroup, group: CudaGroup) -> str:
        """Why a decision is not legal by itself; "" where it is."""
        return ""

    def alternatives(self, builder: CudaBuilder, stage: FusionGroup, group: CudaGroup) -> Iterator[CudaGroup]:
        """Other decisions for a group without a tile, most of them legal."""
        return iter(())

    @abstractmethod
    def build_cuda(self, builder: CudaBuilder, planned: PlannedPhase, group: CudaGroup, name: str) -> Phase:
        """The step's phase, of tasks that any block may take; its operands name tensors, or packed weights."""


def cuda_scheduled(name: str) -> CudaScheduled:
    """The template of a name in a Schedule; raises KeyError where there is none for a GPU."""
    found = get(NEST if name == SUM else name)
    if not isinstance(found, CudaScheduled):
        raise KeyError(name)
    return found


def serving(node: Node | None, graph: Graph) -> CudaScheduled | None:
    """As :func:`mononn_core.ops.served.serving`, with all that the schedule asks."""
    found = served(node, graph)
    return found if isinstance(found, CudaScheduled) else None
