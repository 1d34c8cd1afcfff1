"""What products have in common on every target: parameters, meaning, and the operands of a task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mononn_core.graph import Node
from mononn_core.program.expr import Expr
from mononn_core.program.ir import Box, Task
from mononn_core.program.simplify import simplify
from mononn_core.program.template import Array, Elements, Extent, Running, Template, sides
from mononn_core.schedule.binder import OperandBinder, TaskBuilder, bound
from mononn_core.schedule.operands import Product, matmul_axes
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.views import matrix_shape

PAIRS = {"seven_bits": "seven_bits", "most": "in_parts"}
"""Pairs of products of bytes that fit 16 bits -> the vocabulary's view of such a right side."""


@dataclass(frozen=True)
class MatmulParams:
    """Of a CPU: ``panel``, the columns of a register tile of at most ``at_once`` rows, or 0 for tiles that no register
    tile fits (-1: not said); ``tile_groups``, the groups of terms that are multiplied together in tile registers (0: in
    vectors); ``pairs`` of products of bytes that fit 16 bits: "seven_bits" promises those from -64 to 64 in b, "most"
    is right of any. Of a GPU: ``tile`` (rows, columns) of a block ((0, 0): what covers the boxes), its ``warps`` along
    them, and ``kind`` of the products ("": of a's type)."""

    panel: int = -1
    at_once: int = 0
    tile: tuple[int, int] = (0, 0)
    warps: tuple[int, int] = (1, 1)
    kind: str = ""
    pairs: str = ""
    tile_groups: int = 0


class ProductTemplate(Template[MatmulParams]):
    """a [M, K] times b [K, N], result axes (m, n)."""

    roles = ("a", "b")
    parameters = MatmulParams
    filled = "a"
    weights = "b"

    def contraction(self, task: Task, extent: Extent) -> str:
        differ = (extent("a", 1) != extent("b", 0)).any()
        return "the extents that operands 'a' and 'b' contract differ" if differ else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        return sides(task, axes, (("a", 0), ("b", 1)))

    def compute(self, task: Task, running: Running) -> Array:
        return np.asarray(running.matrix("a") @ running.matrix("b"))


def product_of(stage: FusionGroup, builder: TaskBuilder) -> Product:
    """The form of a group's product."""
    assert stage.root is not None
    return Product.of(stage.root, builder.types)


def left_operand(
    builder: TaskBuilder,
    root: Node,
    size: tuple[int, int],
    binder: OperandBinder,
    at: tuple[Expr, ...],
    role: str = "a",
    position: int = 0,
) -> None:
    """Declare a, or another operand with its rows, of a task of ``size`` (rows, terms) at ``at`` (batch, row, term)."""
    batch, m0, k0 = at
    p, types = Product.of(root, builder.types), builder.types
    tensor, row, column = builder.view(root.inputs[position], matmul_axes(root, position, types), {"batch": batch})
    shape = matrix_shape(types[tensor].shape)
    offset = (simplify(row + m0, binder.outer), simplify(column + k0, binder.outer))
    binder.add(role, tensor, Box(offset, (min(size[0], p.m), size[1]), (bound(row, shape[0], p.m), shape[1])))


def right_operand(
    builder: TaskBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
) -> None:
    """Declare b of a task of ``size`` (terms, columns) at ``at`` (batch, term, column); a constant is packed."""
    terms, panel = size
    batch, k0, n0 = at
    b, p, types = root.inputs[1], Product.of(root, builder.types), builder.types
    if builder.views.graph.is_constant(b) and p.batch == 1:
        matrix = builder.views.graph.constants[b].reshape(types[b].shape[-2:])
        name, shown = (f"{b}^T", matrix.T) if p.transpose_b else (b, matrix)
        packed = builder.pack_product(root, name, panel, (p.k, p.n), lambda: shown)
        binder.add("b", packed.id, Box((k0, n0), (terms, panel), (p.k, p.n)), packed=True)
        return
    tensor, row, column = builder.view(b, matmul_axes(root, 1, types), {"batch": batch})
    shape = matrix_shape(types[tensor].shape)
    offset = (simplify(row + k0, binder.outer), simplify(column + n0, binder.outer))
    binder.add("b", tensor, Box(offset, (terms, min(panel, p.n)), (shape[0], bound(column, shape[1], p.n))))
