"""Stored tensors as matrices, and virtual ones as expressions of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from mononn_core.graph import Graph, Node, TensorType
from mononn_core.ops import registry
from mononn_core.ops.common import delinearise, linearise
from mononn_core.program.expr import INDEX, Const, Expr, Load, op

Placed = tuple[str, tuple[int, ...]]
"""A stored tensor, and where in it a part begins."""


class Views:
    """Reads any tensor at an index: a Load of a stored tensor, or the expression that computes a virtual one.

    A stored tensor of shape (d0, ..., dn) lies as a matrix of d0 * ... * d(n-1) rows and dn columns; Loads name the
    tensor and that matrix's (row, column). ``placed``: tensor -> the stored tensor that it is a part of, where it
    begins there.
    """

    def __init__(
        self, graph: Graph, stored: frozenset[str], placed: Mapping[str, Placed] = MappingProxyType({})
    ) -> None:
        self.graph = graph
        self.stored = stored
        self.placed = placed
        self._producers = graph.producers()
        self._positions: dict[str, tuple[tuple[int, ...] | None, tuple[int, int]]] = {}

    def type(self, name: str) -> TensorType:
        return self.graph.types[name]

    def is_stored(self, name: str) -> bool:
        return name in self.stored or name in self.graph.inputs or self.graph.is_constant(name)

    def read(self, name: str, index: tuple[Expr, ...]) -> Expr:
        """The element of tensor ``name`` at ``index`` (of the tensor's own rank)."""
        kind = self.type(name)
        constant = self.graph.constants.get(name)
        if constant is not None and constant.size == 1:
            return Const(constant.reshape(()).item(), kind.dtype)
        return self.element(name, index)

    def position(self, name: str, index: tuple[Expr, ...]) -> Expr:
        """Like :meth:`read`, of positions, so that the range of constant ones is known before a run: in even steps
        along each axis they are computed, not loaded."""
        constant = self.graph.constants.get(name)
        if constant is None or constant.size == 1 or constant.dtype != INDEX:
            return self.read(name, index)
        if name not in self._positions:
            steps = _even_steps(constant)
            self._positions[name] = steps, (0, 0) if steps else (int(constant.min()), int(constant.max()))
        steps, (least, most) = self._positions[name]
        if steps is None:
            found = self.read(name, index)
            return found if least < 0 else op("known_index", found, Const(most + 1))
        total: Expr = Const(int(constant.flat[0]))
        for i, step in zip(index, steps, strict=True):
            total = total + i * step
        return total

    def element(self, name: str, index: tuple[Expr, ...]) -> Expr:
        """Like :meth:`read`, but a constant of one element stays a Load."""
        if name in self.placed:
            return self.element(self.placed[name][0], self.placed_index(name, index))
        if self.is_stored(name):
            return Load(name, matrix_index(self.type(name).shape, index), self.type(name).dtype)
        return self.point(self._producers[name], index)

    def placed_index(self, name: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Where element ``index`` of a placed tensor is in the tensor that it is a part of."""
        return tuple(i + start for i, start in zip(index, self.placed[name][1], strict=True))

    def point(self, node: Node, index: tuple[Expr, ...], known: dict[str, Expr] | None = None) -> Expr:
        """``node``'s output element at ``index``; ``known`` gives the values of inputs already at hand."""
        definition = registry.get(node.op)
        if definition.point is None:
            raise AssertionError(f"{node.origin} has no pointwise form but was not stored")
        known = known or {}

        def reader(number: int, name: str) -> registry.Reader:
            read = self.position if number == 1 and definition.kind == "gather" else self.read
            return lambda i: known[name] if name in known else read(name, i)

        return definition.point(
            [reader(number, n) for number, n in enumerate(node.inputs)],
            [self.type(n) for n in node.inputs],
            self.type(node.outputs[0]),
            node.attrs,
            index,
        )


def _even_steps(value: np.ndarray) -> tuple[int, ...] | None:
    """Between neighbours along each axis, where they are the same everywhere."""
    between = [np.diff(value, axis=axis) for axis in range(value.ndim)]
    steps = [found.flat[0] if found.size else 0 for found in between]
    even = value.size and all((found == step).all() for found, step in zip(between, steps, strict=True))
    return tuple(map(int, steps)) if even else None


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, columns) a tensor is stored as."""
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    return rows, shape[-1] if shape else 1


def matrix_index(shape: tuple[int, ...], index: tuple[Expr, ...]) -> tuple[Expr, Expr]:
    """(row, column) of element ``index`` of a tensor stored as a matrix."""
    return linearise(index[:-1], shape[:-1]), index[-1] if index else Const(0)


def tensor_index(shape: tuple[int, ...], row: Expr, column: Expr) -> tuple[Expr, ...]:
    """The tensor index of matrix element (row, column)."""
    return (*delinearise(row, shape[:-1]), column) if shape else ()


def stored_behind(names: Iterable[str], views: Views) -> set[str]:
    """Stored tensors (not inputs or constants) that an evaluation of ``names`` reads."""
    return {views.placed[name][0] if name in views.placed else name for name in made_behind(names, views)}


def made_behind(names: Iterable[str], views: Views) -> set[str]:
    """The same, where of a concatenation only that part is meant which is read."""
    producers, found = views.graph.producers(), set[str]()
    pending, seen = [n for n in names if n], set[str]()
    while pending:
        name = pending.pop()
        if name in seen or name not in producers:
            continue
        seen.add(name)
        if name in views.stored or name in views.placed:
            found.add(name)
        else:
            pending.extend(n for n in producers[name].inputs if n)
    return found
