"""Products: a [M, K] times b [K, N], result axes (m, n).

On a CPU b lies in panels of columns, and a task's rows pass over them in register tiles. A constant b is packed so
beforehand; a may be worker-local: then the task's body, a nest that runs first, fills all of it (a left side that is
gathered, cast or normalised on its way) and may store to shared memory as well.
"""

from __future__ import annotations

from typing import Any

from mononn_core.codegen.cpu_storage import TILES, CpuStorage, CpuTemplate, is_narrow, write_tiles
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.epilogues import into_padding, write_edge, write_element
from mononn_core.codegen.loops import is_cheap
from mononn_core.codegen.storage import row_stride
from mononn_core.errors import UnsupportedError
from mononn_core.graph import Node
from mononn_core.program.expr import Expr, Var
from mononn_core.program.ir import Operand, Phase
from mononn_core.program.template import operand
from mononn_core.schedule.binder import OperandBinder
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.stages import FusionGroup
from mononn_core.templates.matmul_cuda import CudaProduct
from mononn_core.templates.product import PAIRS, right_operand
from mononn_core.templates.product_tiles import TiledProduct


class Matmul(CudaProduct, CpuTemplate, TiledProduct):
    """See the module."""

    name = op = "matmul"

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        """The last one where another specialisation of the network has packed its constant for another template."""
        assert stage.root is not None
        packed = builder.panels.get(stage.root.inputs[1])
        return 0 if packed is None or packed.template == self.name else -2

    def right(
        self, builder: PhaseBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> dict[str, Any]:
        right_operand(builder, root, size, binder, at)
        step, pairs = builder.tile_step(root, size[0]), builder.in_pairs(root)
        return {**({"tile_groups": step} if step else {}), **({"pairs": pairs} if pairs else {})}

    # -- C++ --------------------------------------------------------------------------------------------------------

    def headers(self, phase: Phase, code: CpuStorage) -> tuple[str, ...]:
        if self.params(phase.task).tile_groups:
            return (TILES,)
        return ("mononn_dot.hpp",) if is_narrow(phase, code, "a") else ()

    def write_state(self, phase: Phase, code: CpuStorage) -> None:
        write_tiles(self.params(phase.task).tile_groups, code)

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        task, out, params = phase.task, code.out, self.params(phase.task)
        panel, at_once = params.panel, params.at_once
        if panel < 0 or (panel > 0 and at_once < 1):
            raise UnsupportedError(
                f"phase {phase.id!r}: a product on a CPU has a panel and rows at once, or says panel 0"
            )
        if panel == 0:
            _write_product(phase, printer, code)
            return
        a, b = (operand(task, role) for role in self.roles)
        rows, rows_text = code.extents(a, 0, printer)
        columns, columns_text = code.extents(b, 1, printer)
        narrow = is_narrow(phase, code, "a")
        result = task.results[0]
        m, n = result.axes
        inner = code.element_printer(printer, result.axes, (a.box.size[0], panel))
        ragged = columns != (panel,)
        if ragged:
            out.line(f"const long end_ = {columns_text};")
        counted = write_element(out, result, inner, ragged)
        lda, ldb = (row_stride(printer.pointers[o.role].buffer) for o in (a, b))
        left, right = f"{code.corner(printer, a)}, {lda}", code.corner(printer, b)
        right = f"mn::{PAIRS[params.pairs]}({right})" if params.pairs else right
        places = f"{left}, {right}" if narrow else f"{left}, {right}, {ldb}"
        function = "element_"
        outside = ragged and not _may_overread(b, printer)
        if outside:  # a register tile would read past the caller's array (or the file) in the last panel
            edge = f"mn::product({rows_text}, end_, {a.box.size[1]}, {places}, element_);"
            out.line(f"if (end_ < {panel}) {edge}")
        elif ragged:
            write_edge(out, (m, n), counted, into_padding(result, b.box.bound[1], panel, inner))
            function = "edge_"
        guard = f"if (end_ == {panel}) " if outside else "if (end_ > 0) " if min(columns) == 0 else ""
        kernel = "mn::dot" if narrow else "mn::matmul"
        how = "true" if is_cheap(result) else "false"
        if params.tile_groups:
            kernel, how, places = "mn::tile_dot", str(params.tile_groups), f"tiles_, {places}"
        call = f"{panel}, {at_once}, {how}>({places}, {a.box.size[1]}, {function});"
        code.choose([(rows_text, r, f"{guard}{kernel}<{r}, {call}") for r in rows if r > 0], 0 in rows)


# -- C++ --------------------------------------------------------------------------------------------------------------


def _may_overread(b: Operand, printer: Printer) -> bool:
    """Whether the elements after the last column may be read: packed panels are padded, the arena has a margin."""
    buffer = printer.pointers[b.role].buffer
    return buffer.space == "arena" or len(buffer.layout.dims[1]) > 1


def _write_product(phase: Phase, printer: Printer, code: CpuStorage) -> None:
    """A product in tiles no register tile fits; its first right-hand side may lie in a fetched slot."""
    a, b = (operand(phase.task, role) for role in ("a", "b"))
    result = phase.task.results[0]
    inner = code.element_printer(printer, result.axes, (a.box.size[0], b.box.size[1]))
    write_element(code.out, result, inner)
    corner, stride = code.corner(printer, b), str(row_stride(printer.pointers["b"].buffer))
    slot = code.slots().get((phase.id, "b"))
    if slot:
        local = code.buffers[slot]
        code.out.line(f"const bool fetched_ = {_is_first(phase)};")
        corner = f"fetched_ ? (const float *){code.base(slot, local)} : {corner}"
        stride = f"fetched_ ? {row_stride(local)} : {stride}"
    (_, m), (_, k), (_, n) = (code.extents(o, d, printer) for o, d in ((a, 0), (b, 0), (b, 1)))
    left = f"{code.corner(printer, a)}, {row_stride(printer.pointers['a'].buffer)}"
    code.out.line(f"mn::product({m}, {n}, {k}, {left}, {corner}, {stride}, element_);")


def _is_first(phase: Phase) -> str:
    """Whether the task at hand is this worker's first in the phase."""
    if phase.assign.kind != "owned":
        return "task_ == first_"
    owner = phase.assign.owner
    conditions = [f"{v} == {'first_' if owner == Var(v) else '0'}" for v in phase.assign.order]
    return " && ".join(conditions) or "true"


TEMPLATE = Matmul()
