"""Storage: layouts of stored tensors, and liveness to arena offsets.

Time is counted in intervals between barriers: a buffer is live from the interval that writes it to the last that reads
it, and two live buffers never share bytes. (Within an interval workers are anywhere, so nothing is re-used.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mononn_core.program.ir import Buffer

ALIGN = 64
OVERREAD_BYTES = 512
"""A product's last panel may read (never use) so much past the end of its right-hand side: the arena has it."""


@dataclass(frozen=True)
class Span:
    """A buffer and the inclusive range of intervals it is live in."""

    buffer: Buffer
    first: int
    last: int


def plan_arena(spans: Mapping[str, Span], align: int = ALIGN) -> tuple[dict[str, Buffer], int]:
    """(buffers with offsets, arena bytes): largest first, each at the lowest offset free over its whole life."""
    placed: list[Span] = []
    order = sorted(spans.values(), key=lambda s: (-s.buffer.nbytes, s.first, s.buffer.id))
    for span in order:
        rivals = [p for p in placed if p.first <= span.last and span.first <= p.last]
        rivals.sort(key=lambda p: p.buffer.offset)
        offset = 0
        for rival in rivals:
            if offset + span.buffer.nbytes <= rival.buffer.offset:
                break
            offset = max(offset, round_up(rival.buffer.offset + rival.buffer.nbytes, align))
        placed.append(replace(span, buffer=replace(span.buffer, offset=offset)))
    total = max((round_up(p.buffer.offset + p.buffer.nbytes, align) for p in placed), default=0)
    return {p.buffer.id: p.buffer for p in placed}, total + OVERREAD_BYTES if placed else 0


def plan_weights(buffers: list[Buffer], align: int = ALIGN) -> tuple[list[Buffer], int]:
    """Constants one after another in the order given, each on its own cache lines; (buffers, total bytes)."""
    offset = 0
    placed = []
    for buffer in buffers:
        placed.append(replace(buffer, offset=offset))
        offset = round_up(offset + buffer.nbytes, align)
    return placed, offset


def round_up(n: int, align: int) -> int:
    """The next multiple of ``align``, or n where it is one."""
    return -(-n // align) * align
