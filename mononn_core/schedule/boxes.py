"""What the owners of a phase touch, as boxes of a stored matrix."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product as cartesian

from mononn_core.program.expr import evaluate_index
from mononn_core.program.ir import Operand, Phase

Boxes = tuple[tuple[int, int, int, int], ...]
"""(first row, end row, first column, end column)."""


def owner_boxes(phase: Phase, operand: Operand, loop: Mapping[str, int] | None = None) -> tuple[Boxes, ...]:
    """Per owner, the distinct boxes of ``operand`` that its tasks touch, cut at the bounds; ``loop``: values of the
    variables of a loop that the phase is in."""
    owners: list[dict[tuple[int, int, int, int], None]] = [{} for _ in range(phase.assign.owners)]
    names = [a.var for a in phase.domain]
    assert phase.assign.owner is not None
    for point in cartesian(*(range(a.extent) for a in phase.domain)):
        values = {**(loop or {}), **dict(zip(names, point, strict=True))}
        owner = evaluate_index(phase.assign.owner, values)
        corners: list[int] = []
        for offset, size, bound in zip(operand.box.offset, operand.box.size, operand.box.bound, strict=True):
            first = evaluate_index(offset, values)
            corners += [first, min(first + size, bound)]
        owners[owner][corners[0], corners[1], corners[2], corners[3]] = None
    return tuple(tuple(o) for o in owners)
