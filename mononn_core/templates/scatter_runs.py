"""Scatters at positions that are data, result axes (row, column) of the data, on a CPU.

A task has some rows of the data and looks at every update; updates that meet one element are combined in their own
order, whoever owns it. An update whose target does not exist is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.epilogues import write_element
from mononn_core.codegen.loops import write_statements
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE, itemsize
from mononn_core.ops import registry
from mononn_core.ops.common import delinearise, text
from mononn_core.program.expr import Const, Expr, Var, op
from mononn_core.program.ir import Box, Operand, Phase, Store, Task
from mononn_core.program.rules import matrix_dims
from mononn_core.program.simplify import simplify
from mononn_core.program.template import Array, Elements, Extent, Running, Template, operand
from mononn_core.schedule.binder import OWNER, OperandBinder, unit_axes
from mononn_core.schedule.operands import RowsView, axis
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition
from mononn_core.schedule.shares import rows_of_an_owner
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.schedule.views import matrix_shape

AT_ONCE = 1 << 16
"""Elements of the data that are made at once, where a row has no more."""
OPERATIONS = 4
"""Operations an element, about."""
HOW = {"none": "Set", "add": "Sum", "mul": "Product", "max": "Most", "min": "Least"}
"""Reduction -> what the vocabulary calls it."""


@dataclass(frozen=True)
class ScatterParams:
    """Updates of ``size`` elements in rows of ``columns``, combined as ``reduction`` says. The data starts at ``row``
    and ``column`` of the stored matrix; ``nbytes``: of an element."""

    columns: int
    size: int
    reduction: str
    row: int
    column: int
    nbytes: int


class ScatterRuns(Template[ScatterParams], CpuTemplate, CpuScheduled):
    """See the module."""

    name = op = "scatter_runs"
    roles = ("data", "targets", "updates")
    parameters = ScatterParams
    header = "mononn_scatter.hpp"
    efficiency = 0.1

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        params = self.params(task)
        if params.reduction not in HOW or params.size < 1 or params.columns % params.size or params.nbytes < 1:
            return f"runs of {params.size} in rows of {params.columns} by {params.reduction!r} are none it knows"
        rows, columns = (operand(task, "data").box.size[d] for d in matrix_dims(operand(task, "data").box.size))
        whole = columns == params.columns or (rows == 1 and columns % params.columns == 0)
        return "" if whole else f"{rows} rows of {columns} elements are no rows of {params.columns}"

    def contraction(self, task: Task, extent: Extent) -> str:
        params = self.params(task)
        if (extent("data", 1) % params.columns).any():
            return "a row of operand 'data' is not whole"
        targets, updates = (extent(role, 0) * extent(role, 1) for role in ("targets", "updates"))
        return "operands 'targets' and 'updates' differ" if (targets * params.size != updates).any() else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        box, columns, row = operand(task, "data").box, self.params(task).columns, Var(axes[0])
        below, beside = matrix_dims(box.size)
        runs = box.size[beside] // columns
        steps = (row, Const(0)) if runs == 1 else (Const(0), row * columns)
        inside = [op("lt", box.offset[d] + s, Const(box.bound[d])) for d, s in zip((below, beside), steps, strict=True)]
        return Elements((box.size[below] * runs, columns), tuple(inside))

    def compute(self, task: Task, running: Running) -> Array:
        params = self.params(task)
        data = running.matrix("data")
        row, column = (running.corner("data")[d] for d in matrix_dims(operand(task, "data").box.size))
        before = (row - params.row) * params.columns + (column - params.column)
        targets = running.matrix("targets").reshape(-1) - before // params.size
        rows, attrs = data.reshape(-1, params.columns), {"reduction": params.reduction}
        return np.asarray(registry.get(self.op).evaluate(np, (rows, targets, running.matrix("updates")), attrs)[0])

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        assert stage.root is not None
        rows, columns = builder.types[stage.root.output].shape
        found = (Partition("rows", owners),) if rows >= owners else ()
        return Ways(found, rows * columns * OPERATIONS)

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        node, partition = stage.root, decided.partition
        assert node is not None
        kind, (_, targets, updates) = builder.types[node.output], node.inputs
        total, columns = kind.shape
        owners = partition.owners if partition.kind == "rows" else 1
        each, extents = rows_of_an_owner(kind.shape, owners), {OWNER: owners}
        binder = builder.binder(extents)
        first = binder.fix(Var(OWNER) * each, unit_axes(extents))
        seen = _rows(builder, node.inputs[0])
        width = matrix_shape(builder.types[seen.tensor].shape)[1]
        corner: tuple[Expr, ...] = (first + seen.row, Const(seen.column))
        size, ends = (each, columns), (seen.row + total, width)
        if seen.beside:
            corner, size = (Const(seen.row), first * columns + seen.column), (1, each * columns)
            ends = (seen.row + 1, seen.column + total * columns)
        binder.add("data", seen.tensor, Box(corner, size, ends))
        _whole(builder, binder, "targets", targets)
        _whole(builder, binder, "updates", updates)
        inner = {"m": (0, each - 1), "n": (0, columns - 1)}
        row = binder.position("row", first + axis("m", each), total)
        result = builder.epilogue(stage, binder, (*delinearise(row, (total,)), axis("n", columns)), inner, ("m", "n"))
        params = {
            "columns": columns,
            "size": builder.types[updates].size // builder.types[targets].size,
            "reduction": text(node.attrs, "reduction"),
            "row": seen.row,
            "column": seen.column,
            "nbytes": itemsize(kind.dtype),
        }
        task = Task(self.name, tuple(binder.operands), params, (result,))
        return builder.phase(name, stage, partition, extents, task, kind.size * OPERATIONS)

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        params = self.params(task)
        return -(-_at_once(task, params) * params.columns * params.nbytes // itemsize(COMPUTE))

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        task, out, params = phase.task, code.out, self.params(phase.task)
        data, targets, updates = (operand(task, role) for role in self.roles)
        result = task.results[0]
        m, n = result.axes
        inner = code.element_printer(printer, result.axes, self.elements(task, result.axes).extents)
        source = printer.pointers["data"].buffer
        if source.dtype == COMPUTE:
            write_element(out, result, inner)
        else:
            with out.block(f"auto element_ = [&](long {m}, long {n}, {c_type(source.dtype)} v_) {{", "};"):
                write_statements(out, (Store(result.operand, result.index, result.value),), inner)
        below, beside = matrix_dims(data.box.size)
        stride, many = row_stride(source), code.extents(data, below, printer)[1]
        first = data.box.offset[below] + -params.row
        if data.box.size[beside] > params.columns:
            stride, many = params.columns, f"({code.extents(data, beside, printer)[1]}) / {params.columns}"
            first = (data.box.offset[beside] + -params.column) // params.columns
        kernel = (
            f"mn::Scatter<{c_type(source.dtype)}, mn::{HOW[params.reduction]}, {params.columns}, "
            f"{_at_once(task, params)}, {params.size}>"
        )
        code.write_scratch(phase)
        code.assert_fits(phase, kernel)
        start = printer.index(simplify(first, printer.ranges))
        apart = params.size if _count(updates) == 1 else row_stride(printer.pointers["updates"].buffer)
        out.line(
            f"{kernel}::run({code.corner(printer, data)}, {stride}, {start}, {many}, {code.corner(printer, targets)}, "
            f"{_count(targets, 1)}, {code.corner(printer, updates)}, {apart}, local_, element_);"
        )


def _rows(builder: PhaseBuilder, name: str) -> RowsView:
    found = RowsView.of(builder.views, name)
    assert found is not None, "what cannot be read in place is stored"
    return found


def _whole(builder: PhaseBuilder, binder: OperandBinder, role: str, name: str) -> None:
    """All of a matrix as an operand: its rows below, or beside, one another."""
    seen, (rows, columns) = _rows(builder, name), matrix_shape(builder.types[name].shape)
    size = (1, rows * columns) if seen.beside else (rows, columns)
    ends = (seen.row + size[0], seen.column + size[1])
    binder.add(role, seen.tensor, Box((Const(seen.row), Const(seen.column)), size, ends))


def _count(one: Operand, side: int = 0) -> int:
    return one.box.size[matrix_dims(one.box.size)[side]]


def _at_once(task: Task, params: ScatterParams) -> int:
    """Rows that are made at once."""
    rows, columns = (_count(operand(task, "data"), side) for side in (0, 1))
    return min(rows * (columns // params.columns), max(1, AT_ONCE // params.columns))


TEMPLATE = ScatterRuns()
