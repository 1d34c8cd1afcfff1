"""Positions of extremes, and sorting, as comparisons and reductions, which every schedule has loops for.

1. argmax(x) is the smallest (with ``last``: the largest) position whose element equals max(x); argmin likewise with
   min(x). Where an element is NaN, no element may be equal, and the result is the last (first) position.
2. order(x) (the positions of the k first elements) of up to 2048 elements: the rank of an element is the number of
   those before it, and position r of the result is the position of the element of rank r.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integer
from mononn_core.passes.rewrite import Rewriter, rewrite

EXTREMES = {"argmax": "reduce_max", "argmin": "reduce_min"}
LONGEST = 2048
"""Ranking n elements takes n^2 comparisons."""


def _along(axis: int, rank: int, values: Any) -> np.ndarray[Any, Any]:
    """A vector shaped to broadcast along one axis."""
    return np.asarray(values).reshape([-1 if d == axis else 1 for d in range(rank)])


def extreme(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if node.op not in EXTREMES or rewriter.type(node.inputs[0]).dtype == "bool":
        return None
    x, axis = node.inputs[0], integer(node.attrs, "axis")
    t = rewriter.type(x)
    last, extent = bool(node.attrs.get("last")), t.shape[axis]
    top = rewriter.add(EXTREMES[node.op], x, axes=(axis,), keepdims=True)
    numbers = rewriter.make(_along(axis, t.rank, np.arange(extent)), "int64")
    beyond = rewriter.make(0 if last else extent - 1, "int64")
    places = rewriter.add("where", rewriter.add("equal", x, top), numbers, beyond)
    reduce = "reduce_max" if last else "reduce_min"
    return rewriter.add(reduce, places, axes=(axis,), keepdims=bool(node.attrs["keepdims"]))


def order(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    if node.op != "order":
        return None
    x, axis, k = node.inputs[0], integer(node.attrs, "axis"), integer(node.attrs, "k")
    t = rewriter.type(x)
    n = t.shape[axis]
    if n > LONGEST or t.size == 0 or k == 0:
        return None
    lead, tail = t.shape[:axis], t.shape[axis + 1 :]
    other, own = rewriter.reshape(x, (*lead, n, 1, *tail)), rewriter.reshape(x, (*lead, 1, n, *tail))
    numbers = np.arange(n)
    earlier = (numbers[:, None] < numbers).reshape(n, n, *(1,) * len(tail))
    better = rewriter.add("greater" if node.attrs["largest"] else "less", other, own)
    tied = rewriter.add("and", rewriter.add("equal", other, own), rewriter.make(earlier))
    before = rewriter.add("cast", rewriter.add("or", better, tied), to="int64")
    rank = rewriter.add("reduce_sum", before, axes=(axis,), keepdims=False)
    wide = rewriter.reshape(rank, (*lead, 1, n, *tail))
    hit = rewriter.add("equal", wide, rewriter.make(_along(axis, t.rank + 1, np.arange(k)), "int64"))
    places = rewriter.make(_along(axis + 1, t.rank + 1, numbers), "int64")
    chosen = rewriter.add("where", hit, places, rewriter.make(0, "int64"))
    return rewriter.add("reduce_max", chosen, axes=(axis + 1,), keepdims=False)


def run(graph: Graph) -> Graph:
    """``graph`` without argmax, argmin and (short) sorting."""
    return rewrite(graph, [extreme, order])
