"""What scales an image channel by channel in front of a convolution of single pixels (a squeeze-and-excite gate, Hu et
al., CVPR 2018) scales the convolution's weights, where these are fewer than the pixels' channels.

conv(x * g, w) is conv(x, g w), where x is [1, H, W, C], g has one element for each channel and w is [1, 1, C, M]. The
rounding differs by about one unit.
"""

from __future__ import annotations

from math import prod

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.passes.rewrite import Rewriter, rewrite

FEWER = 2
"""Times as many pixels as output channels from which on scaling the weights takes less."""


def into_weights(rewriter: Rewriter, node: Node) -> str | None:
    """The convolution of what was not scaled."""
    if node.op != "conv" or node.attrs["group"] != 1 or rewriter.type(node.output).dtype != COMPUTE:
        return None
    scaled, weights = node.inputs
    (*kernel, channels, results), image = rewriter.type(weights).shape, rewriter.type(scaled).shape
    if prod(kernel) > 1 or image[0] > 1 or prod(image[1:3]) < FEWER * results:
        return None
    product = rewriter.producer(scaled, "mul") if rewriter.single_use(scaled) else None
    if product is None or rewriter.constant(weights) is None:
        return None
    for x, gate in (product.inputs, product.inputs[::-1]):
        one = rewriter.type(gate).shape
        if rewriter.type(x).shape == image and prod(one) == channels == one[-1]:
            factors = rewriter.reshape(gate, (1, 1, channels, 1))
            return rewriter.add("conv", x, rewriter.add("mul", weights, factors), **dict(node.attrs))
    return None


def run(graph: Graph) -> Graph:
    """``graph`` with such factors in its convolutions' weights."""
    return rewrite(graph, (into_weights,))
