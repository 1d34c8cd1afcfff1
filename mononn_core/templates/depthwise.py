"""Convolutions in groups of one channel, or of a few that fill a vector: channels are computed side by side.

For groups of G channels b is [KH KW G, C]: the sum over i, j and c < G of a[(y sh + i dh) pitch + x sw + j dw,
n // G G + c] b[(i KW + j) G + c, n]. Bytes are multiplied in words of four: of four channels, the first of them channel
n // G G, by zero where they are another group's; of groups of one channel, of four kernel rows, where b is
[KH / 4, KW, 4] by C and the windows of two image rows share words; or as float32 (`exact_in_floats` in
`schedule/narrow.py`). On a GPU a thread has some pixels of an image row, which share what they read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cpu_storage import CpuStorage, is_narrow
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.cuda_expressions import WIDTHS, CudaPrinter
from mononn_core.codegen.cuda_lanes import store_width, write_element
from mononn_core.codegen.cuda_storage import CudaStorage, inner_axes
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE, SHORT, itemsize
from mononn_core.graph import Graph, Node
from mononn_core.program.expr import Expr
from mononn_core.program.ir import Operand, Phase, Task
from mononn_core.program.template import Extent, Running, operand
from mononn_core.program.windows import Pair, Windows
from mononn_core.schedule.binder import Matrix
from mononn_core.schedule.cuda.tiles import Target
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import Partition
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.windowed import WindowParams, corners
from mononn_core.templates.windowed_cuda import CudaWindowed

Array = np.ndarray[Any, Any]
MOST_SUMS = 32
"""Of a GPU's thread, in registers."""
LOAD = 4
"""A load or store of a GPU's thread in scalar instructions: a multiprocessor starts four of these in its time."""


@dataclass(frozen=True)
class DepthwiseParams(WindowParams):
    """``group``: channels of a group, G. ``together``: channels, or where G is 1 kernel rows, that are one word."""

    group: int = 1
    together: int = 1

    @property
    def in_columns(self) -> bool:
        """Whether words are of kernel rows."""
        return self.group == 1 < self.together


class Depthwise(CudaWindowed[DepthwiseParams]):
    """See the module."""

    name = "depthwise"
    parameters = DepthwiseParams
    weights = ""
    cuda_header = "mononn_depthwise.cuh"

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        group = self.params(task).group
        return f"has groups of {group} channels" if group < 1 else super().mismatch(task)

    def contraction(self, task: Task, extent: Extent) -> str:
        differ = (extent("a", 1) != extent("b", 1)).any()
        return "the extents that operands 'a' and 'b' contract differ" if differ else super().contraction(task, extent)

    def compute(self, task: Task, running: Running) -> Array:
        a, b, params = running.matrix("a"), running.matrix("b"), self.params(task)
        taps, group, word = params.taps_of(a.astype(b.dtype)), params.group, params.together
        if params.in_columns:
            words = b.reshape(-1, params.kernel[1], word, b.shape[1])
            b, word = words.swapaxes(1, 2).reshape(-1, *words.shape[1::2])[: params.kernel[0]].reshape(len(taps), -1), 1
        first = np.arange(b.shape[1]) // group * group // word * word
        rows = b.reshape(len(taps), -1, b.shape[1])
        channels = [np.minimum(first + c, a.shape[1] - 1) for c in range(rows.shape[1])]
        terms = (
            tap[..., n] * r for tap, row in zip(taps, rows, strict=True) for n, r in zip(channels, row, strict=True)
        )
        return np.asarray(sum(terms)).astype(a.dtype)

    def terms(self, task: Task, channels: Array) -> Array:
        params = self.params(task)
        rows, columns = params.kernel
        if params.in_columns:
            return np.asarray(ceil(rows / params.together) * params.together * columns)
        return np.asarray(params.taps * ceil(params.group / params.together) * params.together)

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def rate(self, phase: Phase) -> float:
        return 0.55 if self.params(phase.task).group == 1 else 0.45

    def panels(self, conv: Conv, lanes: int) -> tuple[int, ...]:
        """All channels that an owner has."""
        return (ceil(conv.channels / lanes) * lanes,) if conv.lanewise(lanes) else ()

    def by_columns(self, conv: Conv, owners: int, lanes: int) -> bool:
        return self.panels(conv, lanes)[0] // lanes % owners == 0

    def most_at_once(self, conv: Conv, panel: int, builder: PhaseBuilder) -> int:
        """A vector of each pixel, in half of the registers: weights have the others. Of float32 in wider groups these
        are those of one channel in a kernel row, beside a value."""
        registers = builder.machine.vector_registers
        wide = conv.of_group[0] > 1 and conv.dtype == COMPUTE
        return max(registers - conv.kernel[1] - 2, 1) if wide else registers // 2 - 2

    def dealt(self, panel: int, partition: Partition) -> int:
        return panel // partition.owners if partition.kind == "columns" else panel

    def reads(self, conv: Conv, panel: int) -> int:
        return min(panel, conv.channels)

    def first_channel(self, conv: Conv, panel: int, column: Expr) -> Expr:
        return column

    def weight_matrix(self, conv: Conv, panel: int, w: Array) -> tuple[Pair, Matrix]:
        group, word = conv.of_group[0], conv.together
        if group == 1 < word:
            height, width = ceil(conv.kernel[0] / word), conv.kernel[1]

            def columns() -> Array:
                tall = np.zeros((height * word, width, conv.channels), w.dtype)
                tall[: conv.kernel[0]] = w.reshape(*conv.kernel, conv.channels)
                return tall.reshape(height, word, width, -1).swapaxes(1, 2).reshape(-1, conv.channels)

            return (height * word * width, conv.channels), columns
        rows = ceil(group / word) * word

        def matrix() -> Array:
            n, wide = np.arange(conv.channels), np.zeros((conv.taps, rows, conv.channels), w.dtype)
            for c in range(group):
                wide[:, n // group * group % word + c, n] = w.reshape(conv.taps, group, conv.channels)[:, c]
            return wide.reshape(-1, conv.channels)

        return (conv.taps * rows, conv.channels), matrix

    def packed_panel(self, conv: Conv, panel: int) -> int:
        """All of them: an owner's lie between others'."""
        return ceil(conv.channels / panel) * panel

    def more_params(self, conv: Conv, panel: int) -> dict[str, object]:
        together = {"together": conv.together} if conv.together > 1 else {}
        return {"group": conv.of_group[0], **together}

    # -- C++ --------------------------------------------------------------------------------------------------------

    def asks_ahead(self, phase: Phase, code: CpuStorage) -> bool:
        """Where a tile multiplies long enough."""
        return self.params(phase.task).group > 1 and not is_narrow(phase, code)

    def write_ahead(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        if self.asks_ahead(phase, code):
            super().write_ahead(phase, printer, code)

    def headers(self, phase: Phase, code: CpuStorage) -> tuple[str, ...]:
        return ("mononn_dot_depthwise.hpp",) if is_narrow(phase, code) else super().headers(phase, code)

    def gathers_bytes(self, task: Task) -> bool:
        return self.params(task).in_columns

    def call(self, phase: Phase, rows: int, function: str, printer: Printer, code: CpuStorage) -> str:
        params = self.params(phase.task)
        ldb = printer.pointers["b"].buffer.layout.dims[0][0][1] // params.together
        shape = f"Windows_, {rows}, {params.at_once}, {params.group}"
        where = f"{corners(phase, printer, code)}, {ldb}"
        if is_narrow(phase, code):
            return f"mn::dot_depthwise<{shape}>({where}, {function});"
        if code.buffer(operand(phase.task, "a").buffer).dtype in SHORT:
            function = f"mn::in_words({function})"
        ahead = ", ahead_" if self.asks_ahead(phase, code) else ""
        return f"mn::depthwise<{shape}>({where}, {function}{ahead});"

    # -- on a GPU ---------------------------------------------------------------------------------------------------

    def serves(self, node: Node, graph: Graph) -> bool:
        return Conv.of_node(node, graph.types).lanewise(WIDTHS[0])

    def operations(self, conv: Conv, tile: Pair, target: Target) -> float:
        windows, columns = conv.windows(conv.x[2], tile[0]), min(tile[1], conv.channels)
        return thread_strip(windows, conv.of_group[0], columns, target.multiple, target.threads)[0]

    # -- CUDA C++ ---------------------------------------------------------------------------------------------------

    def write_cuda(self, phase: Phase, printer: CudaPrinter, code: CudaStorage) -> None:
        task, params = phase.task, self.params(phase.task)
        windows, panel, (a, b) = params, params.panel, (operand(task, role) for role in self.roles)
        axes = task.results[0].axes
        scope = inner_axes(printer, axes, (windows.rows, windows.width, panel))
        most = min(store_width(task.results, axes[2], panel, scope), *(_aligned(o, printer, code) for o in (a, b)))
        columns = code.extent(b, 1, printer)
        known = int(columns) if columns.isdigit() else 0
        _, pixels, lanes = thread_strip(windows, params.group, known or panel, most, code.threads)
        write_element(code.out, task.results, lanes, scope)
        lda, ldb = (row_stride(printer.pointers[o.role].buffer) for o in (a, b))
        pairs = ", ".join(f"{v}, {h}" for v, h in (windows.kernel, windows.strides, windows.dilations))
        code.out.line(f"using Windows = mn::Windows<{lda}, {windows.pitch}, {windows.width}, {pairs}>;")
        kinds = ", ".join(c_type(code.buffer(o.buffer).dtype) for o in (a, b))
        whole = "true" if known and known % lanes == 0 else "false"
        sizes = f"{windows.rows}, {known or panel}, {params.group}, {pixels}, {lanes}, {whole}"
        left, right = f"{code.corner(printer, a)}, {code.extent(a, 0, printer)}", f"{code.corner(printer, b)}, {ldb}"
        code.out.line(f"mn::Depthwise<{kinds}, Windows, {sizes}>::run({left}, {right}, {columns}, element_);")


def _aligned(o: Operand, printer: CudaPrinter, code: CudaStorage) -> int:
    """Neighbouring channels that a thread may load at once."""
    return max(1, min(16, code.row_alignment(o, printer)) // itemsize(code.buffer(o.buffer).dtype))


def thread_strip(windows: Windows, group: int, columns: int, most: int, threads: int) -> tuple[float, int, int]:
    """What a thread takes at a time for the fewest instructions of a task of ``columns``: these (idle threads' too),
    the pixels, and the neighbouring channels, ``most`` or fewer. More read less, fewer give more threads work."""
    (kh, kw), stride, dilation = windows.kernel, windows.strides[1], windows.dilations[1]
    found = []
    for lanes in (w for w in WIDTHS if w <= most and (w % group == 0 or w == 1)):
        for pixels in (p for p in WIDTHS if p * lanes <= MOST_SUMS and p <= windows.width):
            read = {p * stride + j * dilation for p in range(pixels) for j in range(kw)}
            loads = kh * group * (len(read) + kw)
            each = loads * (LOAD + lanes) + windows.taps * group * pixels * lanes + pixels * (LOAD + lanes)
            passes = ceil(windows.rows * ceil(windows.width / pixels) * ceil(columns / lanes) / threads)
            found.append((float(passes * each * threads), -lanes, -pixels))
    instructions, lanes, pixels = min(found)
    return instructions, -pixels, -lanes


TEMPLATE = Depthwise()
