"""Who owns which rows or columns across consecutive stages: the schedule's most valuable decision.

Stages run in order, cut into *intervals* by barriers. Inside an interval every owner may read only what it wrote
itself (or what earlier intervals, inputs and constants hold), so nothing waits. The cut and the partition of every
stage are found together, by dynamic programming over the position of the last barrier: the cost of a plan is the
modelled time of its stages, plus a hand-off for every barrier, plus the fetching of what another owner wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    writes = Writers(shape, written)
    alike = partition.kind in ("columns", "single") or partition.owners == 1
    if bordered and alike:
        inside = writes.same_in_all_rows()
        alike = partition.owners == 1 or bool((inside == _border_columns(items[-1], shape[1])).all())
    # of what a stage stores itself, only what it reads of other parts than its own
    others = tuple((tensor, boxes) for tensor, boxes in reads if tensor != stored or not any(map(writes.any, boxes)))
    barriers = sum(
        item.count * sum(isinstance(i, Barrier) for i in item.body) for item in items if isinstance(item, Loop)
    )
    times = {phase.id: _seconds(phase, partition, writes, cost) for phase, _ in phases}
    seconds = cost.barrier_seconds * barriers
    seconds += sum(times[phase.id] * (loop.count if loop else 1) for phase, loop in phases)
    shared = bordered and not (alike or images or decided.stores_bands)
    return Candidate(decided, items, seconds, times, others, writes, stored, dtype, shared)


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


def _seconds(phase: Phase, partition: Partition, writes: Writers, cost: Cost) -> float:
    template = scheduled(phase.task.template)
    share = template.busiest(phase, partition, lambda operand: owner_boxes(phase, operand))
    share = writes.largest_share() if share is None else share
    return cost.phase_seconds(phase, partition, share, template.rate(phase.task))


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


def _fits(new: Candidate, inside: Written) -> bool:
    """Whether every owner of ``new`` reads, of the tensors written inside the interval, only its own part."""
    bands = new.partition.bands
    if bands is not None and bands.buffer != new.stored and bands.buffer not in inside:
        return False
    return all(_reads_its_own(new, p, owners) for tensor, owners in new.reads for p in inside.get(tensor, ()))


def _reads_its_own(new: Candidate, producer: Candidate, owners: tuple[Boxes, ...]) -> bool:
    if producer.shared or producer.partition.owners != new.partition.owners:
        return False
    return all(producer.writes.only(owner, boxes) for owner, boxes in enumerate(owners))


def _complete(chosen: tuple[Candidate, ...]) -> bool:
    """Whether an interval may end here: an image in bands has been read, as only the stage made for that can."""
    read = {tensor for c in chosen for tensor, _ in c.reads}
    return all(c.partition.bands is None or c.partition.bands.buffer in read for c in chosen)


class Exchange:
    """Seconds to fetch what other owners wrote, remembered for every pair of writer and reader."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.known: dict[tuple[int, int], float] = {}

    def seconds(self, reader: Candidate, written: Written) -> float:
        """For the owner of ``reader`` that fetches most."""
        return sum(self._from(reader, w, boxes) for t, boxes in reader.reads for w in written.get(t, ()))

    def _from(self, reader: Candidate, writer: Candidate, owners: tuple[Boxes, ...]) -> float:
        key = (id(reader), id(writer))
        if key not in self.known:
            foreign = [sum(writer.writes.others(owner, box) for box in boxes) for owner, boxes in enumerate(owners)]
            self.known[key] = self.cost.exchange_seconds(max(foreign), writer.dtype)
        return self.known[key]


Combination = tuple[float, tuple[Candidate, ...]]
Best = tuple[float, int, tuple[Candidate, ...]]


def plan(stages: tuple[FusionGroup, ...], candidates: dict[str, tuple[Candidate, ...]], cost: Cost) -> Intervals:
    """The cheapest cut into intervals and choice among the candidates; ties go to the earlier one.

    Raises:
        OptionError: no choice is legal (which no group's own candidates can cause).
    """
    exchange = Exchange(cost)
    best: list[Best] = [(0.0, 0, ())]
    best += [(inf, 0, ())] * len(stages)
    for start in range(len(stages)):
        if best[start][0] == inf:
            continue
        written = _written(c for interval in _intervals(stages, best, start) for _, c in interval)
        combinations: list[Combination] = [(0.0, ())]
        for end in range(start, len(stages)):
            options = [(exchange.seconds(c, written), c) for c in candidates[stages[end].own]]
            combinations = _extend(combinations, options)
            if not combinations:
                break
            seconds, chosen = next((c for c in combinations if _complete(c[1])), (inf, ()))
            total = best[start][0] + seconds + (cost.barrier_seconds if start else 0.0)
            if total < best[end + 1][0] * (1 - 1e-9):
                best[end + 1] = (total, start, chosen)
    if best[-1][0] == inf:
        raise OptionError("these decisions do not go together: an image in bands is not read by what it is made for")
    return tuple(tuple(c.decided for _, c in interval) for interval in _intervals(stages, best, len(stages)))


def price(intervals: Sequence[tuple[Candidate, ...]], cost: Cost) -> float:
    """Modelled seconds of a run in these intervals: what :func:`plan` makes least."""
    exchange, total = Exchange(cost), cost.barrier_seconds * (len(intervals) - 1)
    done: list[Candidate] = []
    for interval in intervals:
        written = _written(done)
        total += sum(c.seconds + exchange.seconds(c, written) for c in interval)
        done += interval
    return total


def _intervals(
    stages: tuple[FusionGroup, ...], best: list[Best], end: int
) -> tuple[tuple[tuple[FusionGroup, Candidate], ...], ...]:
    """The best intervals of the first ``end`` stages."""
    intervals = []
    while end:
        _, start, chosen = best[end]
        intervals.append(tuple(zip(stages[start:end], chosen, strict=True)))
        end = start
    return tuple(reversed(intervals))


def _extend(combinations: list[Combination], options: list[tuple[float, Candidate]]) -> list[Combination]:
    """Grow every combination by a stage under every partition that fits it; cheapest first."""
    grown = []
    for seconds, chosen in combinations:
        inside = _written(chosen)
        grown += [(seconds + more + c.seconds, (*chosen, c)) for more, c in options if _fits(c, inside)]
    return sorted(grown, key=lambda g: g[0])[:BEAM]
