"""What is dequantised is dequantised as late as it can be.

0. What is quantised as int8 and dequantised again, moved in between or not, is quantised as uint8, its zero point moved
   by 128: products take unsigned left sides.
1. A movement that fills nothing, or a gather of data, whose operand is dequantised by one scale moves the integers and
   is dequantised after that; of a quantised constant, and where it transposes or pads, also where its scale is one a
   channel or a row.
2. quantize(dequantize(x)) with the same constant scale and zero point is x; what is joined of dequantised parts is
   quantised part by part.
3. What is quantised again of constants, dequantised ones among them, is a constant.

All are exact, up to the rounding of scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.element import WORD
from mononn_core.graph import Graph, Node
from mononn_core.ops import common, registry
from mononn_core.passes.rewrite import Rewriter, rewrite

FILLS = ("pad", "border", "trilu")
"""Movements that have elements of no operand: a real zero is another integer than 0."""
DEEPEST = 8
"""Nodes between constants and what is quantised of them, at most: concatenations, reshapes, transpositions."""


def unsigned(rewriter: Rewriter, node: Node) -> str | None:
    """Case 0."""
    if node.op != "dequantize":
        return None
    source, moves = rewriter.producer(node.inputs[0]), list[Node]()
    while source is not None and _moves(source):
        moves.append(source)
        source = rewriter.producer(source.inputs[0])
    if source is None or source.op != "quantize" or common.text(source.attrs, "to") != "int8":
        return None
    x, scale, *zero = source.inputs
    points = [[rewriter.constant(n) for n in end] for end in (zero, node.inputs[2:])]
    if any(p is None for end in points for p in end):
        return None
    mine, other = (rewriter.make((end[0].astype(WORD) if end and end[0] is not None else np.zeros((), WORD)) + 128)
                   for end in points)  # fmt: skip
    mine, other = (rewriter.add("cast", n, to="uint8") for n in (mine, other))
    name = rewriter.add("quantize", x, scale, mine, to="uint8")
    for move in reversed(moves):
        name = rewriter.add(move.op, name, **move.attrs)
    return rewriter.add("dequantize", name, node.inputs[1], other)


def _moves(node: Node) -> bool:
    """Whether a node is a movement that fills nothing."""
    return registry.get(node.op).kind == "movement" and len(node.inputs) == 1 and node.op not in FILLS


def moved(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if not node.inputs or (source := rewriter.producer(node.inputs[0], "dequantize")) is None:
        return None
    gathers = node.op == "gather"
    if not gathers and not _moves(node):
        return None
    shape, points = rewriter.type(source.output).shape, source.inputs[1:]
    if rewriter.type(source.inputs[0]).shape == shape and all(rewriter.type(n).size == 1 for n in points):
        first = rewriter.add(node.op, source.inputs[0], *node.inputs[1:], **dict(node.attrs))
        return rewriter.add("dequantize", first, *(rewriter.reshape(n, ()) for n in points))
    values = [rewriter.constant(n) for n in source.inputs]
    if node.op == "transpose" and values[0] is None and not any(value is None for value in values[1:]):
        return _transposed(rewriter, node, source)
    if any(value is None for value in values):
        return None
    if gathers:
        return _gathered(rewriter, node, source)
    wide = [rewriter.make(np.broadcast_to(value, shape)) for value in values if value is not None]
    return rewriter.add("dequantize", *(rewriter.add(node.op, n, **dict(node.attrs)) for n in wide))


def _gathered(rewriter: Rewriter, node: Node, table: Node) -> str:
    """Case 1 of a gather of a quantised constant: scales along its axis are gathered as well."""
    shape, axis = rewriter.type(table.output).shape, common.integer(node.attrs, "axis")
    more = rewriter.type(node.inputs[1]).rank - 1

    def taken(name: str) -> str:
        own = (1,) * (len(shape) - rewriter.type(name).rank) + rewriter.type(name).shape
        name = rewriter.reshape(name, own)
        if own[axis] == shape[axis]:
            return rewriter.add(node.op, name, *node.inputs[1:], **dict(node.attrs))
        return rewriter.reshape(name, (*own[:axis], *(1,) * (1 + more), *own[axis + 1 :]))

    return rewriter.add("dequantize", *map(taken, table.inputs))


def _transposed(rewriter: Rewriter, node: Node, source: Node) -> str | None:
    """Case 1 of a transposition: scales of channels are transposed as well."""
    (x, *points), perm = source.inputs, common.integers(node.attrs, "perm")
    if rewriter.type(x).shape != rewriter.type(source.output).shape:
        return None
    shapes = [rewriter.type(n).shape for n in points]
    whole = [rewriter.reshape(n, (1,) * (len(perm) - len(s)) + s) for n, s in zip(points, shapes, strict=True)]
    return rewriter.add("dequantize", *(rewriter.add("transpose", n, perm=perm) for n in (x, *whole)))


def bordered(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1 of a pad by real zeros: integers are padded by their zero point, or that of their channel."""
    if node.op != "pad" or common.text(node.attrs, "mode") != "constant" or node.attrs["value"] != 0:
        return None
    if (source := rewriter.producer(node.inputs[0], "dequantize")) is None:
        return None
    x, scale, *zero = source.inputs
    points = [rewriter.constant(n) for n in zero]
    if (weights := rewriter.constant(x)) is not None and not any(p is None or p.any() for p in points):
        return _padded(rewriter, node, weights, scale)
    if any(_differs_along(rewriter, n, node) for n in (scale, *zero)):
        return None
    if rewriter.type(x).shape != rewriter.type(source.output).shape:  # one integer for all of a constant
        return None
    if (value := rewriter.uniform(zero[0]) if zero else 0) is not None:
        wide = rewriter.add("pad", x, **{**node.attrs, "value": int(value)})
    elif zero and rewriter.constant(zero[0]) is not None and _one_a_channel(rewriter, zero[0], x):
        values = rewriter.reshape(zero[0], rewriter.type(x).shape[-1:])
        wide = rewriter.add("border", x, values, before=node.attrs["before"], after=node.attrs["after"])
    else:
        return None
    return rewriter.add("dequantize", wide, scale, *zero)


def _one_a_channel(rewriter: Rewriter, name: str, x: str) -> bool:
    """Whether a scale or zero point has one element for each of the last axis."""
    kind, channels = rewriter.type(name), rewriter.type(x).shape[-1]
    return kind.shape[-1:] == (channels,) and kind.size == channels


def _differs_along(rewriter: Rewriter, name: str, pad: Node) -> bool:
    """Whether a scale or zero point has elements along an axis that is padded."""
    before, after = (common.integers(pad.attrs, end) for end in ("before", "after"))
    shape = (1,) * (len(before) - rewriter.type(name).rank) + rewriter.type(name).shape
    return any(n != 1 and b + a for n, b, a in zip(shape, before, after, strict=True))


def _padded(rewriter: Rewriter, pad: Node, weights: np.ndarray[Any, Any], scale: str) -> str | None:
    """Constant weights around 0 that are padded: their scales are those of their neighbours."""
    shape, scales = rewriter.type(pad.inputs[0]).shape, rewriter.constant(scale)
    if scales is None:
        return None
    wide, steps = (rewriter.make(np.broadcast_to(value, shape)) for value in (weights, scales))
    border = {key: pad.attrs[key] for key in ("before", "after")}
    ends = rewriter.add("pad", steps, mode="edge", value=0.0, **border)
    return rewriter.add("dequantize", rewriter.add("pad", wide, **{**pad.attrs, "value": 0}), ends)


def concatenated(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1 of what is joined of parts that are all dequantised by one scale and zero point."""
    parts = [rewriter.producer(n, "dequantize") for n in node.inputs] if node.op == "concat" else [None]
    first, *others = parts
    if first is None or any(rewriter.type(n).size != 1 for n in first.inputs[1:]):
        return None
    kind = rewriter.type(first.inputs[0]).dtype
    for part in others:
        if part is None or rewriter.type(part.inputs[0]).dtype != kind or not _same_scale(rewriter, first, part):
            return None
    if any(rewriter.type(p.inputs[0]).shape != rewriter.type(p.output).shape for p in parts if p):
        return None
    whole = rewriter.add("concat", *(p.inputs[0] for p in parts if p), **dict(node.attrs))
    return rewriter.add("dequantize", whole, *(rewriter.reshape(n, ()) for n in first.inputs[1:]))


def joined(rewriter: Rewriter, node: Node) -> str | None:
    """What is joined of dequantised parts, and quantised by one scale alone, is quantised part by part: those that had
    that scale and zero point before are then as they were (case 2)."""
    source = rewriter.producer(node.inputs[0], "concat") if node.op == "quantize" else None
    if source is None or not rewriter.single_use(source.output):
        return None
    parts = [rewriter.producer(name, "dequantize") for name in source.inputs]
    if not any(parts) or any(rewriter.type(n).size != 1 for n in node.inputs[1:]):
        return None
    done = [rewriter.add("quantize", n, *node.inputs[1:], **dict(node.attrs)) for n in source.inputs]
    return rewriter.add("concat", *done, **dict(source.attrs))


def unchanged(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    if node.op != "quantize" or (source := rewriter.producer(node.inputs[0], "dequantize")) is None:
        return None
    same = rewriter.type(source.inputs[0]) == rewriter.type(node.output) and _same_scale(rewriter, source, node)
    return source.inputs[0] if same else None


def _same_scale(rewriter: Rewriter, a: Node, b: Node) -> bool:
    """Whether two nodes quantise and dequantise by one scale and zero point."""
    pairs = zip(a.inputs[1:], b.inputs[1:], strict=False)
    alike = (x == y or _equal(rewriter.constant(x), rewriter.constant(y)) for x, y in pairs)
    return len(a.inputs) == len(b.inputs) and all(alike)


def _equal(a: np.ndarray[Any, Any] | None, b: np.ndarray[Any, Any] | None) -> bool:
    return a is not None and b is not None and a.size == b.size == 1 and bool(a.reshape(()) == b.reshape(()))


def settled(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3."""
    if node.op != "quantize" or all(n in rewriter.builder.constants for n in node.inputs):
        return None
    values = [_value(rewriter, n, DEEPEST) for n in node.inputs]
    if any(v is None for v in values):
        return None
    (found,) = registry.get(node.op).evaluate(np, values, node.attrs)
    return rewriter.builder.constant(found, f"{node.output}/folded")


def _value(rewriter: Rewriter, name: str, deepest: int) -> np.ndarray[Any, Any] | None:
    """What constants alone make, in so many nodes one after the other; None of anything else."""
    if (value := rewriter.constant(name)) is not None:
        return value
    source = rewriter.producer(name)
    if source is None or not deepest or len(source.outputs) != 1 or not all(source.inputs):
        return None
    values = [_value(rewriter, n, deepest - 1) for n in source.inputs]
    if any(v is None for v in values):
        return None
    return np.asarray(registry.get(source.op).evaluate(np, values, source.attrs)[0])


def run(graph: Graph) -> Graph:
    """``graph`` dequantised as late as it can be."""
    return rewrite(graph, [settled, unsigned, moved, bordered, concatenated, joined, unchanged])
