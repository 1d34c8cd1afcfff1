"""Canonical forms of elementwise operators. Each is exact (up to the sign of a zero) unless it says otherwise.

1. identity(x) is x.
2. x + 0, x - 0, x * 1, x / 1, x ** 1 are x (expanded, if the constant made the result larger).
3. x / c is x * (1 / c) for a c whose elements are powers of two.
4. cast to the same type is x; of a widening cast's result, a cast of its input.
5. x and true, x or false are x; x and false is false; x or true is true; not not x is x.
6. where with a constant condition, or with two equal branches, is a branch; where(not c, a, b) is where(c, b, a).
7. (x * c) * d is x * (c d), and (x + c) + d is x + (c + d), for scalar floating-point constants (summands of one
   sign; one rounding apart).
8. x ** 2 is x * x.
9. A constant whose elements are all equal is a scalar, where the result's shape does not depend on it.
10. An expand feeding an elementwise operator is dropped where the other inputs give the result its shape, otherwise
    it is done after the operator.
11. The sum of a stack of tensors, a concatenation of parts of one element along the axis that is reduced, is the parts
    added up, and likewise their product, largest, smallest and mean.
12. The largest or smallest of what is padded with a constant, along axes that are reduced, is that of the rest and the
    constant.
"""

from __future__ import annotations

import numpy as np

from mononn_core.element import is_float
from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.common import integer, integers, text
from mononn_core.passes.rewrite import Rewriter, rewrite

NEUTRAL = {"add": (0, True), "sub": (0, False), "mul": (1, True), "div": (1, False), "pow": (1, False)}
"""Operator -> (neutral constant, whether it may stand on the left)."""
LOGICAL = {"and": True, "or": False}
STACKED = {"reduce_sum": "add", "reduce_mean": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min"}
MOST_STACKED = 16
"""Tensors of a stack that are added one after the other."""
CHAINS = ("add", "mul")


def identity(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1; a graph output that is an input, a constant or another output keeps its copy."""
    if node.op != "identity" or node.output in rewriter.outputs:
        return None
    return node.inputs[0]


def neutral(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    if node.op not in NEUTRAL:
        return None
    value, commutes = NEUTRAL[node.op]
    a, b = node.inputs
    for kept, constant in ((a, b), (b, a)) if commutes else ((a, b),):
        if rewriter.uniform(constant) == value and rewriter.type(kept).dtype == rewriter.type(node.output).dtype:
            return rewriter.expand(kept, rewriter.type(node.output).shape)
    return None


def division(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3."""
    if node.op != "div":
        return None
    x, divisor = node.inputs
    value = rewriter.constant(divisor)
    if value is None or not np.issubdtype(value.dtype, np.floating) or not value.size:  # bfloat16 is none
        return None
    mantissa, _ = np.frexp(value)
    with np.errstate(all="ignore"):
        inverse = 1 / value
    exact = np.all(np.abs(mantissa) == 0.5) and np.all(np.isfinite(inverse)) and np.all(1 / inverse == value)
    return rewriter.add("mul", x, rewriter.make(inverse, str(value.dtype))) if exact else None


def casts(rewriter: Rewriter, node: Node) -> str | None:
    """Case 4."""
    if node.op != "cast":
        return None
    x = node.inputs[0]
    to = rewriter.type(node.output).dtype
    if rewriter.type(x).dtype == to:
        return x
    inner = rewriter.producer(x, "cast")
    if inner is None:
        return None
    source, middle = rewriter.type(inner.inputs[0]).dtype, rewriter.type(x).dtype
    if "bool" in (source, middle, to) or not np.can_cast(np.dtype(source), np.dtype(middle), "safe"):
        return None
    if source in ("int64", "uint64") and is_float(middle):
        return None  # NumPy calls float64 safe for them, which rounds those beyond 2^53
    return inner.inputs[0] if source == to else rewriter.add("cast", inner.inputs[0], **dict(node.attrs))


def logic(rewriter: Rewriter, node: Node) -> str | None:
    """Case 5."""
    if node.op == "not":
        inner = rewriter.producer(node.inputs[0], "not")
        return None if inner is None else inner.inputs[0]
    if node.op not in LOGICAL:
        return None
    shape = rewriter.type(node.output).shape
    for kept, constant in (node.inputs, node.inputs[::-1]):
        value = rewriter.uniform(constant)
        if value is not None:
            return rewriter.expand(kept if value == LOGICAL[node.op] else rewriter.make(value, "bool"), shape)
    return None


def choice(rewriter: Rewriter, node: Node) -> str | None:
    """Case 6."""
    if node.op != "where":
        return None
    condition, a, b = node.inputs
    shape = rewriter.type(node.output).shape
    if a == b:
        return rewriter.expand(a, shape)
    value = rewriter.uniform(condition)
    if value is not None:
        return rewriter.expand(a if value else b, shape)
    inner = rewriter.producer(condition, "not")
    return None if inner is None else rewriter.add("where", inner.inputs[0], b, a)


def chained(rewriter: Rewriter, node: Node) -> str | None:
    """Case 7."""
    if node.op not in CHAINS or not is_float(rewriter.type(node.output).dtype):
        return None
    for x, outer in (node.inputs, node.inputs[::-1]):
        inner = rewriter.producer(x, node.op)
        if inner is None or not _scalar(rewriter, outer) or not rewriter.single_use(x):
            continue
        for y, constant in (inner.inputs, inner.inputs[::-1]):
            if _scalar(rewriter, constant) and not _scalar(rewriter, y):
                total = rewriter.add(node.op, constant, outer)
                if _mergeable(node.op, rewriter.uniform(constant), rewriter.uniform(outer), rewriter.uniform(total)):
                    return rewriter.add(node.op, y, total)
    return None


def _mergeable(op: str, first: float | None, second: float | None, total: float | None) -> bool:
    """Whether merging costs one rounding at most: summands of one sign, nothing near overflow or underflow."""
    if first is None or second is None or total is None or not 1e-30 < abs(total) < 1e30:
        return False
    return first * second > 0 if op == "add" else (abs(first) < 1) == (abs(second) < 1) or 1e-6 < abs(first) < 1e6


def _scalar(rewriter: Rewriter, name: str) -> bool:
    value = rewriter.constant(name)
    return value is not None and value.size == 1 and value.ndim == 0


def square(rewriter: Rewriter, node: Node) -> str | None:
    """Case 8."""
    if node.op != "pow" or rewriter.uniform(node.inputs[1]) != 2 or not is_float(rewriter.type(node.inputs[0]).dtype):
        return None
    x = node.inputs[0]
    return rewriter.expand(rewriter.add("mul", x, x), rewriter.type(node.output).shape)


def scalars(rewriter: Rewriter, node: Node) -> str | None:
    """Case 9."""
    if registry.get(node.op).kind != "elementwise" or len(node.inputs) < 2:
        return None
    for position, name in enumerate(node.inputs):
        value = rewriter.constant(name)
        if value is None or value.ndim == 0 or (found := rewriter.uniform(name)) is None:
            continue
        if _shape_without(rewriter, node, position) == rewriter.type(node.output).shape:
            scalar = rewriter.make(found, str(value.dtype))
            inputs = (*node.inputs[:position], scalar, *node.inputs[position + 1 :])
            return rewriter.add(node.op, *inputs, **dict(node.attrs))
    return None


def _shape_without(rewriter: Rewriter, node: Node, position: int) -> tuple[int, ...]:
    """The broadcast shape of all inputs but one."""
    others = [rewriter.type(n).shape for i, n in enumerate(node.inputs) if i != position]
    return tuple(np.broadcast_shapes(*others))


def late_expand(rewriter: Rewriter, node: Node) -> str | None:
    """Case 10."""
    if registry.get(node.op).kind != "elementwise" or node.op == "identity":
        return None
    inner = [rewriter.producer(n, "expand") for n in node.inputs]
    if not any(inner):
        return None
    sources = [p.inputs[0] if p is not None else n for p, n in zip(inner, node.inputs, strict=True)]
    return rewriter.expand(rewriter.add(node.op, *sources, **dict(node.attrs)), rewriter.type(node.output).shape)


def stacked(rewriter: Rewriter, node: Node) -> str | None:
    """Case 11."""
    found = rewriter.producer(node.inputs[0], "concat") if node.op in STACKED else None
    if found is None or len(found.inputs) > MOST_STACKED:
        return None
    axis, kind = integer(found.attrs, "axis"), rewriter.type(node.output)
    single = all(rewriter.type(n).shape[axis] == 1 for n in found.inputs)
    if node.attrs["axes"] != (axis,) or not single or (node.op == "reduce_mean" and not is_float(kind.dtype)):
        return None
    total, *others = (rewriter.reshape(n, kind.shape) for n in found.inputs)
    for other in others:
        total = rewriter.add(STACKED[node.op], total, other)
    if node.op == "reduce_mean":
        return rewriter.add("div", total, rewriter.make(len(found.inputs), kind.dtype))
    return total


def unpadded(rewriter: Rewriter, node: Node) -> str | None:
    """Case 12."""
    found = rewriter.producer(node.inputs[0], "pad") if node.op in ("reduce_max", "reduce_min") else None
    if found is None or text(found.attrs, "mode") != "constant" or rewriter.type(found.inputs[0]).size == 0:
        return None
    before, after, axes = (integers(n.attrs, key) for n, key in ((found, "before"), (found, "after"), (node, "axes")))
    wide = {axis for axis, ends in enumerate(zip(before, after, strict=True)) if any(ends)}
    if not wide or not wide <= {*axes}:
        return None
    rest = rewriter.add(node.op, found.inputs[0], **dict(node.attrs))
    value = rewriter.make(found.attrs["value"], rewriter.type(node.output).dtype)
    return rewriter.add(STACKED[node.op], rest, value)


RULES = (identity, neutral, division, casts, logic, choice, chained, square, scalars, late_expand, stacked, unpadded)


def run(graph: Graph) -> Graph:
    """``graph`` with its arithmetic in canonical form."""
    return rewrite(graph, RULES)
