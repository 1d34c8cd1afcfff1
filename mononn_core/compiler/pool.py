"""The packed constants that the specialisations of a network share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mononn_core.compiler.packing import pack
from mononn_core.lower.memory import round_up
from mononn_core.lower.steps import Lowered
from mononn_core.ops.common import same_bits
from mononn_core.program.ir import Buffer
from mononn_core.runtime.artifact import Unpacked
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.phases import Panels
from mononn_core.schedule.schedule import Schedule

SAMPLES = 256
"""Elements that two constants are compared by before all are."""


@dataclass
class Pool:
    """Packed constants of several Programs, each once.

    Attributes:
        stored: the buffers placed so far, with their values.
        nbytes: where the next one may begin, but for its alignment.
        panels: how a product's constant has been packed, by its name.
        smallest: the elements of the smallest specialisation over those of the largest, which comes first.
    """

    stored: list[tuple[Buffer, np.ndarray]] = field(default_factory=list)
    nbytes: int = 0
    panels: dict[str, Panels] = field(default_factory=dict)
    smallest: float = 1.0
    _alike: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)

    def place(self, lowered: Lowered[Schedule], groups: CpuGroups) -> Lowered[Schedule]:
        """``lowered``, of ``groups``, with its weight buffers where the pool has them."""
        for group in lowered.schedule.groups:
            root = groups.stage(group).root
            if root is not None and group.tile is not None:
                panels = Panels(group.tile.panel, groups.builder.half(root), group.template)
                self.panels.setdefault(root.inputs[1], panels)
        program = lowered.program
        buffers = tuple(
            replace(b, offset=self._offset(b, lowered.weights[b.id])) if b.space == "weight" else b
            for b in program.buffers
        )
        return replace(lowered, program=replace(program, buffers=buffers, weight_bytes=self.nbytes))

    def _offset(self, buffer: Buffer, value: np.ndarray) -> int:
        step = max(value.size // SAMPLES, 1)
        sample = value.reshape(-1)[::step].tobytes()
        alike = self._alike.setdefault((buffer.dtype, buffer.shape, buffer.layout, sample), [])
        for index in alike:
            placed, before = self.stored[index]
            if before is value or same_bits(before, value):
                return placed.offset
        offset = round_up(self.nbytes, buffer.align)
        alike.append(len(self.stored))
        self.stored.append((replace(buffer, offset=offset), value))
        self.nbytes = round_up(offset + buffer.nbytes, buffer.align)
        return offset

    def pack(self) -> Unpacked:
        """All constants in the layouts that they are read in."""
        return pack(self.stored, self.nbytes)
