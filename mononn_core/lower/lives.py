"""When the tensors of a Program's arena are in use, and which parts of them are an owner's."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from mononn_core.lower.memory import Life
from mononn_core.program.ir import Buffer, Item, Loop, Operand, Phase
from mononn_core.schedule.boxes import owner_boxes

Rows = tuple[int, int]
"""First row of a stored matrix, end."""


@dataclass(frozen=True)
class _Use:
    """An access to a tensor: in which interval, from which phase to which, and the rows that each owner touches; ()
    where owners are not known."""

    interval: int
    phases: tuple[int, int]
    owned: tuple[Rows, ...]


def lives(
    intervals: Sequence[Sequence[Item]],
    kept: Container[str],
    passing: Container[str],
    buffer_of: Callable[[str], Buffer],
) -> list[Life]:
    """Of every tensor that is written, but for those that are ``kept`` elsewhere, in the order of their first use. What
    a loop uses lives in all of its rounds, unless it is ``passing``: written in each before it is read."""
    uses: dict[str, list[_Use]] = {}
    number = 0
    for interval, items in enumerate(intervals):
        for item in items:
            loop = item if isinstance(item, Loop) else None
            body = [i for i in (loop.body if loop else (item,)) if isinstance(i, Phase)]
            rounds = [{loop.var: 0}, {loop.var: loop.count - 1}] if loop else [{}]
            for position, phase in enumerate(body, number):
                for operand in phase.task.operands:
                    tensor = str(operand.buffer)
                    if tensor in uses or (operand.access != "read" and tensor not in kept):
                        here = (position, position) if tensor in passing else (number, number + len(body) - 1)
                        use = _Use(interval, here, _rows(phase, operand, rounds))
                        uses.setdefault(tensor, []).append(use)
            number += len(body)
    return [_life(buffer_of(tensor), found) for tensor, found in uses.items()]


def _rows(phase: Phase, operand: Operand, rounds: Sequence[Mapping[str, int]]) -> tuple[Rows, ...]:
    """Of each owner, in all rounds of a loop, which goes evenly through the rows."""
    if phase.assign.kind != "owned" or len(operand.box.offset) != 2:
        return ()
    boxes = zip(*(owner_boxes(phase, operand, values) for values in rounds), strict=True)
    return tuple(_hull([box[:2] for of_round in mine for box in of_round]) for mine in boxes)


def _life(buffer: Buffer, uses: Sequence[_Use]) -> Life:
    first, last = uses[0], uses[-1]
    everywhere = zip(*(use.owned for use in uses), strict=True) if len({len(u.owned) for u in uses}) == 1 else ()
    alone = _starts([_hull(rows) for rows in everywhere], buffer.shape[0])
    starts = alone or _starts(first.owned, buffer.shape[0])
    row = buffer.layout.dims[0][-1][1] * buffer.itemsize if starts else 0
    parts = tuple(start * row for start in starts)
    return Life(buffer, (first.phases[0], last.phases[1]), (first.interval, last.interval), parts, bool(alone))


def _hull(rows: Sequence[Rows]) -> Rows:
    """The fewest rows in a run that hold them all."""
    found = [r for r in rows if r[0] < r[1]]
    return (min(r[0] for r in found), max(r[1] for r in found)) if found else (0, 0)


def _starts(owned: Sequence[Rows], rows: int) -> tuple[int, ...]:
    """The row from which on each owner has what is ``owned``; () where owners do not have runs of rows, one after the
    other."""
    found, end = [], 0
    for number, (start, stop) in enumerate(owned):
        if start < stop and start < end:
            return ()
        found.append(0 if number == 0 else start if start < stop else rows)
        end = max(end, stop)
    return tuple(found)
