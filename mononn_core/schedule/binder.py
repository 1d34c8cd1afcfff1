"""One task's operands: what it reads and stores, found from the expressions it evaluates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from mononn_core.element import BYTES, COMPUTE, HALF_WORD
from mononn_core.graph import Node
from mononn_core.program.expr import Acc, Cast, Const, Expr, Load, Ranges, Var, substitute
from mononn_core.program.ir import Box, Buffer, Layout, Operand, Phase, Result, Task
from mononn_core.program.simplify import simplify, transform_guarded
from mononn_core.schedule.alike import Element, Stored, stored_once
from mononn_core.schedule.narrow import in_words, passing
from mononn_core.schedule.operands import ImageView, MatrixAxes, footprint, unit_stride
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.stages import FusionGroup, run_chain
from mononn_core.schedule.views import Views, matrix_index, matrix_shape

OWNER, BATCH, STRIP, HEAD, BLOCK, SEGMENT, PANEL, PART = "o", "b", "t", "h", "r", "s", "p", "s"
"""Axes of a phase's domain: who owns a task; which product of a batch, or image; which strip of an owner's image rows;
which head of all; which block of rows; which of equal runs of columns; which panel of columns; which part of the
terms."""

Matrix = Callable[[], np.ndarray]


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
        words = HALF_WORD in self.storage.values()

        def bound(n: Expr, where: Ranges) -> Expr:
            return self._role(n, where) if isinstance(n, Load) else passing(n) if words else n

        return transform_guarded(e, inner, bound)

    def stored(self, tensor: str, value: Expr) -> Expr:
        """``value`` in the type that ``tensor`` is stored in."""
        kind = self.storage.get(tensor)
        if kind == HALF_WORD:
            return in_words(value)
        return value if kind is None else Cast(value, kind)

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


def panel_buffer(buffer: str, shape: tuple[int, int], panel: int, dtype: str = COMPUTE, terms: int = 1) -> Buffer:
    """A constant right-hand side [k, n] packed in panels of ``panel`` columns, each in groups of ``terms`` neighbouring
    rows of a column, zero-padded to whole panels and groups."""
    k, n = shape
    panels, groups = ceil(n / panel), ceil(k / terms)
    rows = ((groups, panel * terms), (terms, 1)) if terms > 1 else ((k, panel),)
    whole = groups * terms * panel
    layout = Layout((rows, ((panels, whole), (panel, terms))), panels * whole)
    return Buffer(buffer, dtype, shape, layout, "weight")


def fragment_buffer(buffer: str, shape: tuple[int, int], panel: int, dtype: str) -> Buffer:
    """A constant right-hand side [k, n] packed in panels of ``panel`` columns, a multiple of 8: the fragments of 16 x 8
    of 16 rows side by side, then those of the next 16; zero-padded to whole panels and fragments."""
    k, n = shape
    panels, steps, row = ceil(n / panel), ceil(k / 16), 16 * panel
    layout = Layout((((steps, row), (16, 8)), ((panels, steps * row), (panel // 8, 128), (8, 1))), panels * steps * row)
    return Buffer(buffer, dtype, shape, layout, "weight")


class TaskBuilder(ABC):
    """What both targets' phases are built from. ``packed`` collects the packed weights they use: id to (buffer, what
    gives the logical matrix)."""

    def __init__(self, views: Views, storage: Mapping[str, str], weight_type: str) -> None:
        """``storage``: see :class:`OperandBinder`.
        ``weight_type``: of packed weights."""
        self.views = views
        self.storage = storage
        self.weight_type = weight_type
        self.packed: dict[str, tuple[Buffer, Matrix]] = {}
        self.nests: dict[Hashable, tuple[tuple[str, ...], Task]] = {}
        self.ends: dict[Hashable, tuple[tuple[str, ...], Stored, tuple[Operand, ...]]] = {}
        """Nests, and what ends products, built so far, with the tensors that they name: see
        :mod:`mononn_core.schedule.alike`."""
        self.said: dict[Hashable, tuple[tuple[str, ...], Hashable]] = {}
        """Of the elements of nests, the tensors that they name, and what else they say."""
        self.elements: dict[Hashable, tuple[FusionGroup, Element]] = {}
        """(id of a stage, index) -> the stage, and the element that it stores there."""
        self.images: dict[str, ImageView | None] = {}
        """How the images lie that convolutions read."""
        self.types = views.graph.types

    @abstractmethod
    def phase(
        self, name: str, stage: FusionGroup, partition: Partition, extents: Mapping[str, int], task: Task, flops: int
    ) -> Phase:
        """The phase that does ``task`` for every point of ``extents``."""

    def terms(self, dtype: str) -> int:
        """Neighbouring terms of a product that lie side by side in packed weights of ``dtype``."""
        return 1

    def tile_step(self, node: Node, terms: int) -> int:
        """Groups of terms of a run of ``terms`` that tile registers multiply together; 0 where there are none."""
        return 0

    def in_pairs(self, node: Node) -> str:
        """Which pairs of a contraction's products fit 16 bits, and are added up so: "seven_bits", "most" or none."""
        return ""

    def dense(self, tensor: str, columns: int) -> bool:
        """Whether the rows of a stored tensor are ``columns`` wide, and known to lie without gaps."""
        return False

    def multiplied(self, node: Node) -> str:
        """The type that a contraction's left operand has when it is multiplied."""
        own = self.types[node.inputs[0]].dtype
        return own if own in BYTES else self.weight_type

    def pack(
        self, node: Node, name: str, panel: int, shape: tuple[int, int], matrix: Matrix, multiplied: str = ""
    ) -> Buffer:
        """The buffer of a contraction's constant right-hand side of ``shape`` in panels of ``panel`` columns;
        ``matrix`` gives it where it is used. ``multiplied``: the type of its elements, where a template chooses it."""
        own, narrow = self.types[node.inputs[1]].dtype, self.multiplied(node)
        dtype = multiplied or (own if narrow in (*BYTES, HALF_WORD) else narrow)
        terms = self.terms(multiplied or narrow)
        return self.in_panels(
            f"{name}@{panel}" + (f"x{terms}" if terms > 1 else ""), panel, shape, dtype, matrix, terms
        )

    def pack_product(self, node: Node, name: str, panel: int, shape: tuple[int, int], matrix: Matrix) -> Buffer:
        """:meth:`pack` of the right-hand side of a product, for which a target may have another layout."""
        return self.pack(node, name, panel, shape, matrix)

    def in_panels(
        self, known: str, panel: int, shape: tuple[int, int], dtype: str, matrix: Matrix, terms: int = 1
    ) -> Buffer:
        """The buffer ``known`` of a constant matrix of ``shape`` in panels of ``panel`` columns, ``terms`` rows side by
        side."""
        if known not in self.packed:
            self.packed[known] = (panel_buffer(known, shape, panel, dtype, terms), matrix)
        return self.packed[known][0]

    def binder(self, extents: Mapping[str, int]) -> OperandBinder:
        """An empty task over domain axes of ``extents``."""
        return OperandBinder(self.views, {v: (0, e - 1) for v, e in extents.items()}, storage=self.storage)

    def view(self, name: str, axes: MatrixAxes | None, where: Mapping[str, Expr]) -> tuple[str, Expr, Expr]:
        found = unit_stride(self.views.element(name, axes.index), axes) if axes else None
        if found is None:
            raise AssertionError(f"tensor {name!r} cannot be read in place but was not stored")
        tensor, row, column = found
        return tensor, substitute(row, where), substitute(column, where)

    def epilogue(
        self, stage: FusionGroup, binder: OperandBinder, index: tuple[Expr, ...], inner: Ranges, axes: tuple[str, ...]
    ) -> Result:
        """What a template stores of its element at ``index`` of the root's output, after the stage's chain."""
        assert stage.root is not None
        index, value = run_chain(stage, self.views, index, Acc(self.types[stage.root.output].dtype))
        at = matrix_index(self.types[stage.stored].shape, index)

        def make() -> Stored:
            bound = binder.stored(stage.stored, binder.bind(value, inner))
            return binder.output(stage.stored, at, inner), bound

        return Result("out", axes, *stored_once(self, binder, stage.stored, at, value, inner, make))


def unit_axes(extents: Mapping[str, int]) -> dict[str, Expr]:
    """Axes of one element have index 0."""
    return {v: Const(0) for v, extent in extents.items() if extent == 1}


def bound(offset: Expr, extent: int, used: int) -> int:
    """Where an operand that starts at ``offset`` and has ``used`` elements ends, in a dimension of ``extent``."""
    return int(offset.value) + used if isinstance(offset, Const) else extent
