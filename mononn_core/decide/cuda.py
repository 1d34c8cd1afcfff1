"""The Schedule of a GPU: the cheapest by the cost model, and why one is not legal."""

from __future__ import annotations

from collections.abc import Sequence

from mononn_core.cost.cuda import barrier_seconds
from mononn_core.decide.cuda_plan import FEWER_PHASES, Plan, Planner
from mononn_core.decide.cuda_space import alternatives, problem_of, template_of
from mononn_core.decide.intervals import schedule as schedule_phases
from mononn_core.errors import OptionError, UnsupportedError
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.groups import CudaGroups, build_phases
from mononn_core.schedule.cuda.schedule import CudaGroup, CudaSchedule
from mononn_core.schedule.cuda.template import SUM, PlannedPhase, cuda_scheduled
from mononn_core.schedule.cuda.tiles import GRIDS, Target
from mononn_core.schedule.stages import FusionGroup


class CudaScheduler:
    """Decides for the groups of one network."""

    def __init__(self, groups: CudaGroups) -> None:
        self.groups = groups

    def decide(self, launches: Sequence[tuple[int, int]] = GRIDS) -> CudaSchedule:
        """The cheapest Schedule by the cost model with one of ``launches`` (threads of a block, blocks of a
        multiprocessor).

        Raises:
            UnsupportedError: a product or an attention fits no block; the message names the node.
        """
        targets = [Target(self.groups.gpu, self.groups.precision, *launch) for launch in launches]
        plans: list[tuple[Plan, Target]] = []
        problem: UnsupportedError | None = None
        for target in targets:
            try:
                plans.append((Planner(self.groups, target).plan(), target))
            except UnsupportedError as error:
                problem = problem or error
        for plan, target in _ranked(plans):
            builder = self.groups.builder(plan.phases, target)
            try:
                decided = [self._group(planned, builder) for planned in plan.phases]
                phases = build_phases(builder, plan.phases, decided)
            except UnsupportedError as error:
                problem = problem or error
                continue
            by_phase = {phase.id: group for group, (phase, *_) in phases.items()}
            intervals = schedule_phases([phase for phase, *_ in phases.values()], builder.locals)
            found = tuple(tuple(by_phase[phase.id] for phase in interval) for interval in intervals)
            return CudaSchedule(self.groups.graph.name, target.threads, target.blocks_per_sm, found, target.precision)
        assert problem is not None
        raise problem

    def legal(self, given: CudaSchedule | None) -> CudaSchedule:
        """``given`` once it is checked, or the cheapest; raises as :meth:`check` and :meth:`decide`."""
        if given is None:
            return self.decide()
        self.check(given)
        return given

    def price(self, schedule: CudaSchedule) -> float:
        """Seconds of a run by the cost model, the launch itself left out; no Program is built."""
        planner = Planner(self.groups, self.groups.target(schedule))
        busy = sum(planner.seconds(group, self.stage(group)) for group in schedule.groups)
        return busy + (len(schedule.intervals) - 1) * barrier_seconds(self.groups.gpu)

    def alternatives(self, schedule: CudaSchedule, group: CudaGroup) -> list[CudaGroup]:
        """Every legal decision for a group of ``schedule`` beside which all others stay."""
        planner = Planner(self.groups, self.groups.target(schedule))
        builder = self.groups.builder((), planner.target)
        return list(alternatives(group, self.stage(group), schedule, planner, builder))

    def stage(self, group: CudaGroup) -> FusionGroup:
        """What a decision is about."""
        return self.groups.by_name[group.group][1]

    def variants(self, ranks: int) -> dict[str, CudaSchedule]:
        """The cheapest Schedule of every launch, and those in which every product has its ``ranks`` cheapest tiles (the
        last where it has fewer), by :func:`variant_name`; without launches that suit no block."""
        found: dict[str, CudaSchedule] = {}
        for launch in GRIDS:
            try:
                schedule = self.decide((launch,))
            except UnsupportedError:
                continue
            tiles = {g: self.alternatives(schedule, g) for g in schedule.groups if g.tile is not None}
            for rank in range(ranks):
                varied = schedule
                for group, others in tiles.items():
                    varied = varied.with_group(group, others[min(rank, len(others) - 1)])
                found[variant_name(*launch, rank)] = varied
        return found

    def check(self, schedule: CudaSchedule) -> None:
        """Raises OptionError where a Schedule is not one of this network, or names a decision that is not legal."""
        if schedule.precision != self.groups.precision:
            how = f"{schedule.precision}, not {self.groups.precision}"
            raise OptionError(f"the schedule is for precision {how}; compile with that one")
        launch = (schedule.threads, schedule.blocks_per_sm)
        if launch not in GRIDS:
            known = " or ".join(f"{threads} x {blocks}" for threads, blocks in GRIDS)
            raise OptionError(f"the schedule's launch of {launch[0]} threads x {launch[1]} blocks is not {known}")
        planner = Planner(self.groups, self.groups.target(schedule))
        builder = self.groups.builder((), planner.target)
        filled = [group.fill for group in schedule.groups if group.fill]
        seen: set[str] = set()
        for group in schedule.groups:
            name = f"{group.group} (sum)" if group.template == SUM else group.group
            if group.group not in self.groups.by_name:
                raise OptionError(f"the schedule has a group {group.group!r}, which {self.groups.graph.name} has not")
            if name in seen:
                raise OptionError(f"the schedule has group {name!r} twice")
            seen.add(name)
            if reason := problem_of(group, self.stage(group), schedule, planner, builder):
                raise OptionError(f"the schedule of group {name!r} is not legal: {reason}")
        for own in self.groups.by_name:
            if (own in seen) == (own in filled):
                how = "no group" if own not in seen else "filled in and a group of its own,"
                raise OptionError(f"the schedule has {how} {own!r}")

    def _group(self, planned: PlannedPhase, builder: CudaBuilder) -> CudaGroup:
        return cuda_scheduled(template_of(planned.stage, self.groups.graph)).decided(builder, planned)


def _ranked(plans: list[tuple[Plan, Target]]) -> list[tuple[Plan, Target]]:
    """The cheapest first; among those that the model cannot tell apart the one of fewest phases, then the one whose
    launch is listed first."""
    least = min((plan.seconds for plan, _ in plans), default=0.0) * FEWER_PHASES
    near = [p for p in plans if p[0].seconds <= least]
    far = [p for p in plans if p[0].seconds > least]
    return sorted(near, key=lambda p: len(p[0].phases)) + sorted(far, key=lambda p: p[0].seconds)


def variant_name(threads: int, blocks_per_sm: int, rank: int) -> str:
    """What a variant is called."""
    return f"{threads}x{blocks_per_sm}-{rank}"
