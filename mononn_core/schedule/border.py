"""The constant border around an image that a group stores the inside of."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Protocol

from mononn_core.ops.common import integers
from mononn_core.program.expr import Const, Expr, Var, const
from mononn_core.program.ir import Box, For, Phase, Statement, Store, Task
from mononn_core.program.simplify import simplify
from mononn_core.program.template import NEST
from mononn_core.schedule.binder import BATCH, OWNER, TaskBuilder
from mononn_core.schedule.boxes import owner_boxes
from mononn_core.schedule.operands import axis
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.stages import FusionGroup, border_of

Sides = tuple[int, ...]
"""Of each axis of an image [N, H, W, C], the pixels in front of it, or behind."""


class Run(Protocol):
    """Statements that fill ``count`` pixels from ``first`` on, or to ``end``, in every image."""

    def __call__(self, first: Expr, count: int, tag: str, end: Expr | None = None) -> tuple[Statement, ...]: ...


def build_border(
    builder: TaskBuilder, stage: FusionGroup, partition: Partition, inside: Phase, apart: bool = False
) -> Phase | None:
    """A phase that fills the border around what phase ``inside`` stores; None where there is none. It is dealt as
    ``inside`` is, by rows, by columns or by images, or by columns; ``apart``: each image has tasks of its own."""
    border = border_of(stage)
    if border is None:
        return None
    before, after = integers(border.attrs, "before"), integers(border.attrs, "after")
    images, height, width, channels = builder.types[stage.stored].shape
    value = border.attrs["value"]
    assert isinstance(value, (int, float))
    owners = partition.owners if partition.kind != "single" else 1
    mine = partition.kind in ("batch", "single") and images > 1
    each = images // owners if mine else images
    part = stage.own != stage.stored
    dealt = _rows(partition, inside, width) if not apart else 0
    share, x0 = (channels, Const(0)) if mine or dealt else _columns(partition, None if part else inside, channels)
    extents = {OWNER: owners, BATCH: each} if apart or mine else {OWNER: owners}
    binder, image = builder.binder(extents), axis(BATCH, each) if BATCH in extents else Var(BATCH)
    image = Var(OWNER) * each + image if mine and owners > 1 else image
    filler = binder.stored(stage.stored, const(value, builder.types[stage.stored].dtype))
    rows, total = height * width if mine else images * height * width, (images * height * width, channels)
    first = simplify(image * rows, binder.outer) if mine else Const(0)
    if dealt and images == 1:
        first, rows = Var(OWNER) * (dealt * width), (dealt + before[1] + after[1]) * width
    binder.add("out", stage.stored, Box((first, x0), (rows, share), total), "write")
    cut = not (mine or dealt) and share * owners > channels
    bound = simplify(Const(channels) + x0 * -1, binder.outer) if cut else None

    def run(first: Expr, count: int, tag: str, end: Expr | None = None) -> tuple[Statement, ...]:
        if count == 0:
            return ()
        x = axis("x" + tag, share)
        z = axis("z" + tag, count) if end is None else Var("z" + tag)
        index = (simplify(image * (height * width) + first + z, {}), x0 + x)
        store: Statement = Store("out", index, filler)
        pixel = For("x" + tag, share, (store,), "vector", bound) if share > 1 or bound is not None else store
        return (For("z" + tag, count, (pixel,), bound=end) if count > 1 or end is not None else pixel,)

    size = (height, width)
    body = _of_rows(run, before, after, size, dealt, owners) if dealt else _of_image(run, before, after, size)
    task = Task(NEST, tuple(binder.operands), body=body if BATCH in extents else (For(BATCH, images, body),))
    return builder.phase(f"{inside.id}_border", stage, partition, extents, task, 0)


def _of_image(run: Run, before: Sides, after: Sides, size: tuple[int, int]) -> tuple[Statement, ...]:
    """The border of an image: a run above it, one between any two of its rows, one below."""
    height, width = size
    top, left, bottom = before[1] * width + before[2], before[2] + after[2], after[2] + after[1] * width
    row, middle = width - left, height - before[1] - after[1] - 1
    between = run(Const(top + row) + Var("h") * width, left, "m")
    return (
        *run(Const(0), top, "t"),
        *((For("h", middle, between),) if between and middle > 0 else ()),
        *run(Const(top + (middle + 1) * row + middle * left), bottom, "e"),
    )


def _of_rows(
    run: Run, before: Sides, after: Sides, size: tuple[int, int], dealt: int, owners: int
) -> tuple[Statement, ...]:
    """What an owner has who stores ``dealt`` rows of the inside: the ends of these, for the first owner what is above
    them, for the last what is below."""
    (height, width), owner = size, Var(OWNER)
    row = (owner * dealt + Var("h") + before[1]) * width
    sides = (*run(row, before[2], "l"), *run(row + (width - after[2]), after[2], "r"))
    top, bottom = before[1] * width, after[1] * width
    return (
        *run(Const(0), top, "t", Const(top) + owner * -top),
        *((For("h", dealt, sides, bound=Const(height - before[1] - after[1]) + owner * -dealt),) if sides else ()),
        *run(Const((height - after[1]) * width), bottom, "e", (owner + (2 - owners)) * bottom),
    )


def _rows(partition: Partition, inside: Phase, width: int) -> int:
    """Image rows that each owner stores in ``inside``, where it is dealt by rows and all but the last have as many."""
    if partition.kind != "rows" or partition.owners == 1:
        return 0
    out = next(o for o in inside.task.operands if o.access == "write")
    starts = [min((first for first, _, _, _ in boxes), default=0) for boxes in owner_boxes(inside, out)]
    steps = {divmod(b - a, width) for a, b in pairwise(starts)}
    rows, rest = steps.pop()
    return rows if not steps and rest == 0 else 0


def _columns(partition: Partition, inside: Phase | None, channels: int) -> tuple[int, Expr]:
    """An owner's share of channels, and its first; as ``inside`` has them, if they are all its."""
    if partition.kind == "single":
        return channels, Const(0)
    share = ceil(channels / partition.owners)
    if partition.kind == "columns" and inside is not None:
        out = next(o for o in inside.task.operands if o.access == "write")
        share = max(end for _, _, _, end in owner_boxes(inside, out)[0])
    return share, Var(OWNER) * share if partition.owners > 1 else Const(0)
