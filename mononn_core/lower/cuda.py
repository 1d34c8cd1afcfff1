"""The Program of a Schedule for one cooperative CUDA kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from mononn_core.element import itemsize
from mononn_core.lower import shared, steps
from mononn_core.lower.steps import Lowered, Lowering
from mononn_core.program.ir import Buffer, Layout, Program
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.groups import CudaGroups, build_phases
from mononn_core.schedule.cuda.schedule import CudaSchedule
from mononn_core.schedule.cuda.template import SUM
from mononn_core.schedule.views import matrix_shape

ALIGN = 128


def lower(groups: CudaGroups, schedule: CudaSchedule) -> Lowered[CudaSchedule]:
    """What follows from a legal Schedule.

    Raises:
        UnsupportedError: a weight is too large for the precision; the message names it.
    """
    order = sorted(schedule.groups, key=lambda g: (groups.by_name[g.group][0], g.template == SUM))
    decided = [groups.planned(group) for group in order]
    builder = groups.builder(decided, groups.target(schedule))
    phases = build_phases(builder, decided, order)
    intervals = [[phase for group in interval for phase in phases[group]] for interval in schedule.intervals]
    lowering = CudaLowering(groups.graph, intervals, builder.packed, ALIGN, True, builder=builder)
    return steps.run(lowering, schedule)


@dataclass
class CudaLowering(Lowering):
    """``builder``: of the phases; it knows types and local buffers."""

    builder: CudaBuilder = field(kw_only=True)

    def activation(self, tensor: str) -> Buffer:
        """Rows start at multiples of 16 bytes."""
        kind = self.builder.views.type(tensor)
        rows, columns = matrix_shape(kind.shape)
        dtype = self.builder.storage.get(tensor, kind.dtype)
        multiple = max(1, 16 // itemsize(dtype))
        stride = ceil(columns / multiple) * multiple if rows > 1 else columns
        layout = Layout((((rows, stride),), ((columns, 1),)), max(rows * stride, 1))
        return Buffer(tensor, dtype, (rows, columns), layout, "arena", align=ALIGN)

    @property
    def locals(self) -> Mapping[str, Buffer]:
        return self.builder.locals

    def scratch(self, program: Program) -> Program:
        return shared.place(program, self.builder.target.threads)
