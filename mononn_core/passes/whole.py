"""A large tensor is reduced to one number in two steps, so that workers share the first: to a number for each place of
one axis, and these to one.

The axis is the outermost long one; the only one that is long is cut into equal runs. Where the last axis fills vectors,
what lies between the two is reduced before them, vector by vector.
"""

from __future__ import annotations

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integers
from mononn_core.passes.rewrite import Rewriter, rewrite

KINDS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")
LARGE = 8192
"""Elements of a tensor that is worth sharing."""
FULL = 16
"""Elements of the last axis that fill vectors."""
SHARES = range(4, 65)
"""Runs that an axis is cut into; places that it has at least."""


def shared(rewriter: Rewriter, node: Node) -> str | None:
    """``node`` in two steps, where it reduces all of a large tensor."""
    x, out = (rewriter.type(n) for n in (node.inputs[0] if node.inputs else node.output, node.output))
    if node.op not in KINDS or out.size != 1 or x.size < LARGE or (node.op == "reduce_mean" and x.dtype != COMPUTE):
        return None
    name, axes = node.inputs[0], integers(node.attrs, "axes")
    long = [a for a in axes if x.shape[a] >= SHARES[0]]
    if len(long) < 2:
        runs = [n for n in SHARES if x.size % n == 0]
        if not runs:
            return None
        name, axes, long = rewriter.reshape(name, (runs[-1], x.size // runs[-1])), (0, 1), [0]
    shape = rewriter.type(name).shape
    between = tuple(a for a in axes if a not in (long[0], len(shape) - 1) and shape[a] > 1)
    if between and shape[-1] >= FULL and long[0] != len(shape) - 1:
        name = rewriter.add(node.op, name, axes=between, keepdims=True)
    parts = rewriter.add(node.op, name, axes=tuple(a for a in axes if a != long[0]), keepdims=True)
    return rewriter.reshape(rewriter.add(node.op, parts, axes=(long[0],), keepdims=True), out.shape)


def on_cpu(graph: Graph) -> Graph:
    """``graph`` with whole reductions in two steps."""
    return rewrite(graph, [shared])
