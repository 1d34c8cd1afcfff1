"""Recognises GELU written out.

1. x * 0.5 * (1 + erf(x / sqrt 2)), in any order and grouping of the factors: gelu(x), approximate "none".
2. x * 0.5 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the inner polynomial in any form: approximate "tanh".

The product is flattened into its factors, and the argument of erf or tanh is read as a polynomial in x, so exporters
may write either as they like.
"""

from __future__ import annotations

import math

from mononn_core.graph import Graph, Node
from mononn_core.passes.rewrite import Rewriter, rewrite

TOLERANCE = 1e-6
"""Relative; exporters store sqrt 2 and sqrt(2 / pi) in single precision."""
POLYNOMIALS = {
    "erf": ("none", {1: math.sqrt(0.5)}),
    "tanh": ("tanh", {1: math.sqrt(2 / math.pi), 3: 0.044715 * math.sqrt(2 / math.pi)}),
}
DEGREE = 3
DEPTH = 8


def factors(rewriter: Rewriter, name: str, keep: str, root: bool = True) -> tuple[float, list[str]]:
    """The scalar constant and the other factors of a product; interior products must have no other reader."""
    value = rewriter.uniform(name)
    if isinstance(value, (int, float)):
        return float(value), []
    node = rewriter.producer(name, "mul")
    if node is None or name == keep or not (root or rewriter.single_use(name)):
        return 1.0, [name]
    scale = 1.0
    found: list[str] = []
    for part in node.inputs:
        c, more = factors(rewriter, part, keep, root=False)
        scale, found = scale * c, found + more
    return scale, found


def polynomial(rewriter: Rewriter, name: str, x: str, depth: int = DEPTH) -> dict[int, float] | None:
    """Coefficients by degree of ``name`` as a polynomial in ``x``; None when it is none of degree up to 3."""
    if name == x:
        return {1: 1.0}
    value = rewriter.uniform(name)
    if value is not None:
        return {0: float(value)}
    node = rewriter.producer(name)
    if node is None or depth == 0 or node.op not in ("add", "sub", "mul", "div", "pow"):
        return None
    a = polynomial(rewriter, node.inputs[0], x, depth - 1)
    b = polynomial(rewriter, node.inputs[1], x, depth - 1)
    if a is None or b is None:
        return None
    if node.op in ("add", "sub"):
        sign = 1.0 if node.op == "add" else -1.0
        return {d: a.get(d, 0.0) + sign * b.get(d, 0.0) for d in a.keys() | b.keys()}
    if node.op == "mul":
        return _product(a, b)
    if set(b) != {0}:
        return None
    if node.op == "div":
        return {d: c / b[0] for d, c in a.items()} if b[0] else None
    return _power(a, b[0])


def _product(a: dict[int, float], b: dict[int, float]) -> dict[int, float] | None:
    total: dict[int, float] = {}
    for d, c in a.items():
        for e, k in b.items():
            total[d + e] = total.get(d + e, 0.0) + c * k
    return total if max(total) <= DEGREE else None


def _power(a: dict[int, float], exponent: float) -> dict[int, float] | None:
    if exponent not in (1.0, 2.0, 3.0):
        return None
    result: dict[int, float] | None = a
    for _ in range(int(exponent) - 1):
        result = None if result is None else _product(result, a)
    return result


def close(found: dict[int, float] | None, wanted: dict[int, float]) -> bool:
    """Whether two polynomials agree up to the rounding of stored constants."""
    if found is None:
        return False
    return all(
        math.isclose(found.get(d, 0.0), wanted.get(d, 0.0), rel_tol=TOLERANCE, abs_tol=1e-12)
        for d in found.keys() | wanted.keys()
    )


def _bell(rewriter: Rewriter, name: str) -> Node | None:
    """The erf or tanh of a factor 1 + erf(..) or 1 + tanh(..)."""
    node = rewriter.producer(name, "add")
    if node is None:
        return None
    for part, one in (node.inputs, node.inputs[::-1]):
        inner = rewriter.producer(part)
        if inner is not None and inner.op in POLYNOMIALS and rewriter.uniform(one) == 1:
            return inner
    return None


def gelu(rewriter: Rewriter, node: Node) -> str | None:
    """Cases 1 and 2."""
    if node.op != "mul":
        return None
    for name in _candidates(rewriter, node):
        inner = _bell(rewriter, name)
        if inner is None:
            continue
        approximate, wanted = POLYNOMIALS[inner.op]
        for x in _ancestors(rewriter, inner.inputs[0]):
            scale, found = _node_factors(rewriter, node, x)
            ready = sorted(found) == sorted([x, name]) and math.isclose(scale, 0.5, rel_tol=TOLERANCE)
            if ready and close(polynomial(rewriter, inner.inputs[0], x), wanted):
                return rewriter.add("gelu", x, approximate=approximate)
    return None


def _node_factors(rewriter: Rewriter, node: Node, keep: str) -> tuple[float, list[str]]:
    scale = 1.0
    found: list[str] = []
    for part in node.inputs:
        c, more = factors(rewriter, part, keep, root=False)
        scale, found = scale * c, found + more
    return scale, found


def _candidates(rewriter: Rewriter, node: Node) -> list[str]:
    return [name for name in _node_factors(rewriter, node, "")[1] if rewriter.producer(name, "add") is not None]


def _ancestors(rewriter: Rewriter, name: str) -> list[str]:
    """Tensors the argument of erf or tanh could be a polynomial of, nearest first."""
    found: list[str] = []
    level = [name]
    for _ in range(DEPTH):
        found += [n for n in level if n not in found and rewriter.constant(n) is None]
        producers = [rewriter.producer(n) for n in level]
        level = [
            i for p in producers if p is not None and p.op in ("add", "sub", "mul", "div", "pow") for i in p.inputs
        ]
    return found


def run(graph: Graph) -> Graph:
    """``graph`` with GELU as one operator."""
    return rewrite(graph, [gelu])
