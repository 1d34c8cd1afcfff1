"""What is computed of one tensor of bytes alone and quantised to bytes again is looked up.

quantize(f(dequantize(q))), with f of elementwise operators and constants that are the same for all elements, has 256
answers: lookup(q) takes them from a table that holds what the operators answer. A SiLU between quantisations, as
converters write it (a sigmoid, quantised, times what it is of), is one. What takes few operations stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.element import BYTES
from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.common import numpy_dtype, text
from mononn_core.passes.rewrite import Rewriter, rewrite
from mononn_core.program.functions import FUNCTIONS

FEWEST_OPERATIONS = 20
"""Operations of a vector that a lookup is worth."""
SLOW = 16
"""Operations of what is slow in vectors, about."""
OPERATIONS = {"quantize": 5, "dequantize": 2, "lookup": SLOW}
"""Of others than one; a lookup stands for what it was made of."""
MOST_NODES = 64
Array = np.ndarray[Any, Any]


class _Cone:
    """What lies between a tensor and the one of bytes that it is a function of: ``source``, "" where there is none."""

    def __init__(self, rewriter: Rewriter, name: str) -> None:
        self.rewriter = rewriter
        self.sources: dict[str, str] = {}
        self.source = self._source(name)

    def _source(self, name: str) -> str:
        if name not in self.sources:
            self.sources[name] = ""  # of what is looked at too deep
            node, kind = self.rewriter.producer(name), self.rewriter.type(name)
            found = self._of_inputs(node) if node is not None and len(self.sources) < MOST_NODES else ""
            self.sources[name] = found or (name if kind.dtype in BYTES else "")
        return self.sources[name]

    def _of_inputs(self, node: Node) -> str:
        if registry.get(node.op).kind != "elementwise" or len(node.outputs) != 1:
            return ""
        shape, found = self.rewriter.type(node.output).shape, set[str]()
        for name in (n for n in node.inputs if n):
            if self.rewriter.constant(name) is None:
                found.add(self._source(name) if self.rewriter.type(name).shape == shape else "")
            elif self.rewriter.uniform(name) is None:
                return ""
        return found.pop() if len(found) == 1 else ""

    def nodes(self, name: str) -> list[Node]:
        """Those that ``name`` takes, each behind what it reads."""
        found: dict[str, Node] = {}

        def visit(name: str) -> None:
            node = self.rewriter.producer(name)
            if name == self.source or name in found or node is None:
                return
            for n in node.inputs:
                visit(n)
            found[name] = node

        visit(name)
        return list(found.values())


def operations(nodes: list[Node]) -> int:
    """Vector operations that nodes take, about."""
    slow = (node.op in FUNCTIONS and FUNCTIONS[node.op].slow for node in nodes)
    return sum(SLOW if s else OPERATIONS.get(node.op, 1) for s, node in zip(slow, nodes, strict=True))


def table(rewriter: Rewriter, source: str, nodes: list[Node]) -> tuple[int, ...]:
    """The last node's answers to all bytes, those of negative numbers behind the others."""
    kind = numpy_dtype(rewriter.type(source).dtype)
    values: dict[str, Array] = {source: np.arange(256, dtype=np.uint8).view(kind)}
    with np.errstate(all="ignore"):
        for node in nodes:
            values[node.output] = registry.get(node.op).evaluate(
                np, [_value(rewriter, values, name) for name in node.inputs], node.attrs
            )[0]
    return tuple(int(v) for v in values[nodes[-1].output])


def _value(rewriter: Rewriter, values: dict[str, Array], name: str) -> Array | None:
    if name in values or not name:
        return values.get(name)
    constant = rewriter.constant(name)
    assert constant is not None
    return constant.reshape(-1)[:1]


def looked_up(rewriter: Rewriter, node: Node) -> str | None:
    """The one rule."""
    if node.op != "quantize" or text(node.attrs, "to") not in BYTES:
        return None
    cone = _Cone(rewriter, node.inputs[0])
    if not cone.source or any(rewriter.uniform(name) is None for name in node.inputs[1:] if name):
        return None
    nodes = [*cone.nodes(node.inputs[0]), node]
    if operations(nodes) < FEWEST_OPERATIONS:
        return None
    return rewriter.add("lookup", cone.source, to=text(node.attrs, "to"), table=table(rewriter, cone.source, nodes))


def run(graph: Graph) -> Graph:
    """``graph`` with lookups."""
    return rewrite(graph, [looked_up])
