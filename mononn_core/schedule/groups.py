"""A prepared network as fusion groups: what a Schedule of a CPU decides about, and the phases that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mononn_core.element import COMPUTE, PRECISIONS
from mononn_core.graph import Graph
from mononn_core.machine import Machine
from mononn_core.options import Options
from mononn_core.program.ir import Item, Phase
from mononn_core.schedule.bands import store_bands, strip_of
from mononn_core.schedule.border import build_border
from mononn_core.schedule.fuse import fuse
from mononn_core.schedule.narrow import in_pairs, narrow_inputs, stored_types
from mononn_core.schedule.phases import Panels, PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import scheduled
from mononn_core.schedule.views import matrix_shape

PRODUCTS = ("matmul", "conv", "attention")


class CpuGroups:
    """The groups of a network for one machine and ``options.threads`` owners. ``prefetch`` and
    ``precision``: what is decided of these; ``narrow``: the type that floats are multiplied in where they can be.
    ``panels``: how other specialisations of the network have packed a constant; it holds for this one too where weights
    are read from beyond the second-level caches, at a rate that any panel keeps up with. ``smallest``: the elements of
    the smallest specialisation over this one's."""

    def __init__(
        self,
        graph: Graph,
        options: Options,
        machine: Machine,
        panels: Mapping[str, Panels] = MappingProxyType({}),
        smallest: float = 1.0,
    ) -> None:
        self.graph, self.machine = graph, machine
        self.owners, self.prefetch, self.precision = options.threads, options.prefetch, options.precision
        self.stages, self.views = fuse(graph, options.fuse, options.epilogues, joined=True)
        pairs = in_pairs(self.stages, graph, machine)
        kind = PRECISIONS[options.precision]
        self.narrow = kind if machine.faster_than_floats(kind) else COMPUTE
        storage, products = stored_types(self.stages, self.views, self.narrow, machine, pairs)
        weights = sum(constant.nbytes for constant in graph.constants.values())
        shared, smallest = (panels, smallest) if weights > machine.l2_bytes * self.owners else ({}, 1.0)
        half = kind if kind != self.narrow else ""
        self.builder = PhaseBuilder(self.views, machine, storage, products, shared, pairs, half, smallest)
        self.by_name = {stage.own: (number, stage) for number, stage in enumerate(self.stages)}
        self._built: dict[GroupSchedule, tuple[Item, ...]] = {}

    def wide_products(self) -> dict[str, str]:
        """Of a precision below fp32 the products, convolutions and attentions that multiply float32, and why."""
        kind, found = PRECISIONS[self.precision], dict[str, str]()
        for root in (s.root for s in self.stages if s.root is not None and s.root.op in PRODUCTS):
            if kind == COMPUTE or {self.graph.types[root.inputs[0]].dtype, self.builder.multiplied(root)} != {COMPUTE}:
                continue
            if self.narrow == COMPUTE:
                rounded = f", its weights stored in {kind}" if self.builder.half(root) == kind else ""
                why = f"since {kind} is no faster on this processor{rounded}"
            elif narrow_inputs(root, self.graph, kind, self.builder.lanes):
                why = "since it reads the caller's array, or what another one reads as float32"
            else:
                why = f"since no kernel multiplies {kind} in products of its kind"
            found[str(root.origin)] = why
        return found

    def stage(self, group: GroupSchedule) -> FusionGroup:
        """What a decision is about."""
        return self.by_name[group.group][1]

    def items(self, group: GroupSchedule) -> tuple[Item, ...]:
        """What a group does as decided: its phase, and one for the border of the image it stores; or a loop of steps
        and what comes before it."""
        if group not in self._built:
            number, stage = self.by_name[group.group]
            name = f"{number:03d}_{(stage.root or stage.chain[-1]).op}"
            first, *others = scheduled(group.template).items(self.builder, stage, group, name)
            assert isinstance(first, Phase)
            border = self._border(stage, group, first)
            self._built[group] = (first, *others) if border is None else (first, border)
        return self._built[group]

    def _border(self, stage: FusionGroup, group: GroupSchedule, inside: Phase) -> Phase | None:
        strip = strip_of(self.builder, stage, group) if group.strips > 1 else None
        border = build_border(self.builder, stage, group.partition, inside, strip=strip)
        return store_bands(border, group, self.builder) if border is not None and group.stores_bands else border

    def stored(self, group: GroupSchedule) -> tuple[str, str, tuple[int, int]]:
        """The buffer that a group stores to: its tensor's, or the one that holds it in bands; its dtype, and the
        (rows, columns) of the matrix."""
        stage, bands = self.stage(group), group.partition.bands
        kind = self.graph.types[stage.stored]
        dtype = self.builder.storage.get(stage.stored, kind.dtype)
        rows, columns = matrix_shape(kind.shape)
        if bands is not None and group.stores_bands:  # the others read the bands
            return bands.buffer, dtype, (bands.size * group.partition.owners, columns)
        return stage.stored, dtype, (rows, columns)
