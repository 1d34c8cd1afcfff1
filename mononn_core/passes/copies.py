"""What a CUDA template multiplies lies in the arena, in the type it computes with and in aligned rows: a caller's
input, an output and a constant (but a product's packed weights) are copied in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.builder import Builder

MATRIX_INPUTS = {"matmul": 2, "attention": 3}
"""How many of a template's inputs are matrices it multiplies."""


def run(graph: Graph) -> Graph:
    """``graph`` with its copies; the same object where there are none."""
    builder = Builder(graph.types, graph.constants, folding=False)
    known: dict[str, str] = {}
    producers = graph.producers()
    for node in graph.nodes:
        inputs = list(node.inputs)
        for position in range(MATRIX_INPUTS.get(node.op, 0) if registry.is_template(node, graph) else 0):
            if _outside(graph, producers, node, position):
                name = inputs[position]
                if name not in known:
                    known[name] = builder.add("identity", [name], node.origin)
                inputs[position] = known[name]
        builder.nodes.append(node if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs)))
    return graph.rebuild(builder.nodes, builder.types, builder.constants) if known else graph


def _outside(graph: Graph, producers: Mapping[str, Node], node: Node, position: int) -> bool:
    """Whether an operand is, or shows through movements, something that does not lie in the arena."""
    name = node.inputs[position]
    if graph.is_constant(name):
        return not (node.op == "matmul" and position == 1 and prod(graph.types[name].shape[:-2]) == 1)
    while name in producers and name not in graph.outputs:
        if registry.get(producers[name].op).kind != "movement":
            return False
        name = producers[name].inputs[0]
    return True
