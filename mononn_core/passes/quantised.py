"""Products of dequantised operands become products of the integers themselves.

1. A movement, or a gather of data, whose operand is dequantised by one scale moves the integers and is dequantised
   after that; of a quantised constant also where its scale is one a channel.
2. quantize(dequantize(x)) with the same constant scale and zero point is x.
3. matmul(dequantize(a), dequantize(b)), b a constant with one scale, or one a column: the exact int32 product of the
   integers minus their zero points, times both scales (Jacob et al., "Quantization and Training of Neural Networks for
   Efficient Integer-Arithmetic-Only Inference", CVPR 2018, section 2).
   A convolution likewise, padded by the zero point.
4. Every other dequantised constant is the constant that it stands for.

Cases 1 to 3 are exact, up to the rounding of scales; 3 has fewer roundings than what it replaces.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.element import BYTES, COMPUTE, WORD
from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.common import integer, text
from mononn_core.ops.quantise import as_signed, integer_matmul
from mononn_core.passes.rewrite import Rewriter, rewrite


def moved(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if not node.inputs or (source := rewriter.producer(node.inputs[0], "dequantize")) is None:
        return None
    gathers = registry.get(node.op).kind == "gather" and node.op == "gather"
    if not gathers and not (registry.get(node.op).kind == "movement" and len(node.inputs) == 1 and node.op != "pad"):
        return None
    x, scale, *zero = source.inputs
    whole = all(rewriter.type(n).size == 1 for n in (scale, *zero))
    if not whole and (gathers or any(rewriter.constant(n) is None for n in source.inputs)):
        return None
    parts = [x, *(_wide(rewriter, n, x) if not whole else n for n in (scale, *zero))]
    moves = parts[:1] if whole else parts
    done = [rewriter.add(node.op, n, *node.inputs[1:], **dict(node.attrs)) for n in moves]
    return rewriter.add("dequantize", *done, *parts[len(moves) :])


def bordered(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1 of a pad by real zeros: integers are padded by their zero point."""
    if node.op != "pad" or text(node.attrs, "mode") != "constant" or node.attrs["value"] != 0:
        return None
    if (source := rewriter.producer(node.inputs[0], "dequantize")) is None:
        return None
    x, scale, *zero = source.inputs
    points = [rewriter.constant(n) for n in zero]
    if any(rewriter.type(n).size != 1 for n in (scale, *zero)) or any(p is None for p in points):
        return None
    value = int(points[0].reshape(())) if points and points[0] is not None else 0
    return rewriter.add("dequantize", rewriter.add("pad", x, **{**node.attrs, "value": value}), scale, *zero)


def _wide(rewriter: Rewriter, name: str, like: str) -> str:
    """A constant broadcast to the shape of ``like``."""
    value = rewriter.constant(name)
    assert value is not None
    return rewriter.make(np.broadcast_to(value, rewriter.type(like).shape))


def unchanged(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    if node.op != "quantize" or (source := rewriter.producer(node.inputs[0], "dequantize")) is None:
        return None
    same = rewriter.type(source.inputs[0]).dtype == text(node.attrs, "to") and _same_scale(rewriter, source, node)
    return source.inputs[0] if same else None


def _same_scale(rewriter: Rewriter, a: Node, b: Node) -> bool:
    """Whether two nodes quantise and dequantise by one scale and zero point."""
    pairs = zip(a.inputs[1:], b.inputs[1:], strict=False)
    alike = (x == y or _equal(rewriter.constant(x), rewriter.constant(y)) for x, y in pairs)
    return len(a.inputs) == len(b.inputs) and all(alike)


def _equal(a: np.ndarray[Any, Any] | None, b: np.ndarray[Any, Any] | None) -> bool:
    return a is not None and b is not None and a.size == b.size == 1 and bool(a.reshape(()) == b.reshape(()))


def product(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3."""
    if node.op != "matmul" or rewriter.type(node.output).dtype != COMPUTE:
        return None
    left, right = (rewriter.producer(n, "dequantize") for n in node.inputs)
    if left is None or right is None or node.attrs.get("transpose_b"):
        return None
    if any(rewriter.type(n.inputs[0]).dtype not in BYTES for n in (left, right)):
        return None
    (a, a_scale, *a_zero), (b, b_scale, *b_zero) = left.inputs, right.inputs
    if any(rewriter.type(n).size != 1 for n in (a_scale, *a_zero)) or rewriter.type(b).rank != 2:
        return None
    columns = [_columns(rewriter, n, b) for n in (b_scale, *b_zero)]
    if rewriter.constant(b) is None or any(c is None for c in columns):
        return None
    found = [rewriter.make(c) for c in columns]
    zero = rewriter.reshape(a_zero[0], ()) if a_zero else ""
    total = integer_matmul(rewriter, a, b, zero, found[1] if b_zero else "")
    scale = rewriter.add("mul", rewriter.reshape(a_scale, ()), found[0])
    return rewriter.add("mul", rewriter.add("cast", total, to=COMPUTE), scale)


def convolution(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3 of a convolution whose channels are one group and whose weights have zero point 0 as signed integers."""
    if node.op != "conv" or rewriter.type(node.output).dtype != COMPUTE or integer(node.attrs, "group") != 1:
        return None
    left, right = (rewriter.producer(n, "dequantize") for n in node.inputs)
    if left is None or right is None or rewriter.type(left.inputs[0]).dtype not in BYTES:
        return None
    (x, x_scale, *x_zero), (w, w_scale, *w_zero) = left.inputs, right.inputs
    weights, zero = rewriter.constant(w), _columns(rewriter, w_zero[0], w) if w_zero else np.zeros((), np.int32)
    scale = _columns(rewriter, w_scale, w)
    if weights is None or zero is None or scale is None or any(rewriter.type(n).size != 1 for n in (x_scale, *x_zero)):
        return None
    wide = weights.astype(WORD) - zero.astype(WORD)
    if weights.dtype.name not in BYTES or wide.min() < -128 or wide.max() > 127:
        return None
    point = rewriter.reshape(x_zero[0], ()) if x_zero else ""
    x, point = as_signed(rewriter, x, point, "uint8")
    total = rewriter.add("conv", x, rewriter.make(wide.astype("int8")), **dict(node.attrs))
    if point:
        sums = rewriter.make(-wide.sum((0, 1, 2), dtype=WORD))
        total = rewriter.add("add", total, rewriter.add("mul", point, sums))
    factor = rewriter.add("mul", rewriter.reshape(x_scale, ()), rewriter.make(scale))
    return rewriter.add("mul", rewriter.add("cast", total, to=COMPUTE), factor)


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


def floats(graph: Graph) -> Graph:
    """``graph`` with real numbers only, for targets that multiply these: cases 2 and 4."""
    return rewrite(graph, [unchanged, plain])


def late(graph: Graph) -> Graph:
    """``graph`` dequantised as late as it can be: cases 1 and 2."""
    return rewrite(graph, [moved, bordered, unchanged])


def integers(graph: Graph) -> Graph:
    """``graph`` with products of integers: cases 3 and 4."""
    for rules in ([product, convolution], [plain]):
        graph = rewrite(graph, rules)
    return graph
