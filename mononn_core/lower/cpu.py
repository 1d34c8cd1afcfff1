"""The Program of a Schedule for a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mononn_core.codegen.cpu_storage import cpu_template
from mononn_core.element import COMPUTE, itemsize
from mononn_core.lower import memory, steps
from mononn_core.lower.steps import Lowered, Lowering
from mononn_core.machine import Machine
from mononn_core.program.ir import Buffer, Layout, Phase, Program
from mononn_core.program.rules import changed
from mononn_core.schedule.decisions import padded_stride
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.images import in_rounds, pass_on
from mononn_core.schedule.schedule import Schedule

SCRATCH = "@scratch"
"""The worker-local buffer that templates work in."""
PAGE = 4096
"""Workers' slices of local memory are whole pages."""


def lower(groups: CpuGroups, schedule: Schedule) -> Lowered[Schedule]:
    """What follows from a legal Schedule."""
    intervals = [list(in_rounds([(group, groups.items(group)) for group in i])) for i in schedule.intervals]
    intervals, images = pass_on(intervals, groups.graph.outputs)
    stored = {name: (dtype, shape) for name, dtype, shape in map(groups.stored, schedule.groups)}
    for name, image in images.items():
        dtype, (_, columns) = stored[name]
        stored[image.buffer] = (dtype, (image.rows * image.owners, columns))
    passing, packed = {image.buffer for image in images.values()}, groups.builder.packed
    lowering = CpuLowering(
        groups.graph, intervals, packed, memory.ALIGN, schedule.prefetch, passing, machine=groups.machine, stored=stored
    )
    return steps.run(lowering, schedule)


@dataclass
class CpuLowering(Lowering):
    """``stored``: buffer -> its dtype and (rows, columns)."""

    machine: Machine = field(kw_only=True)
    stored: dict[str, tuple[str, tuple[int, int]]] = field(kw_only=True)

    def activation(self, tensor: str) -> Buffer:
        dtype, (rows, columns) = self.stored[tensor]
        stride = padded_stride(columns, dtype, self.machine) if rows > 1 else columns
        layout = Layout((((rows, stride),), ((columns, 1),)), max(rows * stride, 1))
        return Buffer(tensor, dtype, (rows, columns), layout, "arena")

    def scratch(self, program: Program) -> Program:
        return with_scratch(program, self.machine.lanes(COMPUTE))


def with_scratch(program: Program, lanes: int) -> Program:
    """``program`` with what its templates keep in a worker's memory, for vectors of ``lanes``: one buffer, behind the
    local ones that it has, listed by every task that works in it."""

    def needs(phase: Phase) -> int:
        return cpu_template(phase).scratch_floats(phase.task, lanes)

    most = max(map(needs, program.phases()), default=0)
    if most == 0:
        return replace(program, scratch_bytes=memory.round_up(program.scratch_bytes, PAGE))
    start = memory.round_up(program.scratch_bytes, memory.ALIGN)
    shape = (most,)
    scratch = Buffer(SCRATCH, COMPUTE, shape, Layout.row_major(shape), "local", start)

    def listed(phase: Phase) -> Phase:
        return replace(phase, task=replace(phase.task, local=(*phase.task.local, SCRATCH))) if needs(phase) else phase

    nbytes = memory.round_up(start + most * itemsize(COMPUTE), PAGE)
    return replace(changed(program, listed), buffers=(*program.buffers, scratch), scratch_bytes=nbytes)
