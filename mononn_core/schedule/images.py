"""Groups of a batch that run image by image: one image goes through all of them before the next one does, so that what
a group stores of an image is still in a near cache when the next group reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from mononn_core.program.ir import Item, Loop, Phase
from mononn_core.schedule.binder import BATCH
from mononn_core.schedule.boxes import owner_boxes
from mononn_core.schedule.schedule import GroupSchedule

Rows = tuple[int, int]
"""First row of a stored matrix, end."""


def images_of(group: GroupSchedule, items: Sequence[Item]) -> int:
    """Images that each owner has of a group which does ``items``; 0 where its tasks are not of one image each."""
    found = {next((a.extent for a in i.domain if a.var == BATCH), 0) if isinstance(i, Phase) else 0 for i in items}
    return found.pop() if group.partition.kind in ("batch", "single") and len(found) == 1 else 0


def by_image(groups: Sequence[tuple[GroupSchedule, Sequence[Item]]]) -> Iterator[Item]:
    """The items of an interval; neighbours that run image by image, and have as many, are one loop."""
    for count, together in groupby(groups, lambda g: images_of(*g) if g[0].by_image else 0):
        items = [item for _, of_group in together for item in of_group]
        if count:
            yield Loop(BATCH, count, tuple(_round(i, count) for i in items if isinstance(i, Phase)), "")
        else:
            yield from items


def _round(phase: Phase, count: int) -> Phase:
    """Of one image, which the loop names."""
    order = tuple(var for var in phase.assign.order if var != BATCH)
    domain = tuple(a for a in phase.domain if a.var != BATCH)
    return replace(phase, domain=domain, assign=replace(phase.assign, order=order), flops=phase.flops // count)


@dataclass
class Together:
    """Groups that may run image by image. ``stored``: buffer -> the rows that they store of each image, per owner."""

    count: int
    stored: dict[str, list[list[Rows]]] = field(default_factory=dict)

    def add(self, items: Sequence[Item]) -> bool:
        """Whether one more may: every owner reads, of what these store, only what it stored of the same image. Then it
        is one of them."""
        more: dict[str, list[list[Rows]]] = {}
        for phase in (_round(i, self.count) for i in items if isinstance(i, Phase)):
            for operand in (o for o in phase.task.operands if not o.stable):
                buffer = str(operand.buffer)
                touched = [list(map(_rows, owner_boxes(phase, operand, {BATCH: n}))) for n in range(self.count)]
                if operand.access == "write":
                    more[buffer] = _joined(more.get(buffer, touched), touched)
                elif not _inside(touched, self.stored.get(buffer, touched)):
                    return False
        for buffer, touched in more.items():
            self.stored[buffer] = _joined(self.stored.get(buffer, touched), touched)
        return True


def _rows(boxes: Sequence[tuple[int, int, int, int]]) -> Rows:
    return min((b[0] for b in boxes), default=0), max((b[1] for b in boxes), default=0)


def _joined(a: list[list[Rows]], b: list[list[Rows]]) -> list[list[Rows]]:
    return [[(min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(*both, strict=True)] for both in zip(a, b, strict=True)]


def _inside(a: list[list[Rows]], b: list[list[Rows]]) -> bool:
    return all(y[0] <= x[0] and x[1] <= y[1] for both in zip(a, b, strict=True) for x, y in zip(*both, strict=True))
