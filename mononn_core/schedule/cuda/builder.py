"""One stage becomes one Phase of tasks that any block may take."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from math import ceil

import numpy as np

from mononn_core.errors import UnsupportedError
from mononn_core.program.expr import NARROW, Acc, Cast, Const, Expr, Load, Ranges, Var, minimum
from mononn_core.program.ir import (
    Assign,
    Axis,
    Box,
    Buffer,
    For,
    Layout,
    Let,
    Mainloop,
    Operand,
    Phase,
    Result,
    Split,
    Statement,
    Store,
    Task,
)
from mononn_core.program.simplify import simplify
from mononn_core.schedule.binder import OperandBinder, TaskBuilder, unit_axes
from mononn_core.schedule.cuda.parts import SUFFIX, HeldViews, PartsViews
from mononn_core.schedule.cuda.plan import Step
from mononn_core.schedule.cuda.schedule import CudaGroup
from mononn_core.schedule.cuda.tiles import Target, Tile, attention_bytes
from mononn_core.schedule.fuse import FusionGroup
from mononn_core.schedule.nests import build_nest, map_statement, row_loops, rows_of_an_owner
from mononn_core.schedule.operands import Product, attention_axes, axis, unit_stride
from mononn_core.schedule.prepare import is_template
from mononn_core.schedule.rows import row_body
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.views import matrix_index, matrix_shape, tensor_index

WARP = 32
KEYS = (64, 32, 16)
"""Keys that an attention's task takes in one step, the most that fit."""
ATTENTION_ROWS = (16, 32, 64)
HELD_BYTES = 32 << 10
"""Most memory that the rows of a norm over parts take."""


class CudaBuilder(TaskBuilder):
    """Builds phases for one launch. ``locals`` collects the worker-local buffers they use."""

    views: PartsViews

    def __init__(self, views: PartsViews, storage: Mapping[str, str], target: Target) -> None:
        super().__init__(views, WARP, storage, target.storage)
        self.target = target
        self.locals: dict[str, Buffer] = {}

    def decided(self, step: Step) -> CudaGroup:
        """A step with all that is left to decide: the rows and keys of an attention, the tasks of a nest.

        Raises:
            UnsupportedError: no tile of an attention fits a block.
        """
        stage = step.stage
        if step.tile is not None:
            return CudaGroup(stage.own, "matmul", step.tile, fill=step.fill.own if step.fill is not None else "")
        if stage.root is not None and stage.root.op == "attention" and is_template(stage.root, self.views.graph):
            rows, keys = self.attention_tiles(stage)[0]
            return CudaGroup(stage.own, "attention", rows=rows, keys=keys)
        dealt = self.norm_tasks(stage) if step.adds else self.nest_tasks(stage)
        template = "sum" if step.sums else "nest"
        return CudaGroup(stage.own, template, tasks=dealt.owners, by=dealt.kind, adds=step.adds)

    def build(self, step: Step, group: CudaGroup, name: str) -> Phase:
        """The phase of a step as decided."""
        if step.tile is not None:
            return self.product(step, step.tile, name)
        if group.template == "attention":
            return self.attention(step.stage, (group.rows, group.keys), name)
        partition = Partition(group.by, group.tasks)
        if step.adds:
            return self.sum_norm(step.stage, name, step.adds, step.also, partition)
        return build_nest(self, step.stage, partition, name)

    # -- products ---------------------------------------------------------------------------------------------------

    def product(self, step: Step, tile: Tile, name: str) -> Phase:
        """A product's phase: over its parts s, batch b, panels of columns p, and blocks of rows r."""
        stage, root = step.stage, step.stage.root
        assert root is not None
        p = Product.of(root, self.types)
        extents = {"s": tile.parts, "b": p.batch, "p": ceil(p.n / tile.columns), "r": ceil(p.m / tile.rows)}
        binder = self.binder(extents)
        terms = ceil(p.k / tile.parts)
        at = (Var("b"), Var("r") * tile.rows, Var("p") * tile.columns, Var("s") * terms)
        batch, m0, n0, k0 = (binder.fix(e, unit_axes(extents)) for e in at)
        body: tuple[Statement, ...] = ()
        bounds: tuple[Expr | None, ...] = ()
        split: Split | None = None
        if step.fill is not None:
            body, bounds = self._fill(step, tile, p, binder, (m0, extents["p"]))
        else:
            self.left_operand(root, p, (tile.rows, terms), binder, (batch, m0, k0))
        self.right_operand(root, p, (terms, tile.columns), binder, (batch, k0, n0))
        rows, columns = min(tile.rows, p.m), min(tile.columns, p.n)
        inner = {"m": (0, rows - 1), "n": (0, columns - 1)}
        row = binder.position("row", m0 + axis("m", rows), p.m)
        column = binder.position("column", n0 + axis("n", columns), p.n)
        if tile.parts > 1:
            part = binder.fix(Var("s"), unit_axes(extents))
            index = binder.output(root.output + SUFFIX, (part * p.m + row, column), inner, access="partial")
            split = Split("s", tile.parts, root.output + SUFFIX, "consumer")
            result = Result("out", ("m", "n"), index, Acc(), bounds)
        else:
            at_root = p.out_index(batch, row, column, self.types[root.output].shape)
            result = replace(self.epilogue(stage, binder, at_root, inner, ("m", "n")), bounds=bounds)
        loop = Mainloop("k", self.target.step, tile.stages, "cp_async")
        local = tuple(str(o.buffer) for o in binder.operands if o.role == "a" and step.fill is not None)
        params = tile.params(self.target.kind)
        task = Task("matmul", tuple(binder.operands), params, (result,), body, mainloop=loop, split=split, local=local)
        return self._phase(name, stage, extents, task, 2 * p.batch * p.m * p.n * p.k)

    def _fill(
        self, step: Step, tile: Tile, p: Product, binder: OperandBinder, at: tuple[Expr, int]
    ) -> tuple[tuple[Statement, ...], tuple[Expr | None, ...]]:
        """The nest that computes a task's rows of the left side, and the bounds of the task's results. Rows beyond the
        last are the last again; the first of the panels stores the rows where others read them."""
        fill, (m0, panels) = step.fill, at
        assert fill is not None
        buffer = self.local((tile.rows, p.k), self.target.storage, "left")
        whole = Box((Const(0), Const(0)), buffer.shape, buffer.shape)
        ragged = p.m % tile.rows != 0
        y, x = axis("y", tile.rows), axis("x", p.k)
        row = binder.position("left", minimum(m0 + y, p.m - 1) if ragged else m0 + y, p.m)
        index = tensor_index(self.types[fill.root.output if fill.root else fill.stored].shape, row, x)
        inner = {"y": (0, tile.rows - 1), "x": (0, p.k - 1)}
        prelude: tuple[Statement, ...] = ()
        if fill.root is None:
            value = self.views.point(fill.chain[0], index)
        else:
            prelude, value = row_body(fill.root, self.views, index, self.lanes)
        prelude = tuple(map_statement(s, lambda e, more: binder.bind(e, {**inner, **more})) for s in prelude)
        stored = Cast(binder.bind(value, inner), buffer.dtype) if buffer.dtype in NARROW else binder.bind(value, inner)
        binder.operands.append(Operand("fill", buffer.id, whole, "write"))
        binder.operands.append(Operand("a", buffer.id, whole))
        body = row_loops(prelude, Store("fill", (y, x), stored), (tile.rows, p.k), (None, None))
        end = simplify(Const(p.m) - m0, binder.outer) if ragged else None
        if step.keep:
            body += self._keep(fill, tile, p, binder, (m0, end, panels))
        return body, (end, None) if ragged else ()

    def _keep(
        self, fill: FusionGroup, tile: Tile, p: Product, binder: OperandBinder, at: tuple[Expr, Expr | None, int]
    ) -> tuple[Statement, ...]:
        """Loops that store the rows of the left side, in the tasks of the first panel only."""
        m0, end, panels = at
        rows = min(tile.rows, p.m)
        y, x = axis("yk", rows), axis("xk", p.k)
        kind = self.storage.get(fill.stored, "float32")
        binder.add("kept", fill.stored, Box((m0, Const(0)), (rows, p.k), (p.m, p.k)), "write")
        store = Store("kept", (simplify(m0 + y, binder.outer), x), Load("a", (y, x), kind))
        body: tuple[Statement, ...] = (For("xk", p.k, (store,), "vector") if p.k > 1 else store,)
        body = (For("yk", rows, body, "serial", end),) if rows > 1 else body
        return (For("g", 1, body, "serial", Const(1) - Var("p")),) if panels > 1 else body

    def local(self, shape: tuple[int, int], dtype: str, use: str) -> Buffer:
        """A worker-local matrix; tasks of one use and shape share it."""
        multiple = 16 // np.dtype(dtype).itemsize
        stride = ceil(shape[1] / multiple) * multiple + multiple
        layout = Layout((((shape[0], stride),), ((shape[1], 1),)), shape[0] * stride)
        name = f"{use}[{shape[0]}x{shape[1]}]"
        return self.locals.setdefault(name, Buffer(name, dtype, shape, layout, "local", align=128))

    # -- attention --------------------------------------------------------------------------------------------------

    def attention_tiles(self, stage: FusionGroup) -> list[tuple[int, int]]:
        """(rows, keys in one step) of tasks that fit a block, the preferred first: as few rows as give every block one.
        Where rows past the end of a head would be another head's, tasks divide its rows, or take them all.

        Raises:
            UnsupportedError: nothing fits.
        """
        node = stage.root
        assert node is not None
        (batch, heads, total, _), (_, _, keys, depth), (_, _, _, width) = (self.types[n].shape for n in node.inputs[:3])
        fits = [r for r in ATTENTION_ROWS if self._alone(stage) or total % r == 0 or total <= r] or [total]
        enough = [r for r in fits if batch * heads * ceil(total / r) >= self.target.blocks]
        first = max(enough) if enough else min(fits)
        found = [
            (min(rows, total), step)
            for rows in sorted(fits, key=lambda r: (r != first, r))
            for step in KEYS
            if attention_bytes(min(rows, total), keys, step, (depth, width), self.target) <= self.target.shared_bytes
        ]
        if not found:
            raise UnsupportedError(
                f"{node.origin}: no tile of an attention of {total} rows and {keys} keys of {depth} fits a block of "
                f"{self.target.gpu.name}; compile with target cpu"
            )
        return found

    def attention(self, stage: FusionGroup, tile: tuple[int, int], name: str) -> Phase:
        """Tasks of some rows of a head, which take some keys in one step."""
        node, (rows, step) = stage.root, tile
        assert node is not None
        batch, heads, total, _ = self.types[node.inputs[0]].shape
        extents = {"h": batch * heads, "r": ceil(total / rows)}
        params = {"guard": bool(node.attrs.get("guard", False)), "kind": self.target.kind, "keys": step}
        task, flops = self.attention_task(stage, rows, extents, (Var("h"), Var("r") * rows), params)
        return self._phase(name, stage, extents, task, flops)

    def _alone(self, stage: FusionGroup) -> bool:
        """Whether the rows of q end where its matrix does."""
        assert stage.root is not None
        q = stage.root.inputs[0]
        axes = attention_axes(stage.root, 0, self.types)
        found = unit_stride(self.views.element(q, axes.index), axes) if axes else None
        return found is not None and isinstance(found[1], Const)

    # -- everything else --------------------------------------------------------------------------------------------

    def nest_tasks(self, stage: FusionGroup) -> Partition:
        """Rows dealt to as many tasks as there are blocks; columns where there are too few rows."""
        rows, columns = matrix_shape(self.types[stage.root.outputs[0] if stage.root else stage.stored].shape)
        blocks, threads = self.target.blocks, self.target.threads
        whole_row = stage.root is not None
        if rows > 1 and (whole_row or rows * columns <= blocks * threads or rows * 4 >= blocks):
            tasks = self._even(rows, columns if not whole_row else threads)
            return Partition("rows" if tasks > 1 else "single", tasks)
        if not whole_row and columns >= 2 * threads:
            tasks = min(blocks, ceil(columns / threads))
            columns_each = ceil(columns / tasks)
            return Partition("columns", ceil(columns / columns_each))
        return Partition("single", 1)

    def _even(self, rows: int, columns: int) -> int:
        """Tasks of equally many rows, as many as blocks, but none with less than an element a thread."""
        least = max(1, self.target.threads // max(columns, 1))
        each = max(least, ceil(rows / self.target.blocks))
        return ceil(rows / each)

    def norm_tasks(self, stage: FusionGroup) -> Partition:
        """Of a norm over parts: as many as there are blocks, more where the rows they hold would take too much."""
        rows, columns = matrix_shape(self.types[stage.stored].shape)
        tasks = ceil(rows / max(1, min(ceil(rows / self.target.blocks), HELD_BYTES // (4 * columns))))
        return Partition("rows" if tasks > 1 else "single", tasks)

    def sum_norm(self, stage: FusionGroup, name: str, tensor: str, also: bool, partition: Partition) -> Phase:
        """A norm of ``tensor``, whose product lies in parts: a task adds the parts of its rows once, into its own
        memory, and stores the sums as well where others read them."""
        shape = self.types[stage.stored].shape
        columns = matrix_shape(shape)[1]
        each = rows_of_an_owner(shape, partition.owners)
        held = self.local((each, columns), "float32", "held")
        plain = PartsViews(self.views.graph, self.views.stored - {tensor}, self.views.parts)
        other = copy(self)
        other.views = HeldViews(plain, tensor, held.id, (each, columns))
        whole = Box((Const(0), Const(0)), held.shape, held.shape)

        def first(binder: OperandBinder, index: tuple[Expr, ...], inner: Ranges) -> tuple[Statement, ...]:
            binder.operands.append(Operand("hold", held.id, whole, "write"))
            value, x = binder.bind(plain.element(tensor, index), inner), axis("x", columns)
            body: tuple[Statement, ...] = (Store("hold", (axis("y", each), x), value),)
            if also:
                total = Var("sum_of_parts", "float32")
                where = binder.output(tensor, matrix_index(self.types[tensor].shape, index), inner, "also")
                body = (
                    Let(total.name, value),
                    Store("hold", (axis("y", each), x), total),
                    Store("also", where, binder.stored(tensor, total)),
                )
            return (For("x", columns, body, "vector"),) if columns > 1 else body

        return build_nest(other, stage, partition, name, first)

    def phase(
        self, name: str, stage: FusionGroup, partition: Partition, extents: Mapping[str, int], task: Task, flops: int
    ) -> Phase:
        return self._phase(name, stage, extents, task, flops)

    def _phase(self, name: str, stage: FusionGroup, extents: Mapping[str, int], task: Task, flops: int) -> Phase:
        domain = tuple(Axis(v, e) for v, e in extents.items() if e > 1)
        assign = Assign("strided", order=tuple(a.var for a in domain))
        return Phase(name, domain, assign, task, origin=stage.origin, flops=flops)
