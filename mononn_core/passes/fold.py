"""Constant folding.

1. A node whose inputs are all constants is evaluated, unless its result is much larger than they are
   (:func:`mononn_core.ops.builder.worth_folding`).
"""

from __future__ import annotations

from mononn_core.graph import Graph, Node
from mononn_core.ops.builder import fold
from mononn_core.passes.rewrite import Rewriter, rewrite


def evaluate(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if len(node.outputs) != 1 or (node.op == "identity" and node.output in rewriter.outputs):
        return None
    folded = fold(node, rewriter.builder.constants, rewriter.builder.types)
    return None if folded is None else rewriter.builder.constant(folded[0], node.output + "/folded")


def run(graph: Graph) -> Graph:
    """``graph`` with constant results in place of the nodes that make them."""
    return rewrite(graph, [evaluate])
