"""One stage becomes one Phase of tasks that any block may take."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from mononn_core.errors import UnsupportedError
from mononn_core.program.expr import Acc, Const, Var
from mononn_core.program.simplify import simplify
from mononn_core.program.tile import Assign, Axis, Box, Mainloop, Phase, Result, Task
from mononn_core.schedule.cuda.tiles import Shape, Target, Tile, choose
from mononn_core.schedule.decisions import Partition
from mononn_core.schedule.draft import TaskBuilder, unit_axes
from mononn_core.schedule.fuse import Stage
from mononn_core.schedule.nests import build_nest
from mononn_core.schedule.operands import Product, attention_axes, axis, unit_stride
from mononn_core.schedule.prepare import is_template
from mononn_core.schedule.views import Views, matrix_shape

WARP = 32
KEYS = 64
"""Keys that an attention's task takes in one step."""
ATTENTION_ROWS = (16, 32, 64)
PARTS_SUFFIX = "@parts"


class CudaBuilder(TaskBuilder):
    """Builds phases for one launch. ``split``: tensors (of products) whose sums are stored in parts."""

    def __init__(self, views: Views, storage: Mapping[str, str], target: Target) -> None:
        super().__init__(views, WARP, storage, target.storage)
        self.target = target

    def build(self, stage: Stage, name: str) -> Phase:
        """The phase of a stage."""
        template = stage.root.op if stage.root and is_template(stage.root, self.views.graph) else ""
        if template == "matmul":
            return self.product(stage, name, self.product_tile(stage))
        if template == "attention":
            return self.attention(stage, name)
        return self.nest(stage, name)

    # -- products ---------------------------------------------------------------------------------------------------

    def shape(self, stage: Stage) -> Shape:
        """What the choice of a tile has to know of a product."""
        assert stage.root is not None
        p = Product.of(stage.root, self.types)
        b = stage.root.inputs[1]
        stable = self.views.graph.is_constant(b) and p.batch == 1
        return Shape(p.batch, p.m, p.n, p.k, exact=p.batch > 1, panels=not stable, stable=stable)

    def product_tile(self, stage: Stage) -> Tile:
        """The cheapest tile.

        Raises:
            UnsupportedError: none fits the product into a block's shared memory and registers.
        """
        assert stage.root is not None
        shape = self.shape(stage)
        found = choose(shape, self.target)
        if found is None:
            raise UnsupportedError(
                f"{stage.root.origin}: no tile of a product of [{shape.m}, {shape.k}] by [{shape.k}, {shape.n}] fits a "
                f"block of {self.target.gpu.name}; compile with target cpu"
            )
        return found[0]

    def product(self, stage: Stage, name: str, tile: Tile) -> Phase:
        assert stage.root is not None
        p = Product.of(stage.root, self.types)
        extents = {"z": tile.parts, "b": p.batch, "p": ceil(p.n / tile.columns), "r": ceil(p.m / tile.rows)}
        draft = self.draft(extents)
        terms = ceil(p.k / tile.parts)
        at = (Var("b"), Var("r") * tile.rows, Var("p") * tile.columns, Var("z") * terms)
        batch, m0, n0, k0 = (draft.fix(e, unit_axes(extents)) for e in at)
        self.product_operands(stage, p, (tile.rows, tile.columns, terms), draft, (batch, m0, n0, k0))
        rows, columns = min(tile.rows, p.m), min(tile.columns, p.n)
        inner = {"m": (0, rows - 1), "n": (0, columns - 1)}
        row = draft.position("row", m0 + axis("m", rows), p.m)
        column = draft.position("column", n0 + axis("n", columns), p.n)
        if tile.parts > 1:
            total = (tile.parts * p.m, p.n)
            index = (
                draft.simplify(draft.fix(Var("z"), unit_axes(extents)) * p.m + row, inner),
                draft.simplify(column, inner),
            )
            box = Box((simplify(index[0] - axis("m", rows), draft.outer), n0), (rows, columns), total)
            draft.add("out", stage.root.output + PARTS_SUFFIX, box, "write")
            result = Result("out", ("m", "n"), index, Acc())
        else:
            root = p.out_index(batch, row, column, self.types[stage.root.output].shape)
            result = self.epilogue(stage, draft, root, inner, ("m", "n"))
        loop = Mainloop("k", self.target.step, tile.stages, "cp_async")
        task = Task("matmul", tuple(draft.operands), tile.params(self.target.kind), (result,), mainloop=loop)
        return self._phase(name, stage, extents, task, 2 * p.batch * p.m * p.n * p.k)

    # -- attention --------------------------------------------------------------------------------------------------

    def attention(self, stage: Stage, name: str) -> Phase:
        """Tasks of some rows of a head: the largest of :data:`ATTENTION_ROWS` that still gives every block a task.
        Where rows past the end of a head would be another head's, tasks divide its rows, or take them all."""
        node = stage.root
        assert node is not None
        batch, heads, total, _ = self.types[node.inputs[0]].shape
        fits = [r for r in ATTENTION_ROWS if self._alone(stage) or total % r == 0 or total <= r]
        enough = [r for r in fits if batch * heads * ceil(total / r) >= self.target.blocks]
        rows = min(total, max(enough) if enough else min(fits) if fits else total)
        extents = {"h": batch * heads, "r": ceil(total / rows)}
        params = {"guard": bool(node.attrs.get("guard", False)), "kind": self.target.kind, "keys": KEYS}
        task, flops = self.attention_task(stage, rows, extents, (Var("h"), Var("r") * rows), params)
        return self._phase(name, stage, extents, task, flops)

    def _alone(self, stage: Stage) -> bool:
        """Whether the rows of q end where its matrix does."""
        assert stage.root is not None
        q = stage.root.inputs[0]
        axes = attention_axes(stage.root, 0, self.types)
        found = unit_stride(self.views.element(q, axes.index), axes) if axes else None
        return found is not None and isinstance(found[1], Const)

    # -- everything else --------------------------------------------------------------------------------------------

    def nest(self, stage: Stage, name: str) -> Phase:
        """Rows dealt to as many tasks as there are blocks; columns where there are too few rows."""
        rows, columns = matrix_shape(self.types[stage.root.outputs[0] if stage.root else stage.stored].shape)
        blocks, threads = self.target.blocks, self.target.threads
        whole_row = stage.root is not None
        if rows > 1 and (whole_row or rows * columns <= blocks * threads or rows * 4 >= blocks):
            tasks = self._even(rows, columns if not whole_row else threads)
            return build_nest(self, stage, Partition("rows" if tasks > 1 else "single", tasks), name)
        if not whole_row and columns >= 2 * threads:
            tasks = min(blocks, ceil(columns / threads))
            columns_each = ceil(columns / tasks)
            return build_nest(self, stage, Partition("columns", ceil(columns / columns_each)), name)
        return build_nest(self, stage, Partition("single", 1), name)

    def _even(self, rows: int, columns: int) -> int:
        """Tasks of equally many rows, as many as blocks, but none with less than an element a thread."""
        least = max(1, self.target.threads // max(columns, 1))
        each = max(least, ceil(rows / self.target.blocks))
        return ceil(rows / each)

    def phase(
        self, name: str, stage: Stage, partition: Partition, extents: Mapping[str, int], task: Task, flops: int
    ) -> Phase:
        return self._phase(name, stage, extents, task, flops)

    def _phase(self, name: str, stage: Stage, extents: Mapping[str, int], task: Task, flops: int) -> Phase:
        domain = tuple(Axis(v, e) for v, e in extents.items() if e > 1)
        assign = Assign("strided", order=tuple(a.var for a in domain))
        return Phase(name, domain, assign, task, origin=stage.origin, flops=flops)
