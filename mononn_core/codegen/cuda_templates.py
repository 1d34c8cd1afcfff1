"""Prints calls of the tensor-core templates with their generated epilogues."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.cuda_expressions import HALF, CudaPrinter, unguarded_loads
from mononn_core.codegen.cuda_lanes import store_width, write_element
from mononn_core.codegen.cuda_nests import NestWriter
from mononn_core.codegen.cuda_storage import KINDS, PRIVATE, CudaStorage, clipped, row_stride, up
from mononn_core.errors import UnsupportedError
from mononn_core.program.expr import Acc, Cast, Expr
from mononn_core.program.ir import Operand, Phase, Task

STAGES, STEP = 3, {2: 64, 4: 32}
"""Where a Program says nothing: stages of the ring, and elements of k in each by the bytes of one."""
AHEAD = 32
"""Most values that a thread loads for scores before it has them."""


@dataclass(frozen=True)
class Tile:
    """A product's tile: see ``mn::Matmul``. Strides and sizes in elements; ``local``: row stride of an a in shared
    memory, or 0."""

    kind: str
    rows: int
    columns: int
    step: int
    warps: tuple[int, int]
    stages: int
    groups: int
    local: int

    @property
    def bytes(self) -> int:
        """Shared memory of the ring and of the groups' sums, as the vocabulary computes it."""
        _, size = KINDS[self.kind]
        b_row = _row_stride(self.columns, size) if size == 2 else _column_stride(self.columns)
        a_size = 0 if self.local else self.rows * _row_stride(self.step, size)
        ring = self.stages * (a_size + self.step * b_row) * size
        return max(ring, self.groups * self.rows * _column_stride(self.columns) * 4)


def _row_stride(columns: int, size: int) -> int:
    return columns + (0 if columns * size // 16 % 2 else 16 // size)


def _column_stride(columns: int) -> int:
    wide = up(columns, 8)
    return wide if wide % 16 == 8 else wide + 8


def operand(task: Task, role: str) -> Operand:
    return next(o for o in task.operands if o.role == role)


def inner_axes(printer: CudaPrinter, axes: tuple[str, ...], extents: tuple[int, ...]) -> CudaPrinter:
    """The scope of an epilogue."""
    more = {a: (0, e - 1) for a, e in zip(axes, extents, strict=True)}
    return replace(printer, ranges={**printer.ranges, **more})


class CudaTemplates(CudaStorage):
    """Products and attention."""

    def tile(self, phase: Phase) -> Tile:
        """How a product's task is computed; raises UnsupportedError where the block's warps cannot cover it."""
        task, a = phase.task, self.buffer(operand(phase.task, "a").buffer)
        kind = str(task.params.get("kind") or {"float16": "f16", "bfloat16": "bf16"}.get(a.dtype, "tf32x3"))
        covering = (up(operand(task, "a").box.size[-2], 16), up(operand(task, "b").box.size[-1], 8))
        rows, columns = task.params.get("tile", covering)
        wm, wn = task.params.get("warps", (1, 1))
        size, loop = KINDS[kind][1], task.mainloop
        step, stages = (loop.step, max(2, loop.stages)) if loop else (STEP[size], STAGES)
        depth = 16 if size == 2 else 8
        local = row_stride(self.local(a)) if a.space == PRIVATE else 0
        groups = next((g for g in range(self.warps // (wm * wn), 0, -1) if step % (depth * g) == 0), 0)
        if rows % (16 * wm) or columns % (8 * wn) or groups == 0:
            where = f" of {phase.origin[0]}" if phase.origin else ""
            raise UnsupportedError(
                f"phase {phase.id!r}{where}: a tile of {rows} x {columns} in steps of {step} does not fit "
                f"{wm} x {wn} of {self.warps} warps; choose multiples of {16 * wm} rows and {8 * wn} columns"
            )
        if self._type(a.dtype) != KINDS[kind][0]:
            raise UnsupportedError(f"phase {phase.id!r}: a product in {kind} cannot read {a.dtype} operands")
        return Tile(kind, rows, columns, step, (wm, wn), stages, groups, local)

    def _type(self, dtype: str) -> str:
        return HALF.get(dtype, "float")

    def template_bytes(self, phase: Phase) -> int:
        match phase.task.template:
            case "matmul" | "gemv":
                return self.tile(phase).bytes
            case "attention":
                return self.attention_shape(phase).bytes
        return 0

    # -- products ---------------------------------------------------------------------------------------------------

    def matmul_type(self, phase: Phase, printer: CudaPrinter, fetch: bool = False) -> str:
        """The template's instance. Where only ``b`` is at hand (to ``fetch`` it early) the rest does not matter."""
        tile, task = self.tile(phase), phase.task
        a, b = operand(task, "a"), operand(task, "b")
        wide = 1 if fetch else self._epilogue_width(task, tile, printer)
        align = 16 if tile.local or fetch else min(16, self.row_alignment(a, printer))
        b_align = min(16, self.row_alignment(b, printer))
        wm, wn = tile.warps
        depth = self.extent(b, len(b.box.size) - 2, printer)
        whole = depth.isdigit() and int(depth) % tile.step == 0
        return (
            f"mn::Matmul<{KINDS[tile.kind][0]}, {tile.rows}, {tile.columns}, {tile.step}, {wm}, {wn}, {tile.groups}, "
            f"{tile.stages}, {'true' if whole else 'false'}, "
            f"{wide}, {tile.local}, {align}, {b_align}>"
        )

    def _epilogue_width(self, task: Task, tile: Tile, printer: CudaPrinter) -> int:
        axes = task.results[0].axes[-2:]
        scope = inner_axes(printer, axes, (tile.rows, tile.columns))
        return store_width(task.results, axes[1], tile.columns, scope)

    def matmul(self, phase: Phase, printer: CudaPrinter) -> None:
        task, tile = phase.task, self.tile(phase)
        a, b = operand(task, "a"), operand(task, "b")
        if task.body:
            with self.out.block("{"):
                NestWriter(self.out, printer, self.threads).task(task.body, printer)
        if tile.local:
            self._zero_tail(a, tile, printer)
        axes = task.results[0].axes[-2:]
        write_element(
            self.out,
            task.results,
            self._epilogue_width(task, tile, printer),
            inner_axes(printer, axes, (tile.rows, tile.columns)),
        )
        self.out.line(f"using Product = {self.matmul_type(phase, printer)};")
        self.out.line(f"static_assert(Product::BYTES <= {tile.bytes});")
        rows, limit = self._bounds(task, a, b, printer)
        at = f"mn::shared_memory() + {self.places[phase.id].template}"
        left = f"{self.corner(printer, a)}, {row_stride(printer.pointers['a'].buffer)}, {rows}"
        self.out.line(f"Product::run({at}, {left}, {self.right(b, printer)}, {limit}, early_, element_);")

    def right(self, b: Operand, printer: CudaPrinter) -> str:
        """The arguments that say where b lies: pointer, row stride, columns that can be read, k."""
        buffer = printer.pointers["b"].buffer
        dim = len(buffer.shape) - 1
        panels = len(buffer.layout.dims[dim]) > 1
        columns = str(buffer.layout.dims[dim][-1][0]) if panels else self.extent(b, dim, printer)
        return f"{self.corner(printer, b)}, {row_stride(buffer)}, {columns}, {self.extent(b, dim - 1, printer)}"

    def _bounds(self, task: Task, a: Operand, b: Operand, printer: CudaPrinter) -> tuple[str, str]:
        """C expressions of the rows and columns that are stored."""
        found = []
        bounds: tuple[Expr | None, ...] = task.results[0].bounds or (None, None)
        for which, o, bound in zip((-2, -1), (a, b), bounds, strict=True):
            dim = len(o.box.size) + (-2 if which == -2 else -1)
            text = self.extent(o, dim, printer)
            found.append(text if bound is None else clipped(o.box.size[dim], bound, printer))
        return found[0], found[1]

    def _zero_tail(self, a: Operand, tile: Tile, printer: Printer) -> None:
        """Columns of a local a between its last one and the end of the last step become zero."""
        depth = int(a.box.size[-1])
        whole = up(depth, tile.step)
        if whole > depth:
            kind = KINDS[tile.kind][0]
            pointer = f"({kind} *){printer.pointers['a'].name}"
            self.out.line(f"mn::zero_columns<{kind}, {tile.rows}, {depth}, {whole}, {tile.local}>({pointer});")

    # -- attention --------------------------------------------------------------------------------------------------

    def attention_shape(self, phase: Phase) -> AttentionShape:
        """How an attention task is computed."""
        task = phase.task
        q, k, v = (operand(task, r) for r in "qkv")
        dtype = self.buffer(q.buffer).dtype
        kind = str(task.params.get("kind") or {"float16": "f16", "bfloat16": "bf16"}.get(dtype, "tf32x3"))
        if self._type(dtype) != KINDS[kind][0]:
            raise UnsupportedError(f"phase {phase.id!r}: attention in {kind} cannot read {dtype} operands")
        rows, keys = q.box.size[-2], k.box.size[-2]
        strips = 1
        while strips * 2 <= min(self.warps, -(-rows // 16)):
            strips *= 2
        step = 16 * (self.warps // strips)
        wanted = min(keys, int(task.params.get("keys", 64)))
        return AttentionShape(kind, rows, keys, q.box.size[-1], v.box.size[-1], strips, up(wanted, step), self.warps)

    def attention(self, phase: Phase, printer: CudaPrinter) -> None:
        task, shape = phase.task, self.attention_shape(phase)
        axes = task.results[0].axes[-2:]
        scope = inner_axes(printer, axes, (shape.rows, shape.width))
        width = store_width(task.results, axes[1], shape.width, scope)
        loads = self._score(task, shape, printer)
        write_element(self.out, task.results, width, scope)
        q, k, v = (operand(task, r) for r in "qkv")
        aligned = min(16, *(self.row_alignment(o, printer) for o in (q, k, v)))
        guard = "true" if task.params.get("guard") else "false"
        self.out.line(
            f"using Attention = mn::Attention<{KINDS[shape.kind][0]}, {shape.depth}, {shape.width}, {shape.strips}, "
            f"{shape.step}, {'true' if shape.whole else 'false'}, {loads}, {width}, {guard}, {aligned}>;"
        )
        self.out.line(f"static_assert(Attention::BYTES <= {shape.bytes});")
        parts = [f"{self.corner(printer, o)}, {row_stride(printer.pointers[o.role].buffer)}" for o in (q, k, v)]
        sizes = f"{self.extent(q, len(q.box.size) - 2, printer)}, {self.extent(k, len(k.box.size) - 2, printer)}"
        at = f"mn::shared_memory() + {self.places[phase.id].template}"
        self.out.line(f"Attention::run({at}, {', '.join(parts)}, {sizes}, ahead_, score_, element_);")

    def _score(self, task: Task, shape: AttentionShape, printer: CudaPrinter) -> int:
        """Print ``ahead_``, which loads what the scores of a key need before the key is there, and ``score_``. Returns
        how many values that is, 0 where they are too many to wait in registers."""
        scope = inner_axes(replace(printer, acc="s_"), ("i", "j"), (shape.rows, shape.keys))
        score = task.prologue.get("score", Acc())
        loads = [e for e in unguarded_loads(score) if e.dtype in ("float32", *HALF)]
        if len(loads) * shape.fragments * 4 > AHEAD:
            loads = []
        values: list[Expr] = [Cast(e, "float32") if e.dtype in HALF else e for e in loads]
        with self.out.block(f"auto ahead_ = [&](int i, int j, float (&x_)[{max(1, len(loads))}]) {{", "};"):
            self.out.line("(void)i, (void)j, (void)x_;")
            for number, value in enumerate(values):
                self.out.line(f"x_[{number}] = {scope.scalar(value)};")
        ready = replace(scope, loaded={value: f"x_[{number}]" for number, value in enumerate(values)})
        with self.out.block(
            f"auto score_ = [&](int i, int j, float s_, const float (&x_)[{max(1, len(loads))}]) {{", "};"
        ):
            self.out.line("(void)i, (void)j, (void)x_;")
            self.out.line(f"return {ready.scalar(score)};")
        return len(loads)


@dataclass(frozen=True)
class AttentionShape:
    """See ``mn::Attention``: ``strips`` of 16 rows at a time, ``step`` keys at a time."""

    kind: str
    rows: int
    keys: int
    depth: int
    width: int
    strips: int
    step: int
    warps: int

    @property
    def fragments(self) -> int:
        """Fragments of 8 keys that a warp has in a step."""
        return self.step // (self.warps // self.strips) // 8

    @property
    def whole(self) -> bool:
        """Whether all keys lie in shared memory at once."""
        return self.step >= self.keys

    @property
    def bytes(self) -> int:
        """Shared memory, as the vocabulary computes it."""
        size = KINDS[self.kind][1]
        depth, width, rows = up(self.depth, 16), up(self.width, 16), self.strips * 16
        tiles = rows * _row_stride(depth, size)
        tiles += (1 if self.whole else 2) * self.step * (_row_stride(depth, size) + _row_stride(width, size))
        groups = self.warps // self.strips
        return tiles * size + groups * rows * (_column_stride(width) + 2) * 4
