"""Who owns which rows or columns across consecutive stages: the schedule's most valuable decision.

Stages run in order, cut into *intervals* by barriers. Inside an interval every owner may read only what it wrote
itself (or what earlier intervals, inputs and constants hold), so nothing waits. The cut and the partition of every
stage are found together, by dynamic programming over the position of the last barrier: the cost of a plan is the
modelled time of its stages, plus a hand-off for every barrier, plus the fetching of what another owner wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

import numpy as np

from mononn_core.cost.analytic import Cost
from mononn_core.element import COMPUTE
from mononn_core.errors import OptionError
from mononn_core.program.expr import variables
from mononn_core.program.ir import Barrier, Item, Loop, Operand, Phase
from mononn_core.program.rules import phases_in
from mononn_core.program.template import NEST
from mononn_core.schedule.binder import OWNER
from mononn_core.schedule.boxes import NOBODY, Boxes, Writers, owner_boxes
from mononn_core.schedule.schedule import GroupSchedule, Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import scheduled

Intervals = tuple[tuple[GroupSchedule, ...], ...]
"""Decisions; a barrier stands between two intervals."""
BEAM = 12
"""Combinations of partitions kept while an interval grows."""


@dataclass(frozen=True)
class Candidate:
    """A stage as it could be computed: the decision, what it does, modelled seconds (``times``: of a phase, once), and
    the boxes each owner reads and writes."""

    decided: GroupSchedule
    items: tuple[Item, ...]
    seconds: float
    times: Mapping[str, float]
    reads: tuple[tuple[str, tuple[Boxes, ...]], ...]
    writes: Writers = field(compare=False, repr=False)
    stored: str
    """The buffer it writes: the stage's tensor, or the one that holds it in bands."""
    dtype: str = COMPUTE
    """Of the stored elements."""
    shared: bool = False
    """Whether a border is dealt in another way than its inside: then no reader finds all it needs in its own part."""

    @property
    def partition(self) -> Partition:
        """How it is dealt."""
        return self.decided.partition


def candidate(
    decided: GroupSchedule, items: tuple[Item, ...], shape: tuple[int, int], dtype: str, cost: Cost
) -> Candidate:
    """Measure what a stage's ``items`` touch of a stored matrix of ``shape``, and what they cost."""
    stored, partition = "", decided.partition
    written: list[tuple[int, Boxes]] = []
    reads = []
    bordered = len(items) > 1 and isinstance(items[-1], Phase) and items[-1].task.template == NEST
    images = partition.kind == "batch" and not (bordered and _by_columns(items[-1]))
    phases = list(_phases(items[:1] if bordered else items))
    for phase, loop in (*phases, *(_phases(items[1:]) if bordered and images else ())):
        for operand in phase.task.operands:
            if operand.stable or not isinstance(operand.buffer, str):
                continue
            boxes = _touched(phase, operand, loop)
            if operand.access == "write":
                stored = operand.buffer
                written += enumerate(boxes)
            else:
                reads.append((operand.buffer, boxes))
    writes = Writers(shape, written) if bordered else _writers(shape, tuple(written))
    alike = partition.kind in ("columns", "single") or partition.owners == 1
    if bordered and alike:
        inside = writes.same_in_all_rows()
        alike = partition.owners == 1 or bool((inside == _border_columns(items[-1], shape[1])).all())
    barriers = sum(
        item.count * sum(isinstance(i, Barrier) for i in item.body) for item in items if isinstance(item, Loop)
    )
    times = {phase.id: _seconds(phase, partition, writes, cost, _again(loop, cost)) for phase, loop in phases}
    seconds = cost.round_seconds * barriers
    seconds += sum(times[phase.id] * (loop.count if loop else 1) for phase, loop in phases)
    if partition.kind == "columns" and any(phase.task.template != NEST for phase, _ in phases):
        seconds += cost.torn_seconds([box for _, boxes in written for box in boxes], shape[1], dtype)
    shared = bordered and not (alike or images or decided.stores_bands)
    return Candidate(decided, items, seconds, times, tuple(reads), writes, stored, dtype, shared)


@lru_cache(1 << 10)  # equal layers write equal boxes
def _writers(shape: tuple[int, int], written: tuple[tuple[int, Boxes], ...]) -> Writers:
    return Writers(shape, written)


def _by_columns(border: Item) -> bool:
    """Whether each owner fills columns of all rows of a border: it is of fewer images than the owners have products."""
    assert isinstance(border, Phase)
    (out,) = (operand for operand in border.task.operands if operand.access == "write")
    return OWNER not in variables(out.box.offset[0])


def _border_columns(border: Item, columns: int) -> np.ndarray:
    """Who fills each column of a border."""
    assert isinstance(border, Phase)
    found = np.full(columns, NOBODY, np.int16)
    (out,) = (operand for operand in border.task.operands if operand.access == "write")
    for owner, boxes in enumerate(owner_boxes(border, out)):
        for _, _, c0, c1 in boxes:
            found[c0:c1] = owner
    return found


def _again(loop: Loop | None, cost: Cost) -> int:
    """Bytes of weights that the owner with most reads in each round of a loop."""
    owners: dict[int, int] = {}
    for phase in phases_in(loop) if loop else ():
        for operand in (o for o in phase.task.operands if o.role == "b" and o.stable):
            for owner, boxes in enumerate(owner_boxes(phase, operand)):
                owners[owner] = owners.get(owner, 0) + cost.bytes_in(operand, boxes)
    return max(owners.values(), default=0)


def _seconds(phase: Phase, partition: Partition, writes: Writers, cost: Cost, again: int) -> float:
    template = scheduled(phase.task.template)
    share = template.busiest(phase, partition, lambda operand: owner_boxes(phase, operand))
    share = writes.largest_share() if share is None else share
    return cost.phase_seconds(phase, partition, share, template.rate(phase), template.exposed(phase.task), again)


def _phases(items: Iterable[Item]) -> Iterator[tuple[Phase, Loop | None]]:
    """Phases, each with the loop that it is in."""
    for item in items:
        loop = item if isinstance(item, Loop) else None
        yield from ((phase, loop) for phase in phases_in(item))


def _touched(phase: Phase, operand: Operand, loop: Loop | None) -> tuple[Boxes, ...]:
    """Per owner, the boxes of an operand; of a loop, whose rounds go evenly through it, the one that holds them all."""
    if loop is None:
        return owner_boxes(phase, operand)
    ends = (owner_boxes(phase, operand, {loop.var: n}) for n in (0, loop.count - 1))
    return tuple(
        tuple((min(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), max(a[3], b[3])) for a, b in zip(*both, strict=True))
        for both in zip(*ends, strict=True)
    )


Written = dict[str, tuple[Candidate, ...]]
"""Buffer -> who writes it: one stage, or the parts of a concatenation."""


def _written(chosen: Iterable[Candidate]) -> Written:
    found: Written = {}
    for c in chosen:
        found[c.stored] = (*found.get(c.stored, ()), c)
    return found


class Pairs:
    """What passes between a stage that reads a buffer and one that writes it, remembered for what every pair touches:
    that of equal layers is the same object."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self._fetched: dict[tuple[int, int, str], float] = {}
        self._own: dict[tuple[int, int], bool] = {}

    def seconds(self, reader: Candidate, written: Written) -> float:
        """To fetch what other owners wrote, for the owner of ``reader`` that fetches most; what is read several times
        counts each time as its first operand does."""
        total, first = 0.0, dict(reversed(reader.reads))
        for tensor, _ in reader.reads:
            for writer in written.get(tensor, ()):
                boxes = first[tensor]
                key = (id(boxes), id(writer.writes), writer.dtype)
                if key not in self._fetched:
                    foreign = [sum(writer.writes.others(o, box) for box in mine) for o, mine in enumerate(boxes)]
                    self._fetched[key] = self.cost.exchange_seconds(max(foreign), writer.dtype)
                total += self._fetched[key]
        return total

    def reads_its_own(self, reader: Candidate, writer: Candidate, number: int) -> bool:
        """Whether every owner of ``reader``, in what it reads as ``number``, reads its own part alone."""
        if writer.shared or writer.partition.owners != reader.partition.owners:
            return False
        _, boxes = reader.reads[number]
        key = (id(boxes), id(writer.writes))
        if key not in self._own:
            self._own[key] = all(writer.writes.only(owner, mine) for owner, mine in enumerate(boxes))
        return self._own[key]


Combination = tuple[float, tuple[Candidate, ...], frozenset[str]]
"""Seconds, the interval's stages so far, and the images in bands that the stage made for that has yet to read: an
interval may not end before."""
Best = tuple[float, int, tuple[Candidate, ...]]


class Planner:
    """The cheapest cut of ``stages`` into intervals, and choice among the ``candidates``."""

    def __init__(
        self, stages: tuple[FusionGroup, ...], candidates: Mapping[str, tuple[Candidate, ...]], cost: Cost
    ) -> None:
        self.cost, self.pairs = cost, Pairs(cost)
        self.candidates = [candidates[stage.own] for stage in stages]
        self.writers: dict[str, list[int]] = {}
        """Buffer -> the stages that may write it, in order."""
        for number, found in enumerate(self.candidates):
            for buffer in dict.fromkeys(c.stored for c in found):
                self.writers.setdefault(buffer, []).append(number)
        self.best: list[Best] = [(0.0, 0, ()), *((inf, 0, ()) for _ in stages)]
        """Of the first so many stages: seconds, where the last interval begins, and its choice."""

    def plan(self) -> Intervals:
        """Ties go to the earlier one. Raises OptionError where no choice is legal (which no group's own candidates can
        cause)."""
        for start in range(len(self.candidates)):
            if self.best[start][0] < inf:
                self._grow(start, self.best[start][0] + (self.cost.barrier_seconds if start else 0.0))
        if self.best[-1][0] == inf:
            what = "an image in bands is not read by what it is made for"
            raise OptionError(f"these decisions do not go together: {what}")
        return tuple(tuple(c.decided for c in interval) for interval in self._intervals(len(self.candidates)))

    def _intervals(self, end: int) -> tuple[tuple[Candidate, ...], ...]:
        """The best intervals of the first ``end`` stages."""
        intervals = []
        while end:
            _, end, chosen = self.best[end]
            intervals.append(chosen)
        return tuple(reversed(intervals))

    def _grow(self, start: int, before: float) -> None:
        """All intervals from ``start`` on, after ``before`` seconds."""
        written = _written(c for interval in self._intervals(start) for c in interval)
        combinations: list[Combination] = [(0.0, (), frozenset())]
        for end, found in enumerate(self.candidates[start:], start):
            combinations = self._extend(combinations, [(self.pairs.seconds(c, written), c) for c in found], start, end)
            if not combinations:
                break
            seconds, chosen = next(((s, chosen) for s, chosen, bands in combinations if not bands), (inf, ()))
            if before + seconds < self.best[end + 1][0] * (1 - 1e-9):
                self.best[end + 1] = (before + seconds, start, chosen)

    def _extend(
        self, combinations: list[Combination], options: list[tuple[float, Candidate]], start: int, end: int
    ) -> list[Combination]:
        """Grow every combination of stages from ``start`` on by stage ``end`` under every partition with which every
        owner reads, of what the others write, only its own part; cheapest first."""
        grown: list[Combination] = []
        reads = [self._inside(c, start, end) for _, c in options]
        for seconds, chosen, awaited in combinations:
            for (more, c), inside in zip(options, reads, strict=True):
                bands = c.partition.bands
                if bands is not None and bands.buffer != c.stored and bands.buffer not in awaited:
                    continue
                met = [(number, chosen[i]) for number, tensor, i in inside if chosen[i].stored == tensor]
                if not met or all(self.pairs.reads_its_own(c, writer, number) for number, writer in met):
                    left = awaited if bands is None else (awaited | {bands.buffer}) - {tensor for tensor, _ in c.reads}
                    grown.append((seconds + more + c.seconds, (*chosen, c), left))
        return sorted(grown, key=lambda g: g[0])[:BEAM]

    def _inside(self, c: Candidate, start: int, end: int) -> list[tuple[int, str, int]]:
        """What a candidate of stage ``end`` may read of an interval from ``start`` on: the number of what it reads, the
        buffer, and which stage of the interval may write that."""
        return [
            (number, tensor, writer - start)
            for number, (tensor, _) in enumerate(c.reads)
            for writer in self.writers.get(tensor, ())
            if start <= writer < end
        ]


def price(intervals: Sequence[tuple[Candidate, ...]], cost: Cost) -> float:
    """Modelled seconds of a run in these intervals: what :class:`Planner` makes least."""
    pairs, total = Pairs(cost), cost.barrier_seconds * (len(intervals) - 1)
    done: list[Candidate] = []
    for interval in intervals:
        written = _written(done)
        total += sum(c.seconds + pairs.seconds(c, written) for c in interval)
        done += interval
    return total
