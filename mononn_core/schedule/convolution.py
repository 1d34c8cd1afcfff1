"""Convolutions become phases over image rows and panels of output channels; padded results get their border filled.

The input is read where it lies: pixels are rows of its stored matrix, a pixel's channels columns. A grouped convolution
is cut into panels of output channels, each of which reads the few input channels of its groups; a panel that spans
several groups has zeros in its weights where a group does not read a channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from mononn_core.graph import Node, TensorType
from mononn_core.machine import Machine
from mononn_core.ops.common import integer, integers
from mononn_core.program import winograd
from mononn_core.program.expr import Const, Expr, Var, const, minimum
from mononn_core.program.ir import Box, For, Phase, Statement, Store, Task
from mononn_core.program.simplify import simplify
from mononn_core.program.windows import Windows
from mononn_core.schedule.decisions import image_rows, tile_rows, winograd_pays
from mononn_core.schedule.fuse import FusionGroup, border_of
from mononn_core.schedule.operands import ImageView, axis
from mononn_core.schedule.ownership import owner_boxes
from mononn_core.schedule.phases import OperandBinder, PhaseBuilder, panel_buffer, unit_axes
from mononn_core.schedule.schedule import GroupSchedule, Partition, Tile
from mononn_core.schedule.views import matrix_shape


@dataclass(frozen=True)
class Conv:
    """A ``conv`` node's shapes, and the template and panel that compute it. ``lanewise``: channels of a group where
    template "depthwise" may, else 0.
    """

    x: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    group: int
    lanewise: int
    template: str = ""
    panel: int = 0

    @staticmethod
    def forms(node: Node, types: Mapping[str, TensorType], lanes: int) -> tuple[Conv, ...]:
        """Every template and panel that can compute the node, the preferred first: Winograd's where it pays, two
        vectors of output channels, or one where there are, or a group has, no two."""
        x, w, out = types[node.inputs[0]].shape, types[node.inputs[1]].shape, types[node.output].shape
        group, channels = integer(node.attrs, "group"), out[3]
        mine, width = w[2], channels // group
        lanewise = mine if group > 1 and mine == width and (mine == 1 or (mine < lanes and lanes % mine == 0)) else 0
        (kh, kw), (sh, sw), (dh, dw) = w[:2], integers(node.attrs, "strides"), integers(node.attrs, "dilations")
        conv = Conv(x, out, (kh, kw), (sh, sw), (dh, dw), group, lanewise)
        if lanewise:
            return (replace(conv, template="depthwise", panel=ceil(channels / lanes) * lanes),)
        two = channels > lanes if group == 1 else width % (2 * lanes) == 0
        panels = (2 * lanes, lanes) if two else (lanes,)
        templates = ["conv"]
        if group == 1 and winograd.applies(Windows((kh, kw), (sh, sw), (dh, dw), x[2], out[2], out[1])):
            templates.insert(0 if winograd_pays(x[3], out, lanes) else 1, "winograd")
        return tuple(replace(conv, template=t, panel=panel) for t in templates for panel in panels)

    @property
    def depthwise(self) -> bool:
        return self.template == "depthwise"

    @property
    def reads(self) -> int:
        """Input channels that a panel reads: all of them without groups."""
        channels, width, mine = self.out[3], self.out[3] // self.group, self.x[3] // self.group
        if self.depthwise:
            return min(self.panel, channels)
        if self.group == 1:
            return self.x[3]
        ends = ((n, min(n + self.panel, channels) - 1) for n in range(0, channels, self.panel))
        return max((last // width - first // width + 1) * mine for first, last in ends)

    def dealt(self, partition: Partition) -> Conv:
        """The form under ``partition``: template "depthwise" takes a panel of all the channels that an owner has."""
        cut = self.depthwise and partition.kind == "columns"
        return replace(self, panel=self.panel // partition.owners) if cut else self

    def tile(self, partition: Partition, pitch: int, machine: Machine) -> Tile:
        """The block of image rows whose pixels stay in the second-level cache while all panels pass over them; the
        image lies with ``pitch`` pixels from row to row."""
        n, _, width, _ = self.out
        share = self.share(partition)
        rows, blocks = image_rows(share, self.reads * 4, self.strides[0] * pitch, n > 1, machine)
        if self.template == "winograd":
            pair_bytes = winograd.PRODUCTS * ceil(width / 2) * self.reads * 4
            rows, blocks = tile_rows(share, pair_bytes, n > 1, machine)
        return Tile(rows, blocks, self.dealt(partition).panel)

    def share(self, partition: Partition) -> int:
        """Image rows of an owner."""
        return ceil(self.out[1] / partition.owners) if partition.kind == "rows" else self.out[1]

    @property
    def spans_groups(self) -> bool:
        """Whether some panel has results of several groups."""
        return self.group > 1 and not self.depthwise and self.reads > self.x[3] // self.group

    @property
    def flops(self) -> int:
        """Of the direct algorithm."""
        n, height, width, channels = self.out
        return 2 * n * height * width * channels * self.kernel[0] * self.kernel[1] * self.x[3] // self.group

    def first_channel(self, column: Expr) -> Expr:
        """The first input channel that the panel starting at output channel ``column`` reads."""
        if self.depthwise:
            return column
        if self.group == 1:
            return Const(0)
        start = column // (self.out[3] // self.group) * (self.x[3] // self.group)
        return minimum(start, Const(self.x[3] - self.reads))

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Of the weights as a template reads them."""
        taps = winograd.PRODUCTS if self.template == "winograd" else self.kernel[0] * self.kernel[1]
        return taps * (self.lanewise if self.depthwise else self.reads), self.out[3]

    @property
    def tag(self) -> str:
        """Tells the packed weights from those that other forms of a convolution read."""
        return "@winograd" if self.template == "winograd" else "" if self.group == 1 or self.depthwise else "@groups"

    def matrix(self, w: np.ndarray) -> np.ndarray:
        """The weights [KH, KW, C / group, M] as the matrix a template reads: [taps * lanewise, M], transformed for
        Winograd's, else [taps * reads, M] with zeros where a channel's group does not read."""
        if self.template == "winograd":
            return winograd.transformed_weights(w)
        taps, mine, channels = self.kernel[0] * self.kernel[1], w.shape[2], w.shape[3]
        if self.depthwise or self.group == 1:
            return w.reshape(taps * mine, channels)
        n = np.arange(channels)
        panel_start = n // self.panel * self.panel
        width = channels // self.group
        first = np.minimum(panel_start // width * mine, self.x[3] - self.reads)
        rows = n // width * mine - first
        wide = np.zeros((taps, self.reads, channels), w.dtype)
        for c in range(mine):
            wide[:, rows + c, n] = w.reshape(taps, mine, channels)[:, c, :]
        return wide.reshape(taps * self.reads, channels)


def build_conv(builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
    """The phase of a convolution: image rows or panels dealt to owners, a task is a block of image rows of a panel."""
    node, partition, tile = stage.root, decided.partition, decided.tile
    assert node is not None and tile is not None
    conv, view = conv_of(builder, stage, decided), image_of(builder, stage)
    n, height, width, channels = conv.out
    owners = partition.owners if partition.kind != "single" else 1
    batches, panels = n, ceil(channels / conv.panel)
    rows, blocks = tile.rows, tile.blocks
    o, r, q = (Var(v) for v in "orp")
    image: Expr = Var("b")
    y0, n0 = r * rows, q * conv.panel
    if partition.kind == "rows":
        y0 = o * (rows * blocks) + y0
    elif partition.kind == "batch":
        batches = n // owners
        image = o * batches + image
    elif partition.kind == "columns":
        panels = ceil(ceil(channels / conv.panel) / owners)
        n0 = o * (panels * conv.panel) + n0
    extents = {"o": owners, "b": batches, "r": blocks, "p": panels}
    binder = builder.binder(extents)
    image, y0, n0 = (binder.fix(e, unit_axes(extents)) for e in (image, y0, n0))
    windows = Windows(conv.kernel, conv.strides, conv.dilations, view.pitch, width, rows)
    _operands(builder, node, conv, view, windows, binder, (image, y0, n0))
    inner = {"y": (0, rows - 1), "x": (0, width - 1), "n": (0, min(conv.panel, channels) - 1)}
    y = binder.position("row", y0 + axis("y", rows), height)
    column = binder.position("column", n0 + axis("n", min(conv.panel, channels)), channels)
    result = builder.epilogue(stage, binder, (image, y, axis("x", width), column), inner, ("y", "x", "n"))
    params = {**windows.params(), "panel": conv.panel, "group": conv.lanewise if conv.depthwise else 0}
    if conv.spans_groups:  # channels of a group, its results, all channels
        params["grouped"] = (conv.x[3] // conv.group, channels // conv.group, conv.x[3])
    task = Task(conv.template, tuple(binder.operands), params, (result,))
    phase = builder.phase(name, stage, partition, extents, task, conv.flops)
    if (
        conv.template == "winograd"
    ):  # all panels of a block of rows follow one another: the windows are transformed once
        order = tuple(a for a in "obrp" if extents[a] > 1)
        phase = replace(phase, assign=replace(phase.assign, order=order))
    return phase


def conv_of(builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule) -> Conv:
    """The node's shapes with the template and panel that were decided."""
    assert stage.root is not None and decided.tile is not None
    form = next(
        f for f in Conv.forms(stage.root, builder.types, builder.machine.vector_bytes // 4)
        if f.template == decided.template
    )  # fmt: skip
    return replace(form, panel=decided.tile.panel)


def image_of(builder: PhaseBuilder, stage: FusionGroup) -> ImageView:
    """How the image that a convolution reads lies."""
    assert stage.root is not None
    view = ImageView.of(builder.views, stage.root.inputs[0])
    assert view is not None, f"{stage.root.origin}: the image was not stored"
    return view


def _operands(
    builder: PhaseBuilder,
    node: Node,
    conv: Conv,
    view: ImageView,
    windows: Windows,
    binder: OperandBinder,
    at: tuple[Expr, Expr, Expr],
) -> None:
    """The pixels and the weights a task reads."""
    image, y0, n0 = at
    shape = matrix_shape(builder.types[view.tensor].shape)
    pixel = simplify(image * view.image + y0 * (conv.strides[0] * view.pitch) + view.first, binder.outer)
    channel = simplify(conv.first_channel(n0) + view.column, binder.outer)
    height = conv.out[1]
    end = view.first + int(windows.last_pixel(height - 1)) if conv.out[0] == 1 else shape[0]
    size = (windows.pixels(windows.rows), conv.reads)
    binder.add("a", view.tensor, Box((pixel, channel), size, (end, view.column + conv.x[3])))
    weight = node.inputs[1]
    whole = -(-conv.out[3] // conv.panel) * conv.panel if conv.depthwise else conv.panel
    packed = panel_buffer(weight + conv.tag, conv.matrix_shape, whole)
    if packed.id not in builder.packed:
        builder.packed[packed.id] = (packed, conv.matrix(builder.views.graph.constants[weight]))
    box = Box((Const(0), n0), (packed.shape[0], conv.panel), (packed.shape[0], packed.shape[1]))
    binder.add("b", packed.id, box, packed=True)


def build_border(builder: PhaseBuilder, stage: FusionGroup, partition: Partition, inside: Phase) -> Phase | None:
    """A phase that fills the border around what phase ``inside`` stores; None where there is none. It is dealt by
    columns, as ``inside`` is where that is dealt by columns too."""
    border = border_of(stage)
    if border is None:
        return None
    before, after = integers(border.attrs, "before"), integers(border.attrs, "after")
    images, height, width, channels = builder.types[stage.stored].shape
    value = border.attrs["value"]
    assert isinstance(value, (int, float))
    owners = partition.owners if partition.kind != "single" else 1
    share = ceil(channels / owners)
    if partition.kind == "columns":
        out = next(o for o in inside.task.operands if o.access == "write")
        share = max(end for _, _, _, end in owner_boxes(inside, out)[0])
    binder = builder.binder({"o": owners})
    x0 = Var("o") * share if owners > 1 else Const(0)
    total = (images * height * width, channels)
    binder.add("out", stage.stored, Box((Const(0), x0), (total[0], share), total), "write")
    top, left = before[1] * width + before[2], before[2] + after[2]
    row = width - left
    middle = height - before[1] - after[1] - 1
    bottom = after[2] + after[1] * width
    bound = simplify(Const(channels) + x0 * -1, binder.outer) if share * owners > channels else None

    def run(first: Expr, count: int, tag: str) -> tuple[Statement, ...]:
        """``count`` pixels from ``first`` on, in every image."""
        if count == 0:
            return ()
        x = axis("x" + tag, share)
        index = (simplify(Var("i") * (height * width) + first + axis("z" + tag, count), {}), x0 + x)
        store: Statement = Store("out", index, const(value, builder.types[stage.stored].dtype))
        pixel = For("x" + tag, share, (store,), "vector", bound) if share > 1 or bound is not None else store
        return (For("z" + tag, count, (pixel,)) if count > 1 else pixel,)

    between = run(Const(top + row) + Var("h") * width, left, "m")
    body = (
        *run(Const(0), top, "t"),
        *((For("h", middle, between),) if between and middle > 0 else ()),
        *run(Const(top + (middle + 1) * row + middle * left), bottom, "e"),
    )
    task = Task("nest", tuple(binder.operands), body=(For("i", images, body),))
    return builder.phase(f"{inside.id}_border", stage, partition, {"o": owners}, task, 0)
