"""Sorting, order(x) (the positions of the k first elements), in the forms that a target takes.

1. For a CPU along the last axis, where a template sorts.
2. For a CPU a long row that is the only one as the k first of each of several equal runs of it, and the k first of
   these.
3. For a GPU as comparisons and reductions: the rank of an element is the number of those before it, and position r of
   the result is the position of the element of rank r.
4. For a GPU the same as in case 2, where there are many more than k elements; x is filled up to whole runs.
"""

from __future__ import annotations

import numpy as np

from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integer
from mononn_core.ops.reduce import neutral
from mononn_core.passes.rewrite import Rewriter, along, rewrite

RUNS, LONG_RUN, SHARE_OF_RUN = 8, 1 << 16, 256
"""Of case 2: most runs, and how many elements one has at least: also in multiples of k."""
LONGEST = 8192
"""Most elements that are ranked: n of them take n^2 comparisons."""
SHORTEST_RUN, SHARE = 64, 4
"""A run on a GPU has at least so many elements, and so many times as many as are kept of it."""


def last_axis(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1, the axis."""
    rank = rewriter.type(node.inputs[0]).rank
    if node.op != "order" or (axis := integer(node.attrs, "axis")) == rank - 1:
        return None
    moved = (*(d for d in range(rank) if d != axis), axis)
    back = tuple(moved.index(d) for d in range(rank))
    x = rewriter.add("transpose", node.inputs[0], perm=moved)
    found = rewriter.add("order", x, axis=rank - 1, k=node.attrs["k"], largest=node.attrs["largest"])
    return rewriter.add("transpose", found, perm=back)


def ranked(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3."""
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
    hit = rewriter.add("equal", wide, rewriter.make(along(axis, t.rank + 1, np.arange(k)), "int64"))
    places = rewriter.make(along(axis + 1, t.rank + 1, numbers), "int64")
    chosen = rewriter.add("where", hit, places, rewriter.make(0, "int64"))
    return rewriter.add("reduce_max", chosen, axes=(axis + 1,), keepdims=False)


def equal_runs(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    t = rewriter.type(node.inputs[0])
    if node.op != "order" or not 0 < t.shape[-1] == t.size or node.attrs["axis"] != t.rank - 1:
        return None
    k = integer(node.attrs, "k")
    most = min(RUNS, t.size // max(LONG_RUN, SHARE_OF_RUN * k))
    runs = next((r for r in range(most, 1, -1) if t.size % r == 0), 1)
    return None if runs == 1 or k == 0 else _of_runs(rewriter, node, node.inputs[0], runs)


def filled_runs(rewriter: Rewriter, node: Node) -> str | None:
    """Case 4. What fills the last run comes after all that are as far behind."""
    if node.op != "order":
        return None
    x, axis, k = node.inputs[0], integer(node.attrs, "axis"), integer(node.attrs, "k")
    t = rewriter.type(x)
    n, length = t.shape[axis], max(SHORTEST_RUN, SHARE * k)
    if k == 0 or n < 2 * length or t.dtype == "bool":
        return None
    runs = -(-n // length)
    if runs * length > n:
        after = tuple(runs * length - n if d == axis else 0 for d in range(t.rank))
        last = neutral(t.dtype, bool(node.attrs["largest"]))
        x = rewriter.add("pad", x, before=(0,) * t.rank, after=after, mode="constant", value=last)
    return _of_runs(rewriter, node, x, runs)


def _of_runs(rewriter: Rewriter, node: Node, x: str, runs: int) -> str:
    """The k first of those of each of so many equal runs of x. Equal elements keep their order: those of an earlier run
    come first, and of a run those at an earlier position."""
    axis, k, largest = integer(node.attrs, "axis"), integer(node.attrs, "k"), node.attrs["largest"]
    t = rewriter.type(x)
    length = t.shape[axis] // runs
    lead, tail = t.shape[:axis], t.shape[axis + 1 :]
    apart = rewriter.reshape(x, (*lead, runs, length, *tail))
    best = rewriter.add("order", apart, axis=axis + 1, k=k, largest=largest)
    values = rewriter.add("gather_elements", apart, best, axis=axis + 1)
    starts = rewriter.make(along(axis, t.rank + 1, np.arange(runs) * length), "int64")
    flat = (*lead, runs * k, *tail)
    places = rewriter.reshape(rewriter.add("add", best, starts), flat)
    chosen = rewriter.add("order", rewriter.reshape(values, flat), axis=axis, k=k, largest=largest)
    return rewriter.add("gather_elements", places, chosen, axis=axis)


def on_cpu(graph: Graph) -> Graph:
    """``graph`` with sorting in the forms of cases 1 and 2."""
    return rewrite(graph, [last_axis, equal_runs])


def on_gpu(graph: Graph) -> Graph:
    """``graph`` without sorting, but of what is too long for cases 3 and 4."""
    return rewrite(graph, [filled_runs, ranked])
