"""Sums or products of the elements up to each position: along rows x, or ``down`` the columns of matrices one below the
other. Result axes (row, column); on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.epilogues import write_element
from mononn_core.codegen.loops import write_statements
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE, WORD, itemsize
from mononn_core.machine import LINE_BYTES
from mononn_core.ops import registry
from mononn_core.program.expr import Const, Expr, Var
from mononn_core.program.ir import Box, Phase, Store, Task
from mononn_core.program.rules import matrix_dims
from mononn_core.program.template import Array, Elements, Extent, Running, Template, operand, sides
from mononn_core.schedule.binder import OWNER, unit_axes
from mononn_core.schedule.operands import RowsView, axis
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.schedule.views import matrix_shape

STEPS = 8
"""Operations an element, about: of a row's vectors that is how many steps they take."""


@dataclass(frozen=True)
class CumulativeParams:
    """Rows, or columns, of ``length`` elements; else as of the operator."""

    length: int
    down: bool
    product: bool
    exclusive: bool
    reverse: bool


class Cumulative(Template[CumulativeParams], CpuTemplate, CpuScheduled):
    """See the module."""

    name = op = "cumulative"
    roles = ("x",)
    parameters = CumulativeParams
    header = "mononn_cumulative.hpp"
    efficiency = 0.1

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        params, box = self.params(task), operand(task, "x").box
        rows, columns = (box.size[d] for d in matrix_dims(box.size))
        whole = params.length > 0 and (rows % params.length == 0 if params.down else columns == params.length)
        return "" if whole else f"{rows} rows of {columns} elements are not cut into runs of {params.length}"

    def contraction(self, task: Task, extent: Extent) -> str:
        params = self.params(task)
        cut = (extent("x", 0 if params.down else 1) % params.length).any()
        return "a run of operand 'x' is not whole" if cut else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        return sides(task, axes, (("x", 0), ("x", 1)))

    def compute(self, task: Task, running: Running) -> Array:
        params, x = self.params(task), running.matrix("x")
        runs = x.reshape(-1, params.length, x.shape[1]) if params.down else x
        attrs = {"axis": 1, "product": params.product, "exclusive": params.exclusive, "reverse": params.reverse}
        return np.asarray(registry.get(self.op).evaluate(np, (runs,), attrs)[0]).reshape(x.shape)

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        assert stage.root is not None
        many, length, *tail = builder.types[stage.root.output].shape
        found = [Partition("rows", owners)] if many >= owners else []
        if tail and _columns(tail[0], owners, builder, stage) * (owners - 1) < tail[0]:
            found.append(Partition("columns", owners))
        return Ways(tuple(found), STEPS * many * length * (tail[0] if tail else 1))

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        node, partition = stage.root, decided.partition
        assert node is not None
        many, length, *tail = shape = builder.types[node.output].shape
        total, width = matrix_shape(shape)
        owners, size, extents = partition.owners, (total, width), {OWNER: partition.owners}
        first: Expr = Const(0)
        column: Expr = Const(0)
        if partition.kind == "rows":
            each = ceil(many / owners) * (length if tail else 1)
            size, first = (each, width), Var(OWNER) * each
        elif partition.kind == "columns":
            each = _columns(width, owners, builder, stage)
            size, column = (total, each), Var(OWNER) * each
        else:
            extents = {OWNER: 1}
        binder = builder.binder(extents)
        first, column = (binder.fix(e, unit_axes(extents)) for e in (first, column))
        seen = RowsView.of(builder.views, node.inputs[0])
        assert seen is not None and not seen.beside, "what cannot be read in place is stored"
        ends = (seen.row + total, seen.column + width)
        binder.add("x", seen.tensor, Box((first + seen.row, column + seen.column), size, ends))
        inner = {"m": (0, size[0] - 1), "n": (0, size[1] - 1)}
        m = binder.position("row", first + axis("m", size[0]), total)
        n = binder.position("column", column + axis("n", size[1]), width)
        index = (m // length, m % length, n) if tail else (m, n)
        result = builder.epilogue(stage, binder, index, inner, ("m", "n"))
        flags = {key: bool(node.attrs[key]) for key in ("product", "exclusive", "reverse")}
        task = Task(self.name, tuple(binder.operands), {"length": length, "down": bool(tail), **flags}, (result,))
        return builder.phase(name, stage, partition, extents, task, STEPS * total * width)

    # -- C++ --------------------------------------------------------------------------------------------------------

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        task, out, params = phase.task, code.out, self.params(phase.task)
        x, result = operand(task, "x"), task.results[0]
        m, n = result.axes
        source = printer.pointers["x"].buffer
        inner = code.element_printer(printer, result.axes, x.box.size)
        kind = c_type(source.dtype)
        if itemsize(source.dtype) <= itemsize(COMPUTE):
            write_element(out, result, inner)
            kind = "mn::Int<mn::V>" if source.dtype == WORD else "mn::V"
        else:
            with out.block(f"auto element_ = [&](long {m}, long {n}, {kind} v_) {{", "};"):
                write_statements(out, (Store(result.operand, result.index, result.value),), inner)
        rows, columns = (code.extents(x, side, printer)[1] for side in (0, 1))
        how = ", ".join(str(flag).lower() for flag in (params.exclusive, params.reverse))
        kernel = f"mn::Cumulative<{kind}, mn::{'Mul' if params.product else 'Add'}, {how}>"
        corner = f"{code.corner(printer, x)}, {row_stride(source)}"
        if params.down:
            out.line(f"{kernel}::down({corner}, ({rows}) / {params.length}, {params.length}, {columns}, element_);")
        else:
            out.line(f"{kernel}::along({corner}, {rows}, {params.length}, element_);")


def _columns(width: int, owners: int, builder: PhaseBuilder, stage: FusionGroup) -> int:
    """Columns of an owner: whole cache lines of them."""
    line = LINE_BYTES // itemsize(builder.types[stage.own].dtype)
    return ceil(width / owners / line) * line


TEMPLATE = Cumulative()
