"""The template ``recurrence`` where states are rounded to whole numbers (see the operator) and weights have 8 bits, on
a CPU: products of bytes with whole sums. b holds digits, 128 for zero, in groups of four terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage
from mononn_core.element import WIDE
from mononn_core.ops.recurrent import ROUNDED, Arrays
from mononn_core.ops.weight_only import in_steps, middle
from mononn_core.program.ir import Phase, Task
from mononn_core.program.template import Array, Running, operand
from mononn_core.templates.recurrence import Recurrence, RecurrenceParams
from mononn_core.templates.recurrence_steps import GROUP


@dataclass(frozen=True)
class BytesParams(RecurrenceParams):
    """``pieces`` bytes stand for a state."""

    pieces: int


class RecurrenceBytes(Recurrence):
    """See the module."""

    name = "recurrence_bytes"
    parameters: type[RecurrenceParams] = BytesParams
    header = "mononn_recurrence_bytes.hpp"
    efficiency = 0.13
    rounded = "int8"

    # -- meaning ----------------------------------------------------------------------------------------------------

    def params(self, task: Task) -> BytesParams:
        found = super().params(task)
        assert isinstance(found, BytesParams)
        return found

    def mismatch(self, task: Task) -> str:
        pieces = self.params(task).pieces
        return super().mismatch(task) or ("" if pieces in (1, 2) else f"states of {pieces} bytes are none it knows")

    def products(self, task: Task, running: Running) -> Array:
        pieces, digits = self.params(task).pieces, running.matrix("b").astype(WIDE)
        whole, scale = in_steps(Arrays(np), running.matrix("a"), ROUNDED[pieces - 1], 1)
        parts = [whole] if pieces == 1 else [high := np.floor(whole / 256 + 0.5), whole - 256 * high]
        sums = [(part @ (digits - middle(8))).astype(scale.dtype) for part in parts]
        found: Array = (sums[0] if pieces == 1 else 256 * sums[0] + sums[1]) * scale
        return found

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def rate(self, phase: Phase) -> float:
        return self.efficiency / self.params(phase.task).pieces

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """Each row's scale, and of each piece the terms and what their sums begin with."""
        (rows, terms), pieces = operand(task, "a").box.size, self.params(task).pieces
        return rows * (1 + pieces + pieces * -(-terms // GROUP))

    def call(self, phase: Phase, code: CpuStorage, rows: int, a: str, b: str, rest: str, cell: str) -> str:
        params, terms = self.params(phase.task), operand(phase.task, "a").box.size[1]
        kernel = f"mn::RecurrenceBytes<{self.sizes(params, rows)}, {params.pieces}, {terms}>"
        code.write_scratch(phase)
        code.assert_fits(phase, kernel)
        return f"{kernel}::run({a}, {b}, {rest}, local_, {cell});"


TEMPLATE = RecurrenceBytes()
