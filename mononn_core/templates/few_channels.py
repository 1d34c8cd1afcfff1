"""A convolution of few output channels: vectors hold neighbouring terms of a window, where those of output channels
would be nearly empty.

The sum over i, j, c of a[(y sh + i dh) pitch + x sw + j dw, c] b[(i KW + j) L + c, n], or of b[i L + j C + c, n] where
the taps of a kernel row are neighbours; L are the terms of such a run, in whole cache lines. Result axes are (y, n, x):
what is stored are vectors of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage
from mononn_core.codegen.cstyle import Printer
from mononn_core.element import BF16, COMPUTE, HALF_WORD, itemsize
from mononn_core.machine import LINE_BYTES
from mononn_core.program.ir import Phase, Task
from mononn_core.program.template import Array, Elements, Running
from mononn_core.program.windows import Pair
from mononn_core.schedule.binder import Matrix
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.stages import FusionGroup
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.windowed import Windowed, WindowParams, corners

MOST = 8
"""Output channels."""
ADDING = 4
"""Multiply-adds of vectors in whose time one sum's lanes are added up and stored, about."""
GAIN = 1.3
"""Times as many as these a direct convolution takes, at least: an estimate set by hand."""
TYPES = (COMPUTE, "uint8", HALF_WORD, BF16)
"""Of what is multiplied."""


@dataclass(frozen=True)
class FewChannelsParams(WindowParams):
    """``joined`` taps of a kernel row are a run of terms, which fill lines of ``line``."""

    joined: int = 1
    line: int = 0


class FewChannels(Windowed[FewChannelsParams]):
    """See the module."""

    name = "few_channels"
    header = "mononn_few_channels.hpp"
    parameters = FewChannelsParams
    efficiency = 0.6
    order = ("y", "n", "x")

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        params = self.params(task)
        if params.at_once & (params.at_once - 1):
            return f"{params.at_once} pixels at once are no power of two"
        if params.line < 1 or params.joined not in (1, params.kernel[1]):
            return f"runs of {params.joined} taps in lines of {params.line} terms do not exist"
        return super().mismatch(task)

    def terms(self, task: Task, channels: Array) -> Array:
        params = self.params(task)
        return params.taps // params.joined * (-(-channels * params.joined // params.line) * params.line)

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        y, n, x = axes
        found = super().elements(task, (y, x, n), prologue)
        rows, width, channels = found.extents
        return Elements((rows, channels, width), found.conditions)

    def compute(self, task: Task, running: Running) -> Array:
        a, b, params = running.matrix("a"), running.matrix("b"), self.params(task)
        taps, (channels, columns) = params.taps_of(a), (a.shape[1], b.shape[1])
        runs = b.reshape(params.taps // params.joined, -1, columns)[:, : channels * params.joined]
        parts = runs.reshape(params.taps, channels, columns)
        total = np.asarray(sum(np.matmul(tap, part) for tap, part in zip(taps, parts, strict=True)))
        return total.swapaxes(1, 2)

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        return 1 if self.panels(Conv.of(stage, builder), builder.lanes) else None

    def panels(self, conv: Conv, lanes: int) -> tuple[int, ...]:
        """All output channels, where that takes fewer steps, and no tile registers are there."""
        runs, terms, _ = _runs(conv)
        mine = conv.channels * (runs * ceil(terms / (lanes * conv.together)) + ADDING)
        direct = conv.taps // conv.joined * ceil(conv.x[3] * conv.joined / conv.together)
        few = conv.channels <= MOST and conv.channels < lanes and GAIN * mine < direct
        plain = conv.dtype in TYPES and conv.group == 1 and not conv.computed
        return (conv.channels,) if few and plain and not conv.step(conv.x[3]) else ()

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
        (runs, terms, line), m = _runs(conv), conv.channels
        missing = -terms % line

        def matrix() -> np.ndarray:
            return np.pad(w.reshape(runs, terms, m), ((0, 0), (0, missing), (0, 0))).reshape(-1, m)

        return (runs * (terms + missing), m), matrix

    def packed_panel(self, conv: Conv, panel: int) -> int:
        """One: each output channel's weights lie side by side."""
        return 1

    def tag(self, conv: Conv) -> str:
        return "@rows" if conv.dense else "@taps"

    def more_params(self, conv: Conv, panel: int) -> dict[str, object]:
        return {"joined": conv.kernel[1] if conv.dense else 1, "line": _runs(conv)[2]}

    # -- C++ --------------------------------------------------------------------------------------------------------

    def write_ahead(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        """It asks for nothing ahead."""

    def call(self, phase: Phase, rows: int, function: str, printer: Printer, code: CpuStorage) -> str:
        params, apart = self.params(phase.task), printer.pointers["b"].buffer.layout.dims[1][0][1]
        joined = "true" if params.joined > 1 else "false"
        shape = f"Windows_, {rows}, {params.panel}, {params.at_once}, {params.line}, {joined}"
        return f"mn::few_channels<{shape}>({corners(phase, printer, code)}, {apart}, {function});"


def _runs(conv: Conv) -> tuple[int, int, int]:
    """Runs of neighbouring terms in a window, the terms of each, and of a cache line."""
    joined = conv.kernel[1] if conv.dense else 1
    line = LINE_BYTES // itemsize(COMPUTE) * conv.together
    return conv.taps // joined, conv.x[3] * joined, line


TEMPLATE = FewChannels()
