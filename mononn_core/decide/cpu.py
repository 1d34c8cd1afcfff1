"""The Schedule of a CPU: the cheapest by the cost model, the price of any, and why one is not legal."""

from __future__ import annotations

from collections.abc import Mapping

from mononn_core.cost.analytic import Cost
from mononn_core.decide import ownership, space, strips
from mononn_core.decide.bands import with_bands
from mononn_core.decide.images import image_by_image, problem
from mononn_core.errors import OptionError
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.images import rounds_of
from mononn_core.schedule.schedule import GroupSchedule, Schedule
from mononn_core.schedule.stages import dependencies


class CpuScheduler:
    """Decides for the groups of one network."""

    def __init__(self, groups: CpuGroups) -> None:
        self.groups = groups
        weights = sum(c.nbytes for c in groups.graph.constants.values())
        self.cost = Cost(groups.machine, weights, groups.builder.constant_type, groups.narrow)
        self._candidates: dict[GroupSchedule, ownership.Candidate] = {}

    def decide(self, fixed: Mapping[str, GroupSchedule] | None = None) -> Schedule:
        """The cheapest Schedule by the cost model; groups in ``fixed`` (by name) are computed as it says.

        Raises:
            OptionError: the fixed decisions do not go together.
        """
        groups, fixed = self.groups, fixed or {}
        chosen = {
            s.own: (fixed[s.own],) if s.own in fixed else space.preferred(s, groups.builder, groups.owners)
            for s in groups.stages
        }
        for own, more in with_bands(groups, chosen).items():
            chosen[own] += () if own in fixed else tuple(more)
        chosen |= {own: (decided,) for own, decided in strips.cheapest(groups, chosen, fixed, self._meet).items()}
        candidates = {own: tuple(map(self._candidate, found)) for own, found in chosen.items()}
        planned = ownership.Planner(groups.stages, candidates, self.cost).plan()
        joined = tuple(strips.joined(interval, groups, fixed) for interval in planned)
        intervals = image_by_image(joined, groups)
        return Schedule(groups.graph.name, groups.owners, intervals, groups.prefetch, groups.precision)

    def legal(self, given: Schedule | None) -> Schedule:
        """``given`` once it is checked, or the cheapest; raises OptionError as :meth:`check`."""
        if given is None:
            return self.decide()
        self.check(given)
        return given

    def price(self, schedule: Schedule) -> float:
        """Seconds of a run by the cost model; no Program is built."""
        return ownership.price([tuple(map(self._candidate, interval)) for interval in schedule.intervals], self.cost)

    def modelled(self, schedule: Schedule) -> dict[str, float]:
        """Phase -> its seconds by the cost model, of one round where it is in a loop. Those that fill borders have no
        cost and are not there."""
        found: dict[str, float] = {}
        for group in schedule.groups:
            _, turns = rounds_of(group, self.groups.items(group)) or ("", 1)
            found.update({phase: seconds / turns for phase, seconds in self._candidate(group).times.items()})
        return found

    def _meet(self, image: GroupSchedule, reader: GroupSchedule) -> bool:
        """Whether every owner of ``reader`` reads its own part alone of what ``image`` stores."""
        writer, c, pairs = self._candidate(image), self._candidate(reader), ownership.Pairs(self.cost)
        read = (number for number, (tensor, _) in enumerate(c.reads) if tensor == writer.stored)
        return all(pairs.reads_its_own(c, writer, number) for number in read)

    def _candidate(self, group: GroupSchedule) -> ownership.Candidate:
        if group not in self._candidates:
            _, dtype, shape = self.groups.stored(group)
            self._candidates[group] = ownership.candidate(group, self.groups.items(group), shape, dtype, self.cost)
        return self._candidates[group]

    def check(self, schedule: Schedule) -> None:
        """Raises OptionError where a Schedule is not one of this network, names a decision that is not legal, or has a
        group before one that it reads. Whether its barriers suffice the verifier says of the Program."""
        groups = self.groups
        if schedule.owners != groups.owners:
            raise OptionError(
                f"the schedule is for {schedule.owners} owners, not {groups.owners}; compile with as many"
            )
        if schedule.precision != groups.precision:
            how = f"{schedule.precision}, not {groups.precision}"
            raise OptionError(f"the schedule is for precision {how}; compile with that one")
        ready: dict[str, int] = {}
        for group in schedule.groups:
            if group.group not in groups.by_name:
                raise OptionError(f"the schedule has a group {group.group!r}, which {groups.graph.name} has not")
            if group.group in ready:
                raise OptionError(f"the schedule has group {group.group!r} twice")
            ready[group.group] = len(ready)
            if reason := space.problem(groups.stage(group), groups.builder, strips.plain(groups, group)):
                raise OptionError(f"the schedule of group {group.group!r} is not legal: {reason}")
        self._check_bands(schedule)
        if missing := [name for name in groups.by_name if name not in ready]:
            raise OptionError(f"the schedule has no group {missing[0]!r}")
        for interval in schedule.intervals:
            if reason := strips.problem(interval, groups) or problem(interval, groups):
                raise OptionError(f"the schedule is not legal: {reason}")
        self._check_order(ready)

    def _check_order(self, ready: Mapping[str, int]) -> None:
        """Raises OptionError where a group stands before one that it reads."""
        writers: dict[str, list[str]] = {}
        for stage in self.groups.stages:
            for tensor in {stage.stored, stage.own}:
                writers.setdefault(tensor, []).append(stage.own)
        for stage in self.groups.stages:
            for tensor in sorted(dependencies(stage, self.groups.views)):
                late = [w for w in writers[tensor] if w != stage.own and ready[w] > ready[stage.own]]
                if late and tensor != stage.stored:
                    raise OptionError(f"the schedule has group {stage.own!r} before {late[0]!r}, which it reads")

    def _check_bands(self, schedule: Schedule) -> None:
        """Raises OptionError where an image in bands is not one that its writer and its reader meet in."""
        plain = {g.group: (strips.plain(self.groups, g),) for g in schedule.groups}
        if len(plain) < len(self.groups.stages):
            return
        allowed = with_bands(self.groups, plain)
        for group in schedule.groups:
            bands = group.partition.bands
            both = sum(other.partition.bands == bands for other in schedule.groups)
            if bands is not None and group.strips == 1 and (group not in allowed.get(group.group, ()) or both != 2):
                raise OptionError(
                    f"the schedule of group {group.group!r} is not legal: {bands.buffer} is not what a map and the one "
                    "convolution that reads it, both dealt by rows, share in bands"
                )
