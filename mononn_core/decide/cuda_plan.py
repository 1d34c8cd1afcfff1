"""Which phases there are: products in parts, norms and copies inside the products that read them, and the launch.

Every norm or copy N between what computes its input (often a product S) and the product P that multiplies it stands

* alone: a phase of its own. If S is cut into parts, N adds them, and stores the sum as well where others read it;
* or in P: every task of P computes its rows of N into a worker-local left side; the tasks of the first column panel
  store them where others read N. Then S, if it is cut into parts, needs a phase that adds them.

Both are priced by :mod:`mononn_core.cost.cuda`; the launch (threads of a block) is the cheapest over all products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from mononn_core.cost.cuda import Work, barrier_seconds
from mononn_core.cost.operations import expr_operations
from mononn_core.element import COMPUTE, itemsize
from mononn_core.errors import UnsupportedError
from mononn_core.ops.registry import is_template
from mononn_core.program.expr import Const, Load, Op, Var, substitute, variables, walk
from mononn_core.program.ir import Reduce
from mononn_core.program.simplify import simplify
from mononn_core.schedule.cuda.groups import NORMS, CudaGroups, adder
from mononn_core.schedule.cuda.schedule import CudaGroup
from mononn_core.schedule.cuda.template import PlannedPhase, serving
from mononn_core.schedule.cuda.tiles import BlockTile, Shape, Target, choose, seconds
from mononn_core.schedule.operands import Product, matmul_axes, unit_stride
from mononn_core.schedule.rows import group_body
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.views import matrix_shape, stored_behind, tensor_index

FEWER_PHASES = 1.05
"""Within so much of the model's error the plan with a barrier less is taken: nothing hides a barrier."""


@dataclass
class Plan:
    """Phases in an order that respects their dependencies up to the phases' own."""

    phases: list[PlannedPhase]
    seconds: float


class Planner:
    """Prices and decides for one launch."""

    def __init__(self, groups: CudaGroups, target: Target) -> None:
        self.groups, self.target = groups, target
        self.stages, self.views, self.graph = groups.stages, groups.views, groups.graph
        self.by_stored, self.needs, self.readers = groups.by_stored, groups.needs, groups.readers
        self._fills: dict[str, tuple[float, float]] = {}

    def plan(self) -> Plan:
        """Decide for every norm and copy, then for the products that are left."""
        fills: dict[str, FusionGroup] = {}  # product's stored tensor -> what fills its left side
        adders: dict[str, FusionGroup] = {}  # product's stored tensor -> the norm that adds its parts
        for stage in self.stages:
            product = self.consumer(stage, fills) if self.fillable(stage) else None
            source = self.source(stage)
            source = None if source is None or source.stored in adders else source
            if product is not None:
                alone = self._seconds(stage) + barrier_seconds(self.target.gpu) + self._tile(product)[1]
                found = self._filled(product, stage)
                inside = float("inf") if found is None else found[1]
                if source is not None:
                    alone += self._tile(source, split=True)[1]
                    inside += self._whole(source)[1]
                if inside < alone * FEWER_PHASES:
                    fills[product.stored] = stage
                    continue
            if source is not None and source.stored not in fills and self._tile(source, split=True)[0].parts > 1:
                adders[source.stored] = stage
        return self._phases(fills, adders)

    def _phases(self, fills: dict[str, FusionGroup], adders: dict[str, FusionGroup]) -> Plan:
        inside = {f.stored for f in fills.values()}
        adds = {n.stored: s for s, n in adders.items()}
        phases: list[PlannedPhase] = []
        total = 0.0
        for stage in self.stages:
            if stage.stored in inside:
                continue
            if not self._is_product(stage):
                tensor = adds.get(stage.stored, "")
                also = self.groups.stores(tensor, stage)
                phases.append(PlannedPhase(stage, adds=tensor, also=also))
                total += self._seconds(stage) + barrier_seconds(self.target.gpu)
                continue
            added, seconds = self._product_phases(stage, fills.get(stage.stored), stage.stored in adders)
            phases += added
            total += seconds + barrier_seconds(self.target.gpu)
        return Plan(phases, total)

    def _product_phases(
        self, stage: FusionGroup, fill: FusionGroup | None, added: bool
    ) -> tuple[list[PlannedPhase], float]:
        """The phases of a product and their seconds; ``added``: a norm adds its parts."""
        assert stage.root is not None
        if fill is not None:
            tile, seconds = self._tile(stage, fill)
            return [PlannedPhase(stage, tile, fill, keep=self.groups.keeps(fill, stage))], seconds
        tile, seconds = self._tile(stage, split=True) if added else self._whole(stage)
        if added or tile.parts == 1:
            return [PlannedPhase(stage, tile)], seconds
        return [PlannedPhase(stage, tile), adder(stage)], seconds

    # -- who is what ------------------------------------------------------------------------------------------------

    def _is_product(self, stage: FusionGroup) -> bool:
        return stage.root is not None and stage.root.op == "matmul" and is_template(stage.root, self.graph)

    def fillable(self, stage: FusionGroup) -> bool:
        """A norm without anything after it, or an expression: float32, and no output."""
        norm = stage.root is not None and stage.root.op in NORMS and not stage.chain
        kind = self.graph.types[stage.stored]
        return (norm or stage.root is None) and kind.dtype == COMPUTE and stage.stored not in self.graph.outputs

    def source(self, norm: FusionGroup) -> FusionGroup | None:
        """The product whose stored result is what ``norm`` normalises, if it may be cut into parts."""
        if norm.root is None or norm.root.op not in NORMS or norm.chain:
            return None
        source = self.by_stored.get(norm.root.inputs[0])
        if source is None or not self._is_product(source) or self.shape(source).batch > 1:
            return None
        return source

    def consumer(self, stage: FusionGroup, fills: Mapping[str, FusionGroup]) -> FusionGroup | None:
        """The one product whose whole left side ``stage`` stores, if no other product reads it and nothing that the
        product waits for does."""
        found = [
            r
            for r in self.readers.get(stage.stored, ())
            if r.root is not None and is_template(r.root, self.graph) and stage.stored in self._matrices(r)
        ]
        if len(found) != 1 or not self._is_product(found[0]) or found[0].stored in fills:
            return None
        (product,) = found
        assert product.root is not None
        shape = self.shape(product)
        if (
            shape.batch > 1
            or not shape.stable
            or (shape.m, shape.k) != matrix_shape(self.graph.types[stage.stored].shape)
        ):
            return None
        axes = matmul_axes(product.root, 0, self.graph.types)
        if unit_stride(self.views.element(product.root.inputs[0], axes.index), axes) != (
            stage.stored,
            Const(0),
            Const(0),
        ):
            return None
        inside = {product.root.output, *(n.output for n in product.chain)}
        if stage.stored in stored_behind((n for c in product.chain for n in c.inputs if n not in inside), self.views):
            return None
        others = {r.stored for r in self.readers[stage.stored] if r is not product}
        return None if others & self._before(product) else product

    def _matrices(self, stage: FusionGroup) -> set[str]:
        """Stored tensors that the template of ``stage`` multiplies."""
        assert stage.root is not None
        inputs = stage.root.inputs[: 2 if stage.root.op == "matmul" else 3]
        return stored_behind(inputs, self.views)

    def _before(self, stage: FusionGroup) -> set[str]:
        """Every stored tensor that ``stage`` waits for."""
        found: set[str] = set()
        pending = list(self.needs[stage.stored])
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending.extend(self.needs.get(name, ()))
        return found

    # -- what it costs ----------------------------------------------------------------------------------------------

    def shape(self, stage: FusionGroup) -> Shape:
        """What the choice of a product's tile has to know."""
        assert stage.root is not None
        p = Product.of(stage.root, self.graph.types)
        stable = self.graph.is_constant(stage.root.inputs[1]) and p.batch == 1
        return Shape(p.batch, p.m, p.n, p.k, exact=p.batch > 1, panels=not stable, stable=stable)

    def shape_of(self, group: CudaGroup, stage: FusionGroup) -> Shape:
        """:meth:`shape` of a product as decided: what fills its left side, and whether it may lie in parts."""
        shape = self.shape(stage)
        if group.fill:
            operations, nbytes = self.fill_work(self.by_stored[group.fill])
            shape = replace(shape, fill=operations, fill_bytes=nbytes)
        return replace(shape, split=True) if group.tile is not None and group.tile.parts > 1 else shape

    def seconds(self, group: CudaGroup, stage: FusionGroup) -> float:
        """What a group takes as decided, without a barrier."""
        if group.tile is None:
            return self._seconds(stage, group)
        return seconds(self.shape_of(group, stage), group.tile, self.target)

    def _tile(
        self, stage: FusionGroup, fill: FusionGroup | None = None, split: bool = False
    ) -> tuple[BlockTile, float]:
        found = (
            choose(replace(self.shape(stage), split=split), self.target) if fill is None else self._filled(stage, fill)
        )
        if found is None:
            assert stage.root is not None
            s = self.shape(stage)
            raise UnsupportedError(
                f"{stage.root.origin}: no tile of a product of [{s.m}, {s.k}] by [{s.k}, {s.n}] fits a block of "
                f"{self.target.gpu.name}; compile with target cpu"
            )
        return found

    def _whole(self, stage: FusionGroup) -> tuple[BlockTile, float]:
        """The cheapest way to have the product itself stored: as it is, or in parts and a phase that adds them."""
        plain = self._tile(stage)
        if self.shape(stage).batch > 1:
            return plain
        parts = self._tile(stage, split=True)
        more = barrier_seconds(self.target.gpu) + self._seconds(stage)
        return (parts[0], parts[1] + more) if parts[0].parts > 1 and parts[1] + more < plain[1] else plain

    def _filled(self, product: FusionGroup, fill: FusionGroup) -> tuple[BlockTile, float] | None:
        """The product with ``fill`` in its tasks; None where no tile fits."""
        operations, nbytes = self.fill_work(fill)
        return choose(replace(self.shape(product), fill=operations, fill_bytes=nbytes), self.target)

    def fill_work(self, stage: FusionGroup) -> tuple[float, float]:
        """(scalar instructions, bytes read) of an element of ``stage``; a row is loaded once and stays in registers."""
        if stage.own not in self._fills:
            self._fills[stage.own] = self._fill_work(stage)
        return self._fills[stage.own]

    def _fill_work(self, stage: FusionGroup) -> tuple[float, float]:
        shape = self.graph.types[stage.root.output if stage.root else stage.stored].shape
        index = tensor_index(shape, Var("row"), Var("x"))
        prelude, value = group_body(stage, self.views, index)
        sums = [substitute(s.value, {s.var: Var("x")}) for s in prelude if isinstance(s, Reduce)]
        rows, columns = matrix_shape(shape)
        value = simplify(value, {"row": (0, rows - 1), "x": (0, columns - 1)})
        nodes = set(walk(value))
        found = {n.operand for n in nodes if isinstance(n, Load) and "row" in variables(n)}
        wide = [self.by_stored[t].root is None if t in self.by_stored else True for t in found]
        nbytes = float(sum(itemsize(COMPUTE) if w else self.target.itemsize for w in wide))
        gather = sum(isinstance(n, Op) and n.name in ("floordiv", "mod") and "x" in variables(n) for n in nodes)
        return 2 + len(sums) + 2 * gather + expr_operations(value, *sums), nbytes

    def _seconds(self, stage: FusionGroup, group: CudaGroup | None = None) -> float:
        """A norm, copy or sum as a phase of its own, or what a template other than a product's says of itself."""
        template = serving(stage.root, self.graph)
        told = template.work(stage.root, self.graph, self.target, group) if stage.root and template else None
        if told is not None:
            return told.seconds(self.target.gpu, self.target.threads, self.target.blocks_per_sm)
        rows, columns = matrix_shape(self.graph.types[stage.stored].shape)
        tasks = min(rows, self.target.blocks)
        each = ceil(rows / tasks) * columns
        operations = each * (self.fill_work(stage)[0] if self.fillable(stage) else 4)
        passes = 1 if stage.root is None or self._is_product(stage) else 3
        read, written = 2.0 * each * itemsize(COMPUTE), each * self.target.itemsize
        work = Work(tasks, read, written, operations=operations, passes=passes)
        return work.seconds(self.target.gpu, self.target.threads, self.target.blocks_per_sm)
