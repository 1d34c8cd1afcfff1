"""A template: the L1 distance of each row of a [M, K] to each column of b [K, N], result axes (m, n).

It would stand in mononn_core/templates/; docs/adding-a-template.md goes through it, and a test runs it.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.loops import write_statements
from mononn_core.codegen.storage import row_stride
from mononn_core.graph import Node
from mononn_core.program.expr import Const, Expr, Var
from mononn_core.program.ir import Box, Phase, Store, Task
from mononn_core.program.template import Array, Elements, Extent, NoParams, Running, Template, operand, sides
from mononn_core.schedule.binder import OWNER, OperandBinder, bound, unit_axes
from mononn_core.schedule.operands import axis, matmul_axes
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.schedule.views import matrix_shape

OPERATIONS = 3
"""Of a term: a difference, its absolute value, a sum."""


class L1Distance(Template[NoParams], CpuTemplate, CpuScheduled):
    """See the module."""

    name = op = "l1_distance"
    roles = ("a", "b")
    parameters = NoParams
    efficiency = 0.1

    # -- meaning ----------------------------------------------------------------------------------------------------

    def contraction(self, task: Task, extent: Extent) -> str:
        differ = (extent("a", 1) != extent("b", 0)).any()
        return "the rows of 'a' and the columns of 'b' differ in length" if differ else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        return sides(task, axes, (("a", 0), ("b", 1)))

    def compute(self, task: Task, running: Running) -> Array:
        a, b = running.matrix("a"), running.matrix("b")
        return np.asarray(np.abs(a[:, :, None] - b[None, :, :]).sum(axis=1))

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        m, k, n = _sizes(stage, builder)
        return Ways((Partition("rows", owners),) if m >= owners else (), OPERATIONS * m * k * n)

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        m, k, n = _sizes(stage, builder)
        owners = decided.partition.owners if decided.partition.kind == "rows" else 1
        each, extents = ceil(m / owners), {OWNER: owners}
        binder = builder.binder(extents)
        first = binder.fix(Var(OWNER) * each, unit_axes(extents))
        node = stage.root
        assert node is not None
        _operand(builder, binder, node, 0, first, (each, k))
        _operand(builder, binder, node, 1, Const(0), (k, n))
        inner = {"m": (0, each - 1), "n": (0, n - 1)}
        place = binder.position("row", first + axis("m", each), m)
        result = builder.epilogue(stage, binder, (place, axis("n", n)), inner, ("m", "n"))
        task = Task(self.name, tuple(binder.operands), {}, (result,))
        return builder.phase(name, stage, decided.partition, extents, task, OPERATIONS * m * k * n)

    # -- C++ --------------------------------------------------------------------------------------------------------

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        out, result = code.out, phase.task.results[0]
        a, b = (operand(phase.task, role) for role in self.roles)
        m, n = result.axes
        inner = code.element_printer(printer, result.axes, self.elements(phase.task, result.axes).extents)
        with out.block(f"auto element_ = [&](long {m}, long {n}, float v_) {{", "};"):
            write_statements(out, (Store(result.operand, result.index, result.value),), inner)
        rows, terms, columns = (code.extents(one, side, printer)[1] for one, side in ((a, 0), (a, 1), (b, 1)))
        left, right = (code.corner(printer, one) for one in (a, b))
        across, down = (row_stride(printer.pointers[role].buffer) for role in self.roles)
        with out.block(f"for (long i_ = 0; i_ < {rows}; ++i_) for (long j_ = 0; j_ < {columns}; ++j_) {{"):
            out.line("float sum_ = 0;")
            difference = f"({left})[i_ * {across} + k_] - ({right})[k_ * {down} + j_]"
            out.line(f"for (long k_ = 0; k_ < {terms}; ++k_) sum_ += __builtin_fabsf({difference});")
            out.line("element_(i_, j_, sum_);")


def _sizes(stage: FusionGroup, builder: PhaseBuilder) -> tuple[int, int, int]:
    """M, K and N."""
    assert stage.root is not None
    (m, k), (_, n) = (builder.types[name].shape for name in stage.root.inputs)
    return m, k, n


def _operand(
    builder: PhaseBuilder, binder: OperandBinder, node: Node, position: int, start: Expr, size: tuple[int, int]
) -> None:
    """Declare a or b: ``size`` (rows, columns) of it from row ``start`` on."""
    name, types = node.inputs[position], builder.types
    tensor, row, column = builder.view(name, matmul_axes(node, position, types), {})
    stored = matrix_shape(types[tensor].shape)
    ends = (bound(row, stored[0], types[name].shape[0]), bound(column, stored[1], types[name].shape[1]))
    binder.add(L1Distance.roles[position], tensor, Box((binder.fix(row + start, {}), column), size, ends))


TEMPLATE = L1Distance()
