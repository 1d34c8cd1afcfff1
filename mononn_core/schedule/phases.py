"""One stage under one partition becomes one Phase: its domain, task, epilogue and declared footprints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from mononn_core.graph import Node
from mononn_core.machine import Machine
from mononn_core.program.expr import Const, Expr, Var
from mononn_core.program.ir import Assign, Axis, Phase, Task
from mononn_core.schedule.binder import OperandBinder, TaskBuilder, panel_buffer, unit_axes
from mononn_core.schedule.decisions import matmul_tile
from mononn_core.schedule.fuse import FusionGroup
from mononn_core.schedule.operands import Product, attention_axes, axis, unit_stride
from mononn_core.schedule.schedule import GroupSchedule, Partition, Tile
from mononn_core.schedule.views import Views


class PhaseBuilder(TaskBuilder):
    """Builds phases for a CPU: every task has an owner."""

    def __init__(self, views: Views, machine: Machine) -> None:
        super().__init__(views, machine.vector_bytes, {}, "float32")
        self.machine = machine

    # -- matmul -----------------------------------------------------------------------------------------------------

    def tile(self, product: Product, partition: Partition) -> Tile:
        """The tile that suits caches and registers."""
        width = product.n // partition.segments
        by_rows = partition.owners if partition.kind == "rows" else 1
        by_columns = partition.owners if partition.kind == "columns" else 1
        tile = matmul_tile(product.m, width, product.k, by_rows, by_columns, self.machine)
        if product.batch > 1:
            tile = replace(tile, rows=product.m, blocks=1)
        lanes = self.machine.vector_bytes // 4
        while partition.segments > 1 and tile.panel > lanes and (width // by_columns) % tile.panel:
            tile = replace(tile, panel=tile.panel // 2)
        return tile

    def matmul(self, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        partition, tile = decided.partition, decided.tile
        assert stage.root is not None and tile is not None
        p = Product.of(stage.root, self.types)
        owners = partition.owners if partition.kind != "single" else 1
        o, r, s, q = (Var(v) for v in "orsp")
        b: Expr = Var("b")
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
        extents = {"o": owners, "b": batches, "r": tile.blocks, "s": segments, "p": panels}
        binder = self.binder(extents)
        unit = unit_axes(extents)
        b, m0, n0 = (binder.fix(e, unit) for e in (b, m0, n0))
        self.left_operand(stage.root, p, (tile.rows, p.k), binder, (b, m0, Const(0)))
        self.right_operand(stage.root, p, (p.k, tile.panel), binder, (b, Const(0), n0))
        rows, columns = min(tile.rows, p.m), min(tile.panel, p.n)
        inner = {"m": (0, rows - 1), "n": (0, columns - 1)}
        row = binder.position("row", m0 + axis("m", rows), p.m)
        column = binder.position("column", n0 + axis("n", columns), p.n)
        root_index = p.out_index(b, row, column, self.types[stage.root.output].shape)
        result = self.epilogue(stage, binder, root_index, inner, ("m", "n"))
        task = Task("matmul", tuple(binder.operands), {"panel": tile.panel}, (result,))
        return self.phase(name, stage, partition, extents, task, 2 * p.batch * p.m * p.n * p.k)

    # -- attention --------------------------------------------------------------------------------------------------

    def attention(self, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        node, partition = stage.root, decided.partition
        assert node is not None
        batch, heads, rows, _ = self.types[node.inputs[0]].shape
        owners = partition.owners if partition.kind != "single" else 1
        bh: Expr = Var("h")
        i0: Expr = Const(0)
        if partition.kind == "rows":
            tile_rows, per_owner = ceil(rows / owners), batch * heads
            i0 = Var("o") * tile_rows
        else:
            tile_rows, per_owner = rows, batch * heads // owners
            bh = Var("o") * per_owner + bh
        extents = {"o": owners, "h": per_owner}
        params = {"guard": bool(node.attrs.get("guard", False))}
        task, flops = self.attention_task(stage, tile_rows, extents, (bh, i0), params)
        return self.phase(name, stage, partition, extents, task, flops)

    # -- shared -----------------------------------------------------------------------------------------------------

    def phase(
        self, name: str, stage: FusionGroup, partition: Partition, extents: Mapping[str, int], task: Task, flops: int
    ) -> Phase:
        domain = tuple(Axis(v, e) for v, e in extents.items() if e > 1)
        owner: Expr = Var("o") if extents["o"] > 1 else Const(0)
        order = (*(a.var for a in domain if a.var != "o"), *(a.var for a in domain if a.var == "o"))
        assign = Assign("owned", partition.group, owner, partition.owners, order)
        return Phase(name, domain, assign, task, origin=stage.origin, flops=flops)


def rows_stand_alone(attention: Node, views: Views) -> bool:
    """Whether the rows of an attention's q end where its matrix does, so that a ragged last tile cannot run into
    another head's rows."""
    axes = attention_axes(attention, 0, views.graph.types)
    found = unit_stride(views.element(attention.inputs[0], axes.index), axes) if axes else None
    return found is not None and isinstance(found[1], Const)


__all__ = ["OperandBinder", "PhaseBuilder", "panel_buffer", "rows_stand_alone", "unit_axes"]
