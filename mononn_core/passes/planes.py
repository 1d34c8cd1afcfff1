"""Products by constants that mix few planes of a tensor read the planes where they lie (the heads before
and after a softmax: Shazeer et al., Talking-Heads Attention, 2020).

matmul(transpose(x), W) with few rows and columns of W, whose rows are an axis of x that is not its last, is the sum
over that axis of x * W: in vectors along x's own last axis, where a product would have the planes side by side, each
pixel of all of them a row shorter than a vector, and every plane be stored twice in another order. So is a convolution
by one 1 x 1 kernel (a detector's distances, means over planes). Bytes are summed up as floats, which are exact for so
few.
"""

from __future__ import annotations

import numpy as np

from mononn_core.element import BYTES, COMPUTE, WORD
from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integers
from mononn_core.passes.rewrite import Rewriter, rewrite

MOST_PLANES = 12
"""That are read, or made; set by hand: of 16, whose pixels fill a vector, products take less time."""
SHORTEST_ROW = 16
"""Of a plane."""


def mixed(rewriter: Rewriter, node: Node) -> str | None:
    """The sum that a product is which mixes planes, its axes in the product's order."""
    kind = rewriter.type(node.output)
    if node.op != "matmul" or node.attrs.get("transpose_b") or kind.dtype not in (COMPUTE, WORD):
        return None
    moved, weights = rewriter.producer(node.inputs[0], "transpose"), rewriter.constant(node.inputs[1])
    if moved is None or weights is None or weights.ndim != 2 or max(weights.shape) > MOST_PLANES:
        return None
    x, perm = moved.inputs[0], integers(moved.attrs, "perm")
    shape, axis = rewriter.type(x).shape, perm[-1]
    if shape[-1] < SHORTEST_ROW:  # so that the planes' axis is not the last
        return None
    if kind.dtype == WORD and not {rewriter.type(x).dtype, str(weights.dtype)} <= set(BYTES):
        return None
    lead, rest = shape[:axis], shape[axis + 1 :]
    terms, planes = weights.shape
    mix = np.ascontiguousarray(weights.T.astype(COMPUTE)).reshape(planes, terms, *[1] * len(rest))
    total = _summed(rewriter, rewriter.reshape(x, (*lead, 1, terms, *rest)), mix, axis + 1, kind.dtype)
    return rewriter.add("transpose", total, perm=perm)


def to_one_channel(rewriter: Rewriter, node: Node) -> str | None:
    """The sum that a convolution is to one channel, by a kernel of one pixel, of an image that lies in planes."""
    kind = rewriter.type(node.output)
    if node.op != "conv" or kind.dtype not in (COMPUTE, WORD):
        return None
    moved, weights = rewriter.producer(node.inputs[0], "transpose"), rewriter.constant(node.inputs[1])
    if moved is None or weights is None or (*weights.shape[:2], weights.shape[3]) != (1, 1, 1):
        return None
    x, perm = moved.inputs[0], integers(moved.attrs, "perm")
    image = rewriter.type(x)
    if perm != (0, 2, 3, 1) or image.shape[-1] < SHORTEST_ROW or image.shape[2:] != kind.shape[1:3]:
        return None
    if kind.dtype == WORD and (image.shape[1] > MOST_PLANES or not {image.dtype, str(weights.dtype)} <= set(BYTES)):
        return None
    total = _summed(rewriter, x, weights.astype(COMPUTE).reshape(-1, 1, 1), 1, kind.dtype)
    return rewriter.reshape(total, kind.shape)


def _summed(rewriter: Rewriter, x: str, mix: np.ndarray, axis: int, dtype: str) -> str:
    """The sum over ``axis`` of x times ``mix``."""
    if dtype == WORD:  # evaluated where it is read, as no cast is
        x = rewriter.add("dequantize", x, rewriter.make(1.0, COMPUTE))
    products = rewriter.add("mul", x, rewriter.make(mix))
    total = rewriter.add("reduce_sum", products, axes=(axis,), keepdims=False)
    return rewriter.add("cast", total, to=WORD) if dtype == WORD else total


def run(graph: Graph) -> Graph:
    """``graph`` with such products and convolutions as sums."""
    return rewrite(graph, (mixed, to_one_channel))
