"""Moves reshapes and transposes behind the operators they do not matter to, where they meet and cancel.

1. f(move(x), scalars) is move(f(x, scalars)) for an elementwise f and a reshape or transpose.
2. f(reshape(x), vectors of the last axis) is reshape(f(x, vectors)) when the reshape keeps the last axis.
3. f(reshape(x), reshape(y), ..) is reshape(f(x, y, ..)) when x and y have one shape.
4. matmul(reshape(x), W) is reshape(matmul(x, W)) for a matrix W, when the reshape keeps the last axis (the products
   that exporters flatten their batch for).
5. softmax over the last axis, layer_norm and rms_norm of a reshape that keeps the last axis likewise.

Only moves whose result nobody else reads are moved.
"""

from __future__ import annotations

from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.passes.rewrite import Rewriter, rewrite

ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm")


def _moved(rewriter: Rewriter, name: str) -> Node | None:
    """The reshape or transpose that makes ``name`` for one reader."""
    node = rewriter.producer(name)
    return node if node is not None and node.op in ("reshape", "transpose") and rewriter.single_use(name) else None


def _keeps_last(rewriter: Rewriter, node: Node) -> bool:
    before, after = rewriter.type(node.inputs[0]).shape, rewriter.type(node.output).shape
    return node.op == "reshape" and before[-1:] == after[-1:] and len(before) > 1 and len(after) > 1


def _again(rewriter: Rewriter, move: Node, name: str, like: str) -> str:
    """``move`` applied to ``name``; a reshape gives the shape of ``like``."""
    if move.op == "transpose":
        return rewriter.add("transpose", name, **dict(move.attrs))
    return rewriter.reshape(name, rewriter.type(like).shape)


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
        t = rewriter.type(name)
        if other is not None and other.op == move.op and other.attrs == move.attrs:
            if rewriter.type(other.inputs[0]).shape != shape:
                return None
            inputs.append(other.inputs[0])
        elif t.rank == 0 or (t.rank == 1 and _keeps_last(rewriter, move)):
            inputs.append(name)
        else:
            return None
    return _again(rewriter, move, rewriter.add(node.op, *inputs, **dict(node.attrs)), node.output)


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


RULES = (elementwise, product, row)


def run(graph: Graph) -> Graph:
    """``graph`` with its reshapes and transposes as late as they can be."""
    return rewrite(graph, RULES)
