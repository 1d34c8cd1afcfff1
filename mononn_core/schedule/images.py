"""Groups of a batch that run image by image: one image goes through all of them before the next one does, so that what
a group stores of an image is still in a near cache when the next group reads it. What these alone read needs memory
for one image an owner."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from mononn_core.program.expr import Expr, Load, Var, transform
from mononn_core.program.ir import Box, For, Item, Let, Loop, Operand, Phase, Reduce, Statement, Store, Task
from mononn_core.program.simplify import simplify
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


@dataclass(frozen=True)
class Passing:
    """A tensor of which every image is stored, read and done with in one round of a loop: its buffer, and the ``rows``
    of an image, of which each of ``owners`` has one."""

    buffer: str
    rows: int
    owners: int


def pass_on(intervals: Sequence[Sequence[Item]], kept: Collection[str]) -> tuple[list[list[Item]], dict[str, Passing]]:
    """``intervals`` with one image an owner of the tensors that allow that and are not ``kept``, and these tensors."""
    users: dict[str, set[int]] = {}
    loops = {n: i for n, i in enumerate(i for items in intervals for i in items) if isinstance(i, Loop)}
    for number, item in enumerate(i for items in intervals for i in items):
        for phase in (i for i in (item.body if isinstance(item, Loop) else (item,)) if isinstance(i, Phase)):
            for operand in phase.task.operands:
                users.setdefault(str(operand.buffer), set()).add(number)
    images: dict[str, Passing] = {}
    for number, loop in loops.items():
        if loop.var == BATCH:
            images |= _passing(loop, {t for t, found in users.items() if found == {number}} - set(kept))

    def passed(item: Item) -> Item:
        if not isinstance(item, Loop) or item.var != BATCH:
            return item
        return replace(item, body=tuple(_passed(i, item, images) if isinstance(i, Phase) else i for i in item.body))

    return [list(map(passed, items)) for items in intervals], images


def _passing(loop: Loop, tensors: Collection[str]) -> dict[str, Passing]:
    """Which of ``tensors``, that nothing but a loop over images uses, hold one image an owner."""
    uses: dict[str, list[tuple[Phase, Operand]]] = {}
    for phase in (i for i in loop.body if isinstance(i, Phase)):
        for operand in phase.task.operands:
            if str(operand.buffer) in tensors:
                uses.setdefault(str(operand.buffer), []).append((phase, operand))
    found = {}
    for tensor, of_tensor in uses.items():
        rounds = {n: [_touched(use, loop, n) for use in of_tensor] for n in (0, loop.count - 1)}
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


def _touched(use: tuple[Phase, Operand], loop: Loop, number: int) -> list[Rows]:
    return list(map(_rows, owner_boxes(*use, {loop.var: number})))


def _passed(phase: Phase, loop: Loop, images: Mapping[str, Passing]) -> Phase:
    owner, task = phase.assign.owner, phase.task
    assert owner is not None
    shifts: dict[str, Expr] = {}
    operands = []
    for o in task.operands:
        one = images.get(str(o.buffer))
        if one is not None:
            shifts[o.role] = (owner * (loop.count - 1) + Var(loop.var)) * -one.rows
            offset = simplify(o.box.offset[0] + shifts[o.role], {})
            box = Box((offset, o.box.offset[1]), o.box.size, (one.rows * one.owners, o.box.bound[1]))
            o = replace(o, buffer=one.buffer, box=box)
        operands.append(o)
    return replace(phase, task=_shifted(replace(task, operands=tuple(operands)), shifts)) if shifts else phase


def _shifted(task: Task, shifts: Mapping[str, Expr]) -> Task:
    """``task`` with the rows of some roles moved."""

    def moved(role: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (simplify(index[0] + shifts[role], {}), *index[1:]) if role in shifts else index

    def loads(e: Expr) -> Expr:
        return transform(e, lambda n: replace(n, index=moved(n.operand, n.index)) if isinstance(n, Load) else n)

    def statement(s: Statement) -> Statement:
        match s:
            case For():
                return replace(s, body=tuple(map(statement, s.body)))
            case Store():
                return replace(s, index=moved(s.operand, tuple(map(loads, s.index))), value=loads(s.value))
            case Let() | Reduce():
                return replace(s, value=loads(s.value))

    results = tuple(
        replace(r, index=moved(r.operand, tuple(map(loads, r.index))), value=loads(r.value)) for r in task.results
    )
    prologue = {name: loads(e) for name, e in task.prologue.items()}
    return replace(task, results=results, body=tuple(map(statement, task.body)), prologue=prologue)
