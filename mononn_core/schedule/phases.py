"""One stage under one partition becomes one Phase: its domain, task, epilogue and declared footprints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from mononn_core.graph import Node
from mononn_core.machine import Machine
from mononn_core.ops import registry
from mononn_core.program.expr import Acc, Const, Expr, Load, Ranges, Var, op, substitute, transform
from mononn_core.program.simplify import simplify
from mononn_core.program.tile import (
    Assign,
    Axis,
    Box,
    Buffer,
    Layout,
    Operand,
    Phase,
    Result,
    Task,
)
from mononn_core.schedule.decisions import MatmulTile, Partition, matmul_tile
from mononn_core.schedule.fuse import Stage, run_chain
from mononn_core.schedule.operands import MatrixAxes, Product, attention_axes, axis, footprint, matmul_axes, unit_stride
from mononn_core.schedule.views import Views, matrix_index, matrix_shape


@dataclass
class Draft:
    """Collects a task's operands: every distinct (tensor, footprint) becomes a role.

    ``positions`` holds variables that stand for a whole row or column index (of extent n) until expressions have been
    simplified: a ragged tile's own variables run past the end, so their sum could not be.
    """

    views: Views
    outer: dict[str, tuple[int, int]]
    operands: list[Operand] = field(default_factory=list)
    positions: dict[str, tuple[Expr, int]] = field(default_factory=dict)

    def position(self, name: str, value: Expr, extent: int) -> Expr:
        """A variable for ``value``, which never reaches ``extent``."""
        if extent == 1:
            return Const(0)
        self.positions[name] = (value, extent)
        return Var(name)

    def simplify(self, e: Expr, inner: Ranges) -> Expr:
        """Simplify with positions in their extents, then put what they stand for in their place."""
        e = simplify(e, {**self.outer, **inner, **{n: (0, extent - 1) for n, (_, extent) in self.positions.items()}})
        e = substitute(e, {n: value for n, (value, _) in self.positions.items()})
        return simplify(e, {**self.outer, **inner})

    def fix(self, e: Expr, values: Mapping[str, Expr]) -> Expr:
        """``e`` with some of its variables given, simplified."""
        return simplify(substitute(e, values), self.outer)

    def add(self, role: str, tensor: str, box: Box, access: str = "read", packed: bool = False) -> str:
        """Declare an operand; constants, packed ones too, are stable."""
        stable = packed or self.views.graph.is_constant(tensor)
        self.operands.append(Operand(role, tensor, box, access, stable))
        return role

    def bind(self, e: Expr, inner: Ranges) -> Expr:
        """Name the Loads of ``e`` by roles and simplify its indices."""
        e = self.simplify(e, inner)
        return transform(e, lambda n: self._role(n, inner) if isinstance(n, Load) else n)

    def _role(self, load: Load, inner: Ranges) -> Load:
        shape = matrix_shape(self.views.type(load.operand).shape)
        offset, size = footprint(load.index, shape, inner, self.outer)
        box = Box(offset, size, shape)
        for known in self.operands:
            if known.buffer == load.operand and known.box == box and known.access == "read":
                return replace(load, operand=known.role)
        return replace(load, operand=self.add(f"in{len(self.operands)}", load.operand, box))

    def output(self, tensor: str, index: tuple[Expr, ...], inner: Ranges) -> tuple[Expr, ...]:
        """Declare the store and return its simplified (row, column)."""
        index = tuple(self.simplify(i, inner) for i in index)
        shape = matrix_shape(self.views.type(tensor).shape)
        offset, size = footprint(index, shape, inner, self.outer)
        self.add("out", tensor, Box(offset, size, shape), "write")
        return index


def panel_buffer(name: str, shape: tuple[int, int], panel: int) -> Buffer:
    """A constant right-hand side [k, n] packed in panels of ``panel`` columns, zero-padded to whole panels."""
    k, n = shape
    panels = ceil(n / panel)
    layout = Layout((((k, panel),), ((panels, k * panel), (panel, 1))), panels * k * panel)
    return Buffer(f"{name}@{panel}", "float32", shape, layout, "weight")


class PhaseBuilder:
    """Builds phases. ``packed`` collects the packed weights they use: id to (buffer, logical matrix)."""

    def __init__(self, views: Views, machine: Machine) -> None:
        self.views = views
        self.machine = machine
        self.packed: dict[str, tuple[Buffer, np.ndarray]] = {}
        self.types = views.graph.types

    # -- matmul -----------------------------------------------------------------------------------------------------

    def tile(self, product: Product, partition: Partition) -> MatmulTile:
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

    def matmul(self, stage: Stage, partition: Partition, name: str) -> Phase:
        assert stage.root is not None
        p = Product.of(stage.root, self.types)
        tile = self.tile(p, partition)
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
        draft = Draft(self.views, {v: (0, e - 1) for v, e in extents.items()})
        unit = unit_axes(extents)
        b, m0, n0 = (draft.fix(e, unit) for e in (b, m0, n0))
        self._product_operands(stage, p, tile, draft, (b, m0, n0))
        rows, columns = min(tile.rows, p.m), min(tile.panel, p.n)
        inner = {"m": (0, rows - 1), "n": (0, columns - 1)}
        row = draft.position("row", m0 + axis("m", rows), p.m)
        column = draft.position("column", n0 + axis("n", columns), p.n)
        root_index = p.out_index(b, row, column, self.types[stage.root.output].shape)
        result = self.epilogue(stage, draft, root_index, inner, ("m", "n"))
        task = Task("matmul", tuple(draft.operands), {"panel": tile.panel}, (result,))
        return self.phase(name, stage, partition, extents, task, 2 * p.batch * p.m * p.n * p.k)

    def _product_operands(
        self, stage: Stage, p: Product, tile: MatmulTile, draft: Draft, at: tuple[Expr, Expr, Expr]
    ) -> None:
        assert stage.root is not None
        batch, m0, n0 = at
        a, b = stage.root.inputs
        where = {"batch": batch}
        tensor, row, column = self._view(a, matmul_axes(stage.root, 0, self.types), where)
        shape = matrix_shape(self.types[tensor].shape)
        size = (min(tile.rows, p.m), p.k)
        bound = _bound(row, shape[0], p.m)
        draft.add("a", tensor, Box((simplify(row + m0, draft.outer), column), size, (bound, shape[1])))
        if self.views.graph.is_constant(b) and p.batch == 1:
            packed = panel_buffer(b + ("^T" if p.transpose_b else ""), (p.k, p.n), tile.panel)
            matrix = self.views.graph.constants[b].reshape(self.types[b].shape[-2:])
            self.packed[packed.id] = (packed, matrix.T if p.transpose_b else matrix)
            draft.add("b", packed.id, Box((Const(0), n0), (p.k, tile.panel), (p.k, p.n)), packed=True)
            return
        tensor, row, column = self._view(b, matmul_axes(stage.root, 1, self.types), where)
        shape = matrix_shape(self.types[tensor].shape)
        offset = (row, simplify(column + n0, draft.outer))
        bound = _bound(column, shape[1], p.n)
        draft.add("b", tensor, Box(offset, (p.k, min(tile.panel, p.n)), (shape[0], bound)))

    def _view(self, name: str, axes: MatrixAxes | None, where: Mapping[str, Expr]) -> tuple[str, Expr, Expr]:
        found = unit_stride(self.views.element(name, axes.index), axes) if axes else None
        if found is None:
            raise AssertionError(f"tensor {name!r} cannot be read in place but was not stored")
        tensor, row, column = found
        return tensor, substitute(row, where), substitute(column, where)

    # -- attention --------------------------------------------------------------------------------------------------

    def attention(self, stage: Stage, partition: Partition, name: str) -> Phase:
        node = stage.root
        assert node is not None
        batch, heads, rows, depth = self.types[node.inputs[0]].shape
        keys = self.types[node.inputs[1]].shape[2]
        width = self.types[node.inputs[2]].shape[3]
        owners = partition.owners if partition.kind != "single" else 1
        total = batch * heads
        bh: Expr = Var("h")
        i0: Expr = Const(0)
        if partition.kind == "rows":
            tile_rows, per_owner = ceil(rows / owners), total
            i0 = Var("o") * tile_rows
        else:
            tile_rows, per_owner = rows, total // owners
            bh = Var("o") * per_owner + bh
        extents = {"o": owners, "h": per_owner}
        draft = Draft(self.views, {v: (0, e - 1) for v, e in extents.items()})
        bh, i0 = (draft.fix(e, unit_axes(extents)) for e in (bh, i0))
        where = {"batch": bh // heads if batch > 1 else Const(0), "head": bh % heads if batch > 1 else bh}
        where = {v: simplify(e, draft.outer) for v, e in where.items()}
        sizes = {"q": (tile_rows, depth), "k": (keys, depth), "v": (keys, width)}
        for position, role in enumerate("qkv"):
            axes = attention_axes(node, position, self.types)
            tensor, row, column = self._view(node.inputs[position], axes, where)
            shape = matrix_shape(self.types[tensor].shape)
            start = simplify(row + i0 if role == "q" else row, draft.outer)
            bound = _bound(row, shape[0], rows if role == "q" else keys)
            draft.add(role, tensor, Box((start, column), sizes[role], (bound, shape[1])))
        inner = {"i": (0, tile_rows - 1), "j": (0, keys - 1), "d": (0, width - 1)}
        i = draft.position("row", i0 + axis("i", tile_rows), rows)
        score = self._score(node.inputs[3] if len(node.inputs) > 3 else "", node.attrs, where, i, axis("j", keys))
        score = draft.bind(score, inner)
        index = (where["batch"], where["head"], i, axis("d", width))
        result = self.epilogue(stage, draft, index, inner, ("i", "d"))
        params = {"guard": bool(node.attrs.get("guard", False))}
        task = Task("attention", tuple(draft.operands), params, (result,), prologue={"score": score})
        flops = 2 * total * rows * keys * (depth + width)
        return self.phase(name, stage, partition, extents, task, flops)

    def _score(
        self, bias: str, attrs: Mapping[str, registry.Attr], where: Mapping[str, Expr], i: Expr, j: Expr
    ) -> Expr:
        value: Expr = Acc()
        scale = attrs.get("scale", 1.0)
        if scale != 1.0:
            value = op("mul", value, Const(float(scale), "float32"))  # type: ignore[arg-type]
        if bias:
            shape = self.types[bias].shape
            full = (where["batch"], where["head"], i, j)[4 - len(shape) :]
            index = tuple(Const(0) if extent == 1 else e for e, extent in zip(full, shape, strict=True))
            value = op("add", value, self.views.read(bias, index))
        return value

    # -- shared -----------------------------------------------------------------------------------------------------

    def epilogue(
        self, stage: Stage, draft: Draft, index: tuple[Expr, ...], inner: Ranges, axes: tuple[str, ...]
    ) -> Result:
        """What a template stores of its element at ``index`` of the root's output, after the stage's chain."""
        index, value = run_chain(stage, self.views, index, Acc())
        value = draft.bind(value, inner)
        position = draft.output(stage.stored, matrix_index(self.types[stage.stored].shape, index), inner)
        return Result("out", axes, position, value)

    def phase(
        self, name: str, stage: Stage, partition: Partition, extents: Mapping[str, int], task: Task, flops: int
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


def unit_axes(extents: Mapping[str, int]) -> dict[str, Expr]:
    """Axes of one element have index 0."""
    return {v: Const(0) for v, extent in extents.items() if extent == 1}


def _bound(offset: Expr, extent: int, used: int) -> int:
    """Where an operand that starts at ``offset`` and has ``used`` elements ends, in a dimension of ``extent``."""
    return int(offset.value) + used if isinstance(offset, Const) else extent
