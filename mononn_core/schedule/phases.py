"""How a group's task becomes a phase of a CPU's Program: a domain, and an owner of every task."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mononn_core.element import COMPUTE, together
from mononn_core.graph import Node
from mononn_core.machine import Machine
from mononn_core.program.expr import Const, Expr, Var
from mononn_core.program.ir import Assign, Axis, Phase, Task
from mononn_core.schedule.binder import OWNER, TaskBuilder
from mononn_core.schedule.decisions import padded_stride, tile_step
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.views import Views, matrix_shape


class PhaseBuilder(TaskBuilder):
    """Builds phases for a CPU: every task has an owner."""

    def __init__(
        self,
        views: Views,
        machine: Machine,
        storage: Mapping[str, str],
        products: Mapping[str, str],
        panels: Mapping[str, int] = MappingProxyType({}),
        pairs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``products``: a contraction's result -> the type that its operands are multiplied in, where that is none of
        the Graph's. ``panels``: columns of the panels that a product's constant is to be packed in.
        ``pairs``: see
        :func:`mononn_core.schedule.narrow.in_pairs`. ``storage``: see
        :class:`mononn_core.schedule.binder.OperandBinder`."""
        super().__init__(views, storage, COMPUTE)
        self.machine, self.products, self.panels = machine, products, panels
        self.lanes = machine.lanes(COMPUTE)
        self.pairs = pairs

    def multiplied(self, node: Node) -> str:
        return self.products.get(node.output) or super().multiplied(node)

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
