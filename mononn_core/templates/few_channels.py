"""A convolution of few output channels: vectors hold neighbouring input channels of a tap, where one of output channels
would be nearly empty.

The sum over i, j, c of a[(y sh + i dh) pitch + x sw + j dw, c] b[(i KW + j) L + c, n]; L is C in whole cache lines.
Result axes are (y, n, x): what is stored are vectors of pixels.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage
from mononn_core.codegen.cstyle import Printer
from mononn_core.element import COMPUTE, itemsize
from mononn_core.machine import LINE_BYTES
from mononn_core.program.ir import Phase, Result, Task
from mononn_core.program.template import Array, Elements, Running
from mononn_core.program.windows import Pair
from mononn_core.schedule.binder import Matrix
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.stages import FusionGroup
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.windowed import Windowed, WindowParams, corners

LINE = LINE_BYTES // itemsize(COMPUTE)
MOST = 8
"""Output channels."""
ADDING = 4
"""Multiply-adds of vectors in whose time one sum's lanes are added up and stored, about."""
GAIN = 1.3
"""Times as many as these a direct convolution takes, at least: an estimate set by hand."""


class FewChannels(Windowed[WindowParams]):
    """See the module."""

    name = "few_channels"
    header = "mononn_few_channels.hpp"
    parameters = WindowParams
    efficiency = 0.6
    order = ("y", "n", "x")

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        pixels = self.params(task).at_once
        return super().mismatch(task) or (
            f"{pixels} pixels at once are no power of two" if pixels & (pixels - 1) else ""
        )

    def terms(self, task: Task, channels: Array) -> Array:
        return self.params(task).taps * (-(-channels // LINE) * LINE)

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        y, n, x = axes
        rows, width, channels = (found := super().elements(task, (y, x, n), prologue)).extents
        return Elements((rows, channels, width), found.conditions)

    def compute(self, task: Task, running: Running) -> Array:
        a, b, taps = running.matrix("a"), running.matrix("b"), self.windows(task).taps_of(running.matrix("a"))
        parts = b.reshape(len(taps), -1, b.shape[1])[:, : a.shape[1]]
        total = np.asarray(sum(np.matmul(tap, part) for tap, part in zip(taps, parts, strict=True)))
        return total.swapaxes(1, 2)

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        return 1 if self.panels(Conv.of(stage, builder), builder.lanes) else None

    def panels(self, conv: Conv, lanes: int) -> tuple[int, ...]:
        """All output channels, where that takes fewer steps."""
        mine = conv.channels * (conv.taps * ceil(conv.x[3] / lanes) + ADDING)
        few = conv.channels <= MOST and conv.channels < lanes and GAIN * mine < conv.taps * conv.x[3]
        plain = conv.dtype == COMPUTE and conv.group == 1 and not conv.computed
        return (conv.channels,) if few and plain else ()

    def by_columns(self, conv: Conv, owners: int, lanes: int) -> bool:
        return False

    def reads(self, conv: Conv, panel: int) -> int:
        return conv.x[3]

    def most_at_once(self, conv: Conv, panel: int, builder: PhaseBuilder) -> int:
        """Sums of all in three quarters of the registers."""
        pixels = 1
        while pixels < builder.lanes and 2 * pixels * panel <= builder.machine.vector_registers * 3 // 4:
            pixels *= 2
        return pixels

    def weight_matrix(self, conv: Conv, panel: int, w: np.ndarray) -> tuple[Pair, Matrix]:
        taps, c, m = conv.taps, conv.x[3], conv.channels
        wide = ceil(c / LINE) * LINE
        return (taps * wide, m), lambda: np.pad(w.reshape(taps, c, m), ((0, 0), (0, wide - c), (0, 0))).reshape(-1, m)

    def packed_panel(self, conv: Conv, panel: int) -> int:
        """One: each output channel's weights lie side by side."""
        return 1

    def tag(self, conv: Conv) -> str:
        return "@few"

    # -- C++ --------------------------------------------------------------------------------------------------------

    def write_ahead(self, result: Result, printer: Printer, code: CpuStorage) -> None:
        """It asks for nothing ahead."""

    def call(self, phase: Phase, rows: int, function: str, printer: Printer, code: CpuStorage) -> str:
        params, apart = self.params(phase.task), printer.pointers["b"].buffer.layout.dims[1][0][1]
        shape = f"Windows_, {rows}, {params.panel}, {params.at_once}, {LINE}"
        return f"mn::few_channels<{shape}>({corners(phase, printer, code)}, {apart}, {function});"


TEMPLATE = FewChannels()
