"""Products cut along their terms: raw sums lie in a buffer part after part, and whoever reads the product adds them."""

from __future__ import annotations

from collections.abc import Mapping

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node, TensorType
from mononn_core.program.expr import Expr, Load, op
from mononn_core.schedule.operands import axis
from mononn_core.schedule.views import Views, matrix_index, matrix_shape

SUFFIX = "@parts"


class PartsViews(Views):
    """Views in which an element of a product in ``parts`` (output name -> number) is the sum of its parts, in order.

    The parts of a product [M, N] are a stored float32 tensor [parts * M, N] of the same name and :data:`SUFFIX`.
    """

    def __init__(self, graph: Graph, stored: frozenset[str], parts: Mapping[str, int]) -> None:
        super().__init__(graph, stored)
        self.parts = parts

    def type(self, name: str) -> TensorType:
        if not name.endswith(SUFFIX):
            return super().type(name)
        product = name.removesuffix(SUFFIX)
        rows, columns = matrix_shape(self.graph.types[product].shape)
        return TensorType(COMPUTE, (self.parts[product] * rows, columns))

    def point(self, node: Node, index: tuple[Expr, ...], known: dict[str, Expr] | None = None) -> Expr:
        name = node.outputs[0]
        if name not in self.parts:
            return super().point(node, index, known)
        shape = self.graph.types[name].shape
        row, column = matrix_index(shape, index)
        rows = matrix_shape(shape)[0]
        terms: list[Expr] = [Load(name + SUFFIX, (row + z * rows, column), COMPUTE) for z in range(self.parts[name])]
        total = terms[0]
        for term in terms[1:]:
            total = op("add", total, term)
        return total


class HeldViews(PartsViews):
    """Views in which the rows of ``tensor`` that a task works on lie in its own memory: row y of ``held``, a float32
    buffer of ``shape``."""

    def __init__(self, views: PartsViews, tensor: str, held: str, shape: tuple[int, int]) -> None:
        super().__init__(views.graph, views.stored | {tensor}, views.parts)
        self.tensor, self.held, self.shape = tensor, held, shape

    def type(self, name: str) -> TensorType:
        return TensorType(COMPUTE, self.shape) if name == self.held else super().type(name)

    def element(self, name: str, index: tuple[Expr, ...]) -> Expr:
        if name != self.tensor:
            return super().element(name, index)
        return Load(self.held, (axis("y", self.shape[0]), index[-1]), COMPUTE)
