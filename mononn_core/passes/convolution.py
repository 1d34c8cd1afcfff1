"""Folds constant factors of a convolution's output channels into its weights: batch normalisation at inference.

1. conv(x, w) * c is conv(x, w * c).
2. (y + b) * c is y * c + b * c, where y is a convolution.
3. (y + b) + c is y + (b + c), where y is a convolution.

b and c are constants with one element, or one per output channel. The rounding differs by about one unit.
"""

from __future__ import annotations

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.passes.rewrite import Rewriter, rewrite


def _channels(rewriter: Rewriter, name: str, channels: int) -> str | None:
    """The constant ``name`` as a vector or scalar of channels; None where it is no such constant."""
    value = rewriter.constant(name)
    if value is None or (value.size != 1 and (value.size != channels or value.shape[-1] != channels)):
        return None
    return rewriter.reshape(name, () if value.size == 1 else (channels,))


def _split(rewriter: Rewriter, node: Node, op: str) -> tuple[str, str] | None:
    """(tensor, constant) of ``op`` on a tensor and a constant of channels."""
    if node.op != op or rewriter.type(node.output).rank != 4:
        return None
    for kept, other in (node.inputs, node.inputs[::-1]):
        if rewriter.constant(kept) is None and rewriter.type(kept).shape == rewriter.type(node.output).shape:
            constant = _channels(rewriter, other, rewriter.type(node.output).shape[-1])
            if constant is not None:
                return kept, constant
    return None


def _conv(rewriter: Rewriter, name: str) -> Node | None:
    return rewriter.producer(name, "conv") if rewriter.single_use(name) else None


def scale(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    parts = _split(rewriter, node, "mul")
    conv = _conv(rewriter, parts[0]) if parts else None
    if parts is None or conv is None or rewriter.constant(conv.inputs[1]) is None:
        return None
    if rewriter.type(conv.output).dtype != COMPUTE:
        return None  # integers are scaled when they are sums
    weight = rewriter.add("mul", conv.inputs[1], parts[1])
    return rewriter.add("conv", conv.inputs[0], weight, **dict(conv.attrs))


def distribute(rewriter: Rewriter, node: Node) -> str | None:
    """Cases 2 and 3."""
    for op in ("mul", "add"):
        parts = _split(rewriter, node, op)
        inner = rewriter.producer(parts[0], "add") if parts and rewriter.single_use(parts[0]) else None
        biased = _split(rewriter, inner, "add") if inner is not None else None
        if parts is None or biased is None or _conv(rewriter, biased[0]) is None:
            continue
        bias = rewriter.add(op, biased[1], parts[1])
        y = rewriter.add("mul", biased[0], parts[1]) if op == "mul" else biased[0]
        return rewriter.add("add", y, bias)
    return None


RULES = (scale, distribute)


def run(graph: Graph) -> Graph:
    """``graph`` with its convolutions' constant factors in their weights."""
    return rewrite(graph, RULES)
