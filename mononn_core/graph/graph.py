"""The Graph grammar, on one screen.

    Graph(name, inputs, outputs, nodes, types, constants)
    Node(op, inputs, outputs, attrs, origin)
    TensorType(dtype, shape)          dtype is a NumPy name ("float32", "int64", "bool", ...); shape is static
    Origin(name, op_type)             the ONNX node a Graph node descends from; every error prints it

Tensors are named by strings and assigned once. ``nodes`` is in topological order. An absent optional input is "".
A scalar has shape (). Nothing here knows what an operator means: that stands in :mod:`mononn_core.ops`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from mononn_core.errors import Origin

Attr = int | float | str | bool | tuple[int, ...] | tuple[float, ...] | None


@dataclass(frozen=True)
class TensorType:
    """Element type (a NumPy dtype name, or "bfloat16") and static shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _itemsize(self.dtype)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@cache
def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


@dataclass(frozen=True)
class Node:
    """One operator application. ``attrs`` values are hashable (tuples, not lists)."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origin: Origin
    attrs: Mapping[str, Attr] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """The only output's name."""
        (name,) = self.outputs
        return name


@dataclass(frozen=True)
class Graph:
    """A static network. ``types`` has an entry for every tensor; ``constants`` maps a tensor's name to its value."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray[Any, Any]]

    def producers(self) -> Mapping[str, Node]:
        """Tensor name -> the node that makes it (graph inputs and constants have none)."""
        return self._producers

    def consumers(self) -> Mapping[str, Sequence[Node]]:
        """Tensor name -> the nodes that read it, in order; a node that reads it twice stands there once."""
        return self._consumers

    @cached_property
    def _producers(self) -> Mapping[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def _consumers(self) -> Mapping[str, Sequence[Node]]:
        readers: dict[str, list[Node]] = {name: [] for name in self.types}
        for node in self.nodes:
            for name in dict.fromkeys(n for n in node.inputs if n):
                readers[name].append(node)
        return {name: tuple(nodes) for name, nodes in readers.items()}

    def is_constant(self, name: str) -> bool:
        return name in self.constants

    def rebuild(
        self,
        nodes: Iterable[Node],
        types: Mapping[str, TensorType] | None = None,
        constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
        outputs: tuple[str, ...] | None = None,
    ) -> Graph:
        """The same network with other nodes; types and constants that nothing names any more are dropped."""
        nodes = tuple(nodes)
        outputs = self.outputs if outputs is None else outputs
        all_types = self.types if types is None else types
        all_constants = self.constants if constants is None else constants
        live = set(self.inputs) | set(outputs)
        for node in nodes:
            live.update(n for n in node.inputs if n)
            live.update(node.outputs)
        return Graph(
            self.name,
            self.inputs,
            outputs,
            nodes,
            {n: t for n, t in all_types.items() if n in live},
            {n: v for n, v in all_constants.items() if n in live},
        )
