"""Products of reals by weights of few bits keep these bits.

1. A transpose of constant weights in blocks is made at once.
2. matmul(a, dequantize_blocks(q, scale, zero)) of constant weights of 4 bits, or of 8, in blocks along their rows, is
   one operator, which takes q as it is: a network of 4-bit weights reads an eighth of float32's bytes
   (weight-only quantisation; Frantar et al., "GPTQ", ICLR 2023, section 4).
3. Where the left side may be rounded, products are of integers, with a scale for each run of a's terms: of bytes, or
   of words of 16 bits as two bytes each. By the rule "auto" they are of words where the model has quantised its left
   side to 16 bits, else of bytes. So are weights with one scale for all terms of a column then, blockwise or not.
4. All other constant weights in blocks are the constants that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mononn_core.element import BYTES, COMPUTE, SHORT
from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.common import integer, integers
from mononn_core.ops.weight_only import in_steps, middle, run_of
from mononn_core.passes.quantised import columns
from mononn_core.passes.rewrite import Rewriter, rewrite

BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
REALS, AUTO = COMPUTE, "auto"
RULES = (REALS, AUTO, "int16", "int8")
"""For left sides: they stay as they are, see case 3, or what they are all rounded to."""
RUNS = {"int8": 64, "int16": 256}
"""Terms that share a scale of the left side, at most, where those of the weights leave a choice."""
FEWEST_COLUMNS = 32
"""Two vectors of the widest: panels of 4-bit weights have at least two."""


def transposed(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    source = rewriter.producer(node.inputs[0], "dequantize_blocks") if node.op == "transpose" else None
    values = _constants(rewriter, source) if source is not None else None
    if source is None or values is None:
        return None
    perm = integers(node.attrs, "perm")
    parts = [rewriter.make(v.transpose(perm)) for v in values]
    return rewriter.add(source.op, *parts, **{**source.attrs, "axis": perm.index(integer(source.attrs, "axis"))})


@dataclass(frozen=True)
class Weights:
    """Constant weights in blocks along their rows, as products take them: the numbers [K, N], uint8 of so many
    ``bits``, the scales and zero points [blocks, N] of their columns, the rows of a block, and the type that a left
    side is rounded to, in runs of so many terms (0: it stays as it is)."""

    numbers: np.ndarray[Any, Any]
    scale: np.ndarray[Any, Any]
    zero: np.ndarray[Any, Any]
    bits: int
    block: int
    dtype: str
    run: int


def product(rewriter: Rewriter, node: Node, rule: str = REALS) -> str | None:
    """Cases 2 and 3."""
    found = _weights(rewriter, node, rule)
    if found is None:
        return None
    parts = map(rewriter.make, (found.numbers, found.scale, found.zero))
    attrs = {"block": found.block, "bits": found.bits}
    if not found.run:
        return rewriter.add("weight_only_matmul", node.inputs[0], *parts, **attrs)
    whole, *points = _in_integers(rewriter, node.inputs[0], found)
    return rewriter.add("weight_only_bytes", whole, *parts, *points, run=found.run, **attrs)


def _weights(rewriter: Rewriter, node: Node, rule: str) -> Weights | None:
    """The right side of a product that keeps its bits; None of another node."""
    if node.op != "matmul" or rewriter.type(node.output).dtype != COMPUTE or node.attrs.get("transpose_b"):
        return None
    if rewriter.type(node.inputs[0]).rank < 2 or (source := rewriter.producer(node.inputs[1])) is None:
        return None
    values = _constants(rewriter, source) if source.op in ("dequantize", "dequantize_blocks") else None
    kind = rewriter.type(source.inputs[0]).dtype
    if values is None or kind not in BITS or values[0].ndim != 2 or values[0].shape[1] < FEWEST_COLUMNS:
        return None
    (q, *points), in_blocks = values, source.op == "dequantize_blocks"
    if in_blocks and integer(source.attrs, "axis") != 0:
        return None
    if not in_blocks:
        each = [columns(rewriter, name, source.inputs[0]) for name in source.inputs[1:]]
        points = [v for v in each if v is not None]
        if len(points) < len(each):
            return None
    scale, *zero = points
    block = min(integer(source.attrs, "block"), len(q)) if in_blocks else len(q)
    bits = 4 if kind == "uint8" and q.max(initial=0) < 16 else BITS[kind]
    dtype = str(source.attrs.get("activations", rule))
    if dtype == AUTO:
        dtype = _of_left(rewriter, node.inputs[0])
    run = run_of(len(q), block, RUNS[dtype]) if dtype != REALS else 0
    if not run and not in_blocks:
        return None
    wide, shift = (-(-len(q) // block), q.shape[1]), 0 if kind.startswith("u") else middle(bits)
    scale, point = (np.broadcast_to(v.astype(COMPUTE), wide) for v in (scale, zero[0] if zero else np.zeros(1)))
    numbers = q.view("uint8") ^ np.uint8(shift) if kind in BYTES else (q.astype("int8") + shift).astype("uint8")
    point = point + np.asarray(shift, COMPUTE)
    return Weights(numbers, np.ascontiguousarray(scale), point, bits, block, dtype, run)


def _of_left(rewriter: Rewriter, name: str) -> str:
    """What the rule "auto" rounds the left side ``name`` to."""
    while (source := rewriter.producer(name)) is not None and source.op in ("reshape", "transpose"):
        name = source.inputs[0]
    kind = rewriter.type(source.inputs[0]).dtype if source is not None and source.op == "dequantize" else ""
    return "int16" if kind in SHORT and kind not in BYTES else "int8"


def rounded(graph: Graph, rule: str) -> dict[str, str]:
    """The products whose left sides the pass rounds, and the recurrences whose states are, and to which type."""
    found: dict[str, str] = {}

    def record(rewriter: Rewriter, node: Node) -> None:
        if "rounded" in node.attrs:
            found[str(node.origin)] = str(node.attrs["rounded"])
        elif (weights := _weights(rewriter, node, rule)) is not None and weights.run:
            found[str(node.origin)] = weights.dtype

    rewrite(rewrite(graph, [transposed]), [record])
    return found


def _in_integers(rewriter: Rewriter, a: str, weights: Weights) -> tuple[str, str, str]:
    """``a`` in the integers that such weights are multiplied by, words as bytes, the scales of its runs along the last
    axis, and the sums of what its blocks then stand for."""
    dtype, run, block, shape = weights.dtype, weights.run, weights.block, rewriter.type(a).shape
    lead, terms, axes = shape[:-1], shape[-1], (len(shape),)
    values = rewriter.add("reshape", a, shape=(*lead, terms // run, run))
    whole, scale = in_steps(rewriter, values, dtype, len(shape))
    meant = rewriter.add("reshape", rewriter.add("mul", whole, scale), shape=(*lead, terms // block, block))
    total = rewriter.add("reduce_sum", meant, axes=axes, keepdims=False)
    whole = rewriter.add("reshape", whole, shape=shape)
    if dtype == "int16":
        whole = _in_two(rewriter, whole)
    return rewriter.add("cast", whole, to="int8"), rewriter.add("reshape", scale, shape=(*lead, terms // run)), total


def _in_two(rewriter: Rewriter, whole: str) -> str:
    """Words, and 256 times the first and the second half of what comes out are they: [.., K] as [.., 2 K]."""
    shape = rewriter.type(whole).shape
    half, part = (rewriter.make(np.asarray(number, COMPUTE)) for number in (0.5, 1 / 256))
    upper, lower = (rewriter.make(np.asarray(two, COMPUTE).reshape(2, 1)) for two in ((1, -256), (0, 1)))
    value = rewriter.add("reshape", whole, shape=(*shape[:-1], 1, shape[-1]))
    high = rewriter.add("floor", rewriter.add("add", rewriter.add("mul", value, part), half))
    both = rewriter.add("add", rewriter.add("mul", high, upper), rewriter.add("mul", value, lower))
    return rewriter.add("reshape", both, shape=(*shape[:-1], 2 * shape[-1]))


def plain(rewriter: Rewriter, node: Node) -> str | None:
    """Case 4."""
    values = _constants(rewriter, node) if node.op == "dequantize_blocks" else None
    if values is None:
        return None
    (found,) = registry.get(node.op).evaluate(np, values, node.attrs)
    return rewriter.builder.constant(found, f"{node.output}/folded")


def _constants(rewriter: Rewriter, node: Node) -> list[np.ndarray[Any, Any]] | None:
    values = [rewriter.constant(name) for name in node.inputs]
    return None if any(v is None for v in values) else [v for v in values if v is not None]


def floats(graph: Graph) -> Graph:
    """``graph`` with real weights only: cases 1 and 4."""
    return rewrite(rewrite(graph, [transposed]), [plain])


def runs(rule: str) -> Callable[[Graph], Graph]:
    """The pass that gives a Graph products by weights of few bits: all cases, left sides rounded by ``rule``."""

    def run(graph: Graph) -> Graph:
        for rules in ([transposed], [partial(product, rule=rule)], [plain]):
            graph = rewrite(graph, rules)
        return graph

    return run
