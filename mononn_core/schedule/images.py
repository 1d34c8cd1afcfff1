"""Groups of a batch that run image by image: one image goes through all of them before the next one does, so that what
a group stores of an image is still in a near cache when the next group reads it. What these alone read needs memory
for one image an owner. So do groups that run in strips, of one image's rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mononn_core.program.expr import Var
from mononn_core.program.ir import Item, Loop, Operand, Phase
from mononn_core.program.rules import phases_in
from mononn_core.schedule.binder import BATCH, STRIP
from mononn_core.schedule.boxes import Rows, hull, owner_rows
from mononn_core.schedule.places import Place, moved
from mononn_core.schedule.schedule import GroupSchedule


def images_of(group: GroupSchedule, items: Sequence[Item]) -> int:
    """Images that each owner has of a group which does ``items``; 0 where its tasks are not of one image each."""
    found = {next((a.extent for a in i.domain if a.var == BATCH), 0) if isinstance(i, Phase) else 0 for i in items}
    return found.pop() if group.partition.kind in ("batch", "single") and len(found) == 1 else 0


Rounds = tuple[str, int]
"""What a loop goes through, images or strips, and how many an owner has."""
Decided = tuple[GroupSchedule, Sequence[Item]]
"""A group's decision, and what it does."""


def rounds_of(group: GroupSchedule, items: Sequence[Item]) -> Rounds | None:
    """The rounds that a group goes through together with its neighbours; None where it does not."""
    if group.strips > 1:
        return STRIP, next(a.extent for i in items if isinstance(i, Phase) for a in i.domain if a.var == STRIP)
    return (BATCH, images_of(group, items)) if group.by_image else None


def together(groups: Sequence[Decided]) -> Iterator[tuple[Rounds | None, list[Decided]]]:
    """The groups of an interval in runs of neighbours: those that have the same rounds are one loop, which an image
    stored in bands begins anew."""
    run: list[Decided] = []
    for group in groups:
        rounds = rounds_of(*group)
        if run and (rounds is None or rounds != rounds_of(*run[-1]) or group[0].stores_bands):
            yield rounds_of(*run[-1]), run
            run = []
        run.append(group)
    if run:
        yield rounds_of(*run[-1]), run


def in_rounds(groups: Sequence[Decided]) -> Iterator[Item]:
    """The items of an interval, with a loop for every run of groups that have rounds."""
    for rounds, run in together(groups):
        items = [item for _, of_group in run for item in of_group]
        if rounds is None:
            yield from items
        else:
            yield Loop(*rounds, tuple(_round(i, rounds) for i in items if isinstance(i, Phase)), "")


def _round(phase: Phase, rounds: Rounds) -> Phase:
    """Of one image or strip, which the loop names."""
    order = tuple(var for var in phase.assign.order if var != rounds[0])
    domain = tuple(a for a in phase.domain if a.var != rounds[0])
    return replace(phase, domain=domain, assign=replace(phase.assign, order=order), flops=phase.flops // rounds[1])


@dataclass
class Together:
    """Groups that may run image by image, or in strips. ``stored``: buffer -> the rows that they store of each, per
    owner."""

    rounds: Rounds
    stored: dict[str, list[tuple[Rows, ...]]] = field(default_factory=dict)

    def add(self, group: GroupSchedule, items: Sequence[Item]) -> bool:
        """Whether one more may: every owner reads, of what these store, only what it stored in the same round. Then
        it is one of them."""
        more: dict[str, list[tuple[Rows, ...]]] = {}
        var, count = self.rounds
        whole = group.strips == 1 or group.stores_bands  # else the border of a strip may reach into its neighbours
        for number, phase in enumerate(_round(i, self.rounds) for i in items if isinstance(i, Phase)):
            for operand in (o for o in phase.task.operands if not o.stable):
                buffer = str(operand.buffer)
                touched = [owner_rows(phase, operand, {var: n}) for n in range(count)]
                if operand.access == "write" and (whole or number == 0):
                    more[buffer] = _joined(more.get(buffer, touched), touched)
                elif operand.access == "read" and not _inside(touched, self.stored.get(buffer, touched)):
                    return False
        for buffer, touched in more.items():
            self.stored[buffer] = _joined(self.stored.get(buffer, touched), touched)
        return True


def _joined(a: list[tuple[Rows, ...]], b: list[tuple[Rows, ...]]) -> list[tuple[Rows, ...]]:
    return [tuple(hull(rows) for rows in zip(*both, strict=True)) for both in zip(a, b, strict=True)]


def _inside(a: list[tuple[Rows, ...]], b: list[tuple[Rows, ...]]) -> bool:
    pairs = (rows for both in zip(a, b, strict=True) for rows in zip(*both, strict=True))
    return all(hull(rows) == rows[1] for rows in pairs)


@dataclass(frozen=True)
class Passing:
    """A tensor of which every image, or strip, is stored, read and done with in one round of a loop: its buffer, and
    the ``rows`` of an image, of which each of ``owners`` has one."""

    buffer: str
    rows: int
    owners: int


def pass_on(intervals: Sequence[Sequence[Item]], kept: Collection[str]) -> tuple[list[list[Item]], dict[str, Passing]]:
    """``intervals`` with one image an owner of the tensors that allow that and are not ``kept``, and these tensors."""
    users: dict[str, set[int]] = {}
    loops = {n: i for n, i in enumerate(i for items in intervals for i in items) if isinstance(i, Loop)}
    for number, item in enumerate(i for items in intervals for i in items):
        for phase in phases_in(item):
            for operand in phase.task.operands:
                users.setdefault(str(operand.buffer), set()).add(number)
    images: dict[str, Passing] = {}
    for number, loop in loops.items():
        if loop.var in (BATCH, STRIP):
            images |= _passing(loop, {t for t, found in users.items() if found == {number}} - set(kept))

    def passed(item: Item) -> Item:
        if not isinstance(item, Loop) or item.var not in (BATCH, STRIP):
            return item
        return replace(item, body=tuple(_passed(i, item, images) if isinstance(i, Phase) else i for i in item.body))

    return [list(map(passed, items)) for items in intervals], images


def _passing(loop: Loop, tensors: Collection[str]) -> dict[str, Passing]:
    """Which of ``tensors``, that nothing but a loop over images uses, hold one image an owner."""
    uses: dict[str, list[tuple[Phase, Operand]]] = {}
    for phase in phases_in(loop):
        for operand in phase.task.operands:
            if str(operand.buffer) in tensors:
                uses.setdefault(str(operand.buffer), []).append((phase, operand))
    found = {}
    for tensor, of_tensor in uses.items():
        rounds = {n: [owner_rows(*use, {loop.var: n}) for use in of_tensor] for n in (0, loop.count - 1)}
        rows = max(owners[0][1] for owners in rounds[0])
        inside = all(
            start >= end or ((n + o * loop.count) * rows <= start and end <= (n + o * loop.count + 1) * rows)
            for n, touched in rounds.items()
            for owners in touched
            for o, (start, end) in enumerate(owners)
        )
        if inside and of_tensor[0][1].access == "write":
            found[tensor] = Passing(f"{tensor}@image", rows, len(rounds[0][0]))
    return found


def _passed(phase: Phase, loop: Loop, images: Mapping[str, Passing]) -> Phase:
    assert phase.assign.owner is not None
    number = phase.assign.owner * (loop.count - 1) + Var(loop.var)
    return moved(phase, {t: Place(one.buffer, number * -one.rows, one.rows * one.owners) for t, one in images.items()})
