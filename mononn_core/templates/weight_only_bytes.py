"""Products of bytes a [M, K], with a scale x [M, runs] for each run of K, by weights of few bits in blocks, result
axes (m, n), on a CPU; y [M, blocks] holds the sums of what a stands for. a may be [M, 2 K]: the upper bytes of words of
16 bits, and the lower ones, both with a sign.

b holds the digits in groups of four terms (see ``mononn_weight_only.hpp``), s what it does in the template
``weight_only``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE
from mononn_core.graph import Node
from mononn_core.ops.common import integer
from mononn_core.ops.weight_only import RUN, middle, run_of
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


@dataclass(frozen=True)
class BytesParams(WeightOnlyParams):
    """``run`` terms share a scale of a, which has one or two ``pieces``; ``block`` is a run or all terms."""

    run: int
    pieces: int


class WeightOnlyBytes(WeightOnly):
    """See the module."""

    name = "weight_only_bytes"
    op = "weight_only_bytes"
    roles = ("a", "b", "s", "x", "y")
    parameters: type[WeightOnlyParams] = BytesParams
    filled = ""

    # -- meaning ----------------------------------------------------------------------------------------------------

    def params(self, task: Task) -> BytesParams:
        found = super().params(task)
        assert isinstance(found, BytesParams)
        return found

    def mismatch(self, task: Task) -> str:
        params = self.params(task)
        terms, (points, panel) = operand(task, "a").box.size[1], operand(task, "s").box.size
        if params.bits not in (4, 8) or params.lanes < 1 or params.at_once < 1 or params.pieces not in (1, 2):
            return f"digits of {params.bits} bits and {params.pieces} pieces are none it knows"
        terms, rest = divmod(terms, params.pieces)
        if rest or params.run < 1 or params.run != run_of(terms, params.block, params.run):
            return f"{terms} terms are not whole runs of {params.run} in blocks of {params.block}"
        if panel != params.panel or panel % params.lanes or operand(task, "b").box.size[1] != panel:
            return f"a panel of {params.panel} columns has scales for {panel}"
        blocks, runs = terms // params.block, terms // params.run
        wanted = blocks * (2 if params.shifted else 1)
        if points != wanted:
            return f"{points} rows of scales and shifts for {terms} terms, not {wanted}"
        given = [operand(task, role).box.size[1] for role in ("x", "y")]
        return "" if given == [runs, blocks] else f"rows have {given} scales and sums for {runs} runs, {blocks} blocks"

    def contraction(self, task: Task, extent: Extent) -> str:
        params = self.params(task)
        if (extent("a", 1) * params.bits != extent("b", 0) * 8 * params.pieces).any():
            return "the extents that operands 'a' and 'b' contract differ"
        rows = (extent("a", 0) != extent(role, 0) for role in ("x", "y"))
        return "operand 'a' has other rows than its scales and sums" if any(r.any() for r in rows) else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        return sides(task, axes, (("a", 0), ("s", 1)))

    def compute(self, task: Task, running: Running) -> Array:
        params = self.params(task)
        points, x, y = (running.matrix(role) for role in ("s", "x", "y"))
        step, run, each = 2 if params.shifted else 1, params.run, params.block // params.run
        digits = separate(running.matrix("b").astype(np.uint8), params.bits).astype(np.int32)[:, : points.shape[1]]
        a, total = running.matrix("a").astype(np.int32), np.zeros((len(x), digits.shape[1]), COMPUTE)
        scales, middling = points[::step], np.asarray(middle(params.bits), COMPUTE)
        for block in range(y.shape[1]):
            part = np.zeros_like(total)
            for i in range(block * each, (block + 1) * each):
                terms = digits[i * run : (i + 1) * run]
                sums = (a[:, p + i * run : p + (i + 1) * run] @ terms for p in range(0, a.shape[1], len(digits)))
                whole = np.zeros_like(total)
                for piece in sums:
                    whole = 256 * whole + piece.astype(COMPUTE)
                part += whole * x[:, i : i + 1]
            total += (part - y[:, block : block + 1] * middling) * scales[block]
            if params.shifted:
                total -= y[:, block : block + 1] * points[block * step + 1]
        return total

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def most(self, stage: FusionGroup, panel: int, builder: PhaseBuilder) -> int:
        """A run's whole sums, of each piece, take registers beside the sums of reals."""
        assert stage.root is not None
        vectors, sums = panel // builder.lanes, 1 + pieces(builder, stage.root)
        return max(1, (builder.machine.vector_registers - 4 - min(vectors, 2)) // (sums * vectors))

    def left(
        self, builder: PhaseBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> None:
        rows, terms = size
        left_operand(builder, root, (rows, terms * pieces(builder, root)), binder, at)
        for role, position, each in (("x", 4, "run"), ("y", 5, "block")):
            extent = terms // integer(root.attrs, each)
            left_operand(builder, root, (rows, extent), binder, (*at[:2], Const(0)), role, position)

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
        points = self.points(builder, root, panel, binder, (k0, n0))
        return {**points, "run": integer(root.attrs, "run"), "pieces": pieces(builder, root)}

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """Of 4 bits runs of b as bytes, and the sums of a task's rows."""
        rows, params = operand(task, "a").box.size[0], self.params(task)
        runs = max(1, RUN // params.run)
        return 0 if rows <= FEW or params.bits == 8 else (runs * params.run // GROUP + rows) * params.panel

    def kernel(self, rows: int, params: WeightOnlyParams) -> str:
        assert isinstance(params, BytesParams)
        sizes = f"{rows}, {params.panel}, {params.at_once}, {params.bits}, {params.run}, {params.pieces}"
        how = (str(flag).lower() for flag in (params.block > params.run, params.shifted))
        return f"mn::WeightOnlyBytes<{sizes}, {', '.join(how)}>"

    def given(self, task: Task, printer: Printer, code: CpuStorage) -> str:
        a, b, s, x, y = (code.corner(printer, operand(task, role)) for role in self.roles)
        lda, ldx, ldy = (row_stride(printer.pointers[role].buffer) for role in ("a", "x", "y"))
        terms = operand(task, "a").box.size[1] // self.params(task).pieces
        return f"{a}, {lda}, {b}, {s}, {x}, {ldx}, {y}, {ldy}, {terms}"


def pieces(builder: PhaseBuilder, root: Node) -> int:
    """Bytes of the left side for each term of a product."""
    a, q = (builder.types[name].shape for name in root.inputs[:2])
    return a[-1] // q[0]


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
