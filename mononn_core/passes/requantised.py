"""A sum that is quantised at once is added up in steps of its quantised numbers.

quantize(x1 c1 + x2 c2 + .. + k; s) with constants c and k is quantize(x1 (c1/s) + x2 (c2/s) + .. + k/s; 1); of what is
dequantised c is the scale. A relu around the sum stays around it, or goes where 0 becomes the smallest integer.

The rounding of the sum differs by about one unit of float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mononn_core.element import COMPUTE, WIDE
from mononn_core.graph import Graph, Node
from mononn_core.ops.common import text
from mononn_core.ops.quantise import limits
from mononn_core.passes.rewrite import Rewriter, rewrite

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sum:
    """Products or dequantised tensors (operator, what is multiplied, the constant factor in double precision, other
    inputs), and a constant."""

    terms: tuple[tuple[str, str, Array, tuple[str, ...]], ...]
    constant: Array

    def plus(self, other: Sum) -> Sum:
        return Sum((*self.terms, *other.terms), self.constant + other.constant)


def summed(rewriter: Rewriter, name: str) -> Sum | None:
    """``name`` as a Sum of float32 tensors; None where it is none, or where somebody else reads a part of it that is
    more than dequantised."""
    zero = np.zeros((), WIDE)
    if (value := rewriter.constant(name)) is not None:
        return Sum((), value.astype(WIDE))
    node = rewriter.producer(name)
    if node is None or rewriter.type(name).dtype != COMPUTE:
        return None
    values = [rewriter.constant(n) for n in node.inputs]
    if node.op == "dequantize" and values[0] is None and values[1] is not None:
        return Sum((("dequantize", node.inputs[0], values[1].astype(WIDE), node.inputs[2:]),), zero)
    if not rewriter.single_use(name):
        return None
    if node.op == "add":
        left, right = (summed(rewriter, n) for n in node.inputs)
        return None if left is None or right is None else left.plus(right)
    if node.op == "mul" and (values[0] is None) != (values[1] is None):
        factor, other = (values[0], node.inputs[1]) if values[0] is not None else (values[1], node.inputs[0])
        assert factor is not None
        return Sum((("mul", other, factor.astype(WIDE), ()),), zero)
    return None


def requantised(rewriter: Rewriter, node: Node) -> str | None:
    """The one rule."""
    scale = rewriter.uniform(node.inputs[1]) if node.op == "quantize" else None
    if scale is None or not scale > 0 or scale == 1 or rewriter.type(node.inputs[0]).dtype != COMPUTE:
        return None
    around = rewriter.producer(node.inputs[0], "relu")
    if around is not None and not rewriter.single_use(around.output):
        return None
    inside = around.inputs[0] if around else node.inputs[0]
    found = summed(rewriter, inside)
    if found is None or not found.terms:
        return None
    shape, parts = rewriter.type(inside).shape, [*(factor for _, _, factor, _ in found.terms), found.constant]
    with np.errstate(all="ignore"):
        scaled = [(c / scale).astype(COMPUTE) for c in parts]
    if not all(np.isfinite(c).all() for c in scaled) or any(
        rewriter.type(name).shape != shape for _, name, _, _ in found.terms
    ):
        return None
    total = ""
    for (op, name, _, others), factor in zip(found.terms, scaled, strict=False):
        term = rewriter.add(op, name, rewriter.make(factor), *others)
        if not total:
            total = rewriter.add("add", term, rewriter.make(scaled[-1])) if scaled[-1].any() else term
        else:
            total = rewriter.add("add", total, term)
    zero = rewriter.uniform(node.inputs[2]) if len(node.inputs) > 2 else 0
    if around is not None and zero != limits(text(node.attrs, "to"))[0]:
        total = rewriter.add("relu", total)
    return rewriter.add("quantize", total, rewriter.make(1.0, COMPUTE), *node.inputs[2:], **dict(node.attrs))


def run(graph: Graph) -> Graph:
    """``graph`` with such sums in steps of what they are quantised to."""
    return rewrite(graph, [requantised])
