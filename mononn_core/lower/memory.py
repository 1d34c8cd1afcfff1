"""Storage: layouts of stored tensors, and where in the arena they lie.

A tensor lives from the first phase that writes it to the last that reads it, and two that live at once share no bytes.
Nor do two that live in one interval between barriers, where workers are anywhere: but for bytes that in both of them
one owner alone touches, which does so in the order of the phases. Of the places that a tensor may have, it gets the one
where its bytes are mostly those that the same owners had before: a line that another core has written last is slow to
get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mononn_core.program.ir import Buffer

ALIGN = 64
OVERREAD_BYTES = 512
"""A product's last panel may read (never use) so much past the end of its right-hand side: the arena has it."""
Array = np.ndarray


@dataclass(frozen=True)
class Life:
    """A tensor's buffer, the first and the last of the ``phases`` that use it, and of the ``intervals``. ``parts``: the
    byte from which on each owner writes it, up to the next one's; () where owners do not have such runs. ``private``:
    nobody reads what another one has written."""

    buffer: Buffer
    phases: tuple[int, int]
    intervals: tuple[int, int]
    parts: tuple[int, ...] = ()
    private: bool = False


class _Arena:
    """What is placed already. Arrays have a row a tensor, or where ``spots`` choose them, a row each place that one or
    more tensors have, all owners' parts in the same bytes."""

    def __init__(self, lives: Sequence[Life], owners: int) -> None:
        self.size, self.owners = 0, owners
        self.phases = np.array([life.phases for life in lives])
        self.intervals = np.array([life.intervals for life in lives])
        self.private = np.array([life.private for life in lives])
        self.nbytes = np.array([life.buffer.nbytes for life in lives])
        self.dealt = np.array([len(life.parts) == owners > 0 for life in lives])
        self.edges = np.array([self._edges(life) for life in lives])
        self.placed = np.zeros(0, int)
        self.offset = np.zeros(len(lives), int)
        self._spots: dict[tuple[int, ...], list[int]] = {}
        """A place -> its first tensor, and how many have it."""

    def _edges(self, life: Life) -> list[int]:
        """Where owners' parts begin, and where the last one ends."""
        parts = life.parts if len(life.parts) == self.owners else (0,) * self.owners
        return [*parts, life.buffer.nbytes]

    def place(self, one: int, align: int) -> int:
        """Where a tensor is to lie."""
        at, spots = self.placed, np.array([*self._spots.values()], int).reshape(-1, 2)
        near = (self.intervals[at, 0] <= self.intervals[one, 1]) & (self.intervals[one, 0] <= self.intervals[at, 1])
        at, (spots, count) = at[near], spots.T
        overlap = (self.phases[at, 0] <= self.phases[one, 1]) & (self.phases[one, 0] <= self.phases[at, 1])
        shared = self.private[at] & self.private[one] & ~overlap
        dealt = spots[self.dealt[spots] & self.dealt[one]]
        # where an owner's part begins where its did
        same = self.offset[dealt] + self.edges[dealt, 1:-1].T - self.edges[one, 1:-1, None]
        offsets = np.concatenate([[0], self.offset[at] + self.nbytes[at], same.ravel()])
        offsets = np.unique(-(-offsets[offsets >= 0] // align) * align)
        common, foreign = self._meet(one, offsets, at)
        offsets = offsets[~((common > 0) & ~(shared & (foreign == 0))).any(axis=1)]
        common, foreign = self._meet(one, offsets, spots)
        lost = self.nbytes[one] * (foreign @ count) / (common @ count).clip(1)
        grown = (offsets + self.nbytes[one] - self.size).clip(0)
        best = int(offsets[np.argmin(grown + lost)])
        self.offset[one], self.placed = best, np.append(self.placed, one)
        self.size = max(self.size, best + -(-int(self.nbytes[one]) // align) * align)
        place = (best, *self.edges[one].tolist(), int(self.dealt[one]))
        self._spots.setdefault(place, [one, 0])[1] += 1
        return best

    def _meet(self, one: int, offsets: Array, others: Array) -> tuple[Array, Array]:
        """Bytes that a tensor at ``offsets`` has in common with ``others``, and those of them that have another owner
        there."""
        start, end = self.offset[others], self.offset[others] + self.nbytes[others]
        common = np.minimum(end, offsets[:, None] + self.nbytes[one]) - np.maximum(start, offsets[:, None])
        common = common.clip(0)
        if not self.dealt[one]:
            return common, np.zeros_like(common)
        own, theirs, mine = np.zeros_like(common), self.edges[others] + start[:, None], self.edges[one]
        for first in range(self.owners):
            last = np.minimum(theirs[:, first + 1], offsets[:, None] + mine[first + 1])
            own += (last - np.maximum(theirs[:, first], offsets[:, None] + mine[first])).clip(0)
        return common, (common - own) * self.dealt[others]


def plan_arena(lives: Sequence[Life], align: int = ALIGN) -> tuple[list[Buffer], int]:
    """(buffers with offsets, arena bytes): largest first, each where it makes the arena grow, and lines change their
    owners, least."""
    if not lives:
        return [], 0
    arena = _Arena(lives, max(len(life.parts) for life in lives))
    order = sorted(range(len(lives)), key=lambda i: (-lives[i].buffer.nbytes, lives[i].phases[0], lives[i].buffer.id))
    offsets = {i: arena.place(i, align) for i in order}
    return [replace(life.buffer, offset=offsets[i]) for i, life in enumerate(lives)], arena.size + OVERREAD_BYTES


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
