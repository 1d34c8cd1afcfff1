"""Recognises scaled dot-product attention written out: softmax(scale q k^T + bias) v; float32's, and of integers.

1. The scale as a product or quotient with a scalar, of the scores or of q and k each (sqrt factors; also before they
   are reshaped and transposed), or absent.
2. The bias as sums with tensors broadcastable to the scores; several are added up, expands of them dropped.
3. where(mask, scores, c) or where(mask, c, scores) with c at most -1e9: a bias of 0 and c, or where c is finite and
   there is no other bias, half the lowest finite number. A row of only such scores stays uniform, since adding it
   swallows them; c itself swallows those below 32.
4. where(isnan(w), 0, w) around the softmax: attribute ``guard``.
5. q, k, v of rank 2 or 3 are reshaped to rank 4; k may stand transposed, or by ``transpose_b``; k and v may be
   broadcast over batch and heads.
6. Of a quantised model (:func:`integers`): q, k, v and the softmax's result are dequantised by one constant scale each,
   and what is added up may be quantised and dequantised after the product, after the scale and after the bias.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from mononn_core.element import BYTES, COMPUTE, WORD, together
from mononn_core.graph import Graph, Node
from mononn_core.ops.common import text
from mononn_core.ops.quantise import MOST_TERMS, Rounding, limits, recentred
from mononn_core.passes.rewrite import Rewriter, rewrite

MASKING = -1e9
SWALLOWING = float(np.finfo(COMPUTE).min) / 2
TINY = float(np.finfo(COMPUTE).tiny)


@dataclass(frozen=True)
class Scaled:
    """A step between product and softmax: times ``factor``."""

    factor: float


@dataclass(frozen=True)
class Biased:
    """A step between product and softmax: ``+ tensor``, or ``where(tensor == keep, ., value)``."""

    tensor: str
    mask: bool = False
    keep: bool = True
    value: float = 0.0


Step = Scaled | Biased | Rounding


@dataclass(frozen=True)
class Scores:
    """The product q k^T, and the steps from it outwards."""

    product: Node
    steps: tuple[Step, ...] = ()

    def then(self, *steps: Step) -> Scores:
        return Scores(self.product, (*self.steps, *steps))


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


def peel(rewriter: Rewriter, name: str, outside: float = 1.0) -> Scores | None:
    """Walk from the softmax, beyond steps that scale by ``outside``, down to the product; cases 1 to 3 and 6."""
    inner, factor = unscaled(rewriter, name)
    scaled = (Scaled(factor),) if factor != 1.0 else ()
    outside *= factor
    node = rewriter.producer(inner)
    if node is None or not rewriter.single_use(inner):
        return None
    if node.op == "matmul":
        return Scores(node, scaled)
    shape = rewriter.type(inner).shape
    if node.op == "add":
        for scores, bias in (node.inputs, node.inputs[::-1]):
            if rewriter.type(scores).shape == shape:
                found = peel(rewriter, scores, outside)
                if found is not None:
                    return found.then(Biased(bias), *scaled)
    if node.op == "where":
        mask, a, b = node.inputs
        for scores, constant, keep in ((a, b, True), (b, a, False)):
            value = rewriter.uniform(constant)
            hides = value is not None and value * outside <= MASKING
            if value is not None and hides and rewriter.type(scores).shape == shape:
                found = peel(rewriter, scores, outside)
                return found and found.then(Biased(mask, True, keep, float(value)), *scaled)
    if (rounded := rounding(rewriter, node)) is not None:
        found = peel(rewriter, rounded[0], outside)
        return found and found.then(rounded[1], *scaled)
    return None


def rounding(rewriter: Rewriter, node: Node) -> tuple[str, Rounding] | None:
    """What a quantised and dequantised tensor was before, where scale and zero point are one constant each (case 6)."""
    source = rewriter.producer(node.inputs[0], "quantize") if node.op == "dequantize" else None
    if source is None or not rewriter.single_use(source.output) or len(source.inputs) != len(node.inputs):
        return None
    mine, other = ([rewriter.uniform(n) for n in end.inputs[1:]] for end in (source, node))
    if None in mine or mine != other:
        return None
    scale, zero = (*mine, 0)[:2]
    assert scale is not None and zero is not None
    low, high = limits(text(source.attrs, "to"))
    return source.inputs[0], Rounding(float(scale), low - int(zero), high - int(zero))


def total_bias(rewriter: Rewriter, steps: tuple[Step, ...], dtype: str) -> str:
    """The biases among ``steps`` as one tensor, each times the factors after it ("" when there are none)."""
    total, alone = "", sum(isinstance(step, Biased) for step in steps) == 1
    for number, bias in enumerate(steps):
        if not isinstance(bias, Biased):
            continue
        expanded = rewriter.producer(bias.tensor, "expand")
        name = bias.tensor if expanded is None else expanded.inputs[0]
        factor = total_scale(steps[number:])
        if bias.mask:
            kept = total or rewriter.make(0.0, dtype)
            value = SWALLOWING if alone else max(bias.value * factor, 2 * SWALLOWING)
            hidden = rewriter.make(bias.value if np.isneginf(bias.value) else value, dtype)
            total = rewriter.add("where", name, *((kept, hidden) if bias.keep else (hidden, kept)))
            continue
        if factor != 1.0:
            name = rewriter.add("mul", name, rewriter.make(factor, dtype))
        total = rewriter.add("add", total, name) if total else name
    return total


def total_scale(steps: tuple[Step, ...]) -> float:
    """The product of the factors among ``steps``."""
    factors = [step.factor for step in reversed(steps) if isinstance(step, Scaled)]
    return prod(factors) if factors else 1.0


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


@dataclass(frozen=True)
class Attention:
    """The parts around a product of weights and v: its scores, and whether rows without a key give 0."""

    scores: Scores
    guard: bool


def recognised(rewriter: Rewriter, node: Node, weights: str) -> Attention | None:
    """Cases 1 to 4 and 6 of the product ``node`` of ``weights`` and v."""
    out, shape = rewriter.type(node.output), rewriter.type(weights).shape
    if node.attrs.get("transpose_b") or not 2 <= out.rank <= 4 or out.dtype != COMPUTE:
        return None
    if (found := guarded(rewriter, weights)) is None:
        return None
    softmax, guard = found
    scores = peel(rewriter, softmax.inputs[0])
    if scores is None or min(rewriter.type(n).rank for n in (node.inputs[1], *scores.product.inputs)) < 2:
        return None
    return Attention(scores, guard) if out.shape[:-2] == shape[:-2] else None


def attention(rewriter: Rewriter, node: Node) -> str | None:
    """Cases 1 to 5: the root is the product of the weights and v."""
    found = recognised(rewriter, node, node.inputs[0]) if node.op == "matmul" else None
    if found is None or any(isinstance(step, Rounding) for step in found.scores.steps):
        return None
    product, steps = found.scores.product, found.scores.steps
    (q, q_scale), (k, k_scale) = (unscaled_operand(rewriter, name) for name in product.inputs)
    if min(rewriter.type(q).rank, rewriter.type(k).rank) < 2:
        return None
    result = rewriter.add(
        "attention",
        *operands(rewriter, product, (q, k, node.inputs[1])),
        bias_of(rewriter, product, steps),
        scale=total_scale(steps) * q_scale * k_scale,
        guard=found.guard,
    )
    return rewriter.reshape(result, rewriter.type(node.output).shape)


def operands(rewriter: Rewriter, product: Node, qkv: Iterable[str]) -> tuple[str, ...]:
    """q, k and v of rank 4 (case 5), k's rows the keys; ``product`` multiplied q and k."""
    q, k, v = qkv
    if not product.attrs.get("transpose_b"):
        rank = rewriter.type(k).rank
        k = rewriter.add("transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2))
    lead = rewriter.type(product.output).shape[:-2]
    return tuple(rank4(rewriter, name, lead) for name in (q, k, v))


def bias_of(rewriter: Rewriter, product: Node, steps: tuple[Step, ...]) -> str:
    """The biases among ``steps`` as one tensor of rank 4 ("" when there is none)."""
    bias = total_bias(rewriter, steps, rewriter.type(product.output).dtype)
    if not bias:
        return ""
    dims = rewriter.type(bias).shape
    return rewriter.reshape(bias, (*((1,) * (4 - len(dims))), *dims))


def around_bias(steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Step, ...], tuple[Step, ...]] | None:
    """The steps before the biases, these, and the roundings after them; None where ``steps`` are not in that order."""
    places = [number for number, step in enumerate(steps) if isinstance(step, Biased)]
    first, end = (places[0], places[-1] + 1) if places else (len(steps), len(steps))
    if len(places) != end - first or not all(isinstance(step, Rounding) for step in steps[end:]):
        return None
    return steps[:first], steps[first:end], steps[end:]


def flat(steps: Iterable[Step]) -> tuple[float, ...]:
    """Steps as an attribute of the operator; neighbouring factors are one."""
    found = list[tuple[float, float, float]]()
    for step in steps:
        if not isinstance(step, Scaled):
            found.append(step.parts if isinstance(step, Rounding) else (0.0, 1.0, 0.0))
        elif found and not any(found[-1][1:]):
            found[-1] = (found[-1][0] * step.factor, 0.0, 0.0)
        else:
            found.append((step.factor, 0.0, 0.0))
    return tuple(number for parts in found for number in parts)


def integer_attention(rewriter: Rewriter, node: Node) -> str | None:
    """Case 6: the int32 products of quantised probabilities and v, times both their scales."""
    ends = [rewriter.producer(n, "dequantize") for n in node.inputs] if node.op == "matmul" else [None]
    if ends[0] is None or ends[1] is None or (rounded := rounding(rewriter, ends[0])) is None:
        return None
    weights, probability = rounded
    if rewriter.type(ends[0].inputs[0]).dtype not in BYTES:
        return None
    found = recognised(rewriter, node, weights)
    parts = around_bias(found.scores.steps) if found else None
    if found is None or parts is None or not (probability.low <= 0 < probability.high and probability.step > TINY):
        return None
    product = found.scores.product
    qkv = [quantised(rewriter, name) for name in (*product.inputs, node.inputs[1])]
    terms, keys = rewriter.type(product.inputs[0]).shape[-1], rewriter.type(product.output).shape[-1]
    if None in qkv or terms % together("uint8") or max(terms, keys) > MOST_TERMS:
        return None
    (q, q_scale, q_zero), (k, k_scale, k_zero), (v, v_scale, v_zero) = (x for x in qkv if x is not None)
    q, point = recentred(rewriter, q, rewriter.make(q_zero, WORD), "uint8")
    q_zero = int(rewriter.uniform(point) or 0) if point else 0
    before, biases, after = parts
    bias = bias_of(rewriter, product, biases)
    result = rewriter.add(
        "attention",
        *operands(rewriter, product, (q, k, v)),
        bias,
        zeros=(q_zero, k_zero, v_zero),
        steps=flat((Scaled(q_scale * k_scale), *before, *biases[:1], *after)),
        probability=probability.parts,
        guard=found.guard,
    )
    total = rewriter.add("cast", rewriter.reshape(result, rewriter.type(node.output).shape), to=COMPUTE)
    return rewriter.add("mul", total, rewriter.make(probability.step * v_scale, COMPUTE))


def quantised(rewriter: Rewriter, name: str) -> tuple[str, float, int] | None:
    """(integers of 8 bits, scale, zero point) that ``name`` is dequantised from by one constant scale."""
    source = rewriter.producer(name, "dequantize")
    if source is None or rewriter.type(source.inputs[0]).dtype not in BYTES:
        return None
    scale, zero = ([rewriter.uniform(n) for n in source.inputs[1:]] + [0])[:2]
    return None if scale is None or zero is None else (source.inputs[0], float(scale), int(zero))


def integers(graph: Graph) -> Graph:
    """``graph`` with quantised attention as one operator (case 6)."""
    return rewrite(graph, [integer_attention])


def run(graph: Graph) -> Graph:
    """``graph`` with attention of real numbers as one operator."""
    return rewrite(graph, [attention])


def beside_integers(graph: Graph) -> Graph:
    """:func:`run` where there are quantised tensors: else some of the products would be of bytes, and stand alone."""
    return run(graph) if any(node.op == "dequantize" for node in graph.nodes) else graph
