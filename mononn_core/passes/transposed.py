"""A transposed right-hand side of a matmul is transposed by a movement of its own, unless it is packed transposed: a
constant matrix of a product that a template computes."""

from __future__ import annotations

from mononn_core.graph import Graph, Node
from mononn_core.ops.builder import Builder
from mononn_core.ops.registry import is_template
from mononn_core.passes.rewrite import restate


def run(graph: Graph) -> Graph:
    """``graph`` with the transpositions of what is not packed as nodes."""
    return restate(
        graph, lambda n: n.op == "matmul" and bool(n.attrs.get("transpose_b")) and not _packed(n, graph), _write
    )


def _packed(node: Node, graph: Graph) -> bool:
    b = node.inputs[1]
    return graph.is_constant(b) and graph.types[b].rank == 2 and is_template(node, graph)


def _write(node: Node, builder: Builder) -> None:
    a, b = node.inputs
    *lead, last, first = range(builder.types[b].rank)
    b = builder.add("transpose", [b], node.origin, {"perm": (*lead, first, last)})
    builder.add("matmul", [a, b], node.origin, output=node.output)
