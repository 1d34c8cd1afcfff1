"""Products of bytes a [M, K], with a scale x [M, blocks] for each block of K, by weights of few bits in blocks, result
axes (m, n), on a CPU; y [M, blocks] holds the sums of what a stands for.

b holds the digits in groups of four terms (see ``mononn_weight_only.hpp``), s what it does in the template
``weight_only``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE
from mononn_core.graph import Node
from mononn_core.ops.common import integer
from mononn_core.ops.weight_only import RUN, in_whole_steps, middle
from mononn_core.program.expr import Const, Expr
from mononn_core.program.ir import Box, Task
from mononn_core.program.template import Array, Elements, Extent, Running, operand, sides
from mononn_core.schedule.binder import OperandBinder, panel_buffer
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.stages import FusionGroup
from mononn_core.templates.product import left_operand
from mononn_core.templates.weight_only import FEW, WeightOnly, WeightOnlyParams

GROUP = 4
"""Terms of a group, whose bytes lie side by side."""


class WeightOnlyBytes(WeightOnly):
    """See the module."""

    name = "weight_only_bytes"
    op = "weight_only_bytes"
    roles = ("a", "b", "s", "x", "y")
    filled = ""

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        params = self.params(task)
        terms, (points, panel) = operand(task, "a").box.size[1], operand(task, "s").box.size
        if params.bits not in (4, 8) or params.lanes < 1 or params.at_once < 1:
            return f"digits of {params.bits} bits are none it knows"
        if not in_whole_steps(terms, params.block):
            return f"{terms} terms are not whole blocks of {params.block}, and these whole steps"
        if panel != params.panel or panel % params.lanes or operand(task, "b").box.size[1] != panel:
            return f"a panel of {params.panel} columns has scales for {panel}"
        wanted, blocks = terms // params.block * (2 if params.shifted else 1), terms // params.block
        if points != wanted:
            return f"{points} rows of scales and shifts for {terms} terms, not {wanted}"
        given = {operand(task, role).box.size[1] for role in ("x", "y")}
        return "" if given == {blocks} else f"rows have {given} scales and sums for {blocks} blocks"

    def contraction(self, task: Task, extent: Extent) -> str:
        if (extent("a", 1) * self.params(task).bits != extent("b", 0) * 8).any():
            return "the extents that operands 'a' and 'b' contract differ"
        rows = (extent("a", 0) != extent(role, 0) for role in ("x", "y"))
        return "operand 'a' has other rows than its scales and sums" if any(r.any() for r in rows) else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        return sides(task, axes, (("a", 0), ("s", 1)))

    def compute(self, task: Task, running: Running) -> Array:
        params = self.params(task)
        points, x, y = (running.matrix(role) for role in ("s", "x", "y"))
        step, block, middling = 2 if params.shifted else 1, params.block, np.asarray(middle(params.bits), COMPUTE)
        digits = separate(running.matrix("b").astype(np.uint8), params.bits).astype(np.int32)[:, : points.shape[1]]
        a, total = running.matrix("a").astype(np.int32), np.zeros((len(x), digits.shape[1]), COMPUTE)
        for i in range(x.shape[1]):
            terms = slice(i * block, (i + 1) * block)
            part = (a[:, terms] @ digits[terms]).astype(COMPUTE) * x[:, i : i + 1] - y[:, i : i + 1] * middling
            total += part * points[i * step]
            if params.shifted:
                total -= y[:, i : i + 1] * points[i * step + 1]
        return total

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def most(self, stage: FusionGroup, panel: int, builder: PhaseBuilder) -> int:
        """A block's whole sums take registers beside the sums of reals."""
        vectors = panel // builder.lanes
        return max(1, (builder.machine.vector_registers - 4 - min(vectors, 2)) // (2 * vectors))

    def left(
        self, builder: PhaseBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> None:
        left_operand(builder, root, size, binder, at)
        blocks = size[1] // integer(root.attrs, "block")
        for role, position in (("x", 4), ("y", 5)):
            left_operand(builder, root, (size[0], blocks), binder, (*at[:2], Const(0)), role, position)

    def right(
        self, builder: PhaseBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> dict[str, Any]:
        q, panel, (_, k0, n0) = root.inputs[1], size[1], at
        digits, bits = builder.views.graph.constants[q], integer(root.attrs, "bits")
        name, shape = f"{q}@{panel}x{GROUP}", (len(digits) * bits // 8, digits.shape[1])
        if name not in builder.packed:
            buffer = panel_buffer(name, shape, panel, str(digits.dtype), GROUP)
            builder.packed[name] = (buffer, lambda: together(digits, bits))
        binder.add("b", builder.packed[name][0].id, Box((k0, n0), (shape[0], panel), shape), packed=True)
        return self.points(builder, root, panel, binder, (k0, n0))

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """A run of b as bytes, and the sums of a task's rows."""
        rows, params = operand(task, "a").box.size[0], self.params(task)
        return 0 if rows <= FEW else (max(RUN, params.block) // GROUP + rows) * params.panel

    def kernel(self, rows: int, params: WeightOnlyParams) -> str:
        sizes = f"{rows}, {params.panel}, {params.at_once}, {params.bits}, {params.block}"
        return f"mn::WeightOnlyBytes<{sizes}, {str(params.shifted).lower()}>"

    def given(self, task: Task, printer: Printer, code: CpuStorage) -> str:
        a, b, s, x, y = (code.corner(printer, operand(task, role)) for role in self.roles)
        lda, ldx, ldy = (row_stride(printer.pointers[role].buffer) for role in ("a", "x", "y"))
        return f"{a}, {lda}, {b}, {s}, {x}, {ldx}, {y}, {ldy}, {operand(task, 'a').box.size[1]}"


def together(digits: np.ndarray, bits: int) -> np.ndarray:
    """[K, N] digits (uint8); of 4 bits [K / 2, N] bytes, each of a digit and, in its upper half, that of the next group
    of terms."""
    if bits == 8:
        return digits
    k, n = digits.shape
    groups = digits.reshape(k // (2 * GROUP), 2, GROUP, n)
    return np.ascontiguousarray((groups[:, 0] | groups[:, 1] << 4).reshape(k // 2, n))


def separate(stored: np.ndarray, bits: int) -> np.ndarray:
    """What :func:`together` was made of."""
    if bits == 8:
        return stored
    pairs, n = stored.shape
    groups = stored.reshape(pairs // GROUP, 1, GROUP, n)
    return np.concatenate([groups & 15, groups >> 4], axis=1).reshape(2 * pairs, n)


TEMPLATE = WeightOnlyBytes()
