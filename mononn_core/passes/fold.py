"""Constant folding.

1. A node whose inputs are all constants is evaluated, unless its result is much larger than they are
   (:func:`mononn_core.ops.builder.worth_folding`).
2. A tensor without elements is as good as a constant, as an input and as a result.
3. The weight of a convolution, a product or a recurrence is evaluated whatever its size: it is stored packed in any
   case.
"""

from __future__ import annotations

from collections import ChainMap
from functools import partial

import numpy as np

from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.builder import fold
from mononn_core.ops.common import numpy_dtype
from mononn_core.passes.rewrite import Rewriter, rewrite

WEIGHTED = ("conv", "matmul", "recurrence")


def weights(graph: Graph) -> frozenset[str]:
    """Tensors that movements and elementwise operators alone make of constants, as such nodes' second operand."""
    made = set(graph.constants)
    for node in graph.nodes:
        if registry.get(node.op).kind in ("movement", "elementwise") and made.issuperset(filter(None, node.inputs)):
            made.update(node.outputs)
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op in WEIGHTED:
            found.add(node.inputs[1])
        elif found.intersection(node.outputs) and made.issuperset(node.outputs):
            found.update(node.inputs)
    return frozenset(found & made)


def evaluate(rewriter: Rewriter, node: Node, heavy: frozenset[str]) -> str | None:
    """Cases 1 to 3; ``heavy``: see :func:`weights`."""
    if len(node.outputs) != 1 or (node.op == "identity" and node.output in rewriter.outputs):
        return None
    out = rewriter.type(node.output)
    if out.size == 0:
        return rewriter.make(np.empty(out.shape, numpy_dtype(out.dtype)))
    types = rewriter.builder.types
    empty = {n: np.empty(types[n].shape, numpy_dtype(types[n].dtype)) for n in node.inputs if n and not types[n].size}
    folded = fold(node, ChainMap(empty, rewriter.builder.constants), types, node.output in heavy)
    return None if folded is None else rewriter.builder.constant(folded[0], node.output + "/folded")


def run(graph: Graph) -> Graph:
    """``graph`` with constant results in place of the nodes that make them."""
    return rewrite(graph, [partial(evaluate, heavy=weights(graph))])
