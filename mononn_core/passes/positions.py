"""Positions of extremes, and sorting, as comparisons and reductions, which every schedule has loops for.

1. argmax(x) is the smallest (with ``last``: the largest) position whose element equals max(x); argmin likewise with
   min(x). Where an element is NaN, no element may be equal, and the result is the last (first) position.
2. order(x) (the positions of the k first elements): the rank of an element is the number of those before it, and
   position r of the result is the position of the element of rank r.
3. order(x) of many more than k elements is that of the k first of each of several runs of x.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integer
from mononn_core.ops.reduce import neutral
from mononn_core.passes.rewrite import Rewriter, rewrite

EXTREMES = {"argmax": "reduce_max", "argmin": "reduce_min"}
LONGEST = 8192
"""Most elements that are ranked: n of them take n^2 comparisons."""
SHORTEST_RUN, SHARE = 64, 4
"""A run of case 3 has at least so many elements, and so many times as many as are kept of it."""


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
    """Cases 2 and 3."""
    if node.op != "order":
        return None
    if (found := of_runs(rewriter, node)) is not None:
        return found
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


def of_runs(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3. Equal elements keep their order: those of an earlier run come first, and of a run those at an earlier
    position; what fills the last run comes after all that are as far behind."""
    x, axis, k = node.inputs[0], integer(node.attrs, "axis"), integer(node.attrs, "k")
    t = rewriter.type(x)
    n, length = t.shape[axis], max(SHORTEST_RUN, SHARE * k)
    if k == 0 or n < 2 * length or t.dtype == "bool":
        return None
    runs = -(-n // length)
    lead, tail = t.shape[:axis], t.shape[axis + 1 :]
    if runs * length > n:
        after = tuple(runs * length - n if d == axis else 0 for d in range(t.rank))
        last = neutral(t.dtype, bool(node.attrs["largest"]))
        x = rewriter.add("pad", x, before=(0,) * t.rank, after=after, mode="constant", value=last)
    apart = rewriter.reshape(x, (*lead, runs, length, *tail))
    best = rewriter.add("order", apart, axis=axis + 1, k=k, largest=node.attrs["largest"])
    values = rewriter.add("gather_elements", apart, best, axis=axis + 1)
    starts = rewriter.make(_along(axis, t.rank + 1, np.arange(runs) * length), "int64")
    flat = (*lead, runs * k, *tail)
    places = rewriter.reshape(rewriter.add("add", best, starts), flat)
    chosen = rewriter.add("order", rewriter.reshape(values, flat), axis=axis, k=k, largest=node.attrs["largest"])
    return rewriter.add("gather_elements", places, chosen, axis=axis)


def run(graph: Graph) -> Graph:
    """``graph`` without argmax, argmin and sorting of what is not too long."""
    return rewrite(graph, [extreme, order])
