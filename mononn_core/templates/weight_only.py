"""Products of floats a [M, K] by weights of few bits in blocks, result axes (m, n), on a CPU.

b holds the digits of a panel's columns (see ``mononn_weight_only.hpp``), s a row of scales for each block of K and,
where a zero point is not the middle of the digits' range, one of (zero point - middle) times scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.epilogues import into_padding, write_edge, write_element
from mononn_core.codegen.loops import is_cheap
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE
from mononn_core.graph import Node
from mononn_core.ops.common import integer
from mononn_core.ops.weight_only import middle
from mononn_core.program.expr import Expr
from mononn_core.program.ir import Box, Phase, Task
from mononn_core.program.simplify import from_linear, linear
from mononn_core.program.template import Array, Elements, Extent, Running, Template, operand, sides
from mononn_core.schedule.binder import OperandBinder
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import Ways
from mononn_core.templates.product_tiles import TiledProduct

FEW, TERMS = 4, 256
"""As the kernel has them: rows that take digits as they are, and rows of b that are made floats at once."""


@dataclass(frozen=True)
class WeightOnlyParams:
    """``panel`` columns in register tiles of at most ``at_once`` rows and vectors of ``lanes``; digits of ``bits``
    bits in blocks of ``block`` rows, ``shifted`` where a zero point is not the middle of their range."""

    panel: int
    at_once: int
    lanes: int
    bits: int
    block: int
    shifted: bool


class WeightOnly(Template[WeightOnlyParams], CpuTemplate, TiledProduct):
    """See the module."""

    name = "weight_only"
    op = "weight_only_matmul"
    roles: ClassVar[tuple[str, ...]] = ("a", "b", "s")
    parameters = WeightOnlyParams
    filled = "a"
    weights = "b"
    header = "mononn_weight_only.hpp"
    panel_vectors = (2, 4, 8)

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        params = self.params(task)
        (terms, columns), (points, panel) = (operand(task, role).box.size for role in ("b", "s"))
        if params.bits not in (4, 8) or params.block < 1 or params.lanes < 1 or params.at_once < 1:
            return f"digits of {params.bits} bits in blocks of {params.block} are none it knows"
        if panel != params.panel or panel % (2 * params.lanes) or columns * 8 != panel * params.bits:
            return f"a panel of {params.panel} columns has scales for {panel}, and digits in {columns} bytes a row"
        wanted = ceil(terms / params.block) * (2 if params.shifted else 1)
        return "" if points == wanted else f"{points} rows of scales and shifts for {terms} terms, not {wanted}"

    def contraction(self, task: Task, extent: Extent) -> str:
        differ = (extent("a", 1) != extent("b", 0)).any()
        return "the extents that operands 'a' and 'b' contract differ" if differ else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        return sides(task, axes, (("a", 0), ("s", 1)))

    def compute(self, task: Task, running: Running) -> Array:
        params = self.params(task)
        digits, points = running.matrix("b"), running.matrix("s")
        values = unpacked(digits.astype(np.uint8), params.bits, params.lanes).astype(COMPUTE) - middle(params.bits)
        rows = np.arange(len(values)) // params.block * (2 if params.shifted else 1)
        values = values[:, : points.shape[1]] * points[rows]
        return np.asarray(running.matrix("a") @ (values - points[rows + 1] if params.shifted else values))

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def widest(self, rows: int) -> int:
        """A block's sums take registers beside the whole sums where rows are few."""
        return 8 if rows == 1 else 4 if rows <= 3 else 2

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        found = super().ways(stage, builder, owners)
        return Ways(tuple(p for p in found.partitions if p.segments == 1), found.flops)

    def right(
        self, builder: PhaseBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> dict[str, Any]:
        (k, panel), (_, k0, n0) = size, at
        q, values = root.inputs[1], builder.views.graph.constants
        bits, n, lanes = integer(root.attrs, "bits"), values[q].shape[1], builder.lanes
        digits = _weight(builder, f"{q}@{panel}x{lanes}", panel * bits // 8, packed(values[q], bits, lanes))
        terms, rest = linear(n0)
        byte = from_linear({t: c * bits // 8 for t, c in terms.items()}, rest * bits // 8)
        width = -(-n // (2 * lanes)) * 2 * lanes * bits // 8 if bits == 4 else n
        binder.add("b", digits, Box((k0, byte), (k, panel * bits // 8), (k, width)), packed=True)
        return self.points(builder, root, panel, binder, (k0, n0))

    @staticmethod
    def points(
        builder: PhaseBuilder, root: Node, panel: int, binder: OperandBinder, at: tuple[Expr, Expr]
    ) -> dict[str, Any]:
        """Declare s of a panel at ``at`` (0, column); gives the task's parameters beside its panel and rows at once."""
        _, q, scale, zero = root.inputs[:4]
        values, (bits, block) = builder.views.graph.constants, (integer(root.attrs, a) for a in ("bits", "block"))
        points, n, shifted = values[scale], values[q].shape[1], bool((values[zero] != middle(bits)).any())
        if shifted:
            points = np.stack([points, (values[zero] - middle(bits)) * points], axis=1).reshape(-1, n)
        scales = _weight(builder, f"{scale}@{panel}", panel, points.astype(COMPUTE))
        binder.add("s", scales, Box(at, (len(points), panel), (len(points), n)), packed=True)
        return {"lanes": builder.lanes, "bits": bits, "block": block, "shifted": shifted}

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """A run of b as floats, and the sums of a task's rows."""
        rows = operand(task, "a").box.size[0]
        return 0 if rows <= FEW else (TERMS + rows) * self.params(task).panel

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        task, out, params = phase.task, code.out, self.params(phase.task)
        a, s = operand(task, "a"), operand(task, "s")
        rows, rows_text = code.extents(a, 0, printer)
        columns, columns_text = code.extents(s, 1, printer)
        result = task.results[0]
        m, n = result.axes
        inner = code.element_printer(printer, result.axes, (a.box.size[0], params.panel))
        ragged = columns != (params.panel,)
        counted = write_element(out, result, inner, ragged)
        function = "element_"
        if ragged:
            function = "edge_"
            out.line(f"const long end_ = {columns_text};")
            write_edge(out, (m, n), counted, into_padding(result, s.box.bound[1], params.panel, inner))
        guard = "if (end_ > 0) " if min(columns) == 0 else ""
        local = "nullptr"
        if self.scratch_floats(task, params.lanes):
            code.write_scratch(phase)
            local = "local_"
        given = self.given(task, printer, code)
        cheap = str(is_cheap(result)).lower()
        calls = []
        for r in (r for r in rows if r > 0):
            kernel = self.kernel(r, params)
            if local == "nullptr":
                code.out.line(f"static_assert({kernel}::FLOATS == 0);")
            else:
                code.assert_fits(phase, kernel)
            calls.append((rows_text, r, f"{guard}{kernel}::run<{cheap}>({given}, {local}, {function});"))
        code.choose(calls, 0 in rows)

    def kernel(self, rows: int, params: WeightOnlyParams) -> str:
        """The vocabulary's type for so many rows."""
        sizes = f"{rows}, {params.panel}, {params.at_once}, {params.bits}"
        return f"mn::WeightOnly<{sizes}, {str(params.shifted).lower()}>"

    def given(self, task: Task, printer: Printer, code: CpuStorage) -> str:
        """What its call is given in front of the worker's memory."""
        a, b, s = (code.corner(printer, operand(task, role)) for role in self.roles)
        terms, block = operand(task, "a").box.size[1], self.params(task).block
        return f"{a}, {row_stride(printer.pointers['a'].buffer)}, {b}, {s}, {terms}, {block}"


def _weight(builder: PhaseBuilder, name: str, panel: int, matrix: np.ndarray) -> str:
    """A constant matrix in panels of its columns."""
    shape = (matrix.shape[0], matrix.shape[1])
    return builder.in_panels(name, panel, shape, str(matrix.dtype), lambda: matrix).id


def packed(digits: np.ndarray, bits: int, lanes: int) -> np.ndarray:
    """The bytes [K, bytes] of [K, N] digits (uint8): of 4 bits, ``lanes`` bytes for two vectors of columns."""
    if bits == 8:
        return digits
    k, n = digits.shape
    padded = np.zeros((k, ceil(n / (2 * lanes)) * 2 * lanes), np.uint8)
    padded[:, :n] = digits
    pairs = padded.reshape(k, -1, 2, lanes)
    return np.ascontiguousarray((pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(k, -1))


def unpacked(stored: np.ndarray, bits: int, lanes: int) -> np.ndarray:
    """What :func:`packed` was made of, columns of padding too."""
    if bits == 8:
        return stored
    vectors = stored.reshape(len(stored), -1, 1, lanes)
    return np.concatenate([vectors & 15, vectors >> 4], axis=2).reshape(len(stored), -1)


TEMPLATE = WeightOnly()
