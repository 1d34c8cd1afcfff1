"""Positions of the k first elements of rows x, in descending or ascending order, result axes (row, rank), on a CPU.

Knuth, "The Art of Computer Programming", volume 3, section 5.2.5 (sorting by digits); the header says how the k first
of many are found. A task has some rows, which lie one below the other, or one after the other in one stored row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.loops import write_statements
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE, itemsize
from mononn_core.graph import TensorType
from mononn_core.ops import registry
from mononn_core.ops.common import delinearise
from mononn_core.program.expr import Const, Expr, Var, op
from mononn_core.program.ir import Box, Phase, Store, Task
from mononn_core.program.rules import matrix_dims
from mononn_core.program.template import Array, Elements, Extent, Running, Template, operand
from mononn_core.schedule.binder import OWNER, unit_axes
from mononn_core.schedule.operands import RowsView, axis
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition
from mononn_core.schedule.shares import rows_of_an_owner
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.schedule.views import matrix_shape

FEW, SHARE, ROOM = 32, 8, 128
"""As the kernel has them: of fewer elements, or of fewer than so many times k, all become items; else there is room for
twice k and so many more."""
EACH, KEPT = 4, 128
"""Operations an element, and more for one that is kept, about."""


@dataclass(frozen=True)
class OrderParams:
    """The ``k`` first of rows of ``length`` elements, which have ``nbytes`` bytes each; ``largest``: in descending
    order."""

    length: int
    k: int
    largest: bool
    nbytes: int


class Order(Template[OrderParams], CpuTemplate, CpuScheduled):
    """See the module."""

    name = op = "order"
    roles = ("x",)
    parameters = OrderParams
    header = "mononn_order.hpp"
    efficiency = 0.1

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        params, box = self.params(task), operand(task, "x").box
        rows, columns = (box.size[d] for d in matrix_dims(box.size))
        if not 1 <= params.k <= params.length or params.nbytes < 1:
            return f"the first {params.k} of {params.length} elements of {params.nbytes} bytes do not exist"
        whole = columns == params.length or (rows == 1 and columns % params.length == 0)
        return "" if whole else f"{rows} rows of {columns} elements are no rows of {params.length}"

    def contraction(self, task: Task, extent: Extent) -> str:
        cut = (extent("x", 1) % self.params(task).length).any()
        return "a row of operand 'x' is not whole" if cut else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        box, params, row = operand(task, "x").box, self.params(task), Var(axes[0])
        below, beside = matrix_dims(box.size)
        runs = box.size[beside] // params.length
        steps = (row, Const(0)) if runs == 1 else (Const(0), row * params.length)
        inside = [op("lt", box.offset[d] + s, Const(box.bound[d])) for d, s in zip((below, beside), steps, strict=True)]
        return Elements((box.size[below] * runs, params.k), tuple(inside))

    def compute(self, task: Task, running: Running) -> Array:
        params = self.params(task)
        rows = running.matrix("x").reshape(-1, params.length)
        attrs = {"axis": 1, "k": params.k, "largest": params.largest}
        return np.asarray(registry.get(self.op).evaluate(np, (rows,), attrs)[0])

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        assert stage.root is not None
        x, y = (builder.types[name] for name in (stage.root.inputs[0], stage.root.output))
        found = (Partition("rows", owners),) if prod(x.shape[:-1]) >= owners else ()
        return Ways(found, operations(x, y))

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        node, partition = stage.root, decided.partition
        assert node is not None
        x, y = (builder.types[name] for name in (node.inputs[0], node.output))
        (*_, length), (*lead, k), total = x.shape, y.shape, prod(y.shape[:-1])
        owners = partition.owners if partition.kind == "rows" else 1
        each = rows_of_an_owner(y.shape, owners)
        extents = {OWNER: owners}
        binder = builder.binder(extents)
        first = binder.fix(Var(OWNER) * each, unit_axes(extents))
        seen = RowsView.of(builder.views, node.inputs[0])
        assert seen is not None, "what cannot be read in place is stored"
        rows, columns = matrix_shape(builder.types[seen.tensor].shape)
        corner: tuple[Expr, ...] = (first + seen.row, Const(seen.column))
        size, ends = (each, length), (seen.row + total, columns)
        if seen.beside:
            corner, size = (Const(seen.row), first * length + seen.column), (1, each * length)
            ends = (rows, seen.column + total * length)
        binder.add("x", seen.tensor, Box(corner, size, ends))
        inner = {"m": (0, each - 1), "n": (0, k - 1)}
        row = binder.position("row", first + axis("m", each), total)
        index = (*delinearise(row, tuple(lead)), axis("n", k))
        result = builder.epilogue(stage, binder, index, inner, ("m", "n"))
        largest = bool(node.attrs["largest"])
        params = {"length": length, "k": k, "largest": largest, "nbytes": itemsize(x.dtype)}
        task = Task(self.name, tuple(binder.operands), params, (result,))
        return builder.phase(name, stage, partition, extents, task, operations(x, y))

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """Items twice: of what is sorted, and of what is kept of it. An item is twice as wide as what is compared."""
        params = self.params(task)
        if params.k == 1:
            return 0
        whole = params.length < max(FEW, SHARE * params.k)
        items = params.length if whole else 2 * params.k + ROOM
        return 2 * items * 2 * ceil(params.nbytes / itemsize(COMPUTE))

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        task, out, params = phase.task, code.out, self.params(phase.task)
        x, result = operand(task, "x"), task.results[0]
        below, beside = matrix_dims(x.box.size)
        runs = x.box.size[beside] // params.length
        m, n = result.axes
        inner = code.element_printer(printer, result.axes, (x.box.size[below] * runs, params.k))
        with out.block(f"auto element_ = [&](long {m}, long {n}, int64_t v_) {{", "};"):
            write_statements(out, (Store(result.operand, result.index, result.value),), inner)
        source = printer.pointers["x"].buffer
        stride, many = row_stride(source), code.extents(x, below, printer)[1]
        if runs > 1:
            stride, many = params.length, f"({code.extents(x, beside, printer)[1]}) / {params.length}"
        largest = str(params.largest).lower()
        kernel = f"mn::Order<{c_type(source.dtype)}, {largest}, {params.length}, {params.k}>"
        local = "nullptr"
        if self.scratch_floats(task, 0):
            code.write_scratch(phase)
            code.assert_fits(phase, kernel)
            local = "local_"
        out.line(f"{kernel}::run({code.corner(printer, x)}, {stride}, {many}, {local}, element_);")


def operations(x: TensorType, y: TensorType) -> int:
    """Of all rows together: x is sorted, y are the positions."""
    return x.size * EACH + y.size * KEPT


TEMPLATE = Order()
