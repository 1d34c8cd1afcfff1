"""How a product's group is dealt and tiled on a CPU, whatever its right-hand side is made of."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from math import ceil, gcd
from typing import Any, ClassVar

from mononn_core.element import COMPUTE, itemsize
from mononn_core.graph import Node
from mononn_core.machine import TILE_ROWS, Machine
from mononn_core.program.expr import Const, Expr, Var
from mononn_core.program.ir import Phase, Task
from mononn_core.program.template import operand
from mononn_core.schedule.binder import BATCH, BLOCK, OWNER, PANEL, SEGMENT, OperandBinder, unit_axes
from mononn_core.schedule.decisions import (
    L2_SHARE,
    TILED_ROWS,
    exposed,
    fewer_at_once,
    most_at_once,
    registers_problem,
    rows_problem,
)
from mononn_core.schedule.operands import Product, axis
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition, Tile
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.schedule.views import Views, matrix_shape
from mononn_core.templates.product import left_operand, product_of

SMALLEST_BLOCK = 16
"""Rows of a task, at least, where an owner has so many."""
FARTHER = 4
"""Bytes of rows, read again from the last-level cache, that take as long as one of weights read from beyond it: an
estimate, set by hand."""
FILLED = 1.01
"""Columns of whole panels of three vectors, at most, over those of two: more would take what such tiles save."""


class TiledProduct(CpuScheduled):
    """A product in register tiles over panels of columns.

    Attributes:
        panel_vectors: vectors of columns that a register tile may span, the fewest first.
    """

    efficiency = 0.95
    panel_vectors: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 8)

    def widest(self, rows: int) -> int:
        """Vectors of columns that a register tile of so many rows spans: two where rows fill the registers, or three
        (``_three``), more where they are few."""
        return 8 if rows <= 3 else 4 if rows <= 6 else 2

    def most(self, stage: FusionGroup, panel: int, builder: PhaseBuilder) -> int:
        """Rows of a register tile, at most."""
        assert stage.root is not None
        if _is_tiled(stage, builder):
            return TILED_ROWS
        dtype = COMPUTE if builder.in_pairs(stage.root) else _left_type(stage, builder)
        return most_at_once(panel // builder.lanes, builder.machine, dtype)

    def exposed(self, task: Task) -> float:
        return exposed(operand(task, "a").box.size[0], task.params.get("at_once", 1))

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        p, lanes = product_of(stage, builder), builder.lanes
        if p.batch > 1:
            found = [Partition("batch", owners)] if p.batch % owners == 0 else []
        else:
            found = [Partition("rows", owners)] if p.m >= 4 * owners else []
        if p.n >= owners * self.panel_vectors[0] * lanes:
            found.append(Partition("columns", owners))
        segments = _segments(stage, builder.views)
        if segments > 1 and p.n % segments == 0 and (p.n // segments) % (owners * lanes) == 0:
            found.append(Partition("columns", owners, segments))
        return Ways(tuple(found), 2 * p.batch * p.m * p.n * p.k)

    def tile(self, stage: FusionGroup, builder: PhaseBuilder, partition: Partition) -> Tile:
        p = product_of(stage, builder)
        width, (by_rows, by_columns) = p.n // partition.segments, owners_along(partition)
        size = itemsize(_left_type(stage, builder))
        rows, blocks = p.m, 1
        if p.batch == 1:
            again = (size * p.k * p.n, ceil(width / by_columns / (2 * builder.lanes)))
            rows, blocks = row_blocks(ceil(p.m / by_rows), size * p.k, again, by_rows, builder.machine)
        few = 4 if rows <= TILE_ROWS else 2
        widest = few if _is_tiled(stage, builder) else self.widest(rows)
        if widest == 2 and _left_type(stage, builder) == COMPUTE and 3 in self._vectors(stage, builder):
            widest = 3 if _three(rows, width // by_columns, builder.machine) else 2
        assert stage.root is not None
        packed = builder.panels.get(stage.root.inputs[1])
        panel = packed.columns if packed and packed.template == self.name else widest * builder.lanes
        least = self.panel_vectors[0] * builder.lanes
        narrower = (v * builder.lanes for v in reversed(self._vectors(stage, builder)) if v * builder.lanes < panel)
        whole = partition.segments > 1
        suits = (
            wide
            for wide in (panel, *narrower)
            if wide * by_columns <= max(width, least) and not (whole and (width // by_columns) % wide)
        )
        panel = next(suits, least)
        return Tile(rows, blocks, panel, self.most(stage, panel, builder))

    def _vectors(self, stage: FusionGroup, builder: PhaseBuilder) -> tuple[int, ...]:
        """Vectors of columns that a register tile of it may span: those of tile registers come in pairs."""
        return tuple(v for v in self.panel_vectors if v != 3 or not _is_tiled(stage, builder))

    def tiles(self, stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> Iterator[Tile]:
        assert group.tile is not None
        share = group.tile.rows * group.tile.blocks
        for vectors in self._vectors(stage, builder):
            for blocks in range(1, max(1, share // SMALLEST_BLOCK) + 1):
                for at_once in fewer_at_once(self.most(stage, vectors * builder.lanes, builder)):
                    yield Tile(ceil(share / blocks), blocks, vectors * builder.lanes, at_once)

    def problem(self, stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> str:
        partition, tile = group.partition, group.tile
        if tile is None:
            return "a product has a tile"
        p, lanes, (by_rows, by_columns) = product_of(stage, builder), builder.lanes, owners_along(partition)
        if partition.segments > 1 and partition not in self.ways(stage, builder, partition.owners).partitions:
            return f"its columns are not read in {partition.segments} equal segments"
        width = p.n // partition.segments
        vectors = self._vectors(stage, builder)
        if tile.panel % lanes or tile.panel // lanes not in vectors:
            *others, last = vectors
            return f"a panel of {tile.panel} columns is not {', '.join(map(str, others))} or {last} vectors of {lanes}"
        if too_many := registers_problem(tile, self.most(stage, tile.panel, builder)):
            return too_many
        if tile.panel > self.panel_vectors[0] * lanes and tile.panel * by_columns > width:
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
        self.left(builder, root, (tile.rows, p.k), binder, (b, m0, Const(0)))
        own = self.right(builder, root, (p.k, tile.panel), binder, (b, Const(0), n0))
        rows, columns = min(tile.rows, p.m), min(tile.panel, p.n)
        inner = {"m": (0, rows - 1), "n": (0, columns - 1)}
        row = binder.position("row", m0 + axis("m", rows), p.m)
        column = binder.position("column", n0 + axis("n", columns), p.n)
        root_index = p.out_index(b, row, column, builder.types[root.output].shape)
        result = builder.epilogue(stage, binder, root_index, inner, ("m", "n"))
        params = {"panel": tile.panel, "at_once": tile.at_once, **own}
        task = Task(self.name, tuple(binder.operands), params, (result,))
        return builder.phase(name, stage, partition, extents, task, 2 * p.batch * p.m * p.n * p.k)

    def left(
        self, builder: PhaseBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> None:
        """Declare the left-hand side of a task of ``size`` (rows, terms) at ``at`` (batch, row, term)."""
        left_operand(builder, root, size, binder, at)

    @abstractmethod
    def right(
        self, builder: PhaseBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> dict[str, Any]:
        """Declare the right-hand side of a task of ``size`` (terms, columns) at ``at`` (batch, term, column). Gives the
        task's parameters beside its panel and rows at once."""


def owners_along(partition: Partition) -> tuple[int, int]:
    """Owners along rows and along columns."""
    by_rows, by_columns = (partition.owners if partition.kind == kind else 1 for kind in ("rows", "columns"))
    return by_rows, by_columns


def _left_type(stage: FusionGroup, builder: PhaseBuilder) -> str:
    """The element type of a."""
    assert stage.root is not None
    return builder.multiplied(stage.root)


def _is_tiled(stage: FusionGroup, builder: PhaseBuilder) -> bool:
    """Whether its operands are multiplied in tile registers."""
    assert stage.root is not None
    return builder.tile_step(stage.root, product_of(stage, builder).k) > 0


def nearly_fill(rows: int, vectors: int, machine: Machine) -> bool:
    """Whether register tiles of ``vectors`` of columns nearly fill the registers where ``rows`` are cut evenly."""
    most = most_at_once(vectors, machine)
    return ceil(rows / ceil(rows / most)) >= most - 1


def _three(rows: int, columns: int, machine: Machine) -> bool:
    """Whether register tiles of three vectors suit: ``rows`` nearly fill the registers, and so do an owner's
    ``columns`` the panels. Nine rows by three vectors load less for each multiplication than fourteen by two, four by
    three less than six by two."""
    lanes = machine.lanes(COMPUTE)
    if machine.vector_bytes < 32 or not nearly_fill(rows, 3, machine):
        return False
    two, three = (ceil(columns / panel) * panel for panel in (2 * lanes, 3 * lanes))
    return three <= FILLED * two


def row_blocks(share: int, nbytes: int, again: tuple[int, int], owners: int, machine: Machine) -> tuple[int, int]:
    """(rows of a block, blocks) for the ``share`` rows of ``nbytes`` of each of so many owners. ``again``: bytes of the
    right operand, which each block reads, and how many panels it has, each of which reads all rows where they are one
    block."""
    (right, panels), rows = again, share * nbytes
    blocks = max(1, ceil(rows / (L2_SHARE * machine.l2_bytes)))
    if FARTHER * (blocks - 1) * right > (panels - 1) * rows:
        blocks = 1
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
