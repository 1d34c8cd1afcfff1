"""Products of dequantised operands (:mod:`mononn_core.passes.late`) become products of the integers themselves.

1. matmul(dequantize(a), dequantize(b)), b computed with one scale, or a constant with one scale, or one a column: the
   exact int32 product of the integers minus their zero points, times both scales (Jacob et al., "Quantization and
   Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018, section 2).
   A convolution likewise, padded by the zero point, of computed weights with one scale too; one that takes each channel
   apart also with a scale and zero point for each. Unsigned constant weights around a zero point are signed ones and a
   constant a channel, which is multiplied by the sums of the windows.
2. Every other dequantised constant is the constant that it stands for.

Case 1 is exact, up to the rounding of scales, and has fewer roundings than what it replaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from mononn_core.element import BYTES, COMPUTE, WORD
from mononn_core.graph import Graph, Node
from mononn_core.ops import common, registry
from mononn_core.ops.quantise import MOST_TERMS, beyond, integer_matmul, recentred
from mononn_core.passes.late import unchanged
from mononn_core.passes.rewrite import Rewriter, rewrite


def problem(rewriter: Rewriter, node: Node) -> str:
    """Why a matmul or conv of real numbers does not become a product of integers (case 1); "" where it does."""
    left, right = (rewriter.producer(n, "dequantize") for n in node.inputs)
    if left is None or right is None:
        side = "neither side" if left is right else "its left side" if left is None else "its right side"
        return f"{side} is {'' if left is right else 'not '}quantised"
    (a, *points), (b, *scales) = left.inputs, right.inputs
    if _of_any(rewriter, node, b):
        return _problem_of_any(rewriter, left, right)
    if {rewriter.type(n).dtype for n in (a, b)} - set(BYTES):
        return "its integers have more than 8 bits"
    if any(rewriter.type(n).size != 1 for n in points) and not _is_depthwise(rewriter, node, points):
        return "its left side has more than one scale"
    if (value := rewriter.constant(b)) is None:
        alone = all(rewriter.type(n).size == 1 and rewriter.constant(n) is not None for n in scales)
        few = prod(rewriter.type(b).shape[:3]) <= MOST_TERMS
        return "" if alone and few else "its weights are computed, and they have not one constant scale or are too many"
    if value.shape != rewriter.type(node.inputs[1]).shape:
        return "all its weights are one number"
    if any(columns(rewriter, n, b) is None for n in scales):
        return "the scale of its weights is not constant, or differs within a column"
    if value[..., 0].size > MOST_TERMS:
        return "an int32 does not hold sums of so many terms"
    if node.op == "matmul":
        return "its weights are transposed" if node.attrs.get("transpose_b") else ""
    some = beyond(_centred(rewriter, right), (0, 1, 2)).any() and node.attrs["group"] not in (1, value.shape[3])
    return "less their zero point its weights have more than 8 bits, and it has groups of channels" if some else ""


def _is_depthwise(rewriter: Rewriter, node: Node, points: Sequence[str]) -> bool:
    """Whether a convolution takes each channel apart, with constant scales and zero points of its own."""
    apart = node.op == "conv" and node.attrs["group"] == rewriter.type(node.inputs[0]).shape[-1]
    return apart and all(columns(rewriter, n, node.inputs[0]) is not None for n in points)


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
    """Case 1 of such a right side; one whose columns lie one below the other is taken as it lies."""
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
    """Case 1."""
    if node.op != "matmul" or rewriter.type(node.output).dtype != COMPUTE or problem(rewriter, node):
        return None
    (a, a_scale, *a_zero), (b, b_scale, *b_zero) = _dequantised(rewriter, node)
    if _of_any(rewriter, node, b):
        return _bytes(rewriter, node)
    zeros = [rewriter.make(columns(rewriter, n, b)) for n in b_zero]
    total = integer_matmul(rewriter, a, b, _scalar(rewriter, a_zero), zeros[0] if zeros else "")
    return _scaled(rewriter, total, rewriter.reshape(a_scale, ()), b_scale, b)


def convolution(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1 of a convolution."""
    if node.op != "conv" or rewriter.type(node.output).dtype != COMPUTE or problem(rewriter, node):
        return None
    (x, x_scale, *x_zero), (w, w_scale, *w_zero) = _dequantised(rewriter, node)
    source = rewriter.producer(node.inputs[1])
    assert source is not None
    x_scale = _of_outputs(rewriter, x_scale, node)
    x, point = recentred(rewriter, x, _of_outputs(rewriter, x_zero[0], node) if x_zero else "", "uint8")
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


def _of_outputs(rewriter: Rewriter, name: str, conv: Node) -> str:
    """The scale or zero point of a convolution's left side as a scalar, or for each output channel."""
    if rewriter.type(name).size == 1:
        return rewriter.reshape(name, ())
    each = columns(rewriter, name, conv.inputs[0])
    assert each is not None
    return rewriter.make(np.repeat(each, rewriter.type(conv.output).shape[-1] // each.size))


def _centred(rewriter: Rewriter, weights: Node) -> np.ndarray[Any, Any]:
    """Constant weights minus their zero point, int32."""
    w, _, *zero = weights.inputs
    value, points = rewriter.constant(w), [columns(rewriter, n, w) for n in zero]
    assert value is not None
    return value.astype(WORD) - (0 if not points or points[0] is None else points[0].astype(WORD))


def _scaled(rewriter: Rewriter, total: str, left: str, right: str, b: str) -> str:
    """Sums times the scales of the left side and of b's columns."""
    scale = rewriter.add("mul", left, rewriter.make(columns(rewriter, right, b)))
    return rewriter.add("mul", rewriter.add("cast", total, to=COMPUTE), scale)


def columns(rewriter: Rewriter, name: str, b: str) -> np.ndarray[Any, Any] | None:
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
    """Case 2."""
    values = [rewriter.constant(n) for n in node.inputs]
    if node.op != "dequantize" or any(v is None for v in values):
        return None
    (found,) = registry.get(node.op).evaluate(np, values, node.attrs)
    return rewriter.builder.constant(found, f"{node.output}/folded")


def floats(graph: Graph) -> Graph:
    """``graph`` with real numbers only, for targets that multiply these: :func:`~mononn_core.passes.late.unchanged`,
    and case 2."""
    return rewrite(graph, [unchanged, plain])


def integers(graph: Graph) -> Graph:
    """``graph`` with products of integers: case 1."""
    return rewrite(graph, [product, words, convolution])


def reals(graph: Graph) -> Graph:
    """``graph`` without dequantised constants: case 2."""
    return rewrite(graph, [plain])


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
