"""Grows a Graph node by node: infers types, folds what is constant, and invents names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from mononn_core.errors import MononnError, ShapeError, UnsupportedError
from mononn_core.graph import Graph, Node, Origin, TensorType
from mononn_core.graph.graph import Attr
from mononn_core.ops import registry
from mononn_core.ops.common import contiguous, numpy_dtype

FOLD_LIMIT = 1 << 20
"""A fold may make a tensor of up to this many bytes, or of as many as its inputs have together."""
PICKED_LIMIT = 4 * FOLD_LIMIT
"""Of elements picked from a constant: a run would look each of them up."""

LARGEST = 1 << 36
"""Bytes of the largest tensor: what is larger comes of a damaged model."""


def type_of(value: np.ndarray[Any, Any]) -> TensorType:
    """The tensor type of an array."""
    return TensorType(_name(value.dtype), value.shape)


@cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def worth_folding(op: str, inputs: Iterable[TensorType], outputs: Iterable[TensorType]) -> bool:
    """Whether storing the results costs no more than a little, or than the inputs did."""
    limit = PICKED_LIMIT if registry.get(op).kind == "gather" else FOLD_LIMIT
    return sum(t.nbytes for t in outputs) <= max(limit, sum(t.nbytes for t in inputs))


def fold(
    node: Node, constants: Mapping[str, Any], types: Mapping[str, TensorType], any_size: bool = False
) -> list[Any] | None:
    """The outputs of a node whose inputs are all constants; None when they are not, are too large (unless
    ``any_size``), or when its operator does not fold."""
    for name in node.inputs:
        if name and name not in constants:
            return None
    if not registry.get(node.op).folds:
        return None
    names = [n for n in node.inputs if n]
    outputs = [types[n] for n in node.outputs]
    if not any_size and not worth_folding(node.op, (types[n] for n in names), outputs):
        return None
    with np.errstate(all="ignore"):
        arguments = [constants[n] if n else None for n in node.inputs]
        try:
            results = registry.get(node.op).evaluate(np, arguments, node.attrs)
        except IndexError:  # a constant index out of range is the run's error, if the run ever gets there
            return None
    return [contiguous(np.asarray(r)).reshape(t.shape) for r, t in zip(results, outputs, strict=True)]


def infer(node_op: str, types: list[TensorType | None], attrs: Mapping[str, Attr], origin: Origin) -> list[TensorType]:
    """Output types of one application; errors name the ONNX node."""
    try:
        found = list(registry.get(node_op).infer(types, attrs))
        for kind in found:
            if min(kind.shape, default=0) < 0:
                raise ShapeError(f"a tensor {kind} would have a negative extent")
            if kind.nbytes > LARGEST:
                raise ShapeError(
                    f"a tensor {kind} takes {kind.nbytes >> 30} GiB, and at most {LARGEST >> 30} are handled"
                )
        return found
    except UnsupportedError as error:
        raise UnsupportedError(f"{origin}: {error}") from error
    except MononnError as error:
        raise ShapeError(f"{origin}: {error}; check the model or the shapes given") from error


class Builder:
    """Nodes, types and constants of a Graph under construction.

    Attributes:
        nodes: in topological order. types: of every tensor. constants: name to value.
        folding: evaluate nodes whose inputs are all constants at once.
    """

    def __init__(
        self,
        types: Mapping[str, TensorType] | None = None,
        constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
        folding: bool = True,
    ) -> None:
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = dict(types or {})
        self.constants: dict[str, np.ndarray[Any, Any]] = dict(constants or {})
        self.folding = folding
        self._counts: dict[str, int] = {}
        self._reserved: set[str] = set()

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names from being invented."""
        self._reserved.update(names)

    def fresh(self, hint: str) -> str:
        """A tensor name nothing has yet, ``hint`` itself when it is free."""
        name = hint
        while name in self.types or name in self._reserved:
            self._counts[hint] = self._counts.get(hint, 0) + 1
            name = f"{hint}.{self._counts[hint]}"
        return name

    def constant(self, value: Any, hint: str = "constant", dtype: str | None = None) -> str:
        """A new constant tensor."""
        array = np.asarray(value, dtype=None if dtype is None else numpy_dtype(dtype))
        array = contiguous(array)
        name = self.fresh(hint)
        self.types[name] = type_of(array)
        self.constants[name] = array
        return name

    def add(
        self,
        op: str,
        inputs: Iterable[str],
        origin: Origin,
        attrs: Mapping[str, Attr] | None = None,
        output: str | None = None,
        hint: str | None = None,
    ) -> str:
        """Append a one-output node and give its output's name: ``output`` (then never folded away) or a fresh one."""
        inputs = tuple(inputs)
        attrs = dict(attrs or {})
        types = infer(op, [self.types[n] if n else None for n in inputs], attrs, origin)
        name = output if output is not None else self.fresh(hint or f"{origin.name}/{op}")
        self.types[name] = types[0]
        node = Node(op, inputs, (name,), origin, attrs)
        if self.folding and output is None:
            folded = fold(node, self.constants, self.types)
            if folded is not None:
                self.constants[name] = folded[0]
                return name
        self.nodes.append(node)
        return name

    def graph(self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
        """The finished Graph; types and constants nobody reads are dropped."""
        return Graph(name, inputs, outputs, (), self.types, self.constants).rebuild(self.nodes, outputs=outputs)
