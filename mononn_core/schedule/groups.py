"""A prepared network as fusion groups: what a Schedule of a CPU decides about, and the phases that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mononn_core.element import BYTES, COMPUTE, PRECISIONS, together
from mononn_core.graph import Graph, Node
from mononn_core.machine import Machine
from mononn_core.ops.common import integer
from mononn_core.ops.registry import is_template
from mononn_core.options import Options
from mononn_core.program.ir import Item, Phase
from mononn_core.schedule.bands import store_bands, strip_of
from mononn_core.schedule.border import build_border
from mononn_core.schedule.fuse import fuse
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import scheduled
from mononn_core.schedule.views import Views, matrix_shape, stored_behind

EXACT_TERMS = (1 << 24) // (255 * 128)
"""Products of an unsigned and a signed byte whose sum float32 holds whatever they are."""


class CpuGroups:
    """The groups of a network for one machine and ``options.threads`` owners. ``prefetch`` and
    ``precision``: what is decided of these. ``panels``: columns of the panels that other specialisations of the
    network have packed a constant in; they hold for this one too where weights are read from beyond the second-level
    caches, at a rate that any panel keeps up with."""

    def __init__(
        self, graph: Graph, options: Options, machine: Machine, panels: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self.graph, self.machine = graph, machine
        self.owners, self.prefetch, self.precision = options.threads, options.prefetch, options.precision
        self.stages, self.views = fuse(graph, options.fuse, options.epilogues, joined=True)
        precision, lanes = PRECISIONS[options.precision], machine.lanes(COMPUTE)
        storage, products = narrowed(self.stages, self.views, precision, lanes)
        products |= exact_in_floats(self.stages, graph, machine)
        weights = sum(constant.nbytes for constant in graph.constants.values())
        shared = panels if weights > machine.l2_bytes * self.owners else {}
        self.builder = PhaseBuilder(self.views, machine, storage, products, shared)
        self.by_name = {stage.own: (number, stage) for number, stage in enumerate(self.stages)}
        self._built: dict[GroupSchedule, tuple[Item, ...]] = {}

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


def narrowed(
    stages: tuple[FusionGroup, ...], views: Views, dtype: str, lanes: int
) -> tuple[dict[str, str], dict[str, str]]:
    """(tensor -> the type it is stored in, contraction's result -> the type it multiplies in), where that is ``dtype``
    instead of the Graph's: of operands that are all stored by some group, and read by no template as float32. A
    convolution in groups that multiplies float32 reads either. ``lanes`` of float32 fill a vector."""
    if dtype == COMPUTE:
        return {}, {}
    graph, products, wide = views.graph, dict[str, list[set[str]]](), set[str]()
    for root in (s.root for s in stages if s.root is not None and is_template(s.root, graph)):
        narrow = _narrow_inputs(root, graph, dtype, lanes)
        if narrow:
            products[root.output] = [stored_behind((name,), views) for name in narrow]
        grouped = root.op == "conv" and root.attrs["group"] != 1  # widens what it loads
        wide |= stored_behind(root.inputs[max(len(narrow), grouped) :], views)
        if root.op == "recurrence":  # reads its own states
            wide.add(root.output)
    fits = {t for t in views.stored if graph.types[t].dtype == COMPUTE} - wide - set(graph.outputs)
    while left_out := [o for o, read in products.items() if not all(tensors and tensors <= fits for tensors in read)]:
        for output in left_out:  # it reads float32, and so does whoever shares an operand with it
            fits -= set().union(*products.pop(output))
    stored = set().union(*(tensors for read in products.values() for tensors in read))
    return dict.fromkeys(sorted(stored), dtype), dict.fromkeys(products, dtype)


def exact_in_floats(stages: tuple[FusionGroup, ...], graph: Graph, machine: Machine) -> dict[str, str]:
    """Result -> float32, which holds the sums exactly, for convolutions of bytes in groups of one channel where no
    instruction multiplies bytes: then words of four channels would take more instructions."""
    found = dict[str, str]()
    for root in (s.root for s in stages if s.root is not None and s.root.op == "conv"):
        x, w = (graph.types[name] for name in root.inputs)
        alone, taps = w.shape[2] == 1 < w.shape[3] == root.attrs["group"], w.shape[0] * w.shape[1]
        whole = taps <= EXACT_TERMS or machine.lanes(COMPUTE) == 1
        if x.dtype in BYTES and alone and whole and machine.product(x.dtype) is None:
            found[root.output] = COMPUTE
    return found


def _narrow_inputs(root: Node, graph: Graph, dtype: str, lanes: int) -> tuple[str, ...]:
    """The operands that a template can read as ``dtype``: of products and convolutions by constants, and of attention,
    where whole groups of terms lie side by side, and no vector of results is of several wide groups of channels."""
    word = together(dtype)
    types = [graph.types[name] for name in root.inputs if name]
    if types[0].dtype != COMPUTE or root.op in ("weight_only_matmul", "order", "scatter_runs", "recurrence"):
        return ()
    if root.op == "attention":
        return root.inputs[:3] if types[0].shape[3] % word == 0 else ()
    if not graph.is_constant(root.inputs[1]):
        return ()
    if root.op == "conv":
        mine, width = types[1].shape[2], types[1].shape[3] // integer(root.attrs, "group")
        beside = mine == width and mine < lanes and lanes % mine == 0
        fits = root.attrs["group"] == 1 or beside or width % lanes == 0
        return root.inputs[:1] if fits and (root.attrs["group"] == 1 or mine % word == 0) else ()
    return root.inputs[:1] if types[1].rank == 2 else ()
