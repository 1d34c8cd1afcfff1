"""Positions of extremes as comparisons and reductions, which every schedule has loops for.

1. argmax(x) is the smallest (with ``last``: the largest) position whose element equals max(x); argmin likewise with
   min(x). Where an element is NaN, no element may be equal, and the result is the last (first) position.
"""

from __future__ import annotations

import numpy as np

from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integer
from mononn_core.passes.rewrite import Rewriter, along, rewrite

EXTREMES = {"argmax": "reduce_max", "argmin": "reduce_min"}


def extreme(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if node.op not in EXTREMES or rewriter.type(node.inputs[0]).dtype == "bool":
        return None
    x, axis = node.inputs[0], integer(node.attrs, "axis")
    t = rewriter.type(x)
    last, extent = bool(node.attrs.get("last")), t.shape[axis]
    top = rewriter.add(EXTREMES[node.op], x, axes=(axis,), keepdims=True)
    numbers = rewriter.make(along(axis, t.rank, np.arange(extent)), "int64")
    beyond = rewriter.make(0 if last else extent - 1, "int64")
    places = rewriter.add("where", rewriter.add("equal", x, top), numbers, beyond)
    reduce = "reduce_max" if last else "reduce_min"
    return rewriter.add(reduce, places, axes=(axis,), keepdims=bool(node.attrs["keepdims"]))


def run(graph: Graph) -> Graph:
    """``graph`` without argmax and argmin."""
    return rewrite(graph, [extreme])
