"""From index expressions to operands: the forms contractions take, in-place views, and declared footprints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

from mononn_core.graph import Graph, Node, TensorType
from mononn_core.ops.common import delinearise
from mononn_core.program.expr import Const, Expr, Load, Op, Ranges, Var, variables, walk
from mononn_core.program.simplify import bounds, from_linear, linear, simplify


def axis(name: str, extent: int) -> Expr:
    """The variable of an axis, or 0 where it has one element."""
    return Const(0) if extent == 1 else Var(name)


@dataclass(frozen=True)
class Product:
    """A matmul of operands of rank 2 or more as ``batch`` products of [m, k] by [k, n]; indices are of the node's own
    tensors."""

    batch: int
    m: int
    n: int
    k: int
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    lead: tuple[int, ...]
    transpose_b: bool

    @staticmethod
    def of(node: Node, types: Mapping[str, TensorType]) -> Product:
        a, b = (types[n].shape for n in node.inputs[:2])
        transpose = bool(node.attrs.get("transpose_b", False))
        k, n = (b[-1], b[-2]) if transpose else b[-2:]
        if prod(b[:-2]) == 1:
            return Product(1, prod(a[:-1]), n, k, a, b, (), transpose)
        lead = types[node.output].shape[:-2]
        return Product(prod(lead), a[-2], n, k, a, b, lead, transpose)

    def a_index(self, batch: Expr, m: Expr, k: Expr) -> tuple[Expr, ...]:
        if not self.lead:
            return (*delinearise(m, self.a_shape[:-1]), k)
        return (*self._aligned(batch, self.a_shape[:-2]), m, k)

    def b_index(self, batch: Expr, k: Expr, n: Expr) -> tuple[Expr, ...]:
        tail = (n, k) if self.transpose_b else (k, n)
        return (*self._aligned(batch, self.b_shape[:-2]), *tail)

    def out_index(self, batch: Expr, m: Expr, n: Expr, shape: tuple[int, ...]) -> tuple[Expr, ...]:
        """Index in the output tensor of ``shape``."""
        if self.lead:
            return (*delinearise(batch, self.lead), m, n)
        return (*delinearise(m, shape[:-1]), n)

    def _aligned(self, batch: Expr, shape: tuple[int, ...]) -> tuple[Expr, ...]:
        index = delinearise(batch, self.lead)[len(self.lead) - len(shape) :] if self.lead else (Const(0),) * len(shape)
        return tuple(Const(0) if extent == 1 else i for i, extent in zip(index, shape, strict=True))


@dataclass(frozen=True)
class MatrixAxes:
    """How a contraction walks one operand: the tensor index over ``row``, ``column`` and outer variables."""

    index: tuple[Expr, ...]
    row: Expr
    column: Expr
    ranges: Ranges


def contraction_axes(node: Node, name: str, types: Mapping[str, TensorType]) -> list[MatrixAxes]:
    """The walks of ``node`` over its operand ``name`` (one for every position it stands in)."""
    found = []
    for position, operand in enumerate(node.inputs):
        if operand != name:
            continue
        walk = attention_axes(node, position, types) if node.op == "attention" else matmul_axes(node, position, types)
        if walk is not None:
            found.append(walk)
    return found


def matmul_axes(node: Node, position: int, types: Mapping[str, TensorType]) -> MatrixAxes:
    p = Product.of(node, types)
    batch, m, n, k = axis("batch", p.batch), axis("m", p.m), axis("n", p.n), axis("k", p.k)
    ranges = {"batch": (0, p.batch - 1), "m": (0, p.m - 1), "n": (0, p.n - 1), "k": (0, p.k - 1)}
    if position != 1:  # a, which may have several numbers a term, or numbers of its rows
        extent = types[node.inputs[position]].shape[-1]
        k, ranges = axis("k", extent), {**ranges, "k": (0, extent - 1)}
    if position != 1:
        return MatrixAxes(p.a_index(batch, m, k), m, k, ranges)
    index = p.b_index(batch, k, n)
    return MatrixAxes(index, n, k, ranges) if reads_turned(node) else MatrixAxes(index, k, n, ranges)


def reads_turned(node: Node) -> bool:
    """Whether a product takes the right side's columns one below the other."""
    return node.op == "bytes_matmul" and bool(node.attrs.get("transpose_b"))


def attention_axes(node: Node, position: int, types: Mapping[str, TensorType]) -> MatrixAxes | None:
    """Walk over q, k or v; None for the bias, which is read through the score's expression."""
    if position > 2:
        return None
    shape = types[node.inputs[position]].shape
    names = ("batch", "head", "row", "column")
    index = tuple(axis(n, e) for n, e in zip(names, shape, strict=True))
    ranges = {n: (0, e - 1) for n, e in zip(names, shape, strict=True)}
    return MatrixAxes(index, index[2], index[3], ranges)


def unit_stride(e: Expr, axes: MatrixAxes) -> tuple[str, Expr, Expr] | None:
    """(stored tensor, row offset, column offset) where ``e`` reads one stored matrix with ``axes.row`` along its rows
    and ``axes.column`` along its columns, one element apart each; None where it does not."""
    if not isinstance(e, Load):
        return None
    row, column = (simplify(i, axes.ranges) for i in e.index)
    row_rest, column_rest = _without(row, axes.row, axes.column), _without(column, axes.column, axes.row)
    if row_rest is None or column_rest is None:
        return None
    return e.operand, row_rest, column_rest


def _without(e: Expr, own: Expr, other: Expr) -> Expr | None:
    """``e - own`` where ``e`` is ``own`` plus something independent of both variables; None where it is not."""
    terms, constant = linear(e)
    if isinstance(own, Var) and terms.pop(own, 0) != 1:
        return None
    rest = from_linear(terms, constant)
    both = {v.name for v in (own, other) if isinstance(v, Var)}
    return None if variables(rest) & both or any(isinstance(t, Load) for t in terms) else rest


def side_by_side(views: StoredViews, name: str) -> bool:
    """Whether neighbours along the last axis of a tensor that shows a stored one lie side by side there."""
    shape = views.graph.types[name].shape
    variables = tuple(axis(f"i{number}", extent) for number, extent in enumerate(shape))
    element, own = views.element(name, variables), variables[-1]
    if not isinstance(element, Load):
        return True
    ranges = {f"i{number}": (0, extent - 1) for number, extent in enumerate(shape)}
    row, column = (linear(simplify(i, ranges))[0] for i in element.index)
    return own not in row and column.get(own, 0) == 1


class StoredViews(Protocol):
    """What an :class:`ImageView` needs of the views of stored tensors."""

    graph: Graph

    def element(self, name: str, index: tuple[Expr, ...]) -> Expr: ...


@dataclass(frozen=True)
class ImageView:
    """An image [N, H, W, C] inside a stored matrix: its first pixel and column, pixels between image rows and between
    images."""

    tensor: str
    first: int
    column: int
    pitch: int
    image: int

    @staticmethod
    def of(views: StoredViews, name: str) -> ImageView | None:
        """How tensor ``name`` lies, where its pixels are neighbours in an image row, and rows and images follow one
        another; None where they do not."""
        shape = views.graph.types[name].shape
        if len(shape) != 4 or (views.graph.is_constant(name) and views.graph.types[name].size == 1):
            return None
        variables = tuple(axis(v, extent) for v, extent in zip("bhwc", shape, strict=True))
        element = views.element(name, variables)
        if not isinstance(element, Load):
            return None
        ranges = {v: (0, extent - 1) for v, extent in zip("bhwc", shape, strict=True)}
        (rows, first), (columns, column) = (linear(simplify(i, ranges)) for i in element.index)
        alone = dict(zip("bhw", (shape[1] * shape[2], shape[2], 1), strict=True))
        image, pitch, step = (rows.pop(Var(v), alone[v] if ranges[v] == (0, 0) else 0) for v in alone)
        if rows or columns != ({Var("c"): 1} if shape[3] > 1 else {}) or step != 1 or min(pitch, image) < 1:
            return None
        return ImageView(element.operand, first, column, pitch, image)


@dataclass(frozen=True)
class RowsView:
    """A tensor's rows, along its last axis, inside a stored matrix: one below the other from ``row`` and ``column`` on,
    or ``beside`` one another in one stored row."""

    tensor: str
    row: int
    column: int
    beside: bool

    @staticmethod
    def of(views: StoredViews, name: str) -> RowsView | None:
        """How tensor ``name`` lies; None where its rows do not lie in either way."""
        shape = views.graph.types[name].shape
        rows, columns = prod(shape[:-1]), shape[-1]
        y, x, z = axis("y", rows), axis("x", columns), axis("z", rows * columns)
        ranges = {"y": (0, rows - 1), "x": (0, columns - 1), "z": (0, rows * columns - 1)}
        below = MatrixAxes((*delinearise(y, shape[:-1]), x), y, x, ranges)
        beside = MatrixAxes(delinearise(z, shape), Const(0), z, ranges)
        for axes in (below, beside):
            found = unit_stride(views.element(name, axes.index), axes)
            if found is not None and isinstance(found[1], Const) and isinstance(found[2], Const):
                return RowsView(found[0], int(found[1].value), int(found[2].value), axes is beside and rows > 1)
        return None


def footprint(
    index: tuple[Expr, ...], shape: tuple[int, ...], inner: Ranges, outer: Ranges
) -> tuple[tuple[Expr, ...], tuple[int, ...]]:
    """(offset, size) of the smallest box, per dimension, that holds ``index`` for all values of the ``inner``
    variables; the offset is an expression of the ``outer`` ones. What cannot be bounded takes the whole dimension."""
    offsets: list[Expr] = []
    sizes: list[int] = []
    for e, extent in zip(index, shape, strict=True):
        low, size = _span(simplify(e, {**inner, **outer}), extent, inner, outer)
        offsets.append(low)
        sizes.append(size)
    return tuple(offsets), tuple(sizes)


def _span(e: Expr, extent: int, inner: Ranges, outer: Ranges) -> tuple[Expr, int]:
    everywhere = {**inner, **outer}
    whole = (Const(0), extent)
    if bounds(e, everywhere)[0] < 0:
        return whole  # reached only where a condition holds; the high side is cut by the box's bound
    terms, constant = linear(e)
    fixed = {t: k for t, k in terms.items() if variables(t) <= outer.keys() and not _from_data(t)}
    low, high = bounds(from_linear({t: k for t, k in terms.items() if t not in fixed}, 0), everywhere)
    size = int(high - low) + 1
    return whole if size >= extent else (from_linear(fixed, constant + int(low)), size)


def _from_data(e: Expr) -> bool:
    """Whether all that is known of ``e`` is its range: it is loaded, or an index that is checked in a run."""
    return any(isinstance(n, Load) or (isinstance(n, Op) and n.name == "index") for n in walk(e))
