"""Schedules beside others, as a search makes them: at random, with one decision changed, or with decisions of two.

Where barriers stand is not drawn: for given decisions the cheapest cut into intervals is found
(:meth:`mononn_core.decide.cpu.CpuScheduler.decide`), so that whatever is drawn is legal.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from mononn_core.decide import space
from mononn_core.decide.cpu import CpuScheduler
from mononn_core.decide.strips import plain
from mononn_core.schedule.schedule import GroupSchedule, Schedule


def sample(scheduler: CpuScheduler, random: Random) -> Schedule:
    """Any legal decision for every group."""
    drawn = scheduler.decide({own: random.choice(_legal(scheduler, own)) for own in scheduler.groups.by_name})
    return replace(drawn, prefetch=bool(random.randrange(2)))


def mutate(scheduler: CpuScheduler, schedule: Schedule, random: Random) -> Schedule:
    """``schedule`` with another decision for one group, if any group has another."""
    groups = {group.group: group for group in schedule.groups}
    order = list(groups)
    random.shuffle(order)
    for own in order:
        others = [group for group in _legal(scheduler, own) if group != groups[own]]
        if others:
            shared = groups[own].partition.bands
            kept = {
                n: plain(scheduler.groups, g) if shared and g.partition.bands == shared else g
                for n, g in groups.items()
            }
            decided = scheduler.decide({**kept, own: random.choice(others)})
            return replace(decided, prefetch=schedule.prefetch)
    return schedule


def cross(scheduler: CpuScheduler, first: Schedule, second: Schedule, random: Random) -> Schedule:
    """Of each group the decision of one of two; groups that share an image in bands take theirs from the same."""
    both = [{group.group: group for group in schedule.groups} for schedule in (first, second)]
    taken: dict[str, int] = {}
    chosen = {}
    for own in scheduler.groups.by_name:
        bands = both[0][own].partition.bands or both[1][own].partition.bands
        unit = bands.buffer if bands is not None else own
        chosen[own] = both[taken.setdefault(unit, random.randrange(2))][own]
    return replace(scheduler.decide(chosen), prefetch=random.choice((first, second)).prefetch)


def _legal(scheduler: CpuScheduler, own: str) -> list[GroupSchedule]:
    groups = scheduler.groups
    return list(space.legal(groups.by_name[own][1], groups.builder, groups.owners))
