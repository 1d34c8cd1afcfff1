"""Products: a [M, K] times b [K, N], result axes (m, n).

On a CPU b lies in panels of columns, and a task's rows pass over them in register tiles. A constant b is packed so
beforehand; a may be worker-local: then the task's body, a nest that runs first, fills all of it (a left side that is
gathered, cast or normalised on its way) and may store to shared memory as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, gcd

from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate, is_narrow
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.loops import is_cheap, write_element
from mononn_core.codegen.storage import row_stride
from mononn_core.element import itemsize
from mononn_core.errors import UnsupportedError
from mononn_core.machine import Machine
from mononn_core.program.expr import Const, Expr, Var
from mononn_core.program.ir import Operand, Phase, Task
from mononn_core.program.template import operand
from mononn_core.schedule.binder import BATCH, BLOCK, OWNER, PANEL, SEGMENT, unit_axes
from mononn_core.schedule.decisions import L2_SHARE, fewer_at_once, most_at_once, registers_problem, rows_problem
from mononn_core.schedule.fuse import FusionGroup
from mononn_core.schedule.operands import Product, axis
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition, Tile
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.schedule.views import Views, matrix_shape
from mononn_core.templates.matmul_cuda import CudaProduct
from mononn_core.templates.product import left_operand, product_of, right_operand

PANEL_VECTORS = (1, 2, 4, 8)
"""Vectors of columns that a register tile may span."""
SMALLEST_BLOCK = 16
"""Rows of a task, at least, where an owner has so many."""


class Matmul(CudaProduct, CpuTemplate, CpuScheduled):
    """See the module."""

    name = op = "matmul"

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def rate(self, task: Task) -> float:
        """Small row blocks load more than they compute."""
        return min(0.95, 0.2 + 0.1 * operand(task, "a").box.size[0])

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        p, lanes = product_of(stage, builder), builder.lanes
        if p.batch > 1:
            found = [Partition("batch", owners)] if p.batch % owners == 0 else []
        else:
            found = [Partition("rows", owners)] if p.m >= 4 * owners else []
        if p.n >= owners * lanes:
            found.append(Partition("columns", owners))
        segments = _segments(stage, builder.views)
        if segments > 1 and p.n % segments == 0 and (p.n // segments) % (owners * lanes) == 0:
            found.append(Partition("columns", owners, segments))
        return Ways(tuple(found), 2 * p.batch * p.m * p.n * p.k)

    def tile(self, stage: FusionGroup, builder: PhaseBuilder, partition: Partition) -> Tile:
        p = product_of(stage, builder)
        width, (by_rows, by_columns) = p.n // partition.segments, _owners(partition)
        size = itemsize(_left_type(stage, builder))
        rows, blocks = (p.m, 1) if p.batch > 1 else _blocks(ceil(p.m / by_rows), p.k * size, by_rows, builder.machine)
        panel = _panel_vectors(rows) * builder.lanes
        while panel > builder.lanes and panel * by_columns > max(width, builder.lanes):
            panel //= 2
        while partition.segments > 1 and panel > builder.lanes and (width // by_columns) % panel:
            panel //= 2
        return Tile(rows, blocks, panel, _most(stage, panel, builder))

    def tiles(self, stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> Iterator[Tile]:
        assert group.tile is not None
        share = group.tile.rows * group.tile.blocks
        for vectors in PANEL_VECTORS:
            for blocks in range(1, max(1, share // SMALLEST_BLOCK) + 1):
                for at_once in fewer_at_once(_most(stage, vectors * builder.lanes, builder)):
                    yield Tile(ceil(share / blocks), blocks, vectors * builder.lanes, at_once)

    def problem(self, stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> str:
        partition, tile = group.partition, group.tile
        if tile is None:
            return "a product has a tile"
        p, lanes, (by_rows, by_columns) = product_of(stage, builder), builder.lanes, _owners(partition)
        if partition.segments > 1 and partition not in self.ways(stage, builder, partition.owners).partitions:
            return f"its columns are not read in {partition.segments} equal segments"
        width = p.n // partition.segments
        if tile.panel % lanes or tile.panel // lanes not in PANEL_VECTORS:
            return f"a panel of {tile.panel} columns is not 1, 2, 4 or 8 vectors of {lanes}"
        if too_many := registers_problem(tile, _most(stage, tile.panel, builder)):
            return too_many
        if tile.panel > lanes and tile.panel * by_columns > width:
            return f"a panel of {tile.panel} columns leaves an owner without any of {width}"
        if partition.segments > 1 and (width // by_columns) % tile.panel:
            return f"panels of {tile.panel} columns do not end where a segment does"
        if p.batch > 1:
            return "" if (tile.rows, tile.blocks) == (p.m, 1) else f"a task of a batched product has all {p.m} rows"
        return rows_problem(ceil(p.m / by_rows), tile)

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        partition, tile, root = decided.partition, decided.tile, stage.root
        assert root is not None and tile is not None
        p = Product.of(root, builder.types)
        owners = partition.owners if partition.kind != "single" else 1
        o, r, s, q = (Var(v) for v in (OWNER, BLOCK, SEGMENT, PANEL))
        b: Expr = Var(BATCH)
        batches, segments, panels = p.batch, 1, ceil(p.n / tile.panel)
        m0, n0 = r * tile.rows, q * tile.panel
        if partition.kind == "rows":
            m0 = o * (tile.rows * tile.blocks) + m0
        elif partition.kind == "batch":
            batches = p.batch // owners
            b = o * batches + b
        else:
            segments, width = partition.segments, p.n // partition.segments
            panels = ceil(ceil(width / owners) / tile.panel)
            n0 = s * width + o * (panels * tile.panel) + n0
        extents = {OWNER: owners, BATCH: batches, BLOCK: tile.blocks, SEGMENT: segments, PANEL: panels}
        binder = builder.binder(extents)
        b, m0, n0 = (binder.fix(e, unit_axes(extents)) for e in (b, m0, n0))
        left_operand(builder, root, (tile.rows, p.k), binder, (b, m0, Const(0)))
        right_operand(builder, root, (p.k, tile.panel), binder, (b, Const(0), n0))
        rows, columns = min(tile.rows, p.m), min(tile.panel, p.n)
        inner = {"m": (0, rows - 1), "n": (0, columns - 1)}
        row = binder.position("row", m0 + axis("m", rows), p.m)
        column = binder.position("column", n0 + axis("n", columns), p.n)
        root_index = p.out_index(b, row, column, builder.types[root.output].shape)
        result = builder.epilogue(stage, binder, root_index, inner, ("m", "n"))
        params = {"panel": tile.panel, "at_once": tile.at_once}
        task = Task(self.name, tuple(binder.operands), params, (result,))
        return builder.phase(name, stage, partition, extents, task, 2 * p.batch * p.m * p.n * p.k)

    # -- C++ --------------------------------------------------------------------------------------------------------

    def headers(self, phase: Phase, code: CpuStorage) -> tuple[str, ...]:
        return ("mononn_dot.hpp",) if is_narrow(phase, code) else ()

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
        rows, rows_text = code.extents(phase, a, 0, printer)
        columns, columns_text = code.extents(phase, b, 1, printer)
        narrow = is_narrow(phase, code)
        result = task.results[0]
        m, n = result.axes
        inner = code.element_printer(printer, result.axes, (a.box.size[0], panel))
        ragged = columns != (panel,)
        if ragged:
            out.line(f"const long end_ = {columns_text};")
        with out.block(f"auto element_ = [&](long {m}, long {n}, auto v_) {{", "};"):
            write_element(out, result, inner)
        lda, ldb = (row_stride(printer.pointers[o.role].buffer) for o in (a, b))
        left, right = f"{code.corner(printer, a)}, {lda}", code.corner(printer, b)
        places = f"{left}, {right}" if narrow else f"{left}, {right}, {ldb}"
        function = "element_"
        outside = ragged and not _may_overread(b, printer)
        if outside:  # a register tile would read past the caller's array (or the file) in the last panel
            edge = f"mn::product({rows_text}, end_, {a.box.size[1]}, {places}, element_);"
            out.line(f"if (end_ < {panel}) {edge}")
        elif ragged:
            out.line(f"auto edge_ = [&](long {m}, long {n}, auto v_) {{ mn::ragged({m}, {n}, end_, v_, element_); }};")
            function = "edge_"
        guard = f"if (end_ == {panel}) " if outside else "if (end_ > 0) " if min(columns) == 0 else ""
        cheap = "true" if is_cheap(result) else "false"
        call = f"{panel}, {at_once}, {cheap}>({places}, {a.box.size[1]}, {function});"
        function = "mn::dot" if narrow else "mn::matmul"
        code.choose([(rows_text, r, f"{guard}{function}<{r}, {call}") for r in rows if r > 0], 0 in rows)


def _owners(partition: Partition) -> tuple[int, int]:
    """Owners along rows and along columns."""
    by_rows, by_columns = (partition.owners if partition.kind == kind else 1 for kind in ("rows", "columns"))
    return by_rows, by_columns


def _panel_vectors(rows: int) -> int:
    """Vectors of columns a register tile spans: two where rows fill the registers, more where they are few."""
    return 8 if rows <= 3 else 4 if rows <= 6 else 2


def _left_type(stage: FusionGroup, builder: PhaseBuilder) -> str:
    """The element type of a."""
    assert stage.root is not None
    return builder.multiplied(stage.root)


def _most(stage: FusionGroup, panel: int, builder: PhaseBuilder) -> int:
    """Rows of a register tile, at most."""
    return most_at_once(panel // builder.lanes, builder.machine, _left_type(stage, builder))


def _blocks(share: int, nbytes: int, owners: int, machine: Machine) -> tuple[int, int]:
    """(rows of a block, blocks) for the ``share`` rows of ``nbytes`` of each of so many owners."""
    blocks = max(1, ceil(share * nbytes / (L2_SHARE * machine.l2_bytes)))
    blocks = min(blocks, max(1, share // SMALLEST_BLOCK))
    if owners > 1:  # blocks that end where the owner's rows do, so that its rows are the same in every stage
        blocks = next((n for n in range(blocks, share // SMALLEST_BLOCK + 1) if share % n == 0), blocks)
    return ceil(share / blocks), blocks


def _segments(stage: FusionGroup, views: Views) -> int:
    """How many equal runs of columns the readers of a merged product cut it into (Q, K and V: three)."""
    graph = views.graph
    width = matrix_shape(graph.types[stage.stored].shape)[1]
    readers = graph.consumers()[stage.stored]
    common = gcd(*(graph.types[r.outputs[0]].shape[-1] for r in readers if r.op == "slice"))
    return width // common if common else 1


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
    with code.out.block(f"auto element_ = [&](long {result.axes[0]}, long {result.axes[1]}, auto v_) {{", "};"):
        write_element(code.out, result, inner)
    corner, stride = code.corner(printer, b), str(row_stride(printer.pointers["b"].buffer))
    slot = code.slots().get((phase.id, "b"))
    if slot:
        local = code.buffers[slot]
        code.out.line(f"const bool fetched_ = {_is_first(phase)};")
        corner = f"fetched_ ? (const float *){code.base(slot, local)} : {corner}"
        stride = f"fetched_ ? {row_stride(local)} : {stride}"
    (_, m), (_, k), (_, n) = (code.extents(phase, o, d, printer) for o, d in ((a, 0), (b, 0), (b, 1)))
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
