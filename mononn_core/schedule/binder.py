"""One task's operands: what it reads and stores, found from the expressions it evaluates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np

from mononn_core.graph import Node
from mononn_core.ops import registry
from mononn_core.program.expr import Acc, Cast, Const, Expr, Load, Ranges, Var, op, substitute, transform
from mononn_core.program.ir import Box, Buffer, Layout, Operand, Phase, Result, Task
from mononn_core.program.simplify import simplify
from mononn_core.schedule.fuse import FusionGroup, run_chain
from mononn_core.schedule.operands import MatrixAxes, Product, attention_axes, axis, footprint, matmul_axes, unit_stride
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.views import Views, matrix_index, matrix_shape


@dataclass
class OperandBinder:
    """Collects a task's operands: every distinct (tensor, footprint) becomes a role.

    ``positions`` holds variables that stand for a whole row or column index (of extent n) until expressions have been
    simplified: a ragged tile's own variables run past the end, so their sum could not be.
    """

    views: Views
    outer: dict[str, tuple[int, int]]
    operands: list[Operand] = field(default_factory=list)
    positions: dict[str, tuple[Expr, int]] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    """Tensor -> the dtype it is stored in, where that is not its own."""

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

    def stored(self, tensor: str, value: Expr) -> Expr:
        """``value`` in the type that ``tensor`` is stored in."""
        return Cast(value, self.storage[tensor]) if tensor in self.storage else value

    def _role(self, load: Load, inner: Ranges) -> Expr:
        shape = matrix_shape(self.views.type(load.operand).shape)
        offset, size = footprint(load.index, shape, inner, self.outer)
        box = Box(offset, size, shape)
        for known in self.operands:
            if known.buffer == load.operand and known.box == box and known.access == "read":
                return self._load(load, known.role)
        return self._load(load, self.add(f"in{len(self.operands)}", load.operand, box))

    def _load(self, load: Load, role: str) -> Expr:
        kind = self.storage.get(load.operand)
        return (
            replace(load, operand=role) if kind is None else Cast(replace(load, operand=role, dtype=kind), load.dtype)
        )

    def output(
        self, tensor: str, index: tuple[Expr, ...], inner: Ranges, role: str = "out", access: str = "write"
    ) -> tuple[Expr, ...]:
        """Declare the store and return its simplified (row, column)."""
        index = tuple(self.simplify(i, inner) for i in index)
        shape = matrix_shape(self.views.type(tensor).shape)
        offset, size = footprint(index, shape, inner, self.outer)
        self.add(role, tensor, Box(offset, size, shape), access)
        return index


def panel_buffer(name: str, shape: tuple[int, int], panel: int, dtype: str = "float32") -> Buffer:
    """A constant right-hand side [k, n] packed in panels of ``panel`` columns, zero-padded to whole panels."""
    k, n = shape
    panels = ceil(n / panel)
    layout = Layout((((k, panel),), ((panels, k * panel), (panel, 1))), panels * k * panel)
    return Buffer(f"{name}@{panel}", dtype, shape, layout, "weight")


class TaskBuilder(ABC):
    """What both targets' phases are built from. ``packed`` collects the packed weights they use: id to (buffer, logical
    matrix)."""

    def __init__(self, views: Views, lanes: int, storage: Mapping[str, str], weight_type: str) -> None:
        """``lanes``: interleaved partial results of a reduction. ``storage``: see :class:`OperandBinder`.
        ``weight_type``: of packed weights."""
        self.views = views
        self.lanes = lanes
        self.storage = storage
        self.weight_type = weight_type
        self.packed: dict[str, tuple[Buffer, np.ndarray]] = {}
        self.types = views.graph.types

    @abstractmethod
    def phase(
        self, name: str, stage: FusionGroup, partition: Partition, extents: Mapping[str, int], task: Task, flops: int
    ) -> Phase:
        """The phase that does ``task`` for every point of ``extents``."""

    def binder(self, extents: Mapping[str, int]) -> OperandBinder:
        """An empty task over domain axes of ``extents``."""
        return OperandBinder(self.views, {v: (0, e - 1) for v, e in extents.items()}, storage=self.storage)

    def left_operand(
        self, root: Node, p: Product, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> None:
        """Declare a of a task of ``size`` (rows, terms) at ``at`` (batch, row, term)."""
        batch, m0, k0 = at
        tensor, row, column = self.view(root.inputs[0], matmul_axes(root, 0, self.types), {"batch": batch})
        shape = matrix_shape(self.types[tensor].shape)
        offset = (simplify(row + m0, binder.outer), simplify(column + k0, binder.outer))
        binder.add("a", tensor, Box(offset, (min(size[0], p.m), size[1]), (_bound(row, shape[0], p.m), shape[1])))

    def right_operand(
        self, root: Node, p: Product, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> None:
        """Declare b of a task of ``size`` (terms, columns) at ``at`` (batch, term, column); a constant is packed."""
        terms, panel = size
        batch, k0, n0 = at
        b = root.inputs[1]
        if self.views.graph.is_constant(b) and p.batch == 1:
            packed = panel_buffer(b + ("^T" if p.transpose_b else ""), (p.k, p.n), panel, self.weight_type)
            matrix = self.views.graph.constants[b].reshape(self.types[b].shape[-2:])
            self.packed[packed.id] = (packed, matrix.T if p.transpose_b else matrix)
            binder.add("b", packed.id, Box((k0, n0), (terms, panel), (p.k, p.n)), packed=True)
            return
        tensor, row, column = self.view(b, matmul_axes(root, 1, self.types), {"batch": batch})
        shape = matrix_shape(self.types[tensor].shape)
        offset = (simplify(row + k0, binder.outer), simplify(column + n0, binder.outer))
        bound = _bound(column, shape[1], p.n)
        binder.add("b", tensor, Box(offset, (terms, min(panel, p.n)), (shape[0], bound)))

    def view(self, name: str, axes: MatrixAxes | None, where: Mapping[str, Expr]) -> tuple[str, Expr, Expr]:
        found = unit_stride(self.views.element(name, axes.index), axes) if axes else None
        if found is None:
            raise AssertionError(f"tensor {name!r} cannot be read in place but was not stored")
        tensor, row, column = found
        return tensor, substitute(row, where), substitute(column, where)

    def attention_task(
        self,
        stage: FusionGroup,
        rows: int,
        extents: Mapping[str, int],
        at: tuple[Expr, Expr],
        params: Mapping[str, Any],
    ) -> tuple[Task, int]:
        """(the task of ``rows`` rows of q at ``at`` (head of all, row), operations of the whole product)."""
        node = stage.root
        assert node is not None
        batch, heads, total_rows, depth = self.types[node.inputs[0]].shape
        keys = self.types[node.inputs[1]].shape[2]
        width = self.types[node.inputs[2]].shape[3]
        binder = self.binder(extents)
        bh, i0 = (binder.fix(e, unit_axes(extents)) for e in at)
        where = {"batch": bh // heads if batch > 1 else Const(0), "head": bh % heads if batch > 1 else bh}
        where = {v: simplify(e, binder.outer) for v, e in where.items()}
        sizes = {"q": (rows, depth), "k": (keys, depth), "v": (keys, width)}
        for position, role in enumerate("qkv"):
            axes = attention_axes(node, position, self.types)
            tensor, row, column = self.view(node.inputs[position], axes, where)
            shape = matrix_shape(self.types[tensor].shape)
            start = simplify(row + i0 if role == "q" else row, binder.outer)
            bound = _bound(row, shape[0], total_rows if role == "q" else keys)
            binder.add(role, tensor, Box((start, column), sizes[role], (bound, shape[1])))
        inner = {"i": (0, rows - 1), "j": (0, keys - 1), "d": (0, width - 1)}
        i = binder.position("row", i0 + axis("i", rows), total_rows)
        score = self._score(node.inputs[3] if len(node.inputs) > 3 else "", node.attrs, where, i, axis("j", keys))
        score = binder.bind(score, inner)
        index = (where["batch"], where["head"], i, axis("d", width))
        result = self.epilogue(stage, binder, index, inner, ("i", "d"))
        task = Task("attention", tuple(binder.operands), params, (result,), prologue={"score": score})
        return task, 2 * batch * heads * total_rows * keys * (depth + width)

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

    def epilogue(
        self, stage: FusionGroup, binder: OperandBinder, index: tuple[Expr, ...], inner: Ranges, axes: tuple[str, ...]
    ) -> Result:
        """What a template stores of its element at ``index`` of the root's output, after the stage's chain."""
        index, value = run_chain(stage, self.views, index, Acc())
        value = binder.stored(stage.stored, binder.bind(value, inner))
        position = binder.output(stage.stored, matrix_index(self.types[stage.stored].shape, index), inner)
        return Result("out", axes, position, value)


def unit_axes(extents: Mapping[str, int]) -> dict[str, Expr]:
    """Axes of one element have index 0."""
    return {v: Const(0) for v, extent in extents.items() if extent == 1}


def _bound(offset: Expr, extent: int, used: int) -> int:
    """Where an operand that starts at ``offset`` and has ``used`` elements ends, in a dimension of ``extent``."""
    return int(offset.value) + used if isinstance(offset, Const) else extent
