"""The largest and the smallest of short integers are those of floats, which vectors hold: a float holds any of them."""

from __future__ import annotations

from mononn_core.element import COMPUTE, SHORT
from mononn_core.graph import Graph, Node
from mononn_core.passes.rewrite import Rewriter, rewrite


def extreme(rewriter: Rewriter, node: Node) -> str | None:
    """A pool's, or of a whole axis."""
    if node.op not in ("reduce_max", "reduce_min") or (kind := rewriter.type(node.output).dtype) not in SHORT:
        return None
    found = rewriter.add(node.op, rewriter.add("cast", node.inputs[0], to=COMPUTE), **dict(node.attrs))
    return rewriter.add("cast", found, to=kind)


def on_cpu(graph: Graph) -> Graph:
    """``graph`` without extremes of short integers."""
    return rewrite(graph, [extreme])
