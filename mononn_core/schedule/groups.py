"""A prepared network as fusion groups: what a Schedule of a CPU decides about, and the phases that follow from it."""

from __future__ import annotations

from mononn_core.graph import Graph
from mononn_core.machine import Machine
from mononn_core.options import Options
from mononn_core.program.ir import Phase
from mononn_core.program.template import NEST
from mononn_core.schedule.border import build_border
from mononn_core.schedule.fuse import FusionGroup, fuse
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule
from mononn_core.schedule.template import scheduled
from mononn_core.schedule.views import matrix_shape


class CpuGroups:
    """The groups of a network for one machine and ``options.threads`` owners. ``prefetch``: what is decided of that."""

    def __init__(self, graph: Graph, options: Options, machine: Machine) -> None:
        self.graph, self.machine = graph, machine
        self.owners, self.prefetch = options.threads, options.prefetch
        self.stages, self.views = fuse(graph, options.fuse, options.epilogues, joined=True)
        self.builder = PhaseBuilder(self.views, machine)
        self.by_name = {stage.own: (number, stage) for number, stage in enumerate(self.stages)}
        self._built: dict[GroupSchedule, tuple[Phase, ...]] = {}

    def stage(self, group: GroupSchedule) -> FusionGroup:
        """What a decision is about."""
        return self.by_name[group.group][1]

    def phases(self, group: GroupSchedule) -> tuple[Phase, ...]:
        """The phases of a group as decided: its own, and one for the border of the image it stores."""
        if group not in self._built:
            number, stage = self.by_name[group.group]
            name = f"{number:03d}_{(stage.root or stage.chain[-1]).op}"
            phase = scheduled(group.template).build(self.builder, stage, group, name)
            border = build_border(self.builder, stage, group.partition, phase)
            self._built[group] = (phase,) if border is None else (phase, border)
        return self._built[group]

    def stored(self, group: GroupSchedule) -> tuple[str, str, tuple[int, int]]:
        """The buffer that a group stores to: its tensor's, or the one that holds it in bands; its dtype, and the
        (rows, columns) of the matrix."""
        stage, bands = self.stage(group), group.partition.bands
        kind = self.graph.types[stage.stored]
        rows, columns = matrix_shape(kind.shape)
        if bands is not None and group.template == NEST:  # the others read the bands
            return bands.buffer, kind.dtype, (bands.size * group.partition.owners, columns)
        return stage.stored, kind.dtype, (rows, columns)
