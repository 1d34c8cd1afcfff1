"""Sums of products by constant matrices become one product of all their terms, which is summed in registers:
a W + b V is [a b] [W; V], where [a b] are columns of one tensor.

Products are those of matrices and of 1x1 convolutions. Only where what they read is narrow beside what they make, whose
storing and reading again is saved (the skip connections of a WaveNet, a residual block that changes its width).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integers
from mononn_core.passes.rewrite import Rewriter, rewrite

TERMS_A_COLUMN = 2
"""Of a merged product, for each column of its result: until reading them takes as long as what is saved."""
DEEPEST = 8
"""Sums inside one another that are looked into: a product meets one of the few before it."""


@dataclass(frozen=True)
class Term:
    """A product in a sum, ``name`` once its ``bias`` (empty: none) is added: ``node`` multiplies the columns of
    ``parts`` side by side."""

    name: str
    node: Node
    parts: tuple[str, ...]
    bias: str

    def like(self, rewriter: Rewriter) -> tuple[object, ...]:
        """Equal for products that may become one."""
        x, weights = (rewriter.type(name).shape for name in self.node.inputs)
        return self.node.op, tuple(sorted(self.node.attrs.items())), x[:-1], weights[:-2], weights[-1]


def merge(rewriter: Rewriter, node: Node) -> str | None:
    """The last two products of a sum that may become one, where the second of them stands."""
    kind = rewriter.type(node.output)
    if node.op != "add" or kind.dtype != COMPUTE:
        return None
    terms = [term for name in node.inputs for term in _terms(rewriter, name, kind.shape)]
    for j in reversed(range(len(terms))):
        for i in reversed(range(j)):
            first, second = terms[i], terms[j]
            parts = (*first.parts, *second.parts)
            narrow = sum(rewriter.type(n).shape[-1] for n in parts) <= TERMS_A_COLUMN * kind.shape[-1]
            if narrow and len(set(parts)) == len(parts) and first.like(rewriter) == second.like(rewriter):
                gone = {first.name, second.name}
                rest = [left for name in node.inputs if (left := _without(rewriter, name, gone, kind.shape))]
                return _sum(rewriter, [*rest, _merged(rewriter, first, second)])
    return None


def _inner(rewriter: Rewriter, name: str, shape: tuple[int, ...], depth: int) -> Node | None:
    """The sum of ``shape`` that ``name`` is, read by one sum alone; None ``depth`` sums down."""
    inner = rewriter.producer(name, "add") if depth < DEEPEST else None
    return inner if inner and rewriter.single_use(name) and rewriter.type(name).shape == shape else None


def _terms(rewriter: Rewriter, name: str, shape: tuple[int, ...], depth: int = 0) -> Iterator[Term]:
    """The products that are summed up in ``name``."""
    inner = _inner(rewriter, name, shape, depth)
    if term := _term(rewriter, name, inner):
        yield term
    elif inner:
        for each in inner.inputs:
            yield from _terms(rewriter, each, shape, depth + 1)


def _term(rewriter: Rewriter, name: str, inner: Node | None) -> Term | None:
    """``name`` as a product, or as one with a constant added."""
    bias = next((n for n in inner.inputs if rewriter.constant(n) is not None), "") if inner else ""
    product = next((n for n in inner.inputs if n != bias), "") if inner and bias else name
    node = rewriter.producer(product)
    if node is None or node.op not in ("matmul", "conv") or not rewriter.single_use(product):
        return None
    x, w = node.inputs
    weights = rewriter.constant(w)
    if weights is None or rewriter.constant(x) is not None or rewriter.type(x).dtype != COMPUTE:
        return None
    if node.op == "matmul" and (weights.ndim != 2 or node.attrs.get("transpose_b")):
        return None
    once = node.op == "matmul" or (weights.shape[:2] == (1, 1) and integers(node.attrs, "strides") == (1, 1))
    if not once or node.attrs.get("group", 1) != 1:
        return None
    joined, last = rewriter.producer(x, "concat") if rewriter.single_use(x) else None, rewriter.type(x).rank - 1
    parts = joined.inputs if joined is not None and joined.attrs["axis"] == last else (x,)
    return Term(name, node, parts, bias)


def _without(rewriter: Rewriter, name: str, gone: set[str], shape: tuple[int, ...], depth: int = 0) -> str:
    """The sum ``name`` without some of its terms, empty if that is all of it; itself where it has none of them."""
    inner = _inner(rewriter, name, shape, depth)
    if name in gone or inner is None:
        return "" if name in gone else name
    kept = [_without(rewriter, each, gone, shape, depth + 1) for each in inner.inputs]
    return name if kept == [*inner.inputs] else _sum(rewriter, [each for each in kept if each])


def _merged(rewriter: Rewriter, first: Term, second: Term) -> str:
    parts = (*first.parts, *second.parts)
    x = rewriter.add("concat", *parts, axis=rewriter.type(parts[0]).rank - 1)
    weights = [rewriter.constant(term.node.inputs[1]) for term in (first, second)]
    w = rewriter.make(np.concatenate([each for each in weights if each is not None], axis=-2))
    product = rewriter.add(first.node.op, x, w, **dict(first.node.attrs))
    bias = _sum(rewriter, [term.bias for term in (first, second) if term.bias])
    return _sum(rewriter, [product, bias] if bias else [product])


def _sum(rewriter: Rewriter, terms: Sequence[str]) -> str:
    return reduce(lambda a, b: rewriter.add("add", a, b), terms) if terms else ""


def run(graph: Graph) -> Graph:
    """``graph`` with such sums merged."""
    return rewrite(graph, (merge,))
