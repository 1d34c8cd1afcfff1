"""Recognises layer norm and RMS norm written out, over the last axis.

1. d / sqrt(mean(d d) + epsilon) with d = x - mean(x): layer_norm(x) without scale and shift.
2. x / sqrt(mean(x x) + epsilon): rms_norm(x) without scale.
3. Both with the division written as a product with reciprocal(sqrt(..)), 1 / sqrt(..) or (..) ** -0.5.
4. A product of a norm with a vector of the last axis is its scale; a sum with one (layer_norm) its shift.
"""

from __future__ import annotations

from mononn_core.graph import Graph, Node
from mononn_core.passes.rewrite import Rewriter, rewrite


def _root(rewriter: Rewriter, name: str, inverse: bool) -> str | None:
    """y of a factor 1 / sqrt(y) (``inverse``) or of a divisor sqrt(y)."""
    node = rewriter.producer(name)
    if node is None:
        return None
    if node.op == "pow" and rewriter.uniform(node.inputs[1]) == (-0.5 if inverse else 0.5):
        return node.inputs[0]
    if not inverse:
        return node.inputs[0] if node.op == "sqrt" else None
    if node.op == "reciprocal":
        return _root(rewriter, node.inputs[0], False)
    if node.op == "div" and rewriter.uniform(node.inputs[0]) == 1:
        return _root(rewriter, node.inputs[1], False)
    return None


def _mean_square(rewriter: Rewriter, name: str) -> tuple[str, float] | None:
    """(d, epsilon) of mean(d d) + epsilon over the last axis."""
    node = rewriter.producer(name, "add")
    if node is None:
        return None
    for part, constant in (node.inputs, node.inputs[::-1]):
        epsilon = rewriter.uniform(constant)
        mean = rewriter.producer(part, "reduce_mean")
        if epsilon is None or mean is None or not _last_axis(rewriter, mean):
            continue
        square = rewriter.producer(mean.inputs[0])
        if square is None:
            continue
        if square.op == "mul" and square.inputs[0] == square.inputs[1]:
            return square.inputs[0], float(epsilon)
        if square.op == "pow" and rewriter.uniform(square.inputs[1]) == 2:
            return square.inputs[0], float(epsilon)
    return None


def _last_axis(rewriter: Rewriter, node: Node) -> bool:
    rank = rewriter.type(node.inputs[0]).rank
    return node.attrs["axes"] == (rank - 1,) and bool(node.attrs["keepdims"])


def core(rewriter: Rewriter, node: Node) -> str | None:
    """Cases 1 to 3."""
    if node.op == "div":
        pairs = [(node.inputs[0], _root(rewriter, node.inputs[1], False))]
    elif node.op == "mul":
        a, b = node.inputs
        pairs = [(a, _root(rewriter, b, True)), (b, _root(rewriter, a, True))]
    else:
        return None
    for d, under in pairs:
        found = None if under is None else _mean_square(rewriter, under)
        if found is None or found[0] != d:
            continue
        centred = rewriter.producer(d, "sub")
        if centred is not None:
            mean = rewriter.producer(centred.inputs[1], "reduce_mean")
            if mean is not None and mean.inputs[0] == centred.inputs[0] and _last_axis(rewriter, mean):
                return rewriter.add("layer_norm", centred.inputs[0], "", "", epsilon=found[1])
        return rewriter.add("rms_norm", d, "", epsilon=found[1])
    return None


def affine(rewriter: Rewriter, node: Node) -> str | None:
    """Case 4."""
    if node.op not in ("mul", "add"):
        return None
    for name, vector in (node.inputs, node.inputs[::-1]):
        norm = rewriter.producer(name)
        if norm is None or norm.op not in ("layer_norm", "rms_norm") or not rewriter.single_use(name):
            continue
        width = rewriter.type(name).shape[-1]
        shape = rewriter.type(vector).shape
        if shape[-1:] != (width,) or rewriter.type(vector).size != width or len(shape) > rewriter.type(name).rank:
            continue
        slot = 1 if node.op == "mul" else 2
        if any(norm.inputs[slot:]) or slot >= len(norm.inputs):
            continue
        inputs = list(norm.inputs)
        inputs[slot] = rewriter.reshape(vector, (width,))
        return rewriter.add(norm.op, *inputs, **dict(norm.attrs))
    return None


def run(graph: Graph) -> Graph:
    """``graph`` with norms as one operator."""
    return rewrite(graph, [core, affine])
