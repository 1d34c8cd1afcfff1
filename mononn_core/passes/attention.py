"""Recognises scaled dot-product attention written out: softmax(scale q k^T + bias) v; float32's only.

1. The scale as a product or quotient with a scalar, of the scores or of q and k each (sqrt factors; also before they
   are reshaped and transposed), or absent.
2. The bias as sums with tensors broadcastable to the scores; several are added up, expands of them dropped.
3. where(mask, scores, c) or where(mask, c, scores) with c at most -1e9: a bias of 0 and minus infinity (when c is) or
   half the lowest finite number. Beside such a score none keeps weight, and a row of only such scores stays uniform,
   since adding it swallows them.
4. where(isnan(w), 0, w) around the softmax: attribute ``guard``.
5. q, k, v of rank 2 or 3 are reshaped to rank 4; k may stand transposed, or by ``transpose_b``; k and v may be
   broadcast over batch and heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.passes.rewrite import Rewriter, rewrite

MASKING = -1e9
SWALLOWING = float(np.finfo(COMPUTE).min) / 2


@dataclass(frozen=True)
class Bias:
    """One step between product and softmax: ``+ factor * tensor``, or ``where(tensor == keep, ., value)``."""

    tensor: str
    factor: float = 1.0
    mask: bool = False
    keep: bool = True
    value: float = 0.0


@dataclass(frozen=True)
class Scores:
    """The product q k^T, its total scale, and the biases from the product outwards."""

    product: Node
    scale: float
    biases: tuple[Bias, ...]


def unscaled(rewriter: Rewriter, name: str) -> tuple[str, float]:
    """``name`` under its products and quotients with scalars, and the factor they make."""
    scale = 1.0
    while (node := rewriter.producer(name)) is not None and node.op in ("mul", "div"):
        a, b = node.inputs
        left, right = rewriter.uniform(a), rewriter.uniform(b)
        if right is not None and right != 0:
            scale, inner = (scale * float(right) if node.op == "mul" else scale / float(right)), a
        elif left is not None and node.op == "mul":
            scale, inner = scale * float(left), b
        else:
            break
        if rewriter.type(inner).shape != rewriter.type(name).shape:
            break
        name = inner
    return name, scale


def unscaled_operand(rewriter: Rewriter, name: str) -> tuple[str, float]:
    """Like :func:`unscaled`, also under reshapes and transposes, which are done again without the scale."""
    name, scale = unscaled(rewriter, name)
    node = rewriter.producer(name)
    if node is None or node.op not in ("reshape", "transpose"):
        return name, scale
    inner, factor = unscaled_operand(rewriter, node.inputs[0])
    if factor == 1.0:
        return name, scale
    return rewriter.add(node.op, inner, **dict(node.attrs)), scale * factor


def peel(rewriter: Rewriter, name: str, scale: float, biases: tuple[Bias, ...]) -> Scores | None:
    """Walk from the softmax down to the product; cases 1 to 3."""
    inner, factor = unscaled(rewriter, name)
    scale *= factor
    node = rewriter.producer(inner)
    if node is None or not rewriter.single_use(inner):
        return None
    if node.op == "matmul":
        return Scores(node, scale, biases)
    shape = rewriter.type(inner).shape
    if node.op == "add":
        for scores, bias in (node.inputs, node.inputs[::-1]):
            if rewriter.type(scores).shape == shape:
                found = peel(rewriter, scores, scale, (Bias(bias, scale), *biases))
                if found is not None:
                    return found
    if node.op == "where":
        mask, a, b = node.inputs
        for scores, constant, keep in ((a, b, True), (b, a, False)):
            value = rewriter.uniform(constant)
            hides = value is not None and value * scale <= MASKING
            if value is not None and hides and rewriter.type(scores).shape == shape:
                lowest = float("-inf") if np.isneginf(value) else SWALLOWING
                return peel(rewriter, scores, scale, (Bias(mask, 1.0, True, keep, lowest), *biases))
    return None


def total_bias(rewriter: Rewriter, biases: tuple[Bias, ...], dtype: str) -> str:
    """The biases as one tensor ("" when there are none)."""
    total = ""
    for bias in biases:
        expanded = rewriter.producer(bias.tensor, "expand")
        name = bias.tensor if expanded is None else expanded.inputs[0]
        if bias.mask:
            kept = total or rewriter.make(0.0, dtype)
            hidden = rewriter.make(bias.value, dtype)
            total = rewriter.add("where", name, *((kept, hidden) if bias.keep else (hidden, kept)))
            continue
        if bias.factor != 1.0:
            name = rewriter.add("mul", name, rewriter.make(bias.factor, dtype))
        total = rewriter.add("add", total, name) if total else name
    return total


def guarded(rewriter: Rewriter, name: str) -> tuple[Node, bool] | None:
    """The softmax over the last axis that makes ``name``, and whether NaN are replaced by zeros (case 4)."""
    node = rewriter.producer(name)
    guard = False
    if node is not None and node.op == "where" and rewriter.uniform(node.inputs[1]) == 0:
        test = rewriter.producer(node.inputs[0], "isnan")
        if test is None or test.inputs[0] != node.inputs[2]:
            return None
        node, guard = rewriter.producer(node.inputs[2]), True
    elif not rewriter.single_use(name):
        return None
    if node is None or node.op != "softmax" or node.attrs["axis"] != rewriter.type(name).rank - 1:
        return None
    return node, guard


def rank4(rewriter: Rewriter, name: str, lead: tuple[int, ...]) -> str:
    """q, k or v broadcast to batch axes ``lead`` and reshaped to rank 4 (case 5)."""
    matrix = rewriter.type(name).shape[-2:]
    name = rewriter.expand(name, (*lead, *matrix))
    return rewriter.reshape(name, (*((1,) * (2 - len(lead))), *lead, *matrix))


def attention(rewriter: Rewriter, node: Node) -> str | None:
    """All cases: the root is the product of the weights and v."""
    out = rewriter.type(node.output)
    if node.op != "matmul" or node.attrs.get("transpose_b") or not 2 <= out.rank <= 4 or out.dtype != COMPUTE:
        return None
    weights = guarded(rewriter, node.inputs[0])
    if weights is None:
        return None
    softmax, guard = weights
    found = peel(rewriter, softmax.inputs[0], 1.0, ())
    if found is None:
        return None
    shape = rewriter.type(softmax.output).shape
    if rewriter.type(node.inputs[1]).rank < 2 or out.shape[:-2] != shape[:-2]:
        return None
    return build(rewriter, node, found, guard)


def build(rewriter: Rewriter, node: Node, found: Scores, guard: bool) -> str | None:
    """The attention node for the product ``node`` of weights and v."""
    scores, out = rewriter.type(node.inputs[0]), rewriter.type(node.output)
    q, q_scale = unscaled_operand(rewriter, found.product.inputs[0])
    k, k_scale = unscaled_operand(rewriter, found.product.inputs[1])
    if min(rewriter.type(q).rank, rewriter.type(k).rank) < 2:
        return None
    if not found.product.attrs.get("transpose_b"):
        rank = rewriter.type(k).rank
        k = rewriter.add("transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2))
    lead = scores.shape[:-2]
    bias = total_bias(rewriter, found.biases, scores.dtype)
    if bias:
        dims = rewriter.type(bias).shape
        bias = rewriter.reshape(bias, (*((1,) * (4 - len(dims))), *dims))
    q, k, v = (rank4(rewriter, name, lead) for name in (q, k, node.inputs[1]))
    result = rewriter.add("attention", q, k, v, bias, scale=found.scale * q_scale * k_scale, guard=guard)
    return rewriter.reshape(result, out.shape)


def run(graph: Graph) -> Graph:
    """``graph`` with attention as one operator."""
    return rewrite(graph, [attention])
