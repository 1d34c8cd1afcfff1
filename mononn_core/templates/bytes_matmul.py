"""Products of bytes both of which are computed, exact: a [M, K], uint8, times b [K, N], uint8 or int8, less their zero
points; result axes (m, n). b may lie as [N, K].

On a CPU a task packs its panel of b into the worker's memory, and multiplies as by a packed constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.epilogues import into_padding, write_edge, write_element
from mononn_core.codegen.loops import is_cheap
from mononn_core.codegen.storage import row_stride
from mononn_core.element import WORD
from mononn_core.graph import Node
from mononn_core.ops.common import integers
from mononn_core.program.expr import Const, Expr, Var, minimum, op
from mononn_core.program.ir import Box, Phase, Task
from mononn_core.program.simplify import bounds, linear, simplify
from mononn_core.program.template import Array, Elements, Extent, Running, Template, operand, sides
from mononn_core.schedule.binder import OWNER, PANEL, SEGMENT, OperandBinder
from mononn_core.schedule.operands import Product, matmul_axes, reads_turned
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.views import matrix_shape
from mononn_core.templates.product_tiles import TiledProduct

AXES = (OWNER, SEGMENT, PANEL)


@dataclass(frozen=True)
class BytesParams:
    """``panel``, the columns of a register tile of at most ``at_once`` rows; ``zeros``, the zero points of a and b;
    ``turned``: b lies as [N, K]; ``columns``: N. A task's begin at its owner, segment and panel, each times one of
    ``starts``: what b lies in does not end where a product of a batch does."""

    panel: int
    at_once: int
    zeros: tuple[int, int]
    turned: bool
    columns: int
    starts: tuple[int, int, int]

    @property
    def column(self) -> Expr:
        """The first of a task's columns."""
        found: Expr = Const(0)
        for var, step in zip(AXES, self.starts, strict=True):
            found = found + Var(var) * step if step else found
        return found


class MatmulBytes(CpuTemplate, TiledProduct, Template[BytesParams]):
    """See the module."""

    name = op = "bytes_matmul"
    roles = ("a", "b")
    parameters = BytesParams
    header = "mononn_dot_computed.hpp"

    # -- meaning ----------------------------------------------------------------------------------------------------

    def contraction(self, task: Task, extent: Extent) -> str:
        differ = (extent("a", 1) != extent("b", int(self.params(task).turned))).any()
        return "the extents that operands 'a' and 'b' contract differ" if differ else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        params, (m, n) = self.params(task), axes
        rows = sides(task, (m,), (("a", 0),))
        there = op("lt", params.column + Var(n), Const(params.columns))
        return Elements((*rows.extents, params.panel), (*rows.conditions, there))

    def compute(self, task: Task, running: Running) -> Array:
        params = self.params(task)
        a, b = (running.matrix(r).astype(WORD) - zero for r, zero in zip(self.roles, params.zeros, strict=True))
        there = params.columns - running.index(params.column)
        return np.asarray(a @ (b.T if params.turned else b)[:, : max(there, 0)])

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def right(
        self, builder: PhaseBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> dict[str, Any]:
        (terms, panel), (batch, k0, n0) = size, at
        p, turned = Product.of(root, builder.types), reads_turned(root)
        tensor, row, column = builder.view(root.inputs[1], matmul_axes(root, 1, builder.types), {"batch": batch})
        size, start = (terms, min(panel, p.n)), (row + k0, column + n0)
        if turned:
            size, start = (size[1], size[0]), (row + n0, column + k0)
        offset = tuple(simplify(e, binder.outer) for e in start)
        binder.add("b", tensor, Box(offset, size, matrix_shape(builder.types[tensor].shape)))
        steps, _ = linear(n0)
        starts = tuple(int(steps.get(Var(v), 0)) for v in AXES)
        return {"zeros": integers(root.attrs, "zeros"), "turned": turned, "columns": p.n, "starts": starts}

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """A panel in words of four terms, what is added to its columns, and what is added to the rows."""
        rows, terms = operand(task, "a").box.size
        return (-(-terms // 4) + 1) * self.params(task).panel + rows

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        task, out, params = phase.task, code.out, self.params(phase.task)
        a, b = (operand(task, role) for role in self.roles)
        rows, rows_text = code.extents(a, 0, printer)
        result = task.results[0]
        ends = simplify(minimum(Const(params.panel), Const(params.columns) - params.column), printer.ranges)
        inner = code.element_printer(printer, result.axes, (a.box.size[0], params.panel))
        ragged, function = ends != Const(params.panel), "element_"
        out.line(f"const long end_ = {printer.index(ends)};")
        counted = write_element(out, result, inner, ragged)
        if ragged:
            function = "edge_"
            write_edge(out, result.axes, counted, into_padding(result, params.columns, params.panel, inner))
        guard = "if (end_ > 0) " if bounds(ends, printer.ranges)[0] <= 0 else ""
        code.write_scratch(phase)
        kind, how = c_type(printer.pointers["b"].buffer.dtype), str(is_cheap(result)).lower()
        given = ", ".join(f"{code.corner(printer, o)}, {row_stride(printer.pointers[o.role].buffer)}" for o in (a, b))
        calls = []
        for r in (r for r in rows if r > 0):
            sizes = f"{r}, {a.box.size[1]}, {params.panel}, {params.at_once}"
            points = f"{params.zeros[0]}, {params.zeros[1]}"
            kernel = f"mn::ComputedBytes<{kind}, {sizes}, {points}, {str(params.turned).lower()}>"
            code.assert_fits(phase, kernel)
            calls.append((rows_text, r, f"{guard}{kernel}::run<{how}>({given}, end_, local_, {function});"))
        code.choose(calls, 0 in rows)


TEMPLATE = MatmulBytes()
