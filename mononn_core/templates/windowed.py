"""What convolutions have in common: windows over an image that lies as a matrix, a pixel a row.

A task computes some image rows of a panel of output channels. The input is read where it lies: a pixel's channels are
columns. A holds pixels, b the weights in the order that the template reads them; results have axes (y, x, n): image
row, pixel and channel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import ClassVar, TypeVar

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer, varies
from mononn_core.codegen.epilogues import into_padding, write_edge, write_element
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE, itemsize
from mononn_core.errors import UnsupportedError
from mononn_core.machine import LINE_BYTES
from mononn_core.program.expr import Const, Expr, Load, Var, op, walk
from mononn_core.program.ir import Box, Operand, Phase, Task
from mononn_core.program.rules import matrix_dims
from mononn_core.program.simplify import linear, simplify
from mononn_core.program.template import Array, Elements, Extent, Template, operand
from mononn_core.program.windows import Pair, Windows
from mononn_core.schedule.bands import read_bands, store_bands, strip_of
from mononn_core.schedule.binder import BATCH, BLOCK, OWNER, PANEL, Matrix, OperandBinder, TaskBuilder, unit_axes
from mononn_core.schedule.boxes import Boxes
from mononn_core.schedule.decisions import L2_SHARE, fewer_at_once, most_at_once, registers_problem, rows_problem
from mononn_core.schedule.operands import RowsView, axis
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition, Tile
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.schedule.views import matrix_shape
from mononn_core.templates.conv_node import Conv, image_of

At = tuple[Expr, Expr, Expr]
"""Where a task is: image, image row, output channel."""


@dataclass(frozen=True)
class WindowParams(Windows):
    """Windows, and the output channels of a ``panel``; of a CPU, the pixels whose sums are in registers together."""

    panel: int
    at_once: int = 0


P = TypeVar("P", bound=WindowParams)


class Windowed(Template[P], CpuTemplate, CpuScheduled):
    """A convolution template. What differs is which panels it takes, what a panel reads, and the call.

    Attributes:
        row_step: image rows that it computes together.
        order: the axes of its results.
    """

    op = "conv"
    roles = ("a", "b")
    axes = 3
    weights = "b"
    header = "mononn_conv.hpp"
    row_step: ClassVar[int] = 1
    order: ClassVar[tuple[str, str, str]] = ("y", "x", "n")

    # -- what a template of its kind says ---------------------------------------------------------------------------

    @abstractmethod
    def terms(self, task: Task, channels: Array) -> Array:
        """Rows of b where a has ``channels`` columns."""

    @abstractmethod
    def panels(self, conv: Conv, lanes: int) -> tuple[int, ...]:
        """Panels of output channels that it may take, the preferred first; none: it cannot compute the node."""

    @abstractmethod
    def reads(self, conv: Conv, panel: int) -> int:
        """Input channels that a panel reads."""

    @abstractmethod
    def weight_matrix(self, conv: Conv, panel: int, w: np.ndarray) -> tuple[Pair, Matrix]:
        """The weights [KH, KW, C / group, M] as the matrix b, [terms, M]: its shape, and what gives it."""

    @abstractmethod
    def call(self, phase: Phase, rows: int, function: str, printer: Printer, code: CpuStorage) -> str:
        """C text that computes ``rows`` image rows and hands them to ``function``."""

    def in_vectors(self, phase: Phase, columns: tuple[int, ...], code: CpuStorage) -> str:
        """C text of a constant: whether results come in whole vectors where tasks have so many ``columns``; empty:
        they may not."""
        return ""

    def tag(self, conv: Conv) -> str:
        """Tells its packed weights from those that other convolution templates read."""
        return ""

    def weight_type(self, conv: Conv) -> str:
        """The type of b's elements, where it is not that of the node's."""
        return ""

    def first_channel(self, conv: Conv, panel: int, column: Expr) -> Expr:
        """The first input channel that the panel starting at output channel ``column`` reads."""
        return Const(0)

    def more_params(self, conv: Conv, panel: int) -> dict[str, object]:
        """Parameters beside those of every convolution."""
        return {}

    # -- meaning ----------------------------------------------------------------------------------------------------

    def windows(self, task: Task) -> Windows:
        return self.params(task)

    def mismatch(self, task: Task) -> str:
        windows = self.windows(task)
        pixels = operand(task, "a").box.size
        if not windows.valid or pixels[matrix_dims(pixels)[0]] != windows.pixels(windows.rows):
            return f"reads {pixels} pixels for {windows}"
        return ""

    def contraction(self, task: Task, extent: Extent) -> str:
        terms = self.terms(task, extent("a", 1))
        differ = (extent("b", 0) != terms).any()
        return f"operand 'b' does not have the {terms} rows of its windows" if differ else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        """Image rows whose windows lie in a's box, pixels, channels."""
        windows = self.windows(task)
        a, b = operand(task, "a").box, operand(task, "b").box
        row, column = matrix_dims(a.size)[0], matrix_dims(b.size)[1]
        conditions = (
            op("le", a.offset[row] + windows.last_pixel(Var(axes[0])), Const(a.bound[row])),
            op("lt", b.offset[column] + Var(axes[2]), Const(b.bound[column])),
        )
        return Elements((windows.rows, windows.width, b.size[column]), conditions)

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        return 0 if self.panels(Conv.of(stage, builder), builder.lanes) else None

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        conv = Conv.of(stage, builder)
        n, height = conv.out[:2]
        found = [Partition("batch", owners)] if n % owners == 0 else []
        if (n == 1 and height >= owners) or height % owners == 0:
            found.append(Partition("rows", owners))
        if self.by_columns(conv, owners, builder.lanes):
            found.append(Partition("columns", owners))
        return Ways(tuple(found), conv.flops)

    def by_columns(self, conv: Conv, owners: int, lanes: int) -> bool:
        """Whether every owner has panels of its own."""
        return conv.channels > self.panels(conv, lanes)[0] * (owners - 1)

    def dealt(self, panel: int, partition: Partition) -> int:
        """The panel that an owner takes."""
        return panel

    def tile(self, stage: FusionGroup, builder: PhaseBuilder, partition: Partition) -> Tile:
        """The block of image rows that stay in the second-level cache while all panels pass over them."""
        conv, pitch = Conv.of(stage, builder), image_of(builder, stage).pitch
        panel = self.panels(conv, builder.lanes)[0]
        read = conv.strides[0] * pitch * self.reads(conv, panel) * itemsize(conv.dtype)
        row_bytes = read + self.lines_in_parts(conv, panel, stage, builder)
        rows, blocks = self.block(conv, panel, partition, row_bytes, builder)
        dealt = self.dealt(panel, partition)
        return Tile(rows, blocks, dealt, self.most_at_once(conv, dealt, builder))

    def lines_in_parts(self, conv: Conv, panel: int, stage: FusionGroup, builder: PhaseBuilder) -> int:
        """Bytes of an image row of results, and of the images of its kind that the epilogue reads, where each panel has
        a part of their cache lines: they are to stay in the second-level cache until the next panel's turn. An image
        that the epilogue dequantises counts as the floats."""
        mine = builder.types[stage.own]
        if panel >= conv.channels or panel * itemsize(mine.dtype) >= LINE_BYTES:
            return 0
        read = {n for node in stage.nodes[1:] for n in node.inputs if n and n not in builder.views.graph.constants}
        made = {node.output for node in stage.nodes}
        images = [mine, *(t for n in read - made if (t := builder.types[n]).shape == mine.shape)]
        return sum(t.nbytes for t in images) // (conv.out[0] * conv.out[1])

    def most_rows(self, conv: Conv, panel: int, row_bytes: int, builder: PhaseBuilder) -> int:
        """Image rows of which ``row_bytes`` each stay in the second-level cache."""
        return max(1, int(L2_SHARE * builder.machine.l2_bytes) // max(1, row_bytes))

    def block(self, conv: Conv, panel: int, partition: Partition, row_bytes: int, builder: PhaseBuilder) -> Pair:
        """(image rows of a task, tasks) for an owner's share, where ``row_bytes`` of each row are to stay in the
        second-level cache; of several images, tasks divide each one's."""
        share = rows_of(conv, partition)
        tasks = ceil(share / self.most_rows(conv, panel, row_bytes, builder))
        while conv.out[0] > 1 and share % tasks:
            tasks += 1
        if partition.owners > 1 and conv.out[0] == 1:  # the last owner has fewer rows by what the others have too many
            tasks = min(range(tasks, 2 * tasks + 1), key=lambda n: ceil(share / n) * n)
        return ceil(share / tasks), tasks

    def tiles(self, stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> Iterator[Tile]:
        assert group.tile is not None
        share = group.tile.rows * group.tile.blocks
        conv = Conv.of(stage, builder)
        for panel in (self.dealt(p, group.partition) for p in self.panels(conv, builder.lanes)):
            for at_once in fewer_at_once(self.most_at_once(conv, panel, builder)):
                for blocks in range(1, share + 1):
                    yield Tile(ceil(share / blocks), blocks, panel, at_once)

    def problem(self, stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> str:
        tile, partition, conv = group.tile, group.partition, Conv.of(stage, builder)
        if partition.segments != 1:
            return "only the columns of a product have segments"
        if tile is None:
            return "a convolution has a tile"
        panels = [self.dealt(panel, partition) for panel in self.panels(conv, builder.lanes)]
        if tile.panel not in panels:
            return f"a panel of {tile.panel} channels is not {' or '.join(map(str, panels))}"
        if too_many := registers_problem(tile, self.most_at_once(conv, tile.panel, builder)):
            return too_many
        share = rows_of(conv, partition)
        if conv.out[0] > 1 and share % tile.rows:
            return f"{tile.rows} image rows do not divide the {share} of each image"
        return rows_problem(share, tile)

    def busiest(
        self, phase: Phase, partition: Partition, boxes: Callable[[Operand], tuple[Boxes, ...]]
    ) -> float | None:
        """Of image rows, where owners have rows; of panels, where they have columns."""
        if partition.kind == "columns":
            panels = [sum(c0 < c1 for _, _, c0, c1 in mine) for mine in boxes(operand(phase.task, "b"))]
            return max(panels) / sum(panels)
        if partition.kind != "rows":
            return None
        windows = self.windows(phase.task)
        pixels = [[r1 - r0 for r0, r1, _, _ in mine] for mine in boxes(operand(phase.task, "a"))]
        rows = [sum(ceil(windows.rows_in(n) / self.row_step) for n in mine) for mine in pixels]
        return max(rows) / sum(rows)

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        """Image rows or panels dealt to owners; a task is a block of image rows of a panel."""
        partition, tile = decided.partition, decided.tile
        assert tile is not None
        conv, panel = Conv.of(stage, builder), tile.panel
        n, channels = conv.out[0], conv.channels
        owners = partition.owners if partition.kind != "single" else 1
        batches, panels, rows, blocks = n, ceil(channels / panel), tile.rows, tile.blocks
        o, r, q = (Var(v) for v in (OWNER, BLOCK, PANEL))
        image: Expr = Var(BATCH)
        y0, n0 = r * rows, q * panel
        strips: Mapping[str, int] = {}
        if decided.strips > 1:
            strip = strip_of(builder, stage, decided)
            assert strip.image is not None
            image, y0, batches, strips = strip.image, strip.first + y0, 1, strip.domain
        elif partition.kind == "rows":
            y0 = o * (rows * blocks) + y0
        elif partition.kind == "batch":
            batches = n // owners
            image = o * batches + image
        elif partition.kind == "columns":
            panels = ceil(panels / owners)
            n0 = o * (panels * panel) + n0
        extents = {OWNER: owners, **strips, BATCH: batches, BLOCK: blocks, PANEL: panels}
        binder = builder.binder(extents)
        image, y0, n0 = (binder.fix(e, unit_axes(extents)) for e in (image, y0, n0))
        task = self.task(builder, stage, (rows, panel), binder, (image, y0, n0))
        task = replace(task, params={**task.params, "at_once": tile.at_once})
        flops = conv.flops
        if decided.stores_bands:
            flops = flops // (n * conv.out[1]) * (prod(strips.values()) * blocks * rows)
        phase = self.ordered(builder.phase(name, stage, partition, extents, task, flops))
        if partition.bands is None:
            return phase
        return (store_bands if decided.stores_bands else read_bands)(phase, decided, builder)

    def task(self, builder: TaskBuilder, stage: FusionGroup, tile: Pair, binder: OperandBinder, at: At) -> Task:
        """A task of ``tile``: image rows, and channels of a panel."""
        conv, (rows, panel), (image, y0, n0) = Conv.of(stage, builder), tile, at
        height, width, channels = conv.out[1:]
        windows = conv.windows(image_of(builder, stage).pitch, rows)
        self._operands(builder, stage, windows, panel, binder, at)
        inner = {"y": (0, rows - 1), "x": (0, width - 1), "n": (0, min(panel, channels) - 1)}
        y = binder.position("row", y0 + axis("y", rows), height)
        column = binder.position("column", n0 + axis("n", min(panel, channels)), channels)
        result = builder.epilogue(stage, binder, (image, y, axis("x", width), column), inner, self.order)
        params = {**windows.params(), "panel": panel, **self.more_params(conv, panel)}
        return Task(self.name, tuple(binder.operands), params, (result,))

    def ordered(self, phase: Phase) -> Phase:
        """The phase with the order of an owner's tasks that suits the kernel."""
        return phase

    def _operands(
        self, builder: TaskBuilder, stage: FusionGroup, windows: Windows, panel: int, binder: OperandBinder, at: At
    ) -> None:
        """The pixels and the weights a task reads."""
        assert stage.root is not None
        conv, view = Conv.of(stage, builder), image_of(builder, stage)
        weight, (image, y0, n0) = stage.root.inputs[1], at
        pixel = simplify(image * view.image + y0 * (conv.strides[0] * view.pitch) + view.first, binder.outer)
        channel = simplify(self.first_channel(conv, panel, n0) + view.column, binder.outer)
        rows = matrix_shape(builder.types[view.tensor].shape)[0]
        end = view.first + int(windows.last_pixel(conv.out[1] - 1)) if conv.out[0] == 1 else rows
        size = (windows.pixels(windows.rows), self.reads(conv, panel))
        binder.add("a", view.tensor, Box((pixel, channel), size, (end, view.column + conv.x[3])))
        if conv.computed:
            seen = RowsView.of(builder.views, weight)
            assert seen is not None and not seen.beside, "computed weights are stored"
            terms = conv.taps * conv.x[3]
            corner, ends = (Const(seen.row), n0 + seen.column), (seen.row + terms, seen.column + conv.channels)
            binder.add("b", seen.tensor, Box(corner, (terms, panel), ends))
            return
        w, width = builder.views.graph.constants[weight], self.packed_panel(conv, panel)
        name, multiplied = weight + self.tag(conv), self.weight_type(conv)
        shape, matrix = self.weight_matrix(conv, panel, w)
        packed = builder.pack(stage.root, name, width, shape, matrix, multiplied)
        box = Box((Const(0), n0), (shape[0], panel), shape)
        binder.add("b", packed.id, box, packed=True)

    def most_at_once(self, conv: Conv, panel: int, builder: PhaseBuilder) -> int:
        """Pixels of a register tile, at most."""
        return most_at_once(panel // builder.lanes, builder.machine, COMPUTE if conv.seven_bits else conv.dtype)

    def packed_panel(self, conv: Conv, panel: int) -> int:
        """Columns that lie together in the packed weights."""
        return panel

    # -- C++ --------------------------------------------------------------------------------------------------------

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        """One call a number of image rows that a task may have."""
        task, out, windows = phase.task, code.out, self.params(phase.task)
        if windows.at_once < 1:
            raise UnsupportedError(f"phase {phase.id!r}: a convolution on a CPU says how many pixels it has at once")
        a, b = (operand(task, role) for role in self.roles)
        pixels, pixels_text = code.extents(a, 0, printer)
        columns, columns_text = code.extents(b, 1, printer)
        result = task.results[0]
        inner = code.element_printer(printer, result.axes, self.elements(task, result.axes).extents)
        ragged = columns != (windows.panel,)
        counted = write_element(out, result, inner, ragged or self.order[-1] == "x")
        self.write_ahead(phase, inner, code)
        function = "element_"
        if ragged:
            function = "edge_"
            out.line(f"const long end_ = {columns_text};")
            padded = into_padding(result, b.box.bound[1], windows.panel, inner)
            write_edge(out, result.axes, counted, padded, self.in_vectors(phase, columns, code))
        lda = row_stride(printer.pointers["a"].buffer)
        pairs = ", ".join(f"{v}, {h}" for v, h in (windows.kernel, windows.strides, windows.dilations))
        shape = f"{lda}, {windows.pitch}, {windows.width}, {pairs}"
        out.line(f"using Windows_ = mn::Windows<{a.box.size[1]}, {shape}>;")
        self.write_more(phase, shape, printer, code)
        found = [(count, windows.rows_in(count)) for count in pixels]
        guard = "if (end_ > 0) " if min(columns) == 0 else ""
        calls = [(pixels_text, n, guard + self.call(phase, rows, function, printer, code)) for n, rows in found if rows]
        code.choose(calls, windows.rows_in(min(pixels)) == 0)

    def write_more(self, phase: Phase, shape: str, printer: Printer, code: CpuStorage) -> None:
        """What else the calls need; ``shape``: the arguments of ``mn::Windows`` after the first."""

    def write_ahead(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        """A function that prefetches the line an epilogue stores to and those it reads of other images, each once."""
        result = phase.task.results[0]
        y, x, n = result.axes
        loads = [(e.operand, e.index) for e in walk(result.value) if isinstance(e, Load)]
        with code.out.block(f"auto ahead_ = [&](long {y}, long {x}, long {n}) {{", "};"):
            for role, index in dict.fromkeys([(result.operand, result.index), *loads]):
                pointer = printer.pointers[role]
                offset = pointer.address(index, printer.ranges)
                known = not any(isinstance(e, Load) for e in walk(offset))
                if known and linear(offset)[0].get(Var(n)) == 1 and (varies(offset, y) or varies(offset, x)):
                    function = "mn::prefetch_write" if role == result.operand else "__builtin_prefetch"
                    line = LINE_BYTES // itemsize(pointer.buffer.dtype)
                    once = f"if ({n} % {line} == 0) " if line > LINE_BYTES // itemsize(COMPUTE) else ""
                    code.out.line(f"{once}{function}({pointer.name} + {printer.index(offset)});")


def corners(phase: Phase, printer: Printer, code: CpuStorage) -> str:
    """C text of where the boxes of a and b start."""
    return ", ".join(code.corner(printer, operand(phase.task, role)) for role in ("a", "b"))


def rows_of(conv: Conv, partition: Partition) -> int:
    """Image rows of an owner."""
    return ceil(conv.out[1] / partition.owners) if partition.kind == "rows" else conv.out[1]
