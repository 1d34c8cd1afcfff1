"""Images stored in bands, one an owner: each computes all the pixels that its own windows reach, where groups run in
strips of one strip of its rows after the other.

A convolution dealt by image rows reads some rows that its neighbours own (the halo). Where a map produces its image,
each owner computes those rows as well, into a band of the buffer that is its own, and no barrier stands between the
two: overlapped tiling (Krishnamoorthy et al., PLDI 2007). So does a convolution in strips (``decide/strips.py``).
"""

from __future__ import annotations

from mononn_core.ops.common import integers
from mononn_core.program.expr import Const, Expr, Var, minimum, op, substitute
from mononn_core.program.ir import Operand, Phase
from mononn_core.program.simplify import simplify
from mononn_core.program.template import get, operand
from mononn_core.schedule.binder import OWNER, STRIP, TaskBuilder
from mononn_core.schedule.border import Strip
from mononn_core.schedule.boxes import owner_boxes
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.places import Place, moved
from mononn_core.schedule.schedule import Bands, GroupSchedule
from mononn_core.schedule.stages import FusionGroup, border_of


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


def read_bands(phase: Phase, decided: GroupSchedule, builder: TaskBuilder) -> Phase:
    """``phase``, a convolution over an image that is stored whole, reading it in bands."""
    bands = decided.partition.bands
    assert bands is not None
    image = str(_image(phase).buffer)
    last = _spans(phase)[-1][1] + (phase.assign.owners - 1) * (bands.size - bands.step) - bands.first
    rows = last if decided.strips == 1 else bands.size * phase.assign.owners
    return moved(phase, {image: Place(bands.buffer, _shift(phase, image, decided, builder), rows)})


def store_bands(phase: Phase, decided: GroupSchedule, builder: TaskBuilder) -> Phase:
    """``phase``, which stores an image whole, storing it in bands."""
    bands = decided.partition.bands
    assert bands is not None
    shift = _shift(phase, decided.group, decided, builder)
    return moved(phase, {decided.group: Place(bands.buffer, shift, bands.size * phase.assign.owners)})


def _shift(phase: Phase, tensor: str, decided: GroupSchedule, builder: TaskBuilder) -> Expr:
    """Rows from where a pixel lies in ``tensor``, images that are stored whole, to where it lies in an owner's band."""
    bands, there = decided.partition.bands, {axis.var for axis in phase.domain}
    assert bands is not None
    images, height, width, _ = builder.types[tensor].shape
    image, number, domain = _numbers(decided, images)
    start = number * bands.step + bands.first
    if decided.strips > 1:
        start = minimum(start, Const(height * width - bands.size))
    shift = Var(OWNER) * bands.size + image * -(height * width) + start * -1
    return simplify(
        substitute(shift, {v: Const(0) for v in domain if v not in there}), {v: (0, n - 1) for v, n in domain.items()}
    )


def _numbers(decided: GroupSchedule, images: int) -> tuple[Expr, Expr, dict[str, int]]:
    """The image, and the strip of its rows, that a task is of, and the domain of such tasks: the owners have strips of
    the only image, or all of those of their images."""
    partition, strips = decided.partition, decided.strips
    owners = partition.owners if partition.kind != "single" else 1
    if images == 1:
        return Const(0), Var(OWNER) * strips + Var(STRIP), {OWNER: owners, STRIP: strips}
    each = images // owners
    return Var(OWNER) * each + Var(STRIP) // strips, Var(STRIP) % strips, {OWNER: owners, STRIP: each * strips}


def strip_of(builder: TaskBuilder, stage: FusionGroup, decided: GroupSchedule) -> Strip:
    """The image rows that a task of a convolution in strips computes: for a band all that lie in it, and at an edge of
    the image as many, though the band has rows of the border as well."""
    tile, bands, border = decided.tile, decided.partition.bands, border_of(stage)
    assert tile is not None and stage.root is not None
    images = builder.types[stage.root.output].shape[0]
    image, number, domain = _numbers(decided, images)
    strips, rows = decided.strips * (domain[OWNER] if images == 1 else 1), tile.rows * tile.blocks
    above, below = (integers(border.attrs, k)[1] if border is not None else 0 for k in ("before", "after"))
    if not decided.stores_bands:
        row = number * rows
        return Strip(row, rows, row, rows + above + below, number, strips, domain, image)
    assert bands is not None
    _, height, pitch, _ = builder.types[stage.stored].shape
    start, reach = number * (bands.step // pitch) + bands.first // pitch, bands.size // pitch
    first = minimum(op("max", start + -above, Const(0)), Const(height - above - below - rows))
    top, ranges = minimum(start, Const(height - reach)), {v: (0, n - 1) for v, n in domain.items()}
    return Strip(simplify(first, ranges), rows, simplify(top, ranges), reach, number, strips, domain, image)


def _image(phase: Phase) -> Operand:
    return operand(phase.task, "a")


def _spans(phase: Phase) -> list[tuple[int, int]]:
    """Of each owner, the first pixel of the image that it reads and the one after the last."""
    boxes = owner_boxes(phase, _image(phase))
    return [(min(r0 for r0, *_ in mine), max(r1 for _, r1, *_ in mine)) for mine in boxes]


__all__ = ["bands_of", "read_bands", "store_bands", "strip_of"]
