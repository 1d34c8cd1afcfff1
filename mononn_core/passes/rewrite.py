"""The frame all rewriting passes share: rules that replace one node's output by another tensor.

A rule sees a node (its inputs already replaced) and the Rewriter, which knows producers, users and constants and can
append nodes. It returns the tensor that stands for the node's output from now on, or None when it does not apply.
Interior nodes that nobody reads any more are dropped afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from mononn_core.element import is_float
from mononn_core.graph import Graph, Node, TensorType
from mononn_core.graph.graph import Attr
from mononn_core.ops.builder import Builder

SWEEPS = 64
"""Most sweeps of one :func:`rewrite`; a few are enough, since a sweep also sees what it has just made."""


class Rewriter:
    """A Graph during one sweep."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = Builder(graph.types, graph.constants)
        self.outputs = frozenset(graph.outputs)
        self.replaced: dict[str, str] = {}
        self.changed = False
        self.node: Node | None = None
        self._producers: dict[str, Node] = {}
        self._indexed = 0
        self._more = Counter[str]()

    @cached_property
    def _uses(self) -> Counter[str]:
        """Tensor -> how many node inputs of the Graph read it; ``_more``: of the nodes made since."""
        return Counter(name for node in self.graph.nodes for name in node.inputs)

    @cached_property
    def _readers(self) -> dict[str, set[str]]:
        """Tensor -> operators of the Graph's nodes that read it."""
        found = dict[str, set[str]]()
        for node in self.graph.nodes:
            for name in node.inputs:
                found.setdefault(name, set()).add(node.op)
        return found

    def producer(self, name: str, op: str | None = None) -> Node | None:
        """The node that makes ``name``, if any (and if its operator is ``op``)."""
        for node in self.builder.nodes[self._indexed :]:
            self._producers.update(dict.fromkeys(node.outputs, node))
        self._indexed = len(self.builder.nodes)
        found = self._producers.get(name)
        return found if found is not None and op in (None, found.op) else None

    def single_use(self, name: str) -> bool:
        """Whether exactly one node input reads ``name`` (and it is no graph output). Readers that this sweep replaced
        still count."""
        return self.uses(name) == 1 and name not in self.outputs

    def uses(self, name: str) -> int:
        """How many node inputs read ``name``, as :meth:`single_use` counts; one more for a graph output."""
        return self._uses[name] + self._more[name] + (name in self.outputs)

    def only_read_by(self, name: str, op: str) -> bool:
        """Whether every reader of ``name`` is an ``op`` (and it is no graph output); False for new tensors."""
        readers = self._readers.get(name, set())
        return readers == {op} and name not in self.outputs

    def is_read_by(self, name: str, op: str) -> bool:
        """Whether some reader of ``name`` is an ``op``; False for new tensors."""
        return op in self._readers.get(name, set())

    def type(self, name: str) -> TensorType:
        return self.builder.types[name]

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """The value of a constant tensor."""
        return self.builder.constants.get(name)

    known = constant

    def uniform(self, name: str) -> int | float | bool | None:
        """The value all elements of a constant have; None for anything else."""
        value = self.constant(name)
        if value is None or value.size == 0:
            return None
        first = value.reshape(-1)[0]
        if value.size > 1 and not (bool((value.reshape(-1)[:64] == first).all()) and bool((value == first).all())):
            return None
        if first == 0 and is_float(value.dtype.name) and np.signbit(value).any() != np.signbit(first):
            return None
        found: int | float | bool = first.item()
        return found

    def add(self, op: str, /, *inputs: str, **attrs: Attr) -> str:
        """Append a node that descends from the current one (or fold it) and give its output."""
        assert self.node is not None
        self._more.update(inputs)
        return self.builder.add(op, inputs, self.node.origin, attrs, hint=self.node.outputs[0])

    def substitute(self, node: Node, result: str) -> None:
        """``result`` stands for the node's output from now on, and inherits its readers."""
        output = node.output
        self.changed = True
        self.replaced[output] = result
        self._more[result] += self.uses(output)
        if output in self.outputs:
            self.builder.nodes.append(Node("identity", (result,), (output,), node.origin))

    def make(self, value: Any, dtype: str | None = None) -> str:
        """A new constant."""
        assert self.node is not None
        return self.builder.constant(value, f"{self.node.outputs[0]}/constant", dtype)

    def number(self, value: float, like: str) -> str:
        """A constant of the type of ``like``."""
        return self.make(value, self.type(like).dtype)

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """``name`` in another shape (itself when it has it already)."""
        return name if self.type(name).shape == tuple(shape) else self.add("reshape", name, shape=tuple(shape))

    def expand(self, name: str, shape: Sequence[int]) -> str:
        """``name`` broadcast to a shape (itself when it has it already)."""
        return name if self.type(name).shape == tuple(shape) else self.add("expand", name, shape=tuple(shape))


def along(axis: int, rank: int, values: Any) -> np.ndarray[Any, Any]:
    """A vector shaped to broadcast along one axis."""
    return np.asarray(values).reshape([-1 if d == axis else 1 for d in range(rank)])


Rule = Callable[[Rewriter, Node], str | None]


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """Sweep over the nodes, applying the first rule that fits each, until none does; the same object if none did."""
    for _ in range(SWEEPS):
        swept = sweep(graph, rules)
        if swept is graph:
            break
        graph = swept
    return graph


def sweep(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """One sweep of :func:`rewrite`."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        current = node
        if not rewriter.replaced.keys().isdisjoint(node.inputs):
            current = replace(node, inputs=tuple(rewriter.replaced.get(n, n) for n in node.inputs))
        rewriter.node = current
        result = None
        for rule in rules:
            result = rule(rewriter, current)
            if result is not None and rewriter.type(result) != rewriter.type(current.output):
                result = None  # what a constant of more dimensions adds to the shape is lost
            if result is not None:
                break
        if result is None:
            rewriter.builder.nodes.append(current)
        else:
            rewriter.substitute(current, result)
    if not rewriter.changed:
        return graph
    builder = rewriter.builder
    return drop_dead(settle_outputs(graph.rebuild(builder.nodes, builder.types, builder.constants)))


def restate(graph: Graph, applies: Callable[[Node], bool], write: Callable[[Node, Builder], None]) -> Graph:
    """``graph`` with what ``write`` appends in place of each node that ``applies`` picks; outputs keep their names, and
    nothing is folded. The same object if there is no such node."""
    if not any(map(applies, graph.nodes)):
        return graph
    builder = Builder(graph.types, graph.constants, folding=False)
    for node in graph.nodes:
        if applies(node):
            write(node, builder)
        else:
            builder.nodes.append(node)
    return graph.rebuild(builder.nodes, builder.types, builder.constants)


def settle_outputs(graph: Graph) -> Graph:
    """An ``identity`` that only gives a node's result its output name goes: the node makes that name itself."""
    producers = graph.producers()
    renamed: dict[str, str] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        if node.op != "identity" or node.output not in graph.outputs:
            continue
        source = node.inputs[0]
        if source in producers and source not in graph.outputs and source not in renamed:
            renamed[source] = node.output
            gone.add(node.output)
    if not renamed:
        return graph

    def new(name: str) -> str:
        return renamed.get(name, name)

    kept = (n for n in graph.nodes if not (n.op == "identity" and n.output in gone))
    return graph.rebuild(replace(n, inputs=tuple(map(new, n.inputs)), outputs=tuple(map(new, n.outputs))) for n in kept)


def drop_dead(graph: Graph) -> Graph:
    """Without the nodes whose outputs nobody reads; the same object when there are none."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return graph if len(kept) == len(graph.nodes) else graph.rebuild(reversed(kept))
