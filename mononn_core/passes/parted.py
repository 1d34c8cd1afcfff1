"""Sums and means over large images are added up in parts of their rows, and those then.

All sums of an image are one row, which one owner computes while others wait, or of which each finds some in what all
have written; of a part of the rows an owner sums up what it has itself (group norms).
"""

from __future__ import annotations

from math import prod

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integers
from mononn_core.passes.rewrite import Rewriter, rewrite

FEWEST_PIXELS = 1 << 12
"""Of fewer, the sums of parts are much beside what they sum up."""
LARGE = 1 << 19
"""Elements whose summing takes longer than the meetings that this may cost."""
PARTS = (64, 32, 16, 8, 4, 2)
"""Of equally many rows: as many as there are owners or more, and few enough rows to stay near from vector to vector."""


def in_parts(rewriter: Rewriter, node: Node) -> str | None:
    """The sum or mean over all pixels [1.., rows, .., channels] of an image, channels last, as sums of parts."""
    if node.op not in ("reduce_sum", "reduce_mean") or rewriter.type(node.output).dtype != COMPUTE:
        return None
    shape, axes = rewriter.type(node.inputs[0]).shape, integers(node.attrs, "axes")
    last = len(shape) - 1
    if not axes or axes != tuple(range(axes[0], last)) or prod(shape[: axes[0]]) != 1:
        return None
    (rows, *width), channels, pixels = shape[axes[0] : last], shape[last], prod(shape[axes[0] : last])
    parts = next((n for n in PARTS if rows % n == 0), 1)
    if parts == 1 or pixels * channels < LARGE or pixels < FEWEST_PIXELS:
        return None
    image = rewriter.reshape(node.inputs[0], (parts, rows // parts, *width, channels))
    sums = rewriter.add("reduce_sum", image, axes=tuple(range(1, len(width) + 2)), keepdims=False)
    total = rewriter.add("reduce_sum", sums, axes=(0,), keepdims=False)
    if node.op == "reduce_mean":
        total = rewriter.add("mul", total, rewriter.make(1 / pixels, COMPUTE))
    return rewriter.reshape(total, rewriter.type(node.output).shape)


def run(graph: Graph) -> Graph:
    """``graph`` with those sums in parts."""
    return rewrite(graph, [in_parts])
