"""What the owners of a phase touch, as boxes of a stored matrix."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from mononn_core.program import ir
from mononn_core.program.expr import Expr, Load
from mononn_core.program.ir import Axis, Operand, Phase
from mononn_core.program.scalar import Array, Frame, evaluate

Box = tuple[int, int, int, int]
Boxes = tuple[Box, ...]
"""(first row, end row, first column, end column)."""
Rows = tuple[int, int]
"""(first row, end row); none where the first is not before the end."""
NOBODY = -1


def owner_boxes(phase: Phase, operand: Operand, loop: Mapping[str, int] | None = None) -> tuple[Boxes, ...]:
    """Per owner, the distinct boxes of ``operand`` that its tasks touch, cut at the bounds; ``loop``: values of the
    variables of a loop that the phase is in."""
    assert phase.assign.owner is not None
    return _boxes(phase.domain, phase.assign.owner, phase.assign.owners, operand.box, tuple((loop or {}).items()))


@lru_cache(1 << 12)  # equal layers have equal boxes
def _boxes(
    domain: tuple[Axis, ...], owned: Expr, owners: int, box: ir.Box, loop: tuple[tuple[str, int], ...]
) -> tuple[Boxes, ...]:
    frame = Frame.of(dict(loop))
    for axis in domain:
        frame = frame.loop(axis.var, axis.extent)
    owner, *low = (frame.full(evaluate(e, frame, _no_loads)).reshape(-1) for e in (owned, *box.offset))
    high = [np.minimum(first + size, bound) for first, size, bound in zip(low, box.size, box.bound, strict=True)]
    found: list[dict[Box, None]] = [{} for _ in range(owners)]
    for mine, r0, r1, c0, c1 in zip(*(a.tolist() for a in (owner, low[0], high[0], low[1], high[1])), strict=True):
        found[mine][r0, r1, c0, c1] = None
    return tuple(map(tuple, found))


def owner_rows(phase: Phase, operand: Operand, loop: Mapping[str, int] | None = None) -> tuple[Rows, ...]:
    """Per owner, the fewest rows in a run that hold what its tasks touch, as :func:`owner_boxes`."""
    return tuple(hull([box[:2] for box in boxes]) for boxes in owner_boxes(phase, operand, loop))


def hull(runs: Sequence[Rows]) -> Rows:
    """The fewest rows in a run that hold all of ``runs``."""
    found = [rows for rows in runs if rows[0] < rows[1]]
    return (min(rows[0] for rows in found), max(rows[1] for rows in found)) if found else (0, 0)


def _no_loads(load: Load, index: tuple[Array, ...], mask: Array | None) -> Array:
    raise KeyError(f"{load} is not an index expression")


class Writers:
    """Who writes each element of a stored matrix, cut into a grid wherever something written begins or ends.

    Attributes:
        rows, columns: where the grid's lines are.
        owner: int16 [rows of the grid, its columns]; NOBODY where nothing is written, of several the last one.
        several: bool, likewise: whether what several owners write has the place in it, which may be in turns.
    """

    def __init__(self, shape: tuple[int, int], written: Sequence[tuple[int, Boxes]]) -> None:
        """``written``: owners, each with what it writes of a matrix of ``shape``."""
        boxes = [box for _, mine in written for box in mine]
        self.rows = np.unique(np.array([0, shape[0], *(end for box in boxes for end in box[:2])]).clip(0, shape[0]))
        self.columns = np.unique(np.array([0, shape[1], *(end for box in boxes for end in box[2:])]).clip(0, shape[1]))
        self._lines = (self.rows.tolist(), self.columns.tolist())
        self.owner = np.full((self.rows.size - 1, self.columns.size - 1), NOBODY, np.int16)
        self.several = np.zeros_like(self.owner, bool)
        for owner, mine in written:
            for box in mine:
                inside = self._inside(box)
                part = self.owner[inside]
                self.several[inside] |= (part != NOBODY) & (part != owner)
                self.owner[inside] = owner

    def _inside(self, box: Box) -> tuple[slice, slice]:
        """The part of the grid that a box reaches."""
        r0, r1, c0, c1 = box
        if r0 >= r1 or c0 >= c1:
            return slice(0), slice(0)
        rows, columns = self._lines
        return (
            slice(bisect_right(rows, r0) - 1, bisect_left(rows, r1)),
            slice(bisect_right(columns, c0) - 1, bisect_left(columns, c1)),
        )

    def only(self, owner: int, boxes: Boxes) -> bool:
        """Whether nobody but ``owner`` writes inside the boxes."""
        return not any(self._foreign(owner, self._inside(box)).any() for box in boxes)

    def _foreign(self, owner: int, inside: tuple[slice, slice]) -> Array:
        """Where others than ``owner`` may write."""
        part = self.owner[inside]
        return self.several[inside] | ((part != owner) & (part != NOBODY))

    def others(self, owner: int, box: Box) -> int:
        """Elements inside a box that others than ``owner`` write."""
        rows, columns = self._inside(box)
        foreign = self._foreign(owner, (rows, columns))
        if not foreign.any():
            return 0
        heights = np.diff(self.rows[rows.start : rows.stop + 1].clip(box[0], box[1]))
        widths = np.diff(self.columns[columns.start : columns.stop + 1].clip(box[2], box[3]))
        return int(heights @ foreign @ widths)

    def largest_share(self) -> float:
        """Share of the written elements that the busiest owner has."""
        area = np.outer(np.diff(self.rows), np.diff(self.columns))
        shares = [int(area[self.owner == owner].sum()) for owner in range(int(self.owner.max()) + 1)]
        return max(shares) / sum(shares)

    def same_in_all_rows(self) -> Array:
        """Let whoever writes in a column have all of it; int16: who that is, for each of the matrix's columns."""
        inside = self.owner.max(axis=0)
        self.owner[:] = inside
        return np.repeat(inside, np.diff(self.columns))
