"""When the tensors of a Program's arena are in use, and which parts of them are an owner's."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from mononn_core.lower.memory import Life
from mononn_core.program.ir import Buffer, Item, Loop, Operand, Phase
from mononn_core.program.rules import phases_in
from mononn_core.schedule.boxes import Rows, hull, owner_rows


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
            body = list(phases_in(item))
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
    return tuple(map(hull, zip(*(owner_rows(phase, operand, values) for values in rounds), strict=True)))


def _life(buffer: Buffer, uses: Sequence[_Use]) -> Life:
    first, last = uses[0], uses[-1]
    everywhere = zip(*(use.owned for use in uses), strict=True) if len({len(u.owned) for u in uses}) == 1 else ()
    alone = _starts([hull(rows) for rows in everywhere], buffer.shape[0])
    starts = alone or _starts(first.owned, buffer.shape[0])
    row = buffer.layout.dims[0][-1][1] * buffer.itemsize if starts else 0
    parts = tuple(start * row for start in starts)
    return Life(buffer, (first.phases[0], last.phases[1]), (first.interval, last.interval), parts, bool(alone))


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
