"""Schedules of a GPU beside others, as a search makes them; see :mod:`mononn_core.decide.search` for a CPU's.

Which groups there are (what fills a product, what adds its parts) follows from the launch; the rest is drawn.
"""

from __future__ import annotations

from random import Random

from mononn_core.decide.cuda import CudaScheduler
from mononn_core.schedule.cuda.schedule import CudaGroup, CudaSchedule
from mononn_core.schedule.cuda.tiles import GRIDS


def sample(scheduler: CudaScheduler, random: Random) -> CudaSchedule:
    """Any launch, and any legal decision for every group."""
    schedule = scheduler.decide((random.choice(GRIDS),))
    for group in schedule.groups:
        others = scheduler.alternatives(schedule, group)
        schedule = schedule.with_group(group, random.choice(others)) if others else schedule
    return schedule


def mutate(scheduler: CudaScheduler, schedule: CudaSchedule, random: Random) -> CudaSchedule:
    """``schedule`` with another decision for one group, if any group has another."""
    groups = list(schedule.groups)
    random.shuffle(groups)
    for group in groups:
        others = [other for other in scheduler.alternatives(schedule, group) if other != group]
        if others:
            return schedule.with_group(group, random.choice(others))
    return schedule


def cross(scheduler: CudaScheduler, first: CudaSchedule, second: CudaSchedule, random: Random) -> CudaSchedule:
    """``first`` with some decisions of ``second``: of groups for which they are legal there."""
    given = {_role(group): group for group in second.groups}
    for group in first.groups:
        other = given.get(_role(group))
        if other is not None and other in scheduler.alternatives(first, group) and random.randrange(2):
            first = first.with_group(group, other)
    return first


def _role(group: CudaGroup) -> tuple[str, str]:
    """What tells the groups of a Schedule apart."""
    return group.group, group.template
