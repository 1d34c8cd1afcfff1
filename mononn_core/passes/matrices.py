"""Products as templates take them.

1. A vector operand of a matmul becomes a matrix of one row or column, and its result a vector again.
2. For CUDA, matrices of several products at once are made to end where tiles do, by rows and columns of zeros that are
   cut off again: a tile that reached into the next matrix would store there.
"""

from __future__ import annotations

from math import prod

from mononn_core.graph import Graph, Node
from mononn_core.graph.graph import Attr
from mononn_core.ops.builder import Builder
from mononn_core.ops.registry import is_template
from mononn_core.passes.rewrite import restate

LARGEST, SMALLEST, EVEN = 128, (16, 8), 32
"""Rows or columns of the largest tile, which may be the only one; rows and columns of the smallest, of which longer
matrices may be multiples; and of what they become multiples where they are not."""


def run(graph: Graph) -> Graph:
    """``graph`` without products of vectors (case 1)."""
    return restate(graph, lambda n: n.op == "matmul" and min(graph.types[i].rank for i in n.inputs) < 2, _write)


def _write(node: Node, builder: Builder) -> None:
    a, b = node.inputs
    left, right = builder.types[a], builder.types[b]
    if left.rank == 1:
        a = builder.add("reshape", [a], node.origin, {"shape": (1, left.size)})
    if right.rank == 1:
        b = builder.add("reshape", [b], node.origin, {"shape": (right.size, 1)})
    product = builder.add("matmul", [a, b], node.origin, node.attrs if right.rank > 1 else {})
    builder.add("reshape", [product], node.origin, {"shape": builder.types[node.output].shape}, output=node.output)


def even(graph: Graph) -> Graph:
    """``graph`` with several products at once only of matrices that tiles end with (case 2)."""

    def applies(node: Node) -> bool:
        if node.op != "matmul" or not is_template(node, graph):
            return False
        several = prod(graph.types[node.inputs[1]].shape[:-2]) > 1
        return several and any(_missing(graph.types[node.output].shape))

    return restate(graph, applies, _write_even)


def _missing(shape: tuple[int, ...]) -> list[int]:
    """Rows and columns of a result up to the end of a tile."""
    return [-n % EVEN if n > LARGEST and n % least else 0 for n, least in zip(shape[-2:], SMALLEST, strict=True)]


def _write_even(node: Node, builder: Builder) -> None:
    a, b = node.inputs
    out = builder.types[node.output].shape
    rows, columns = _missing(out)

    def longer(name: str, axis: int, more: int) -> str:
        rank = builder.types[name].rank
        after = tuple(more if d == rank + axis else 0 for d in range(rank))
        attrs: dict[str, Attr] = {"before": (0,) * rank, "after": after, "mode": "constant", "value": 0.0}
        return builder.add("pad", [name], node.origin, attrs) if more else name

    a = longer(a, -2, rows)
    b = longer(b, -2 if node.attrs.get("transpose_b") else -1, columns)
    product = builder.add("matmul", [a, b], node.origin, node.attrs)
    part = {"starts": (0,) * len(out), "sizes": out, "steps": (1,) * len(out)}
    builder.add("slice", [product], node.origin, part, output=node.output)
