"""The constant border around an image that a group stores the inside of."""

from __future__ import annotations

from math import ceil

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


def build_border(
    builder: TaskBuilder, stage: FusionGroup, partition: Partition, inside: Phase, apart: bool = False
) -> Phase | None:
    """A phase that fills the border around what phase ``inside`` stores; None where there is none. It is dealt by
    columns, as ``inside`` is where that is dealt by columns too, or by images, as that is; ``apart``: each image has
    tasks of its own."""
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
    share, x0 = (channels, Const(0)) if mine else _columns(partition, None if part else inside, channels)
    extents = {OWNER: owners, BATCH: each} if apart or mine else {OWNER: owners}
    binder, image = builder.binder(extents), axis(BATCH, each) if BATCH in extents else Var(BATCH)
    image = Var(OWNER) * each + image if mine and owners > 1 else image
    filler = binder.stored(stage.stored, const(value, builder.types[stage.stored].dtype))
    rows, total = height * width if mine else images * height * width, (images * height * width, channels)
    first = simplify(image * rows, binder.outer) if mine else Const(0)
    binder.add("out", stage.stored, Box((first, x0), (rows, share), total), "write")
    top, left = before[1] * width + before[2], before[2] + after[2]
    row = width - left
    middle = height - before[1] - after[1] - 1
    bottom = after[2] + after[1] * width
    bound = simplify(Const(channels) + x0 * -1, binder.outer) if not mine and share * owners > channels else None

    def run(first: Expr, count: int, tag: str) -> tuple[Statement, ...]:
        """``count`` pixels from ``first`` on, in every image."""
        if count == 0:
            return ()
        x = axis("x" + tag, share)
        index = (simplify(image * (height * width) + first + axis("z" + tag, count), {}), x0 + x)
        store: Statement = Store("out", index, filler)
        pixel = For("x" + tag, share, (store,), "vector", bound) if share > 1 or bound is not None else store
        return (For("z" + tag, count, (pixel,)) if count > 1 else pixel,)

    between = run(Const(top + row) + Var("h") * width, left, "m")
    body = (
        *run(Const(0), top, "t"),
        *((For("h", middle, between),) if between and middle > 0 else ()),
        *run(Const(top + (middle + 1) * row + middle * left), bottom, "e"),
    )
    task = Task(NEST, tuple(binder.operands), body=body if BATCH in extents else (For(BATCH, images, body),))
    return builder.phase(f"{inside.id}_border", stage, partition, extents, task, 0)


def _columns(partition: Partition, inside: Phase | None, channels: int) -> tuple[int, Expr]:
    """An owner's share of channels, and its first; as ``inside`` has them, if they are all its."""
    if partition.kind == "single":
        return channels, Const(0)
    share = ceil(channels / partition.owners)
    if partition.kind == "columns" and inside is not None:
        out = next(o for o in inside.task.operands if o.access == "write")
        share = max(end for _, _, _, end in owner_boxes(inside, out)[0])
    return share, Var(OWNER) * share if partition.owners > 1 else Const(0)
