"""Images stored in bands, one an owner: each computes all the pixels that its own windows reach.

A convolution dealt by image rows reads some rows that its neighbours own (the halo). Where a map produces its image,
each owner computes those rows as well, into a band of the buffer that is its own, and no barrier stands between the
two: overlapped tiling (Krishnamoorthy et al., PLDI 2007).
"""

from __future__ import annotations

from dataclasses import replace

from mononn_core.program.expr import Var
from mononn_core.program.ir import Box, Operand, Phase
from mononn_core.program.simplify import simplify
from mononn_core.program.template import get, operand
from mononn_core.schedule.binder import OWNER
from mononn_core.schedule.boxes import owner_boxes
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import Bands


def bands_of(phase: Phase, tensor: str, builder: PhaseBuilder) -> Bands | None:
    """Bands of ``tensor``, whole image rows, that hold what the owners of ``phase`` read of it; None where it does not
    read the tensor in place, the last owner has no rows, or no two read the same."""
    windows = get(phase.task.template).windows(phase.task)
    if windows is None or _image(phase).buffer != tensor:
        return None
    spans, owners = _spans(phase), phase.assign.owners
    pitch = builder.types[tensor].shape[2]
    if owners < 2 or not windows.rows_in(spans[-1][1] - spans[-1][0]):
        return None  # where the last owner has rows, all before it have all of theirs
    first, step = spans[0][0] // pitch * pitch, spans[1][0] - spans[0][0]
    size = max(-(-(end - first - o * step) // pitch) * pitch for o, (_, end) in enumerate(spans))
    return Bands(f"{tensor}@bands", first, step, size) if size > step else None


def read_bands(phase: Phase, bands: Bands) -> Phase:
    """``phase``, a convolution over an image that is stored whole, reading it in ``bands``."""
    a, owners = _image(phase), phase.assign.owners
    move = Var(OWNER) * (bands.size - bands.step) + -bands.first
    offset = simplify(a.box.offset[0] + move, {x.var: (0, x.extent - 1) for x in phase.domain})
    last = _spans(phase)[-1][1] + (owners - 1) * (bands.size - bands.step) - bands.first
    moved = replace(a, buffer=bands.buffer, box=Box((offset, a.box.offset[1]), a.box.size, (last, a.box.bound[1])))
    operands = tuple(moved if o is a else o for o in phase.task.operands)
    return replace(phase, task=replace(phase.task, operands=operands))


def _image(phase: Phase) -> Operand:
    return operand(phase.task, "a")


def _spans(phase: Phase) -> list[tuple[int, int]]:
    """Of each owner, the first pixel of the image that it reads and the one after the last."""
    boxes = owner_boxes(phase, _image(phase))
    return [(min(r0 for r0, *_ in mine), max(r1 for _, r1, *_ in mine)) for mine in boxes]


__all__ = ["bands_of", "read_bands"]
