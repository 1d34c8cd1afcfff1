"""Sums and products of the elements up to each position, cumulative(x), in the forms that a target takes.

1. For a CPU those of rows [L, N], or down matrices [L, N, T]: of the types that a template computes.
2. For a GPU, and of other types, a reduction over the elements up to each position, of long axes in runs: those of a
   run are those of all runs before it and its own (Blelloch, "Prefix sums and their applications", 1990).
"""

from __future__ import annotations

from math import prod

import numpy as np

from mononn_core.element import is_float
from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integer
from mononn_core.ops.registry import CUMULATIVE
from mononn_core.passes.rewrite import Rewriter, rewrite

RUN = 16
"""Elements of a run; up to twice as many are one."""


def in_form(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if node.op != "cumulative":
        return None
    shape, axis = rewriter.type(node.inputs[0]).shape, integer(node.attrs, "axis")
    tail = prod(shape[axis + 1 :])
    form = (prod(shape[:axis]), shape[axis], *((tail,) if tail > 1 else ()))
    if rewriter.type(node.output).dtype not in CUMULATIVE or (form, 1) == (shape, axis):
        return None
    found = rewriter.add("cumulative", rewriter.reshape(node.inputs[0], form), **{**node.attrs, "axis": 1})
    return rewriter.reshape(found, shape)


def reduced(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    if node.op != "cumulative":
        return None
    flags = (bool(node.attrs[name]) for name in ("product", "exclusive", "reverse"))
    return _up_to(rewriter, node.inputs[0], integer(node.attrs, "axis"), *flags)


def of_other_types(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2 on a CPU."""
    return None if rewriter.type(node.output).dtype in CUMULATIVE else reduced(rewriter, node)


def _up_to(rewriter: Rewriter, x: str, axis: int, product: bool, exclusive: bool, reverse: bool) -> str:
    """The sum or product of the elements of x up to each position of an axis, or from it on."""
    kind = rewriter.type(x)
    shape, lead, n, tail = kind.shape, kind.shape[:axis], kind.shape[axis], kind.shape[axis + 1 :]
    reduce, join, none = ("reduce_prod", "mul", 1) if product else ("reduce_sum", "add", 0)
    if n <= 2 * RUN:
        kept = np.triu(np.ones((n, n), dtype=bool), 1 if exclusive else 0)
        mask = rewriter.make((kept.T if reverse else kept).reshape(n, n, *(1,) * len(tail)))
        each = rewriter.reshape(x, (*lead, n, 1, *tail))
        chosen = rewriter.add("where", mask, each, rewriter.make(none, kind.dtype))
        return rewriter.add(reduce, chosen, axes=(axis,), keepdims=False)
    runs = -(-n // RUN)
    rest = tuple(runs * RUN - n if d == axis else 0 for d in range(kind.rank))
    if any(rest):
        value = float(none) if is_float(kind.dtype) else none
        x = rewriter.add("pad", x, before=(0,) * kind.rank, after=rest, mode="constant", value=value)
    x = rewriter.reshape(x, (*lead, runs, RUN, *tail))
    totals = rewriter.add(reduce, x, axes=(axis + 1,), keepdims=False)
    others = _up_to(rewriter, totals, axis, product, True, reverse)
    own = _up_to(rewriter, x, axis + 1, product, exclusive, reverse)
    both = rewriter.add(join, own, rewriter.reshape(others, (*lead, runs, 1, *tail)))
    found = rewriter.reshape(both, (*lead, runs * RUN, *tail))
    starts, steps = (0,) * kind.rank, (1,) * kind.rank
    return rewriter.add("slice", found, starts=starts, sizes=shape, steps=steps) if any(rest) else found


def on_cpu(graph: Graph) -> Graph:
    """``graph`` with sums up to each position in the forms of case 1, or as case 2 says."""
    return rewrite(graph, [of_other_types, in_form])


def on_gpu(graph: Graph) -> Graph:
    """``graph`` without sums up to each position."""
    return rewrite(graph, [reduced])
