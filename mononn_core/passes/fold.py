"""Constant folding.

1. A node whose inputs are all constants is evaluated, unless its result is much larger than they are
   (:func:`mononn_core.ops.builder.worth_folding`).
2. A tensor without elements is as good as a constant, as an input and as a result.
"""

from __future__ import annotations

from collections import ChainMap

import numpy as np

from mononn_core.graph import Graph, Node
from mononn_core.ops.builder import fold
from mononn_core.ops.common import numpy_dtype
from mononn_core.passes.rewrite import Rewriter, rewrite


def evaluate(rewriter: Rewriter, node: Node) -> str | None:
    """Cases 1 and 2."""
    if len(node.outputs) != 1 or (node.op == "identity" and node.output in rewriter.outputs):
        return None
    out = rewriter.type(node.output)
    if out.size == 0:
        return rewriter.make(np.empty(out.shape, numpy_dtype(out.dtype)))
    types = rewriter.builder.types
    empty = {n: np.empty(types[n].shape, numpy_dtype(types[n].dtype)) for n in node.inputs if n and not types[n].size}
    folded = fold(node, ChainMap(empty, rewriter.builder.constants), types)
    return None if folded is None else rewriter.builder.constant(folded[0], node.output + "/folded")


def run(graph: Graph) -> Graph:
    """``graph`` with constant results in place of the nodes that make them."""
    return rewrite(graph, [evaluate])
