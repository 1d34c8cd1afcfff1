"""How a group's task becomes a phase of a CPU's Program: a domain, and an owner of every task."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan
from types import MappingProxyType
from typing import NamedTuple

from mononn_core.element import COMPUTE, together
from mononn_core.graph import Node
from mononn_core.machine import Machine
from mononn_core.program.expr import Const, Expr, Var
from mononn_core.program.ir import Assign, Axis, Buffer, Phase, Task
from mononn_core.schedule.binder import OWNER, Matrix, TaskBuilder
from mononn_core.schedule.decisions import padded_stride, tile_step
from mononn_core.schedule.narrow import exactly_half
from mononn_core.schedule.operands import Product
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.views import Views, matrix_shape

FEWEST_ROWS, FEW_ROWS, FAR = 2, 8, 0.5
"""Of a product, up to which its weights' bytes are what takes the time; and where a network's constants are more than
this share of the last-level cache (measured)."""


class Panels(NamedTuple):
    """How a product's constant is packed: columns of a panel, the type of 16 bits that it is stored in, or "", and the
    template that reads it."""

    columns: int
    half: str
    template: str


class PhaseBuilder(TaskBuilder):
    """Builds phases for a CPU: every task has an owner."""

    def __init__(
        self,
        views: Views,
        machine: Machine,
        storage: Mapping[str, str],
        products: Mapping[str, str],
        panels: Mapping[str, Panels] = MappingProxyType({}),
        pairs: Mapping[str, str] = MappingProxyType({}),
        half: str = "",
        smallest: float = 1.0,
    ) -> None:
        """``products``: a contraction's result -> the type that its operands are multiplied in, where that is none of
        the Graph's. ``panels``: how a product's constant is to be packed. ``pairs``: see
        :func:`mononn_core.schedule.narrow.in_pairs`. ``half``: what weights may be rounded to whose bytes are waited
        for, where numbers are multiplied as float32. ``smallest``: of this network's rows, the share that the smallest
        specialisation has which is to read the same packed constants. ``storage``: see
        :class:`mononn_core.schedule.binder.OperandBinder`."""
        super().__init__(views, storage, COMPUTE)
        self.machine, self.products, self.panels = machine, products, panels
        self.lanes = machine.lanes(COMPUTE)
        self.pairs, self.smallest = pairs, smallest
        self._half, self._halves = half, dict[str, str]()
        self._largest = dict[str, float]()

    def multiplied(self, node: Node) -> str:
        return self.products.get(node.output) or super().multiplied(node)

    def half(self, product: Node) -> str:
        """The type of 16 bits that a product's constant right side is stored in, and widened from by each load, as its
        few rows wait for it; "" where it is not, and of another node."""
        name, constants = product.inputs[1], self.views.graph.constants
        if product.op != "matmul" or name not in constants:
            return ""
        if name in self.panels:
            return self.panels[name].half
        far = sum(c.nbytes for c in constants.values()) > FAR * self.machine.l3_bytes
        few = FEW_ROWS if far else FEWEST_ROWS
        if self.multiplied(product) != COMPUTE or Product.of(product, self.types).m > few:
            return ""
        return self.half_of(name)

    def half_of(self, name: str) -> str:
        """The type of 16 bits for a constant: one that holds all of its numbers, or what they may be rounded to, or
        ""."""
        if name not in self._halves:
            self._halves[name] = exactly_half(self.views.graph.constants[name]) or self._half
        return self._halves[name]

    def largest(self, name: str) -> float:
        """The largest magnitude of a constant; infinite where it holds a NaN."""
        if name not in self._largest:
            value = self.views.graph.constants[name]
            ends = (float(value.max()), -float(value.min())) if value.size else (0.0,)
            self._largest[name] = max(inf if isnan(end) else end for end in ends)
        return self._largest[name]

    def pack_product(self, node: Node, name: str, panel: int, shape: tuple[int, int], matrix: Matrix) -> Buffer:
        half = self.half(node)
        if half:
            return self.in_panels(f"{name}@{panel}", panel, shape, half, matrix)
        return super().pack_product(node, name, panel, shape, matrix)

    def constant_type(self, buffer: str) -> str:
        """The type of a constant operand's elements, packed or not."""
        return self.packed[buffer][0].dtype if buffer in self.packed else self.types[buffer].dtype

    def tile_step(self, node: Node, terms: int) -> int:
        """As :func:`mononn_core.schedule.decisions.tile_step`, of a contraction by packed weights."""
        constant = self.views.graph.is_constant(node.inputs[1])
        return tile_step(terms, self.multiplied(node), self.machine) if constant else 0

    def in_pairs(self, node: Node) -> str:
        return self.pairs.get(node.output, "") if self.multiplied(node) == "uint8" else ""

    def dense(self, tensor: str, columns: int) -> bool:
        kind = self.types[tensor]
        stride = padded_stride(columns, self.storage.get(tensor, kind.dtype), self.machine)
        return matrix_shape(kind.shape)[1] == columns == stride

    def terms(self, dtype: str) -> int:
        """As many as fill a lane of a vector."""
        return together(dtype)

    def phase(
        self, name: str, stage: FusionGroup, partition: Partition, extents: Mapping[str, int], task: Task, flops: int
    ) -> Phase:
        domain = tuple(Axis(v, e) for v, e in extents.items() if e > 1)
        owner: Expr = Var(OWNER) if extents[OWNER] > 1 else Const(0)
        order = (*(a.var for a in domain if a.var != OWNER), *(a.var for a in domain if a.var == OWNER))
        assign = Assign("owned", partition.group, owner, partition.owners, order)
        return Phase(name, domain, assign, task, origin=stage.origin, flops=flops)
