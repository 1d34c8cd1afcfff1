"""Common subexpression elimination.

1. Constants with equal type and bytes are one.
2. Nodes with equal operator, inputs and attributes are one (the first).
"""

from __future__ import annotations

from mononn_core.graph import Graph, Node
from mononn_core.ops.common import same_bits
from mononn_core.passes.rewrite import Rewriter, sweep

SAMPLE = 256
"""Elements by which constants are told apart before their bytes are compared."""


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Constant -> the first constant that is the same."""
    alike: dict[object, list[str]] = {}
    same: dict[str, str] = {}
    for name, value in graph.constants.items():
        sample = value.reshape(-1)[:: max(value.size // SAMPLE, 1)].tobytes()
        group = alike.setdefault((graph.types[name], sample), [])
        original = next((o for o in group if same_bits(graph.constants[o], value)), None)
        if original is None:
            group.append(name)
        else:
            same[name] = original
    return same


def merge_constants(graph: Graph) -> Graph:
    """Case 1."""
    same = _equal_constants(graph)
    if not same:
        return graph
    nodes = (Node(n.op, tuple(same.get(i, i) for i in n.inputs), n.outputs, n.origin, n.attrs) for n in graph.nodes)
    return graph.rebuild(nodes)


def run(graph: Graph) -> Graph:
    """``graph`` with each value computed and stored once."""
    seen: dict[object, str] = {}

    def repeated(rewriter: Rewriter, node: Node) -> str | None:
        """Case 2."""
        if len(node.outputs) != 1 or node.op == "identity":
            return None
        original = seen.setdefault((node.op, node.inputs, tuple(sorted(node.attrs.items()))), node.output)
        return None if original == node.output else original

    return sweep(merge_constants(graph), [repeated])
