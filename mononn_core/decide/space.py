"""What may be decided for a group: the preferred decisions, all legal ones, and why another is not among them."""

from __future__ import annotations

from collections.abc import Iterator

from mononn_core.ops.registry import is_template
from mononn_core.program.template import NEST
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, of_operator, scheduled

SMALL_FLOPS = 200_000
"""Below this one owner may do a stage alone: a barrier costs as much as the work."""


def preferred(stage: FusionGroup, builder: PhaseBuilder, owners: int) -> tuple[GroupSchedule, ...]:
    """A decision for every partition worth a try, each with the tile that suits the machine, the preferred first."""
    template = templates(stage, builder)[0]
    return tuple(_decision(template, stage, builder, p) for p in _partitions(template, stage, builder, owners))


def legal(stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Iterator[GroupSchedule]:
    """Every decision for a stage, the preferred ones first; those in bands, which two stages take together, are none of
    them."""
    seen = set()
    for template in templates(stage, builder):
        for partition in (*_partitions(template, stage, builder, owners), Partition("single", owners)):
            first = _decision(template, stage, builder, partition)
            for tile in (first.tile, *(template.tiles(stage, builder, first) if first.tile else ())):
                found = GroupSchedule(stage.own, template.name, partition, tile)
                if found not in seen and not problem(stage, builder, found):
                    seen.add(found)
                    yield found


def templates(stage: FusionGroup, builder: PhaseBuilder) -> tuple[CpuScheduled, ...]:
    """Templates that can compute a stage, the preferred first; generated loops where none can."""
    if stage.root is None or not is_template(stage.root, builder.views.graph):
        return (scheduled(NEST),)
    ranked = [(t.preference(stage, builder), t) for t in of_operator(stage.root.op)]
    able = [(rank, t) for rank, t in ranked if rank is not None]
    return tuple(t for _, t in sorted(able, key=lambda found: -found[0]))


def problem(stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> str:
    """Why a decision is not legal for a stage; "" where it is."""
    able = {t.name: t for t in templates(stage, builder)}
    if group.template not in able:
        return f"template {group.template!r} cannot compute it, {' or '.join(able)} can"
    template, partition, owners = able[group.template], group.partition, group.partition.owners
    known = {p.kind for p in _partitions(template, stage, builder, owners)} | {"single"}
    if partition.kind not in known:
        return f"it cannot be dealt by {partition.kind} to {owners} owners, {' or '.join(sorted(known))} can be"
    return template.problem(stage, builder, group)


def _partitions(
    template: CpuScheduled, stage: FusionGroup, builder: PhaseBuilder, owners: int
) -> tuple[Partition, ...]:
    """Ways of dealing a stage to ``owners`` owners that are worth a try, the preferred first."""
    single = Partition("single", owners)
    if owners == 1:
        return (single,)
    ways = template.ways(stage, builder, owners)
    alone = ways.single or ways.flops < SMALL_FLOPS or not ways.partitions
    return (*ways.partitions, single) if alone else ways.partitions


def _decision(template: CpuScheduled, stage: FusionGroup, builder: PhaseBuilder, partition: Partition) -> GroupSchedule:
    return GroupSchedule(stage.own, template.name, partition, template.tile(stage, builder, partition))
