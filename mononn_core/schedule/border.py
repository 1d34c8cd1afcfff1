"""The constant border around an image that a group stores the inside of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Protocol

from mononn_core.graph import Node
from mononn_core.ops.common import integers
from mononn_core.program.expr import Const, Expr, Load, Var, const, substitute
from mononn_core.program.ir import Box, For, Phase, Statement, Store, Task
from mononn_core.program.simplify import simplify
from mononn_core.program.template import NEST
from mononn_core.schedule.binder import BATCH, OWNER, TaskBuilder, unit_axes
from mononn_core.schedule.boxes import owner_boxes, owner_rows
from mononn_core.schedule.operands import axis
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.stages import FusionGroup, border_of

Sides = tuple[int, ...]
"""Of each axis of an image [N, H, W, C], the pixels in front of it, or behind."""


class Run(Protocol):
    """Statements that fill ``count`` pixels from ``first`` on, or to ``end``, in every image."""

    def __call__(self, first: Expr, count: int, tag: str, end: Expr | None = None) -> tuple[Statement, ...]: ...


@dataclass(frozen=True)
class Strip:
    """What a task has of one image's rows inside its border: ``rows`` from ``first`` on; of those with the border it
    touches ``reach`` from ``top`` on. Which of its ``strips`` that is, the ``domain`` of such tasks, and which image:
    every one where none is named."""

    first: Expr
    rows: int
    top: Expr
    reach: int
    number: Expr
    strips: int
    domain: Mapping[str, int]
    image: Expr | None


def build_border(
    builder: TaskBuilder,
    stage: FusionGroup,
    partition: Partition,
    inside: Phase,
    apart: bool = False,
    strip: Strip | None = None,
) -> Phase | None:
    """A phase that fills the border around what phase ``inside`` stores, dealt as that is or by columns; None where
    there is none. ``strip``: what its tasks have of an image; ``apart``: each image has tasks of its own."""
    border = border_of(stage)
    if border is None:
        return None
    before, after = integers(border.attrs, "before"), integers(border.attrs, "after")
    images, height, width, channels = builder.types[stage.stored].shape
    owners = partition.owners if partition.kind != "single" else 1
    mine = partition.kind in ("batch", "single") and images > 1
    each = images // owners if mine else images
    strip = strip or (None if apart else _strip(partition, inside, width, before[1] + after[1], images))
    share, x0 = (channels, Const(0)) if mine or strip else _columns(partition, stage, inside, channels)
    extents = strip.domain if strip else {OWNER: owners, BATCH: each} if apart or mine else {OWNER: owners}
    binder, image = builder.binder(extents), axis(BATCH, each) if BATCH in extents else Var(BATCH)
    image = Var(OWNER) * each + image if mine and owners > 1 else image
    rows, total = height * width if mine else images * height * width, (images * height * width, channels)
    first = simplify(image * rows, binder.outer) if mine else Const(0)
    if strip is not None and strip.image is not None:
        image, rows = binder.fix(strip.image, unit_axes(extents)), strip.reach * width
        first = binder.fix(image * (height * width) + strip.top * width, unit_axes(extents))
    binder.add("out", stage.stored, Box((first, x0), (rows, share), total), "write")
    cut = not (mine or strip) and share * owners > channels
    bound = simplify(Const(channels) + x0 * -1, binder.outer) if cut else None

    def run(first: Expr, count: int, tag: str, end: Expr | None = None) -> tuple[Statement, ...]:
        if count == 0:
            return ()
        x = axis("x" + tag, share)
        z = axis("z" + tag, count) if end is None else Var("z" + tag)
        index = (simplify(image * (height * width) + first + z, {}), x0 + x)
        filler = binder.bind(_value(border, builder, x0 + x), {"x" + tag: (0, share - 1)})
        store: Statement = Store("out", index, binder.stored(stage.stored, filler))
        pixel = For("x" + tag, share, (store,), "vector", bound) if share > 1 or bound is not None else store
        return (For("z" + tag, count, (pixel,), bound=end) if count > 1 or end is not None else pixel,)

    sides = before, after, (height, width)
    body = _of_strip(run, *sides, strip) if strip else _of_image(run, *sides)
    body = (For(BATCH, images, body),) if image == Var(BATCH) and BATCH not in extents else body
    task = Task(NEST, tuple(binder.operands), body=body)
    return builder.phase(f"{inside.id}_border", stage, partition, extents, task, 0)


def _value(border: Node, builder: TaskBuilder, channel: Expr) -> Expr:
    """What a pad or border has around the inside of a channel."""
    if border.op == "border":
        return Load(border.inputs[1], (Const(0), channel), builder.types[border.output].dtype)
    value = border.attrs["value"]
    assert isinstance(value, (int, float))
    return const(value, builder.types[border.output].dtype)


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


def _of_strip(run: Run, before: Sides, after: Sides, size: tuple[int, int], strip: Strip) -> tuple[Statement, ...]:
    """The ends of a strip's rows; for the first strip what is above them, for the last what is below."""
    (height, width), unit = size, unit_axes(strip.domain)
    first, number = (simplify(substitute(e, unit), {}) for e in (strip.first, strip.number))
    row = (first + Var("h") + before[1]) * width
    sides = (*run(row, before[2], "l"), *run(row + (width - after[2]), after[2], "r"))
    top, bottom = before[1] * width, after[1] * width
    return (
        *run(Const(0), top, "t", Const(top) + number * -top),
        *((For("h", strip.rows, sides, bound=Const(height - before[1] - after[1]) + first * -1),) if sides else ()),
        *run(Const((height - after[1]) * width), bottom, "e", (number + (2 - strip.strips)) * bottom),
    )


def _strip(partition: Partition, inside: Phase, width: int, outside: int, images: int) -> Strip | None:
    """An owner's rows, of ``images`` with ``outside`` rows above and below, where ``inside`` is dealt by rows, all
    owners but the last have as many, and that one has some."""
    if partition.kind != "rows" or partition.owners == 1:
        return None
    out = next(o for o in inside.task.operands if o.access == "write")
    touched = owner_rows(inside, out)
    steps = {divmod(b - a, width) for (a, _), (b, _) in pairwise(touched)}
    rows, rest = steps.pop()
    if steps or rest or rows < 1 or touched[-1][0] == touched[-1][1]:
        return None
    first, owners = Var(OWNER) * rows, partition.owners
    image = Const(0) if images == 1 else None
    return Strip(first, rows, first, rows + outside, Var(OWNER), owners, {OWNER: owners}, image)


def _columns(partition: Partition, stage: FusionGroup, inside: Phase, channels: int) -> tuple[int, Expr]:
    """An owner's share of channels, and its first; as ``inside`` has them, if they are all its."""
    if partition.kind == "single":
        return channels, Const(0)
    share = ceil(channels / partition.owners)
    if partition.kind == "columns" and stage.own == stage.stored:
        out = next(o for o in inside.task.operands if o.access == "write")
        share = max(end for _, _, _, end in owner_boxes(inside, out)[0])
    return share, Var(OWNER) * share if partition.owners > 1 else Const(0)
