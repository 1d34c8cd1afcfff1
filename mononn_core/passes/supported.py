"""Refuses by name what cannot be compiled.

1. Operators that have neither a pointwise form nor a loop nor a template, and attention in another type than float32.
2. Tensors without elements.
3. For CUDA sorting of more elements than are ranked.
"""

from __future__ import annotations

from mononn_core.errors import UnsupportedError
from mononn_core.graph import Graph
from mononn_core.ops import registry
from mononn_core.ops.common import integer


def run(graph: Graph) -> Graph:
    """``graph`` itself; raises UnsupportedError in cases 1 and 2."""
    for node in graph.nodes:
        definition = registry.get(node.op)
        looped = definition.loop or definition.kind == "contraction" or definition.point is not None
        if not (looped or registry.is_template(node, graph)):
            raise UnsupportedError(
                f"{node.origin}: operator {node.op!r} has no loop yet; `mononn check` lists such nodes"
            )
        if node.op == "attention" and not registry.is_template(node, graph):
            raise UnsupportedError(
                f"{node.origin}: attention is compiled in float32 only; convert the model to float32"
            )
        for name in (*node.inputs, *node.outputs):
            if name and graph.types[name].size == 0:
                raise UnsupportedError(f"{node.origin}: tensor {name!r} has no elements; remove it from the model")
    return graph


def served(graph: Graph) -> Graph:
    """``graph`` itself; raises UnsupportedError in case 3."""
    for node in graph.nodes:
        if node.op == "order":
            n = graph.types[node.inputs[0]].shape[integer(node.attrs, "axis")]
            raise UnsupportedError(
                f"{node.origin}: the first {node.attrs['k']} of {n} elements in order have no CUDA kernel yet; compile "
                "with target cpu"
            )
    return graph
