"""The Schedule of a GPU: the cheapest by the cost model, and why one is not legal."""

from __future__ import annotations

from mononn_core.decide.cuda_plan import FEWER_PHASES, Plan, Planner
from mononn_core.decide.cuda_space import problem_of, template_of
from mononn_core.decide.intervals import schedule as schedule_phases
from mononn_core.errors import OptionError, UnsupportedError
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.groups import CudaGroups, build_phases
from mononn_core.schedule.cuda.schedule import CudaGroup, CudaSchedule
from mononn_core.schedule.cuda.template import SUM, Step, cuda_scheduled
from mononn_core.schedule.cuda.tiles import LAUNCHES, Target, Variant


class CudaScheduler:
    """Decides for the groups of one network."""

    def __init__(self, groups: CudaGroups) -> None:
        self.groups = groups

    def decide(self, variant: Variant | None = None) -> CudaSchedule:
        """The cheapest Schedule by the cost model, or that of a variant."""
        launches = [Variant(*launch, 0) for launch in LAUNCHES] if variant is None else [variant]
        targets = [Target(self.groups.gpu, self.groups.precision, v.threads, v.blocks_per_sm, v.rank) for v in launches]
        plans: list[tuple[Plan, Target]] = []
        problem: UnsupportedError | None = None
        for target in targets:
            try:
                plans.append((Planner(self.groups, target).plan(), target))
            except UnsupportedError as error:
                problem = problem or error
        for plan, target in _ranked(plans):
            builder = self.groups.builder(plan.steps, target)
            try:
                decided = [self._group(step, builder) for step in plan.steps]
                phases = build_phases(builder, plan.steps, decided)
            except UnsupportedError as error:
                problem = problem or error
                continue
            by_phase = {phase.id: group for group, phase in phases.items()}
            intervals = schedule_phases(list(phases.values()), builder.locals)
            found = tuple(tuple(by_phase[phase.id] for phase in interval) for interval in intervals)
            return CudaSchedule(self.groups.graph.name, target.threads, target.blocks_per_sm, found)
        assert problem is not None
        raise problem

    def legal(self, given: CudaSchedule | None, variant: Variant | None = None) -> CudaSchedule:
        """``given`` once it is checked, or the cheapest, or that of a variant.

        Raises:
            UnsupportedError: a product fits no tile; the message names the node.
            OptionError: as :meth:`check`.
        """
        if given is None:
            return self.decide(variant)
        self.check(given)
        return given

    def check(self, schedule: CudaSchedule) -> None:
        """Raises OptionError where a Schedule is not one of this network, or names a decision that is not legal."""
        launch = (schedule.threads, schedule.blocks_per_sm)
        if launch not in LAUNCHES:
            known = " or ".join(f"{threads} x {blocks}" for threads, blocks in LAUNCHES)
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
            if reason := problem_of(group, self.groups.by_name[group.group][1], schedule, planner, builder):
                raise OptionError(f"the schedule of group {name!r} is not legal: {reason}")
        for own in self.groups.by_name:
            if (own in seen) == (own in filled):
                how = "no group" if own not in seen else "filled in and a group of its own,"
                raise OptionError(f"the schedule has {how} {own!r}")

    def _group(self, step: Step, builder: CudaBuilder) -> CudaGroup:
        return cuda_scheduled(template_of(step.stage, self.groups.graph)).decided(builder, step)


def _ranked(plans: list[tuple[Plan, Target]]) -> list[tuple[Plan, Target]]:
    """The cheapest first; among those that the model cannot tell apart the one of fewest phases, then the one whose
    launch is listed first."""
    least = min((plan.seconds for plan, _ in plans), default=0.0) * FEWER_PHASES
    near = [p for p in plans if p[0].seconds <= least]
    far = [p for p in plans if p[0].seconds > least]
    return sorted(near, key=lambda p: len(p[0].steps)) + sorted(far, key=lambda p: p[0].seconds)
