"""A sum that is quantised at once is added up in steps of its quantised numbers.

1. quantize(x1 c1 + x2 c2 + .. + k; s) with constants c and k is quantize(x1 (c1/s) + x2 (c2/s) + .. + k/s; 1); of what
   is dequantised c is the scale. A relu or clip around the sum stays there, but for ends that no integer lies beyond.
2. What has scales s of its own for each channel is quantised as x (1/s), by steps of 1; zero points z that differ are
   added to that.

The rounding of the sum differs by about one unit of float32; where zero points differ a tie may be the odd neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mononn_core.element import COMPUTE, WIDE
from mononn_core.graph import Graph, Node
from mononn_core.ops.common import number, text
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
    """Both rules."""
    points = [rewriter.constant(name) for name in node.inputs[1:]] if node.op == "quantize" else []
    if not points or any(p is None for p in points) or rewriter.type(node.inputs[0]).dtype != COMPUTE:
        return None
    scale, zero = (_alike(np.asarray(p, WIDE)) for p in (*points, 0)[:2])
    shift, channels = zero if zero.size > 1 else np.zeros((), WIDE), max(scale.size, zero.size) > 1
    if not (scale > 0).all() or (not channels and scale == 1):
        return None
    around = rewriter.producer(node.inputs[0])
    if around is None or around.op not in ("relu", "clip") or not rewriter.single_use(around.output):
        around = None
    inside = around.inputs[0] if around else node.inputs[0]
    found = _in_steps(rewriter, inside, scale, shift)
    if found is None and channels:
        found, around = Sum((("mul", node.inputs[0], 1 / scale, ()),), shift), None
    total = _written(rewriter, found) if found is not None else ""
    if not total:
        return None
    if around is not None:
        total = _clipped(rewriter, node, total, around, scale, zero)
    kept = [rewriter.make(zero, rewriter.type(n).dtype) for n in node.inputs[2:] if zero.size == 1]
    return rewriter.add("quantize", total, rewriter.make(1.0, COMPUTE), *kept, **dict(node.attrs))


def _alike(points: Array) -> Array:
    """Scales or zero points; a scalar where they are all the same."""
    return points.reshape(-1)[0] if points.size and (points == points.reshape(-1)[0]).all() else points


def _in_steps(rewriter: Rewriter, name: str, scale: Array, zero: Array) -> Sum | None:
    """``name`` over ``scale``, and ``zero``, of whole tensors; None where it is no sum."""
    found, shape = summed(rewriter, name), rewriter.type(name).shape
    if found is None or not found.terms or any(rewriter.type(n).shape != shape for _, n, _, _ in found.terms):
        return None
    return Sum(tuple((op, n, c / scale, rest) for op, n, c, rest in found.terms), found.constant / scale + zero)


def _clipped(rewriter: Rewriter, node: Node, total: str, around: Node, scale: Array, zero: Array) -> str:
    """``total``, in steps of what ``node`` quantises, between those ends of ``around`` that integers lie beyond."""
    ends = {"low": 0.0} if around.op == "relu" else {key: number(around.attrs, key) for key in around.attrs}
    least, most = limits(text(node.attrs, "to"))
    moved = zero if zero.size > 1 else 0
    if "low" in ends and (np.rint(ends["low"] / scale) + zero > least).any():
        low = ends["low"] / scale + moved
        total = rewriter.add("max", total, rewriter.make(low, COMPUTE)) if low.any() else rewriter.add("relu", total)
    if "high" in ends and (np.rint(ends["high"] / scale) + zero < most).any():
        total = rewriter.add("min", total, rewriter.make(ends["high"] / scale + moved, COMPUTE))
    return total


def _written(rewriter: Rewriter, found: Sum) -> str:
    """The nodes of a sum; "" where float32 does not hold a factor."""
    with np.errstate(all="ignore"):
        *factors, constant = (c.astype(COMPUTE) for c in (*(c for _, _, c, _ in found.terms), found.constant))
    if not all(np.isfinite(c).all() for c in (*factors, constant)):
        return ""
    total = ""
    for (op, name, _, others), factor in zip(found.terms, factors, strict=True):
        term = rewriter.add(op, name, rewriter.make(factor), *others)
        if total:
            total = rewriter.add("add", total, term)
        else:
            total = rewriter.add("add", term, rewriter.make(constant)) if constant.any() else term
    return total


def run(graph: Graph) -> Graph:
    """``graph`` with such sums in steps of what they are quantised to."""
    return rewrite(graph, [requantised])
