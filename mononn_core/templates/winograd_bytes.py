"""Winograd's F(2x2, 3x3) of bytes, exactly: for processors with no instruction that multiplies and adds up bytes.

Transforms of windows are sums of four bytes and fit words of 16 bits, as do those of weights times four, which are
whole; pairs of their products are int32, four times the result. See :mod:`mononn_core.templates.winograd`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mononn_core.element import HALF_WORD, WIDE, WORD
from mononn_core.machine import Machine
from mononn_core.program.ir import Task
from mononn_core.program.template import Running
from mononn_core.program.windows import Pair
from mononn_core.schedule.binder import Matrix
from mononn_core.schedule.decisions import most_at_once
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.stages import FusionGroup
from mononn_core.templates import winograd
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.winograd import Winograd

Array = np.ndarray[Any, Any]
SCALE = 4
"""The sums over the results: filters' transforms have halves in two dimensions."""
MOST_CHANNELS = (1 << 31) // (SCALE * 9 * 255 * 128)
"""Of a group: so many that an int32 holds the sums, whatever the bytes are."""

DIRECT, SEVEN_BITS, WORDS = 1.3, 1.9, 1.55
"""Products of bytes of a direct convolution, of those with seven bits, and of those that are stored as words, in the
time of one of float32 (measured)."""


class WinogradBytes(Winograd):
    """See the module; b [products C, N] holds words, four times the weights' transforms."""

    name = "winograd_bytes"
    transformed: ClassVar[str] = HALF_WORD

    def compute(self, task: Task, running: Running) -> Array:
        a, b = (running.matrix(role).astype(WIDE) for role in self.roles)
        return (winograd.convolve(self.windows(task), a, b, self.toom) / SCALE).astype(WORD)

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        return super().preference(stage, builder) if builder.machine.multiplies_words else None

    def direct_seconds(self, conv: Conv, machine: Machine) -> float:
        rate = SEVEN_BITS if conv.seven_bits else WORDS if conv.dtype == HALF_WORD else DIRECT
        return conv.flops / (rate * machine.peak_flops_per_core * machine.cores)

    def panels(self, conv: Conv, lanes: int) -> tuple[int, ...]:
        return super().panels(conv, lanes) if conv.of_group[0] <= MOST_CHANNELS else ()

    def weight_matrix(self, conv: Conv, panel: int, w: Array) -> tuple[Pair, Matrix]:
        shape, _ = super().weight_matrix(conv, panel, w)
        return shape, lambda: winograd.transformed_weights(SCALE * w.astype(WIDE), self.toom).astype(HALF_WORD)

    def most_at_once(self, conv: Conv, panel: int, builder: PhaseBuilder) -> int:
        return most_at_once(panel // builder.lanes, builder.machine)


TEMPLATE = WinogradBytes()
