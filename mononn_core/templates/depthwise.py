"""Convolutions in groups of one channel, or of a few that fill a vector: channels are computed side by side.

For groups of G channels b is [KH KW G, C]: the sum over i, j and c < G of a[(y sh + i dh) pitch + x sw + j dw,
n // G G + c] b[(i KW + j) G + c, n].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.storage import row_stride
from mononn_core.program.expr import Expr
from mononn_core.program.ir import Phase, Result, Task
from mononn_core.program.template import Extent, Running
from mononn_core.schedule.schedule import Partition
from mononn_core.templates.windowed import Conv, Windowed, WindowParams, corners

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DepthwiseParams(WindowParams):
    """``group``: channels of a group, G."""

    group: int = 1


class Depthwise(Windowed[DepthwiseParams]):
    """See the module."""

    name = "depthwise"
    parameters = DepthwiseParams
    weights = ""

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        group = self.params(task).group
        return f"has groups of {group} channels" if group < 1 else super().mismatch(task)

    def contraction(self, task: Task, extent: Extent) -> str:
        differ = (extent("a", 1) != extent("b", 1)).any()
        return "the extents that operands 'a' and 'b' contract differ" if differ else super().contraction(task, extent)

    def compute(self, task: Task, running: Running) -> Array:
        a, b, params = running.matrix("a"), running.matrix("b"), self.params(task)
        taps, group = params.windows.taps_of(a), params.group
        first = np.arange(b.shape[1]) // group * group
        rows = b.reshape(len(taps), group, b.shape[1])
        terms = (tap[..., first + c] * row[c] for tap, row in zip(taps, rows, strict=True) for c in range(group))
        return np.asarray(sum(terms))

    def terms(self, task: Task, channels: Array) -> Array:
        params = self.params(task)
        return np.asarray(params.windows.taps * params.group)

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def rate(self, task: Task) -> float:
        return 0.2 if self.params(task).group == 1 else 0.7

    def panels(self, conv: Conv, lanes: int) -> tuple[int, ...]:
        """All channels that an owner has."""
        return (ceil(conv.channels / lanes) * lanes,) if conv.lanewise(lanes) else ()

    def by_columns(self, conv: Conv, owners: int, lanes: int) -> bool:
        return self.panels(conv, lanes)[0] // lanes % owners == 0

    def dealt(self, panel: int, partition: Partition) -> int:
        return panel // partition.owners if partition.kind == "columns" else panel

    def reads(self, conv: Conv, panel: int) -> int:
        return min(panel, conv.channels)

    def first_channel(self, conv: Conv, panel: int, column: Expr) -> Expr:
        return column

    def weight_matrix(self, conv: Conv, panel: int, w: Array) -> Array:
        return w.reshape(-1, conv.channels)

    def packed_panel(self, conv: Conv, panel: int) -> int:
        """All of them: an owner's lie between others'."""
        return ceil(conv.channels / panel) * panel

    def more_params(self, conv: Conv, panel: int) -> dict[str, object]:
        return {"group": conv.of_group[0]}

    # -- C++ --------------------------------------------------------------------------------------------------------

    def write_ahead(self, result: Result, printer: Printer, code: CpuStorage) -> None:
        """It asks for nothing ahead."""

    def call(self, phase: Phase, rows: int, function: str, printer: Printer, code: CpuStorage) -> str:
        ldb = row_stride(printer.pointers["b"].buffer)
        kernel = f"mn::depthwise<Windows_, {rows}, {self.params(phase.task).group}>"
        return f"{kernel}({corners(phase, printer, code)}, {ldb}, {function});"


TEMPLATE = Depthwise()
