"""What the schedule of a CPU asks of a template: which groups it computes, dealt how, in which tiles, as what phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from mononn_core.program.ir import Item, Operand, Phase, Task
from mononn_core.program.template import get, known
from mononn_core.schedule.boxes import Boxes
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition, Tile
from mononn_core.schedule.stages import FusionGroup


@dataclass(frozen=True)
class Ways:
    """Partitions of a group that are worth a try beside one owner's doing it all, the preferred first, and its
    operations. ``single``: one owner's doing it all is worth a try however many these are."""

    partitions: tuple[Partition, ...]
    flops: int
    single: bool = False


class CpuScheduled(ABC):
    """A template on a CPU.

    Attributes:
        name: as of a :class:`mononn_core.program.template.Template`.
        op: the Graph's operator that it computes; "": of no operator in particular.
        efficiency: share of the processor's peak that it reaches, where :meth:`rate` says no more.
    """

    name: ClassVar[str]
    op: ClassVar[str] = ""
    efficiency: ClassVar[float]

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        """Templates of higher preference are taken first; None: it cannot compute the group."""
        return 0

    @abstractmethod
    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        """How ``owners`` > 1 owners may have the group."""

    def tile(self, stage: FusionGroup, builder: PhaseBuilder, partition: Partition) -> Tile | None:
        """The tile that suits caches and registers; None for a template that has none."""
        return None

    def tiles(self, stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> Iterator[Tile]:
        """Other tiles, most of them legal."""
        return iter(())

    def problem(self, stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> str:
        """Why the tile, or the segments, of a group are not legal; "" where they are."""
        if group.partition.segments != 1:
            return "only the columns of a product have segments"
        return "" if group.tile is None else f"template {self.name!r} has no tile"

    @abstractmethod
    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        """The group's phase; its operands name tensors, or packed weights."""

    def items(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> tuple[Item, ...]:
        """All that the group does, in order, where that is more than one phase."""
        return (self.build(builder, stage, decided, name),)

    def rate(self, phase: Phase) -> float:
        """Share of the processor's peak that a phase's tasks reach: of the direct algorithm's operations."""
        return self.efficiency

    def exposed(self, task: Task) -> float:
        """Share of the fetching of a task's weights that its arithmetic does not hide."""
        return 0.0

    def busiest(
        self, phase: Phase, partition: Partition, boxes: Callable[[Operand], tuple[Boxes, ...]]
    ) -> float | None:
        """Share of the work that the owner with most has, where that is not its share of what is stored (None)."""
        return None


def scheduled(name: str) -> CpuScheduled:
    """The template of a name; raises KeyError where there is none for a CPU."""
    found = get(name)
    if not isinstance(found, CpuScheduled):
        raise KeyError(name)
    return found


def of_operator(op: str) -> tuple[CpuScheduled, ...]:
    """Templates that compute ``op`` on a CPU."""
    return tuple(t for t in known() if isinstance(t, CpuScheduled) and t.op == op)
