"""Moves reshapes, transposes and crops behind the operators they do not matter to, where they meet and cancel.

1. f(move(x), scalars) is move(f(x, scalars)) for an elementwise f and a reshape, a transpose, or a slice that cuts off
   less than half of an x that is computed and nobody else reads.
2. f(move(x), vectors of the last axis) is move(f(x, vectors)) when the move keeps the last axis; constant ones are
   repeated where a reshape cuts the last axis into several.
3. f(reshape(x), reshape(y), ..) is reshape(f(x, y, ..)) when x and y have one shape.
4. matmul(reshape(x), W) is reshape(matmul(x, W)) for a matrix W, when the reshape keeps the last axis (the products
   that exporters flatten their batch for).
5. softmax over the last axis, layer_norm and rms_norm of a reshape that keeps the last axis likewise.
6. What several elementwise operators make of one move's result, when only the last of them is read by others (x times
   its sigmoid), is one f.
7. A reduction over the last axis of a transposition, or of what one elementwise operator makes of it, is one over that
   axis of what is transposed, whose neighbours along the last axis lie side by side: the transposition may have other
   readers, which stay.

In all other cases only moves whose result nobody else reads are moved. Those that meet become one on the way, or none.
"""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np

from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.common import integers
from mononn_core.passes.movement import composed, unchanged
from mononn_core.passes.rewrite import Rewriter, rewrite

MOST_OPERATORS = 8
"""Of case 6."""
SEVERAL = 8
"""Neighbours of case 7, at least."""
ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm")


def _moved(rewriter: Rewriter, name: str) -> Node | None:
    """The move that makes ``name`` for one reader."""
    node = rewriter.producer(name)
    return node if node is not None and _is_move(rewriter, node) and rewriter.single_use(name) else None


def _is_move(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "slice":
        return node.op in ("reshape", "transpose")
    x = node.inputs[0]
    before, after = rewriter.type(x), rewriter.type(node.output)
    computed = rewriter.producer(x) is not None and rewriter.single_use(x)
    return computed and before.size < 2 * after.size and before.shape[-1:] == after.shape[-1:]


def _keeps_last(rewriter: Rewriter, node: Node) -> bool:
    before, after = rewriter.type(node.inputs[0]).shape, rewriter.type(node.output).shape
    return node.op == "reshape" and before[-1:] == after[-1:] and len(before) > 1 and len(after) > 1


def _again(rewriter: Rewriter, move: Node, name: str, like: str) -> str:
    """``move`` applied to ``name``; a reshape gives the shape of ``like``."""
    if move.op != "reshape":
        return rewriter.add(move.op, name, **dict(move.attrs))
    return rewriter.reshape(name, rewriter.type(like).shape)


def _before(rewriter: Rewriter, move: Node, name: str) -> str | None:
    """The scalar, or vector of the last axis, that is in front of ``move`` what ``name`` is behind it."""
    t, value = rewriter.type(name), rewriter.constant(name)
    before, after = (rewriter.type(n).shape for n in (move.inputs[0], move.output))
    if t.rank == 0 or (t.rank == 1 and _keeps_last(rewriter, move)):
        return name
    if value is None or after[-1:] != t.shape[-1:] or t.size != after[-1]:
        return None
    if move.op == "reshape":
        cut = any(prod(after[n:]) == before[-1] for n in range(len(after)))
        times = before[-1] // after[-1] if cut else 0
    else:
        times = int(move.op == "slice" or integers(move.attrs, "perm")[-1] == len(before) - 1)
    return rewriter.make(np.tile(value.reshape(-1), times)) if times else None


def elementwise(rewriter: Rewriter, node: Node) -> str | None:
    """Cases 1 to 3."""
    if registry.get(node.op).kind != "elementwise" or node.op == "identity":
        return None
    moves = [_moved(rewriter, name) for name in node.inputs]
    move = next((m for m in moves if m is not None), None)
    if move is None or rewriter.type(move.output).shape != rewriter.type(node.output).shape:
        return None
    shape = rewriter.type(move.inputs[0]).shape
    inputs = []
    for name, other in zip(node.inputs, moves, strict=True):
        if other is not None and other.op == move.op and other.attrs == move.attrs:
            if rewriter.type(other.inputs[0]).shape != shape:
                return None
            inputs.append(other.inputs[0])
        elif (vector := _before(rewriter, move, name)) is not None:
            inputs.append(vector)
        else:
            return None
    return _again(rewriter, move, rewriter.add(node.op, *inputs, **dict(node.attrs)), node.output)


def region(rewriter: Rewriter, node: Node) -> str | None:
    """Case 6."""
    found = _Region(rewriter, node)
    if not found.visit(node) or found.move is None or len(found.members) < 2 or not found.closed():
        return None
    move = found.move
    made: dict[str, str] = {move.output: move.inputs[0]}
    for member in found.members:
        inputs = [made.get(n) or _before(rewriter, move, n) for n in member.inputs]
        if None in inputs:
            return None
        made[member.output] = rewriter.add(member.op, *(n for n in inputs if n), **dict(member.attrs))
    return _again(rewriter, move, made[node.output], node.output)


class _Region:
    """The elementwise operators between a move and ``end``: ``members``, each behind those it reads."""

    def __init__(self, rewriter: Rewriter, end: Node) -> None:
        self.rewriter, self.end = rewriter, end
        self.move: Node | None = None
        self.members: list[Node] = []
        self.begun = 0

    def visit(self, node: Node) -> bool:
        """Whether ``node`` and what it reads down to the move belong to it."""
        shape = self.rewriter.type(node.output).shape
        self.begun += 1
        if registry.get(node.op).kind != "elementwise" or node.op == "identity" or self.begun > MOST_OPERATORS:
            return False
        if shape != self.rewriter.type(self.end.output).shape:
            return False
        for name in node.inputs:
            made = self.rewriter.producer(name)
            if (
                made in self.members
                or (self.move is not None and made == self.move)
                or self.rewriter.type(name).rank < 2
            ):
                continue
            if made is None or not (self._starts(made) or self.visit(made)):
                return False
        self.members.append(node)
        return True

    def _starts(self, made: Node) -> bool:
        if self.move is None and _is_move(self.rewriter, made):
            self.move = made
            return self.rewriter.type(made.output).shape == self.rewriter.type(self.end.output).shape
        return False

    def closed(self) -> bool:
        """Whether nobody else reads what is inside."""
        assert self.move is not None
        read = Counter(name for member in self.members for name in member.inputs)
        inside = (self.move.output, *(member.output for member in self.members if member is not self.end))
        return all(self.rewriter.uses(name) == read[name] for name in inside)


def product(rewriter: Rewriter, node: Node) -> str | None:
    """Case 4."""
    move = _moved(rewriter, node.inputs[0]) if node.op == "matmul" else None
    if move is None or rewriter.type(node.inputs[1]).rank != 2 or not _keeps_last(rewriter, move):
        return None
    result = rewriter.add("matmul", move.inputs[0], node.inputs[1], **dict(node.attrs))
    return rewriter.reshape(result, rewriter.type(node.output).shape)


def row(rewriter: Rewriter, node: Node) -> str | None:
    """Case 5."""
    move = _moved(rewriter, node.inputs[0]) if node.op in ROWS else None
    if move is None or not _keeps_last(rewriter, move):
        return None
    attrs = dict(node.attrs)
    if "axis" in attrs:
        if attrs["axis"] != rewriter.type(node.output).rank - 1:
            return None
        attrs["axis"] = rewriter.type(move.inputs[0]).rank - 1
    result = rewriter.add(node.op, move.inputs[0], *node.inputs[1:], **attrs)
    return rewriter.reshape(result, rewriter.type(node.output).shape)


def reduction(rewriter: Rewriter, node: Node) -> str | None:
    """Case 7."""
    made = rewriter.producer(node.inputs[0]) if "axes" in node.attrs else None
    if made is None or registry.get(node.op).kind != "reduction":
        return None
    alone = registry.get(made.op).kind == "elementwise" and rewriter.single_use(made.output)
    moves = [rewriter.producer(name, "transpose") for name in (made.inputs if alone else node.inputs)]
    perms = {integers(move.attrs, "perm") if move is not None else () for move in moves}
    last, perm = rewriter.type(made.output).rank - 1, perms.pop() if len(perms) == 1 else ()
    axes = integers(node.attrs, "axes")
    mapped = tuple(sorted(perm[a] for a in axes)) if perm else ()
    if not mapped or last not in axes or last in mapped or rewriter.type(made.output).shape[perm.index(last)] < SEVERAL:
        return None
    x, *others = (move.inputs[0] for move in moves if move is not None)
    x = rewriter.add(made.op, x, *others, **dict(made.attrs)) if alone else x
    total = rewriter.add(node.op, x, **{**node.attrs, "axes": mapped, "keepdims": True})
    return rewriter.reshape(rewriter.add("transpose", total, perm=perm), rewriter.type(node.output).shape)


RULES = (unchanged, composed, elementwise, region, product, row, reduction)


def run(graph: Graph) -> Graph:
    """``graph`` with its moves as late as they can be."""
    return rewrite(graph, RULES)
