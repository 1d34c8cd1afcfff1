"""The phases of a recurrence: of each direction the first step and, in a loop, all others, a phase for each product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from mononn_core.element import COMPUTE, itemsize
from mononn_core.graph import Node, TensorType
from mononn_core.ops import registry
from mononn_core.ops.common import as_index, integers
from mononn_core.ops.recurrent import INPUTS, LENGTHS, ROUNDED, SCALE, B, C, Cell, H, P, R, X
from mononn_core.ops.weight_only import middle
from mononn_core.program.expr import Acc, Const, Expr, Select, Var, evaluate_index, op
from mononn_core.program.ir import Barrier, Box, Item, Loop, Operand, Phase, Result, Task
from mononn_core.program.simplify import simplify
from mononn_core.schedule.binder import OWNER, OperandBinder
from mononn_core.schedule.decisions import most_at_once
from mononn_core.schedule.operands import RowsView, axis
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.views import matrix_index, matrix_shape

VECTORS = 4
"""Of sums that a row of a tile has at least, where one gate alone does not fill them."""
DIGITS, GROUP = "uint8", 4
"""What weights are where states are rounded, and of how many terms they lie side by side."""
STEP = "step"
"""The loop's variable: number of the step, the first is not in the loop."""


@dataclass(frozen=True)
class _Product:
    """Of a step: what ``gates`` gates from ``start`` on take, in blocks of ``block`` units, of what is stored in place
    ``source`` of the states: the step before it, or ``within`` the step."""

    start: int
    gates: int
    block: int
    source: int = 0
    within: bool = False


@dataclass(frozen=True)
class Shape:
    """Of a node: steps, sequences, directions, units and gates, and a step's products, one after the other."""

    steps: int
    rows: int
    directions: int
    units: int
    gates: int
    products: tuple[_Product, ...]

    @staticmethod
    def of(node: Node, builder: PhaseBuilder) -> Shape:
        (steps, rows, _), (directions, units, _) = (builder.types[node.inputs[i]].shape for i in (X, R))
        cell, lanes = Cell(node.attrs, 0), builder.lanes

        def product(start: int, gates: int, source: int = 0) -> _Product:
            return _Product(start, gates, max(1, VECTORS // gates) * lanes, source, source > 0)

        products = (product(0, 2), product(2, 1, cell.states)) if cell.twice else (product(0, cell.gates),)
        return Shape(steps, rows, directions, units, cell.gates, products)

    @property
    def floats(self) -> int:
        """Bytes of a direction's weights as float32."""
        return 4 * self.gates * self.units**2

    def blocks(self, product: _Product) -> int:
        """Of a direction."""
        return ceil(self.units / product.block)


class _Elements:
    """Operators applied to the elements of a tile."""

    def add(self, op: str, /, *inputs: Expr, **attrs: Any) -> Expr:
        definition, types = registry.get(op), [TensorType(v.dtype, ()) for v in inputs]
        (kind,) = definition.infer(types, attrs)
        assert definition.point is not None
        return definition.point([_reader(v) for v in inputs], types, kind, attrs, ())

    def one(self, like: Expr) -> Expr:
        return Const(1.0, like.dtype)


def _reader(value: Expr) -> registry.Reader:
    return lambda _: value


class Steps:
    """The phases of one recurrence."""

    def __init__(self, builder: PhaseBuilder, stage: FusionGroup, partition: Partition, name: str) -> None:
        assert stage.root is not None
        self.builder, self.stage, self.node, self.partition = builder, stage, stage.root, partition
        self.inputs = (*stage.root.inputs, *("",) * (INPUTS - len(stage.root.inputs)))
        self.name, self.shape = name, Shape.of(stage.root, builder)
        self.pieces = ROUNDED.index(stage.root.attrs["rounded"]) + 1 if "rounded" in stage.root.attrs else 0

    def together(self) -> tuple[range, ...]:
        """Directions whose steps share a loop: all where owners meet in each step and their caches hold all weights."""
        every = range(self.shape.directions)
        held = self._floats * itemsize(self._stored_as) // itemsize(COMPUTE)
        if self.partition.kind == "columns" and len(every) * held <= self.builder.machine.l2_bytes:
            return (every,)
        return tuple(range(d, d + 1) for d in every)

    def run(self, directions: range) -> tuple[Item, ...]:
        """All steps of directions."""
        first = self.step(directions, first=True)
        if self.shape.steps == 1:
            return first
        meet = (Barrier(0),) if self.partition.kind == "columns" else ()
        return (*first, Loop(STEP, self.shape.steps - 1, (*meet, *self.step(directions, first=False)), ""))

    def step(self, directions: range, first: bool) -> tuple[Phase | Barrier, ...]:
        """The first step of directions, or all others."""
        found: list[Phase | Barrier] = []
        for product in self.shape.products:
            if product.within and self.partition.kind == "columns":
                found.append(Barrier(0))
            found.extend(self.phase(product, d, first) for d in directions)
        return tuple(found)

    def phase(self, product: _Product, d: int, first: bool) -> Phase:
        """A product of the first step of direction ``d``, or of all others."""
        s, partition = self.shape, self.partition
        owners = partition.owners if partition.kind in ("rows", "columns") else 1
        rows, units = s.rows, s.units
        m0: Expr = Const(0)
        u0: Expr = Const(0)
        if partition.kind == "rows":
            rows = s.rows // owners
            m0 = Var(OWNER) * rows
        elif partition.kind == "columns":
            units = ceil(s.blocks(product) / owners) * product.block
            u0 = Var(OWNER) * units
        binder = self.builder.binder({OWNER: owners})
        if not first:
            binder.outer[STEP] = (0, s.steps - 2)
        t, before = self._times(d, first)
        known = None if first else before
        self._operands(binder, product, d, t if product.within else known, (m0, u0), (rows, units))
        inner = {"m": (0, rows - 1), "n": (0, units - 1)}
        row = binder.position("row", m0 + axis("m", rows), s.rows)
        unit = binder.position("unit", u0 + axis("n", units), s.units)
        results = []
        for place, value in self._values(product, d, known, (t, row, unit)).items():
            at = matrix_index(self._kind.shape, (Const(place), t, row, unit + d * s.units))
            bound_value = binder.stored(self.stage.stored, binder.bind(value, inner))
            role = binder.output(self.stage.stored, at, inner, f"out{place}")
            results.append(Result(f"out{place}", ("m", "n"), role, bound_value))
        params = {"gates": product.gates, "block": product.block, "at_once": self._most(product), "rows": s.rows}
        if self.pieces:
            params["pieces"] = self.pieces
        operands = tuple(self._within(o, d) for o in binder.operands)
        task = Task("recurrence_bytes" if self.pieces else "recurrence", operands, params, tuple(results))
        number = str(s.products.index(product) or "")
        name = f"{self.name}_{'first' if first else 'step'}{d}{number and '_' + number}"
        flops = 2 * s.rows * s.units * s.units * product.gates
        found = self.builder.phase(name, self.stage, partition, {OWNER: owners}, task, flops)
        if partition.kind != "batch":
            return found
        return replace(found, assign=replace(found.assign, owner=Const(d * partition.owners // s.directions)))

    @property
    def _kind(self) -> TensorType:
        return self.builder.types[self.stage.stored]

    def _times(self, d: int, first: bool) -> tuple[Expr, Expr]:
        """When a step is, and the one before it."""
        last = self.shape.steps - 1
        if integers(self.node.attrs, "reverse")[d]:
            now: Expr = Const(last) if first else Const(last - 1) + Var(STEP) * -1
            return now, now + 1
        now = Const(0) if first else Var(STEP) + 1
        return now, now + -1

    def _within(self, one: Operand, d: int) -> Operand:
        """What a ragged share of direction ``d`` reads and stores of the states ends where its units do."""
        if one.buffer != self.stage.stored:
            return one
        rows, columns = one.box.bound
        return replace(one, box=replace(one.box, bound=(rows, min(columns, (d + 1) * self.shape.units))))

    def _operands(
        self,
        binder: OperandBinder,
        product: _Product,
        d: int,
        time: Expr | None,
        at: tuple[Expr, Expr],
        size: tuple[int, int],
    ) -> None:
        """Declare what is multiplied, stored at ``time`` (None: the state before the first step), and the weights."""
        s, (m0, u0), (rows, units) = self.shape, at, size
        if time is None:
            seen = RowsView.of(self.builder.views, self.inputs[H])
            assert seen is not None, "what cannot be read in place is stored"
            tensor = seen.tensor
            corner: tuple[Expr, Expr] = (m0 + (seen.row + d * s.rows), Const(seen.column))
        else:
            tensor = self.stage.stored
            corner = matrix_index(self._kind.shape, (Const(product.source), time, m0, Const(d * s.units)))
        whole = matrix_shape(self.builder.types[tensor].shape)
        column = evaluate_index(corner[1], {})
        place = tuple(simplify(e, binder.outer) for e in corner)
        binder.add("a", tensor, Box(place, (rows, s.units), (whole[0], column + s.units)))
        weights, kind = self._weights(product, d), self._stored_as
        matrix = _side_by_side(weights.view(kind) ^ np.uint8(middle(8)) if self.pieces else weights, product)
        rows, columns = matrix.shape
        panel, terms = product.gates * product.block, GROUP if self.pieces else 1
        label = f"{self.inputs[R]}/{d}/{product.start}@{panel}/{kind}"
        packed = self.builder.in_panels(label, panel, (rows, columns), kind, lambda: matrix, terms)
        width = ceil(units / product.block) * product.block * product.gates
        first = simplify(u0 * product.gates, binder.outer)
        binder.add("b", packed.id, Box((Const(0), first), (s.units, width), packed.shape), packed=True)

    @property
    def _floats(self) -> float:
        """Numbers of a direction's weights that an owner has, times what float32 takes."""
        return self.shape.floats / (self.partition.owners if self.partition.kind == "columns" else 1)

    @property
    def _stored_as(self) -> str:
        """The type that weights are stored in: what holds all of them as they are, where a cache would not hold their
        floats."""
        if self.pieces:
            return DIGITS
        if self._floats <= self.builder.machine.l2_bytes:
            return COMPUTE
        return "int8" if self.inputs[SCALE] else self.builder.half_of(self.inputs[R]) or COMPUTE

    def _most(self, product: _Product) -> int:
        """Rows whose sums are in registers together."""
        vectors, machine = product.gates * product.block // self.builder.lanes, self.builder.machine
        if not self.pieces:
            return most_at_once(vectors, machine)
        return max(1, (machine.vector_registers - vectors - 2) // (vectors * self.pieces))

    def _weights(self, product: _Product, d: int) -> np.ndarray[Any, Any]:
        """[H, G H] of the product's gates."""
        whole: np.ndarray[Any, Any] = self.builder.views.graph.constants[self.inputs[R]][d]
        return whole[:, product.start * self.shape.units :][:, : product.gates * self.shape.units]

    def _values(self, product: _Product, d: int, before: Expr | None, at: tuple[Expr, Expr, Expr]) -> dict[int, Expr]:
        """What the product stores of element (time, row, unit), by place among the states."""
        s, views, (t, row, unit), inputs = self.shape, self.builder.views, at, self.inputs
        cell, do, column = Cell(self.node.attrs, d), _Elements(), unit + d * s.units
        gates = range(product.start, product.start + product.gates)
        x = [views.read(inputs[X], (t, row, unit + (d * s.gates + g) * s.units)) for g in gates]
        r: list[Expr] = [Acc(part=g) for g in range(product.gates)]
        if inputs[SCALE]:
            r = [
                op("mul", r[i], views.read(inputs[SCALE], (Const(d), unit + g * s.units))) for i, g in enumerate(gates)
            ]
        if inputs[B]:
            r = [op("add", r[i], views.read(inputs[B], (Const(d), unit + g * s.units))) for i, g in enumerate(gates)]
        if before is None:
            states = [views.read(inputs[n], (Const(d), row, unit)) for n in (H, C)[: cell.states]]
        else:
            places = ((Const(n), before, row, column) for n in range(cell.states))
            states = [views.element(self.stage.stored, place) for place in places]
        found: tuple[Expr, ...]
        if cell.twice and not product.within:
            return dict(enumerate(cell.before_product(do, x, r, states[0]), cell.states))
        if cell.twice:
            update = views.element(self.stage.stored, (Const(cell.states + 1), t, row, column))
            found = (cell.renewed(do, x[0], r[0], states[0], update),)
        else:
            peepholes = [views.read(inputs[P], (Const(d), unit + g * s.units)) for g in range(3)] if inputs[P] else []
            found = cell.step(do, x, r, states, peepholes)
        if inputs[LENGTHS]:
            length = as_index(views.read(inputs[LENGTHS], (row,)))
            found = tuple(Select(op("gt", length, t), new, old) for new, old in zip(found, states, strict=True))
        return dict(enumerate(found))


def _side_by_side(weights: np.ndarray[Any, Any], product: _Product) -> np.ndarray[Any, Any]:
    """[H, G H] as [H, blocks, G, block], units beyond the last one zero: [H, blocks G block]."""
    gates = weights.reshape(len(weights), product.gates, -1)
    padded = np.pad(gates, ((0, 0), (0, 0), (0, -gates.shape[2] % product.block)))
    parts = padded.reshape(*gates.shape[:2], -1, product.block).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(parts.reshape(len(weights), -1))
