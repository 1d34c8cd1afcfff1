"""Schedules beside others, as a search makes them: at random, with one decision changed, or with decisions of two.

Where barriers stand is not drawn: for given decisions the cheapest cut into intervals is found
(:meth:`mononn_core.schedule.lower.Lowering.decide`), so that whatever is drawn is legal.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from mononn_core.schedule import space
from mononn_core.schedule.lower import Lowering
from mononn_core.schedule.schedule import GroupSchedule, Schedule


def sample(lowering: Lowering, random: Random) -> Schedule:
    """Any legal decision for every group."""
    return lowering.decide({own: random.choice(_legal(lowering, own)) for own in lowering.by_name})


def mutate(lowering: Lowering, schedule: Schedule, random: Random) -> Schedule:
    """``schedule`` with another decision for one group, if any group has another."""
    groups = {group.group: group for group in schedule.groups}
    order = list(groups)
    random.shuffle(order)
    for own in order:
        others = [group for group in _legal(lowering, own) if group != groups[own]]
        if others:
            shared = groups[own].partition.parts
            kept = {name: _whole(g) if g.partition.parts == shared else g for name, g in groups.items()}
            return lowering.decide({**kept, own: random.choice(others)})
    return schedule


def cross(lowering: Lowering, first: Schedule, second: Schedule, random: Random) -> Schedule:
    """Of each group the decision of one of two; groups that share an image in parts take theirs from the same."""
    both = [{group.group: group for group in schedule.groups} for schedule in (first, second)]
    taken: dict[str, int] = {}
    chosen = {}
    for own in lowering.by_name:
        parts = both[0][own].partition.parts or both[1][own].partition.parts
        unit = parts.buffer if parts is not None else own
        chosen[own] = both[taken.setdefault(unit, random.randrange(2))][own]
    return lowering.decide(chosen)


def _legal(lowering: Lowering, own: str) -> list[GroupSchedule]:
    return list(space.legal(lowering.by_name[own][1], lowering.builder, lowering.owners))


def _whole(group: GroupSchedule) -> GroupSchedule:
    """The same without parts."""
    return replace(group, partition=replace(group.partition, parts=None))
