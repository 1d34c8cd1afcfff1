"""Products of reals by weights in blocks of few bits keep these bits.

1. A transpose of constant weights in blocks is made at once.
2. matmul(a, dequantize_blocks(q, scale, zero)) of constant weights of 4 bits, or of 8, in blocks along their rows, is
   one operator, which takes q as it is: a network of 4-bit weights reads an eighth of float32's bytes
   (weight-only quantisation; Frantar et al., "GPTQ", ICLR 2023, section 4). Where the model lets it, a is rounded to
   8 bits with a scale for each block of the same terms, and products are of bytes.
3. All other constant weights in blocks are the constants that they stand for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.common import integer, integers
from mononn_core.ops.weight_only import in_whole_steps, middle
from mononn_core.passes.rewrite import Rewriter, rewrite

BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
STEPS, LEAST = 127.0, 1e-30
"""Steps of 8 bits on each side of zero, and what the largest of a block at least counts as."""
FEWEST_COLUMNS = 32
"""Two vectors of the widest: panels of 4-bit weights have at least two."""


def transposed(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    source = rewriter.producer(node.inputs[0], "dequantize_blocks") if node.op == "transpose" else None
    values = _constants(rewriter, source) if source is not None else None
    if source is None or values is None:
        return None
    perm = integers(node.attrs, "perm")
    parts = [rewriter.make(np.ascontiguousarray(v.transpose(perm))) for v in values]
    return rewriter.add(
        "dequantize_blocks", *parts, axis=perm.index(integer(source.attrs, "axis")), block=source.attrs["block"]
    )


def product(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    if node.op != "matmul" or rewriter.type(node.output).dtype != COMPUTE or node.attrs.get("transpose_b"):
        return None
    source = rewriter.producer(node.inputs[1], "dequantize_blocks")
    values = _constants(rewriter, source) if source is not None else None
    if source is None or values is None or rewriter.type(node.inputs[0]).rank < 2:
        return None
    q, scale, *zero = values
    dtype = rewriter.type(source.inputs[0]).dtype
    if dtype not in BITS or q.ndim != 2 or integer(source.attrs, "axis") != 0 or q.shape[1] < FEWEST_COLUMNS:
        return None
    bits = 4 if dtype == "uint8" and q.max(initial=0) < 16 else BITS[dtype]
    shift = 0 if dtype.startswith("u") else middle(bits)
    point = zero[0].astype(COMPUTE) if zero else np.zeros(scale.shape, COMPUTE)
    numbers = (q.astype("int16") + shift).astype("uint8")
    parts = (numbers, scale.astype(COMPUTE), point + np.asarray(shift, COMPUTE))
    a, block = node.inputs[0], integer(source.attrs, "block")
    attrs = {"block": block, "bits": bits}
    if not source.attrs.get("bytewise") or not in_whole_steps(len(q), block):
        return rewriter.add("weight_only_matmul", a, *map(rewriter.make, parts), **attrs)
    whole, *points = _in_bytes(rewriter, a, block)
    return rewriter.add("weight_only_bytes", whole, *map(rewriter.make, parts), *points, **attrs)


def _in_bytes(rewriter: Rewriter, a: str, block: int) -> tuple[str, str, str]:
    """``a`` as int8, the scales of its blocks along the last axis, and the sums of what they then stand for."""
    shape = rewriter.type(a).shape
    blocks = (*shape[:-1], shape[-1] // block)
    values, axes = rewriter.add("reshape", a, shape=(*blocks, block)), (len(shape),)
    least, steps = (rewriter.make(np.asarray(number, COMPUTE)) for number in (LEAST, STEPS))
    most = rewriter.add("reduce_max", rewriter.add("abs", values), axes=axes, keepdims=True)
    most = rewriter.add("max", most, least)
    whole = rewriter.add(
        "cast", rewriter.add("round", rewriter.add("mul", values, rewriter.add("div", steps, most))), to="int8"
    )
    scale = rewriter.add("reshape", rewriter.add("div", most, steps), shape=blocks)
    total = rewriter.add("reduce_sum", rewriter.add("cast", whole, to=COMPUTE), axes=axes, keepdims=False)
    return rewriter.add("reshape", whole, shape=shape), scale, rewriter.add("mul", total, scale)


def plain(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3."""
    values = _constants(rewriter, node) if node.op == "dequantize_blocks" else None
    if values is None:
        return None
    (found,) = registry.get(node.op).evaluate(np, values, node.attrs)
    return rewriter.builder.constant(found, f"{node.output}/folded")


def _constants(rewriter: Rewriter, node: Node) -> list[np.ndarray[Any, Any]] | None:
    values = [rewriter.constant(name) for name in node.inputs]
    return None if any(v is None for v in values) else [v for v in values if v is not None]


def floats(graph: Graph) -> Graph:
    """``graph`` with real weights only: cases 1 and 3."""
    return rewrite(rewrite(graph, [transposed]), [plain])


def run(graph: Graph) -> Graph:
    """``graph`` with products by weights of few bits: all cases."""
    for rules in ([transposed], [product], [plain]):
        graph = rewrite(graph, rules)
    return graph
