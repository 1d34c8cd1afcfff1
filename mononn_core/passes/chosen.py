"""Products of vectors with matrices that indices choose from a constant (the experts of a mixture) read the matrices
where they lie: as sums of products, which need no copy of a matrix for every vector.

matmul(gather(W, i), x) with x [..., K, 1] is the sum over K of gather(W^T, i) * x; matmul(x, gather(W, i)) with
x [..., 1, K] likewise.
"""

from __future__ import annotations

import numpy as np

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integer
from mononn_core.passes.rewrite import Rewriter, rewrite


def in_place(rewriter: Rewriter, node: Node) -> str | None:
    """The sum that a product of a vector and a chosen matrix is."""
    kind = rewriter.type(node.output)
    if node.op != "matmul" or node.attrs.get("transpose_b") or kind.dtype != COMPUTE or kind.rank < 3:
        return None
    left, right = node.inputs
    *lead, rows, columns = kind.shape
    if columns == 1 and (chosen := _chosen(rewriter, left, lead)):
        vector, terms, vector_first = right, rewriter.type(left).shape[-1], False
    elif rows == 1 and (chosen := _chosen(rewriter, right, lead)):
        vector, terms, vector_first = left, rewriter.type(right).shape[-2], True
    else:
        return None
    if rewriter.type(vector).shape[:-2] != tuple(lead):
        return None
    table, indices = chosen.inputs
    if not vector_first:  # so that neighbouring results read neighbours
        value = rewriter.constant(table)
        assert value is not None
        table = rewriter.make(np.ascontiguousarray(value.swapaxes(1, 2)))
    read = rewriter.add(chosen.op, table, indices, **dict(chosen.attrs))
    products = rewriter.add("mul", read, rewriter.reshape(vector, (*lead, terms, 1)))
    total = rewriter.add("reduce_sum", products, axes=(len(lead),), keepdims=False)
    return rewriter.reshape(total, kind.shape)


def _chosen(rewriter: Rewriter, name: str, lead: list[int]) -> Node | None:
    """The node by which indices choose the matrices ``name``, one for each vector."""
    node = rewriter.producer(name)
    if node is None or node.op not in ("gather", "gather_nd") or not rewriter.single_use(name):
        return None
    table, kind = rewriter.constant(node.inputs[0]), rewriter.type(name)
    if node.op == "gather":
        first = integer(node.attrs, "axis") == 0
    else:
        first = integer(node.attrs, "batch_dims") == 0 and rewriter.type(node.inputs[1]).shape[-1] == 1
    matrices = table is not None and table.ndim == 3 and kind.dtype == COMPUTE
    return node if matrices and first and kind.shape[:-2] == tuple(lead) else None


def run(graph: Graph) -> Graph:
    """``graph`` with such products as sums."""
    return rewrite(graph, (in_place,))
