"""A vector operand of a matmul becomes a matrix of one row or column, and its result a vector again."""

from __future__ import annotations

from mononn_core.graph import Graph, Node
from mononn_core.ops.builder import Builder
from mononn_core.passes.rewrite import restate


def run(graph: Graph) -> Graph:
    """``graph`` without products of vectors."""
    return restate(graph, lambda n: n.op == "matmul" and min(graph.types[i].rank for i in n.inputs) < 2, _write)


def _write(node: Node, builder: Builder) -> None:
    a, b = node.inputs
    left, right = builder.types[a], builder.types[b]
    if left.rank == 1:
        a = builder.add("reshape", [a], node.origin, {"shape": (1, left.size)})
    if right.rank == 1:
        b = builder.add("reshape", [b], node.origin, {"shape": (right.size, 1)})
    product = builder.add("matmul", [a, b], node.origin, node.attrs if right.rank > 1 else {})
    builder.add("reshape", [product], node.origin, {"shape": builder.types[node.output].shape}, output=node.output)
