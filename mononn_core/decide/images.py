"""Which groups of a batch run image by image (:mod:`mononn_core.schedule.images`): where keeping images in near caches
saves more than reading weights once more for every image takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mononn_core.element import COMPUTE, itemsize
from mononn_core.machine import Machine
from mononn_core.program.ir import Item, Operand, Phase
from mononn_core.schedule.binder import BATCH
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.images import Together, images_of, together
from mononn_core.schedule.schedule import GroupSchedule

Interval = tuple[GroupSchedule, ...]


@dataclass(frozen=True)
class _Moved:
    """Bytes that an owner moves for a group: ``activations`` of one image, ``weights`` of all."""

    activations: float
    weights: float

    @staticmethod
    def by(items: Sequence[Item], images: int) -> _Moved:
        operands = {str(o.buffer): o for i in items if isinstance(i, Phase) for o in i.task.operands}
        weights = sum(_bytes(o) for o in operands.values() if o.role == "b")
        activations = sum(_bytes(o) for o in operands.values() if not o.stable)
        return _Moved(activations / images, weights)


def _bytes(operand: Operand) -> int:
    return itemsize(COMPUTE) * prod(operand.box.bound)


def image_by_image(intervals: tuple[Interval, ...], groups: CpuGroups) -> tuple[Interval, ...]:
    """The same decisions, with those groups marked."""
    return tuple(_marked(tuple(replace(g, by_image=False) for g in interval), groups) for interval in intervals)


def problem(interval: Interval, groups: CpuGroups) -> str:
    """Why groups of an interval may not run image by image, or in strips, as they say; "" where they may."""
    for group in interval:
        if group.by_image and images_of(group, groups.items(group)) == 0:
            return f"the tasks of group {group.group!r} are not of one image each, and cannot run image by image"
    for rounds, run in together([(group, groups.items(group)) for group in interval]):
        others = Together(rounds) if rounds is not None else None
        for group, items in run:
            if others is not None and not others.add(group, items):
                what, how = ("images", "image by image") if group.by_image else ("strips", "in strips")
                return f"group {group.group!r} reads other {what} than its own of a group that runs {how} with it"
    return ""


def _marked(interval: Interval, groups: CpuGroups) -> Interval:
    marked = list(interval)
    for start, end in _runs(interval, groups):
        count = images_of(interval[start], groups.items(interval[start]))
        moved = [_Moved.by(groups.items(g), count * groups.owners) for g in interval[start:end]]
        first, last = _best([_saved(m, moved, count, groups) for m in moved])
        if last - first > 1:
            chosen = slice(start + first, start + last)
            marked[chosen] = [replace(g, by_image=True) for g in interval[chosen]]
    return tuple(marked)


def _runs(interval: Interval, groups: CpuGroups) -> list[tuple[int, int]]:
    """The longest runs of groups that may run image by image."""
    found, start = [], 0
    while start < len(interval):
        count, end = images_of(interval[start], groups.items(interval[start])), start
        alike = Together((BATCH, count))
        while count > 1 and end < len(interval) and images_of(interval[end], groups.items(interval[end])) == count:
            if not alike.add(interval[end], groups.items(interval[end])):
                break
            end += 1
        if end - start > 1:
            found.append((start, end))
        start = max(end, start + 1)
    return found


def _saved(moved: _Moved, run: Sequence[_Moved], count: int, groups: CpuGroups) -> float:
    """Seconds that a group of a run saves image by image."""
    machine, owners, a = groups.machine, groups.owners, moved.activations
    near = count * a * (_seconds(machine, count * a, owners) - _seconds(machine, a, owners))
    again = _seconds(machine, sum(m.weights for m in run), owners) - _seconds(machine, moved.weights, owners)
    return near - moved.weights * (count - 1) * again


def _seconds(machine: Machine, working_set: float, owners: int) -> float:
    """Of a byte of what each of the owners goes through again and again: as much of it as they hold comes from the
    nearest caches."""
    near = min(1.0, machine.l2_bytes / max(working_set, 1))
    held = max(near, min(1.0, machine.l3_bytes / max(working_set * owners, 1)))
    far = (1 - held) * owners / machine.bandwidth
    return near / machine.l2_bandwidth + (held - near) / machine.l3_bandwidth + far


def _best(saved: Sequence[float]) -> tuple[int, int]:
    """The neighbours that save most together, from the first to behind the last (Kadane)."""
    best, at, first, total = 0.0, (0, 0), 0, 0.0
    for position, one in enumerate(saved):
        if total <= 0:
            first, total = position, 0.0
        total += one
        if total > best:
            best, at = total, (first, position + 1)
    return at
