"""Products on a GPU: tensor-core fragments in registers, operands copied ahead in stages through shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from mononn_core.codegen.cuda_expressions import CudaPrinter
from mononn_core.codegen.cuda_lanes import store_width, write_element
from mononn_core.codegen.cuda_nests import NestWriter
from mononn_core.codegen.cuda_storage import PRIVATE, CudaStorage, CudaTemplate, clipped, inner_axes, up
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE, CUDA_TYPES, NARROW, itemsize
from mononn_core.errors import UnsupportedError
from mononn_core.program.expr import Acc, Cast, Const, Expr, Load, Var, minimum
from mononn_core.program.ir import Box, For, Mainloop, Operand, Phase, Result, Split, Statement, Store, Task
from mononn_core.program.simplify import simplify
from mononn_core.program.template import operand
from mononn_core.program.tensor_core import FRAGMENT, KINDS, in_fragments, kind_of, product_bytes
from mononn_core.schedule.binder import BATCH, BLOCK, PANEL, PART, OperandBinder, unit_axes
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.parts import SUFFIX
from mononn_core.schedule.cuda.schedule import CudaGroup
from mononn_core.schedule.cuda.template import CudaScheduled, PlannedPhase
from mononn_core.schedule.cuda.tiles import BlockTile
from mononn_core.schedule.nests import map_statement, row_loops
from mononn_core.schedule.operands import Product, axis
from mononn_core.schedule.rows import group_body
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.views import tensor_index
from mononn_core.templates.product import ProductTemplate, left_operand, right_operand

STAGES, STEP_BYTES = 3, 128
"""Where a Program says nothing: stages of the ring, and bytes of the terms in each."""


FRAGMENT_TERMS = 16
"""Of a fragment of 16-bit operands."""


@dataclass(frozen=True)
class KernelTile:
    """How a block computes a task: see ``mn::Matmul``. ``groups`` of warps share a tile's terms; ``local``: row stride
    in elements of an a in shared memory, or 0; ``staged``: b lies in fragments, and stages bring it."""

    kind: str
    rows: int
    columns: int
    step: int
    warps: tuple[int, int]
    stages: int
    groups: int
    local: int
    staged: bool

    @property
    def bytes(self) -> int:
        """Shared memory of the ring and of the groups' sums."""
        size = itemsize(KINDS[self.kind])
        return product_bytes(
            (self.rows, self.columns), self.step, self.stages, self.groups, size, self.local > 0, self.staged
        )

    @property
    def type(self) -> str:
        """Of its operands, in C."""
        return CUDA_TYPES[KINDS[self.kind]]


class CudaProduct(ProductTemplate, CudaTemplate, CudaScheduled):
    """See the module."""

    early = "b"

    def decided(self, builder: CudaBuilder, planned: PlannedPhase) -> CudaGroup:
        return CudaGroup(
            planned.stage.own, self.name, planned.tile, fill=planned.fill.own if planned.fill is not None else ""
        )

    def build_cuda(self, builder: CudaBuilder, planned: PlannedPhase, group: CudaGroup, name: str) -> Phase:
        """Over its parts s, batch b, panels of columns p, and blocks of rows r."""
        stage, root, tile = planned.stage, planned.stage.root, group.tile
        assert root is not None and tile is not None
        p = Product.of(root, builder.types)
        panels, blocks = ceil(p.n / tile.columns), ceil(p.m / tile.rows)
        extents = {PART: tile.parts, BATCH: p.batch, PANEL: panels, BLOCK: blocks}
        binder = builder.binder(extents)
        terms = ceil(p.k / tile.parts)
        at = (Var(BATCH), Var(BLOCK) * tile.rows, Var(PANEL) * tile.columns, Var(PART) * terms)
        batch, m0, n0, k0 = (binder.fix(e, unit_axes(extents)) for e in at)
        body: tuple[Statement, ...] = ()
        bounds: tuple[Expr | None, ...] = ()
        split: Split | None = None
        if planned.fill is not None:
            body, bounds = _fill(builder, planned, tile, p, binder, (m0, panels))
        else:
            left_operand(builder, root, (tile.rows, terms), binder, (batch, m0, k0))
        right_operand(builder, root, (terms, tile.columns), binder, (batch, k0, n0))
        rows, columns = min(tile.rows, p.m), min(tile.columns, p.n)
        inner = {"m": (0, rows - 1), "n": (0, columns - 1)}
        row = binder.position("row", m0 + axis("m", rows), p.m)
        column = binder.position("column", n0 + axis("n", columns), p.n)
        if tile.parts > 1:
            part = binder.fix(Var(PART), unit_axes(extents))
            index = binder.output(root.output + SUFFIX, (part * p.m + row, column), inner, access="partial")
            split = Split(PART, tile.parts, root.output + SUFFIX)
            result = Result("out", ("m", "n"), index, Acc(), bounds)
        else:
            at_root = p.out_index(batch, row, column, builder.types[root.output].shape)
            result = replace(builder.epilogue(stage, binder, at_root, inner, ("m", "n")), bounds=bounds)
        packed = any(str(o.buffer) in builder.packed for o in binder.operands)
        loop = Mainloop("k", builder.target.step(packed), tile.stages, "cp_async")
        local = tuple(str(o.buffer) for o in binder.operands if o.role == "a" and planned.fill is not None)
        params = tile.params(builder.target.kind)
        task = Task(self.name, tuple(binder.operands), params, (result,), body, mainloop=loop, split=split, local=local)
        return builder.task_phase(name, stage, extents, task, 2 * p.batch * p.m * p.n * p.k)

    # -- CUDA C++ ---------------------------------------------------------------------------------------------------

    def shared_bytes(self, phase: Phase, code: CudaStorage) -> int:
        return self.block_tile(phase, code).bytes

    def stages(self, phase: Phase, code: CudaStorage) -> bool:
        return self.block_tile(phase, code).staged

    def block_tile(self, phase: Phase, code: CudaStorage) -> KernelTile:
        """How a task is computed; raises UnsupportedError where the block's warps cannot cover it."""
        task, params = phase.task, self.params(phase.task)
        a, b = operand(task, "a"), operand(task, "b")
        left = code.buffer(a.buffer)
        kind = params.kind or kind_of(left.dtype)
        rows, columns = params.tile
        if rows == 0:
            rows, columns = up(a.box.size[-2], FRAGMENT[0]), up(b.box.size[-1], FRAGMENT[1])
        (wm, wn), size, loop = params.warps, itemsize(KINDS[kind]), task.mainloop
        step, stages = (loop.step, max(2, loop.stages)) if loop else (STEP_BYTES // size, STAGES)
        depth = FRAGMENT_TERMS if size == 2 else 8
        local = row_stride(left) if left.space == PRIVATE else 0
        groups = next((g for g in range(code.warps // (wm * wn), 0, -1) if step % (depth * g) == 0), 0)
        high, wide = FRAGMENT[0] * wm, FRAGMENT[1] * wn
        if rows % high or columns % wide or groups == 0:
            where = f" of {phase.origin[0]}" if phase.origin else ""
            raise UnsupportedError(
                f"phase {phase.id!r}{where}: a tile of {rows} x {columns} in steps of {step} does not fit "
                f"{wm} x {wn} of {code.warps} warps; choose multiples of {high} rows and {wide} columns"
            )
        if left.dtype != KINDS[kind]:
            raise UnsupportedError(f"phase {phase.id!r}: a product in {kind} cannot read {left.dtype} operands")
        staged = in_fragments(code.buffer(b.buffer))
        return KernelTile(kind, rows, columns, step, (wm, wn), stages, groups, local, staged)

    def write_cuda(self, phase: Phase, printer: CudaPrinter, code: CudaStorage) -> None:
        task, tile = phase.task, self.block_tile(phase, code)
        a, b = operand(task, "a"), operand(task, "b")
        if task.body:
            with code.out.block("{"):
                NestWriter(code.out, printer, code.threads).task(task.body, printer)
        if tile.local:
            _zero_tail(a, tile, printer, code)
        scope = inner_axes(printer, task.results[0].axes[-2:], (tile.rows, tile.columns))
        write_element(code.out, task.results, _epilogue_width(task, tile, printer), scope)
        code.out.line(f"using Product = {self._kernel(phase, printer, code)};")
        code.out.line(f"static_assert(Product::BYTES <= {tile.bytes});")
        rows, limit = _bounds(task, a, b, printer, code)
        left = f"{code.corner(printer, a)}, {row_stride(printer.pointers['a'].buffer)}, {rows}"
        right, place = _right(b, printer, code), code.template_place(phase)
        code.out.line(f"Product::run({place}, {left}, {right}, {limit}, early_, now_.stage, element_);")
        code.out.line("early_ = false;")

    def write_fetch(self, phase: Phase, printer: CudaPrinter, code: CudaStorage) -> None:
        right, place = _right(operand(phase.task, self.early), printer, code), code.template_place(phase)
        kernel = self._kernel(phase, printer, code, fetch=True)
        code.out.line(f"{kernel}::fetch({place}, {right}, now_.stage);")

    def _kernel(self, phase: Phase, printer: CudaPrinter, code: CudaStorage, fetch: bool = False) -> str:
        """The vocabulary's instance. Where only b is at hand (to ``fetch`` it early) the rest does not matter."""
        tile, task = self.block_tile(phase, code), phase.task
        a, b = operand(task, "a"), operand(task, "b")
        wide = 1 if fetch else _epilogue_width(task, tile, printer)
        align = 16 if tile.local or fetch else min(16, code.row_alignment(a, printer))
        b_align = 16 if tile.staged else min(16, code.row_alignment(b, printer))
        wm, wn = tile.warps
        depth = code.extent(b, len(b.box.size) - 2, printer)
        whole = "true" if depth.isdigit() and int(depth) % tile.step == 0 else "false"
        return (
            f"mn::Matmul<{tile.type}, {tile.rows}, {tile.columns}, {tile.step}, {wm}, {wn}, {tile.groups}, "
            f"{tile.stages}, {whole}, {wide}, {tile.local}, {align}, {b_align}, {'true' if tile.staged else 'false'}>"
        )


# -- operands ---------------------------------------------------------------------------------------------------------


def _fill(
    builder: CudaBuilder,
    planned: PlannedPhase,
    tile: BlockTile,
    p: Product,
    binder: OperandBinder,
    at: tuple[Expr, int],
) -> tuple[tuple[Statement, ...], tuple[Expr | None, ...]]:
    """The nest that computes a task's rows of the left side, and the bounds of the task's results. Rows beyond the
    last are the last again; the first of the panels stores the rows where others read them."""
    fill, (m0, panels) = planned.fill, at
    assert fill is not None
    buffer = builder.local((tile.rows, p.k), builder.target.storage, "left")
    whole = Box((Const(0), Const(0)), buffer.shape, buffer.shape)
    ragged = p.m % tile.rows != 0
    y, x = axis("y", tile.rows), axis("x", p.k)
    row = binder.position("left", minimum(m0 + y, p.m - 1) if ragged else m0 + y, p.m)
    index = tensor_index(builder.types[fill.root.output if fill.root else fill.stored].shape, row, x)
    inner = {"y": (0, tile.rows - 1), "x": (0, p.k - 1)}
    prelude, value = group_body(fill, builder.views, index)
    prelude = tuple(map_statement(s, lambda e, more: binder.bind(e, {**inner, **more})) for s in prelude)
    stored = Cast(binder.bind(value, inner), buffer.dtype) if buffer.dtype in NARROW else binder.bind(value, inner)
    binder.operands.append(Operand("fill", buffer.id, whole, "write"))
    binder.operands.append(Operand("a", buffer.id, whole))
    body = row_loops(prelude, Store("fill", (y, x), stored), (tile.rows, p.k), (None, None))
    end = simplify(Const(p.m) - m0, binder.outer) if ragged else None
    if planned.keep:
        body += _keep(builder, fill, tile, p, binder, (m0, end, panels))
    return body, (end, None) if ragged else ()


def _keep(
    builder: CudaBuilder,
    fill: FusionGroup,
    tile: BlockTile,
    p: Product,
    binder: OperandBinder,
    at: tuple[Expr, Expr | None, int],
) -> tuple[Statement, ...]:
    """Loops that store the rows of the left side: an equal share in the tasks of each panel, or where that does not
    come out even all in those of the first."""
    m0, end, panels = at
    rows = min(tile.rows, p.m)
    shared = 1 < panels <= rows and rows % panels == 0 and end is None
    each = rows // panels if shared else rows
    first = Var(PANEL) * each if shared else Const(0)
    y, x = simplify(first + axis("yk", each), binder.outer), axis("xk", p.k)
    kind = builder.storage.get(fill.stored, COMPUTE)
    corner = simplify(m0 + first, binder.outer)
    binder.add("kept", fill.stored, Box((corner, Const(0)), (each, p.k), (p.m, p.k)), "write")
    store = Store("kept", (simplify(corner + axis("yk", each), binder.outer), x), Load("a", (y, x), kind))
    body: tuple[Statement, ...] = (For("xk", p.k, (store,), "vector") if p.k > 1 else store,)
    body = (For("yk", each, body, "serial", end),) if each > 1 else body
    return (For("g", 1, body, "serial", Const(1) - Var(PANEL)),) if panels > 1 and not shared else body


# -- CUDA C++ ---------------------------------------------------------------------------------------------------------


def _epilogue_width(task: Task, tile: KernelTile, printer: CudaPrinter) -> int:
    axes = task.results[0].axes[-2:]
    return store_width(task.results, axes[1], tile.columns, inner_axes(printer, axes, (tile.rows, tile.columns)))


def _right(b: Operand, printer: CudaPrinter, code: CudaStorage) -> str:
    """The arguments that say where b lies: pointer, row stride, columns that can be read, k."""
    buffer = printer.pointers["b"].buffer
    dim = len(buffer.shape) - 1
    panel = prod(factor for factor, _ in buffer.layout.dims[dim][1:])
    columns = str(panel) if len(buffer.layout.dims[dim]) > 1 else code.extent(b, dim, printer)
    stride = panel if in_fragments(buffer) else row_stride(buffer)
    return f"{code.corner(printer, b)}, {stride}, {columns}, {code.extent(b, dim - 1, printer)}"


def _bounds(task: Task, a: Operand, b: Operand, printer: CudaPrinter, code: CudaStorage) -> tuple[str, str]:
    """C expressions of the rows and columns that are stored."""
    found = []
    bounds: tuple[Expr | None, ...] = task.results[0].bounds or (None, None)
    for which, o, end in zip((-2, -1), (a, b), bounds, strict=True):
        dim = len(o.box.size) + which
        text = code.extent(o, dim, printer)
        found.append(text if end is None else clipped(o.box.size[dim], end, printer))
    return found[0], found[1]


def _zero_tail(a: Operand, tile: KernelTile, printer: CudaPrinter, code: CudaStorage) -> None:
    """Columns of a local a between its last one and the end of the last step become zero."""
    depth = int(a.box.size[-1])
    whole = up(depth, FRAGMENT_TERMS if tile.staged else tile.step)
    if whole > depth:
        pointer = f"({tile.type} *){printer.pointers['a'].name}"
        code.out.line(f"mn::zero_columns<{tile.type}, {tile.rows}, {depth}, {whole}, {tile.local}>({pointer});")
