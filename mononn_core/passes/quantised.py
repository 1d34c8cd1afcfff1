"""Products of dequantised operands become products of the integers themselves.

0. What is quantised as int8 and dequantised again is quantised as uint8, its zero point moved by 128: products take
   unsigned left sides.
1. A movement that fills nothing, or a gather of data, whose operand is dequantised by one scale moves the integers and
   is dequantised after that; of a quantised constant also where its scale is one a channel.
2. quantize(dequantize(x)) with the same constant scale and zero point is x; what is joined of dequantised parts is
   quantised part by part.
3. matmul(dequantize(a), dequantize(b)), b computed with one scale, or a constant with one scale, or one a column: the
   exact int32 product of the integers minus their zero points, times both scales (Jacob et al., "Quantization and
   Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018, section 2).
   A convolution likewise, padded by the zero point, of computed weights with one scale too. Unsigned constant weights
   around a zero point are signed ones and a constant a channel, which is multiplied by the sums of the windows.
4. Every other dequantised constant is the constant that it stands for.
5. What is quantised again of constants, dequantised ones among them, is a constant.

Cases 0 to 3 are exact, up to the rounding of scales; 3 has fewer roundings than what it replaces.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from mononn_core.element import BYTES, COMPUTE, WORD
from mononn_core.graph import Graph, Node
from mononn_core.ops import common, registry
from mononn_core.ops.quantise import MOST_TERMS, beyond, integer_matmul, recentred
from mononn_core.passes.rewrite import Rewriter, rewrite

FILLS = ("pad", "trilu")
"""Movements that have elements of no operand: a real zero is another integer than 0."""
DEEPEST = 8
"""Nodes between constants and what is quantised of them, at most: concatenations, reshapes, transpositions."""


def unsigned(rewriter: Rewriter, node: Node) -> str | None:
    """Case 0."""
    source = rewriter.producer(node.inputs[0], "quantize") if node.op == "dequantize" else None
    if source is None or common.text(source.attrs, "to") != "int8":
        return None
    x, scale, *zero = source.inputs
    points = [[rewriter.constant(n) for n in end] for end in (zero, node.inputs[2:])]
    if any(p is None for end in points for p in end):
        return None
    mine, other = (rewriter.make((end[0].astype(WORD) if end and end[0] is not None else np.zeros((), WORD)) + 128)
                   for end in points)  # fmt: skip
    mine, other = (rewriter.add("cast", n, to="uint8") for n in (mine, other))
    return rewriter.add("dequantize", rewriter.add("quantize", x, scale, mine, to="uint8"), node.inputs[1], other)


def moved(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if not node.inputs or (source := rewriter.producer(node.inputs[0], "dequantize")) is None:
        return None
    gathers = node.op == "gather"
    moves = registry.get(node.op).kind == "movement" and len(node.inputs) == 1 and node.op not in FILLS
    if not gathers and not moves:
        return None
    shape, points = rewriter.type(source.output).shape, source.inputs[1:]
    if rewriter.type(source.inputs[0]).shape == shape and all(rewriter.type(n).size == 1 for n in points):
        first = rewriter.add(node.op, source.inputs[0], *node.inputs[1:], **dict(node.attrs))
        return rewriter.add("dequantize", first, *(rewriter.reshape(n, ()) for n in points))
    values = [rewriter.constant(n) for n in source.inputs]
    if gathers or any(value is None for value in values):
        return None
    wide = [rewriter.make(np.broadcast_to(value, shape)) for value in values if value is not None]
    return rewriter.add("dequantize", *(rewriter.add(node.op, n, **dict(node.attrs)) for n in wide))


def bordered(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1 of a pad by real zeros: integers are padded by their zero point."""
    if node.op != "pad" or common.text(node.attrs, "mode") != "constant" or node.attrs["value"] != 0:
        return None
    if (source := rewriter.producer(node.inputs[0], "dequantize")) is None:
        return None
    x, scale, *zero = source.inputs
    points = [rewriter.constant(n) for n in zero]
    if (weights := rewriter.constant(x)) is not None and not any(p is None or p.any() for p in points):
        return _padded(rewriter, node, weights, scale)
    if any(rewriter.type(n).size != 1 for n in (scale, *zero)) or any(p is None for p in points):
        return None
    if rewriter.type(x).shape != rewriter.type(source.output).shape:  # one integer for all of a constant
        return None
    value = int(points[0].reshape(())) if points and points[0] is not None else 0
    return rewriter.add("dequantize", rewriter.add("pad", x, **{**node.attrs, "value": value}), scale, *zero)


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


def problem(rewriter: Rewriter, node: Node) -> str:
    """Why a matmul or conv of real numbers does not become a product of integers (case 3); "" where it does."""
    left, right = (rewriter.producer(n, "dequantize") for n in node.inputs)
    if left is None or right is None:
        side = "neither side" if left is right else "its left side" if left is None else "its right side"
        return f"{side} is {'' if left is right else 'not '}quantised"
    (a, *points), (b, *scales) = left.inputs, right.inputs
    if _of_any(rewriter, node, b):
        return _problem_of_any(rewriter, left, right)
    if {rewriter.type(n).dtype for n in (a, b)} - set(BYTES):
        return "its integers have more than 8 bits"
    if any(rewriter.type(n).size != 1 for n in points):
        return "its left side has more than one scale"
    if (value := rewriter.constant(b)) is None:
        alone = all(rewriter.type(n).size == 1 and rewriter.constant(n) is not None for n in scales)
        few = prod(rewriter.type(b).shape[:3]) <= MOST_TERMS
        return "" if alone and few else "its weights are computed, and they have not one constant scale or are too many"
    if value.shape != rewriter.type(node.inputs[1]).shape:
        return "all its weights are one number"
    if any(_columns(rewriter, n, b) is None for n in scales):
        return "the scale of its weights is not constant, or differs within a column"
    if value[..., 0].size > MOST_TERMS:
        return "an int32 does not hold sums of so many terms"
    if node.op == "matmul":
        return "its weights are transposed" if node.attrs.get("transpose_b") else ""
    some = beyond(_centred(rewriter, right), (0, 1, 2)).any() and node.attrs["group"] not in (1, value.shape[3])
    return "less their zero point its weights have more than 8 bits, and it has groups of channels" if some else ""


def _of_any(rewriter: Rewriter, node: Node, b: str) -> bool:
    """Whether a product's right side, quantised as ``b``, is no constant matrix, but computed or several matrices."""
    return node.op == "matmul" and (rewriter.constant(b) is None or rewriter.type(b).rank > 2)


def _problem_of_any(rewriter: Rewriter, *sides: Node) -> str:
    """As :func:`problem`, of such a right side."""
    (left, right), parameters = (side.inputs[0] for side in sides), [n for side in sides for n in side.inputs[1:]]
    kinds, why = [rewriter.type(n) for n in (left, right)], ""
    if any(rewriter.type(n).size != 1 or rewriter.constant(n) is None for n in parameters):
        why = "one has not one constant scale"
    elif kinds[1].dtype not in BYTES or (kinds[0].dtype != "uint8" and rewriter.constant(left) is None):
        why = "they are no bytes, the left one's unsigned"
    elif min(kind.rank for kind in kinds) < 2:
        why = "one is a vector"
    elif kinds[0].shape[-1] > MOST_TERMS:
        why = "an int32 does not hold sums of so many terms"
    return f"its right side is no constant matrix, and {why}" if why else ""


def _bytes(rewriter: Rewriter, node: Node) -> str:
    """Case 3 of such a right side; one whose columns lie one below the other is taken as it lies."""
    (a, a_scale, *a_zero), (b, b_scale, *b_zero) = _dequantised(rewriter, node)
    first, second = (int(rewriter.uniform(zero[0]) or 0) if zero else 0 for zero in (a_zero, b_zero))
    if rewriter.type(a).dtype == "int8":
        a, first = recentred(rewriter, a, "", "uint8")[0], first + 128
    turned, last = bool(node.attrs.get("transpose_b")), rewriter.type(b).rank - 1
    moved = rewriter.producer(b, "transpose")
    if moved is not None and common.integers(moved.attrs, "perm").index(last) == last - 1:
        b, turned = rewriter.add("transpose", b, perm=(*range(last - 1), last, last - 1)), not turned
    total = rewriter.add("bytes_matmul", a, b, zeros=(first, second), transpose_b=turned)
    scale = rewriter.add("mul", rewriter.reshape(a_scale, ()), rewriter.reshape(b_scale, ()))
    return rewriter.add("mul", rewriter.add("cast", total, to=COMPUTE), scale)


def words(rewriter: Rewriter, node: Node) -> str | None:
    """A product of computed integers as that of bytes that they are."""
    if node.op != "matmul" or rewriter.constant(node.inputs[1]) is not None:
        return None
    kinds = [rewriter.type(n) for n in node.inputs]
    if min(kind.rank for kind in kinds) < 2 or [kind.dtype for kind in kinds] != ["uint8", "int8"]:
        return None
    return rewriter.add("bytes_matmul", *node.inputs, zeros=(0, 0), transpose_b=bool(node.attrs.get("transpose_b")))


def product(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3."""
    if node.op != "matmul" or rewriter.type(node.output).dtype != COMPUTE or problem(rewriter, node):
        return None
    (a, a_scale, *a_zero), (b, b_scale, *b_zero) = _dequantised(rewriter, node)
    if _of_any(rewriter, node, b):
        return _bytes(rewriter, node)
    zeros = [rewriter.make(_columns(rewriter, n, b)) for n in b_zero]
    total = integer_matmul(rewriter, a, b, _scalar(rewriter, a_zero), zeros[0] if zeros else "")
    return _scaled(rewriter, total, a_scale, b_scale, b)


def convolution(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3 of a convolution."""
    if node.op != "conv" or rewriter.type(node.output).dtype != COMPUTE or problem(rewriter, node):
        return None
    (x, x_scale, *x_zero), (w, w_scale, *w_zero) = _dequantised(rewriter, node)
    source = rewriter.producer(node.inputs[1])
    assert source is not None
    x, point = recentred(rewriter, x, _scalar(rewriter, x_zero), "uint8")
    if rewriter.constant(w) is None:
        total = _by_computed(rewriter, node, (x, point), recentred(rewriter, w, _scalar(rewriter, w_zero), "int8"))
        return _scaled(rewriter, total, x_scale, w_scale, w)
    wide = _centred(rewriter, source)
    part = beyond(wide, (0, 1, 2))
    total = rewriter.add("conv", x, rewriter.make((wide - part).astype("int8")), **dict(node.attrs))
    if part.any():
        total = rewriter.add("add", total, rewriter.add("mul", _windows(rewriter, x, node), rewriter.make(part)))
    if point:
        sums = rewriter.make(-wide.sum((0, 1, 2), dtype=WORD))
        total = rewriter.add("add", total, rewriter.add("mul", point, sums))
    return _scaled(rewriter, total, x_scale, w_scale, w)


def _by_computed(rewriter: Rewriter, conv: Node, left: tuple[str, str], right: tuple[str, str]) -> str:
    """The int32 sums of a convolution's windows by computed weights, both given with their zero points ("": 0)."""
    (x, point), (w, other) = left, right
    total = rewriter.add("conv", x, w, **dict(conv.attrs))
    if other:
        total = rewriter.add("sub", total, rewriter.add("mul", other, _windows(rewriter, x, conv)))
    if point:
        sums = rewriter.add("reduce_sum", rewriter.add("cast", w, to=WORD), axes=(0, 1, 2), keepdims=False)
        if other:
            terms = rewriter.make(prod(rewriter.type(w).shape[:3]), WORD)
            sums = rewriter.add("sub", sums, rewriter.add("mul", other, terms))
        total = rewriter.add("sub", total, rewriter.add("mul", point, sums))
    return total


def _windows(rewriter: Rewriter, x: str, node: Node) -> str:
    """The int32 sums of a convolution's windows over the image x, of all channels or of each."""
    w = rewriter.type(node.inputs[1]).shape
    if node.attrs["group"] != 1:
        return rewriter.add("conv", x, rewriter.make(np.ones(w, "int8")), **dict(node.attrs))
    summed = rewriter.add("reduce_sum", rewriter.add("cast", x, to=WORD), axes=(3,), keepdims=True)
    if w[:2] != (1, 1) or node.attrs["strides"] != (1, 1):
        steps = {key: node.attrs[key] for key in ("strides", "dilations")}
        windows = rewriter.add("windows", summed, axis=1, kernel=w[:2], **steps)
        summed = rewriter.add("reduce_sum", windows, axes=(1, 2), keepdims=False)
    return summed


def _dequantised(rewriter: Rewriter, node: Node) -> list[tuple[str, ...]]:
    """(integers, scale, perhaps zero point) of both sides."""
    return [source.inputs for n in node.inputs if (source := rewriter.producer(n)) is not None]


def _scalar(rewriter: Rewriter, zero: list[str]) -> str:
    return rewriter.reshape(zero[0], ()) if zero else ""


def _centred(rewriter: Rewriter, weights: Node) -> np.ndarray[Any, Any]:
    """Constant weights minus their zero point, int32."""
    w, _, *zero = weights.inputs
    value, points = rewriter.constant(w), [_columns(rewriter, n, w) for n in zero]
    assert value is not None
    return value.astype(WORD) - (0 if not points or points[0] is None else points[0].astype(WORD))


def _scaled(rewriter: Rewriter, total: str, left: str, right: str, b: str) -> str:
    """Sums times the scales of the left side and of b's columns."""
    scale = rewriter.add("mul", rewriter.reshape(left, ()), rewriter.make(_columns(rewriter, right, b)))
    return rewriter.add("mul", rewriter.add("cast", total, to=COMPUTE), scale)


def _columns(rewriter: Rewriter, name: str, b: str) -> np.ndarray[Any, Any] | None:
    """A constant that broadcasts over b [.., N] as [N], or a scalar; None where it differs within a column."""
    value = rewriter.constant(name)
    if value is None:
        return None
    if value.size == 1:
        return value.reshape(())
    wide = np.broadcast_to(value, rewriter.type(b).shape)
    first = wide[(0,) * (wide.ndim - 1)]
    return np.ascontiguousarray(first) if bool((wide == first).all()) else None


def plain(rewriter: Rewriter, node: Node) -> str | None:
    """Case 4."""
    values = [rewriter.constant(n) for n in node.inputs]
    if node.op != "dequantize" or any(v is None for v in values):
        return None
    (found,) = registry.get(node.op).evaluate(np, values, node.attrs)
    return rewriter.builder.constant(found, f"{node.output}/folded")


def settled(rewriter: Rewriter, node: Node) -> str | None:
    """Case 5."""
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


def floats(graph: Graph) -> Graph:
    """``graph`` with real numbers only, for targets that multiply these: cases 2 and 4."""
    return rewrite(graph, [unchanged, plain])


def late(graph: Graph) -> Graph:
    """``graph`` dequantised as late as it can be: cases 0 to 2, and 5."""
    return rewrite(graph, [settled, unsigned, moved, bordered, concatenated, joined, unchanged])


def integers(graph: Graph) -> Graph:
    """``graph`` with products of integers: cases 3 and 4."""
    for rules in ([product, words, convolution], [plain]):
        graph = rewrite(graph, rules)
    return graph


def real_products(graph: Graph) -> dict[str, str]:
    """The products and convolutions of a Graph dequantised late that :func:`integers` leaves to real numbers, and why;
    none of a Graph that is not quantised."""
    found: dict[str, str] = {}

    def record(rewriter: Rewriter, node: Node) -> None:
        real = node.op in ("matmul", "conv") and rewriter.type(node.output).dtype == COMPUTE
        if real and (why := problem(rewriter, node)):
            found[str(node.origin)] = why

    if any(node.op == "dequantize" for node in graph.nodes):
        rewrite(graph, [record])
    return found
