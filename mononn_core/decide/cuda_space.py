"""Which decisions a group may have on a GPU, and why another is not legal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mononn_core.decide.cuda_plan import Planner
from mononn_core.graph import Graph
from mononn_core.program.template import NEST
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.schedule import CudaGroup, CudaSchedule
from mononn_core.schedule.cuda.template import SUM, cuda_scheduled, serving
from mononn_core.schedule.cuda.tiles import ranked, tile_problem
from mononn_core.schedule.stages import FusionGroup


def problem_of(
    group: CudaGroup, stage: FusionGroup, schedule: CudaSchedule, planner: Planner, builder: CudaBuilder
) -> str:
    """Why a decision is not legal for ``stage`` in ``schedule``; "" where it is. Whether the barriers suffice the
    verifier says."""
    if group.template == SUM:
        return _sum_problem(group, stage, schedule) or cuda_scheduled(SUM).problem_cuda(builder, stage, group)
    expected = template_of(stage, planner.graph)
    if group.template != expected:
        return f"template {group.template!r} cannot compute it, {expected} can"
    if (group.tile is None) != (expected != "matmul"):
        return "a product has a tile, and nothing else has"
    if expected == "matmul":
        return _product_problem(group, stage, schedule, planner)
    if group.adds:
        source = planner.source(stage)
        if source is None or source.stored != group.adds or not _in_parts(group.adds, schedule):
            return f"it does not normalise a product {group.adds!r} in parts"
    return cuda_scheduled(expected).problem_cuda(builder, stage, group)


def template_of(stage: FusionGroup, graph: Graph) -> str:
    """The template that computes a group."""
    found = serving(stage.root, graph)
    return NEST if found is None else found.name


def _in_parts(name: str, schedule: CudaSchedule) -> bool:
    return any(g.group == name and g.tile is not None and g.tile.parts > 1 for g in schedule.groups)


def _sum_problem(group: CudaGroup, stage: FusionGroup, schedule: CudaSchedule) -> str:
    if not _in_parts(group.group, schedule):
        return "only a product in parts is summed"
    if any(other.adds == stage.stored for other in schedule.groups):
        return "a norm adds its parts"
    return ""


def _product_problem(group: CudaGroup, stage: FusionGroup, schedule: CudaSchedule, planner: Planner) -> str:
    tile, batch = group.tile, planner.shape(stage).batch
    assert tile is not None
    if group.fill:
        fill = planner.by_stored.get(group.fill)
        if fill is None or not planner.fillable(fill) or planner.consumer(fill, {}) is not stage:
            return f"{group.fill!r} is not what its left side alone is computed by"
        if tile.parts > 1:
            return "a product whose left side is filled in is not cut into parts"
    if tile.parts > 1:
        added = any(g.adds == stage.stored or (g.template == SUM and g.group == group.group) for g in schedule.groups)
        if batch > 1 or not added:
            return f"nothing adds its {tile.parts} parts"
    return tile_problem(planner.shape_of(group, stage), tile, planner.target)


def alternatives(
    group: CudaGroup, stage: FusionGroup, schedule: CudaSchedule, planner: Planner, builder: CudaBuilder
) -> Iterator[CudaGroup]:
    """Every decision for a group beside which all others of ``schedule`` stay legal, the cheapest tiles first: a
    product stays whole, or in parts, and filled by what fills it."""
    if group.tile is not None:
        whole = group.tile.parts == 1
        tiles = ranked(planner.shape_of(group, stage), planner.target)
        found = [replace(group, tile=tile) for tile in tiles if (tile.parts == 1) == whole]
    else:
        found = [group, *cuda_scheduled(group.template).alternatives(builder, stage, group)]
    yield from (other for other in dict.fromkeys(found) if not problem_of(other, stage, schedule, planner, builder))
