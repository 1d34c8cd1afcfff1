"""The types that tensors are stored in and products multiplied in, where these are not the Graph's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

import numpy as np

from mononn_core.element import BF16, BYTES, COMPUTE, F16, HALF_WORD, WORD, together
from mononn_core.graph import Graph, Node
from mononn_core.machine import Machine
from mononn_core.ops.common import integer
from mononn_core.ops.quantise import limits
from mononn_core.ops.registry import is_template
from mononn_core.program.expr import Cast, Const, Expr, Load, Op, Select
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.views import Views, stored_behind

OTHERS = ("weight_only_matmul", "order", "cumulative", "scatter_runs", "recurrence")
"""Operators whose templates read floats alone."""
EXACT_TERMS = (1 << 24) // (255 * 128)
"""Products of an unsigned and a signed byte whose sum float32 holds whatever they are."""
LARGEST_SEVEN_BITS, LARGEST_PAIR = 64, 128
"""Of bytes, pairs of whose products with unsigned ones fit 16 bits; of the sum of two of one sign, where these do."""
FEW, MANY_ROWS = 0.1, 64
"""Share of vectors of weights with a pair that does not fit, and rows of a product, up to and from which on the few are
multiplied beside the others (measured)."""

SAMPLE = 4096
"""Numbers of a constant that are looked at before all are."""
CHUNK = 1 << 18
"""Numbers that are looked at together, which the near caches hold."""

Types = tuple[dict[str, str], dict[str, str]]
"""(Tensor -> the type it is stored in, contraction's result -> the type its left operand is multiplied in)."""


def in_pairs(stages: tuple[FusionGroup, ...], graph: Graph, machine: Machine) -> dict[str, str]:
    """Result -> which pairs of products fit 16 bits, of contractions of unsigned bytes by constant signed ones, where
    the machine adds them up so: "seven_bits": all; "most", of a product of many rows."""
    found = dict[str, str]()
    for root in (s.root for s in stages if machine.multiplies_words and s.root is not None):
        if _types(root, graph) != ("uint8", "int8"):
            continue
        weights = graph.constants[root.inputs[1]]
        if np.abs(weights.astype(WORD)).max(initial=0) <= LARGEST_SEVEN_BITS:
            found[root.output] = "seven_bits"
        elif _few_apart(root, weights, graph, 2 * machine.lanes(COMPUTE)):
            found[root.output] = "most"
    return found


def _types(root: Node, graph: Graph) -> tuple[str, str]:
    """Those that a contraction by a constant multiplies; empty of another node."""
    if root.op not in ("matmul", "conv") or not graph.is_constant(root.inputs[1]):
        return "", ""
    left, right = (graph.types[name] for name in root.inputs[:2])
    return (left.dtype, right.dtype) if root.op == "conv" or right.rank == 2 else ("", "")


def _few_apart(root: Node, weights: np.ndarray, graph: Graph, pairs: int) -> bool:
    """Whether few of a product's vectors of weights, of so many ``pairs`` of neighbouring terms, have one whose
    products with unsigned bytes may not fit 16 bits."""
    if root.op != "matmul" or prod(graph.types[root.inputs[0]].shape[:-1]) < MANY_ROWS:
        return False
    rows = weights if root.attrs.get("transpose_b") else weights.T
    even, odd = (rows[:, start : rows.shape[1] // 2 * 2 : 2].astype(HALF_WORD) for start in (0, 1))
    above, below = (np.abs(end(even, 0) + end(odd, 0)) > LARGEST_PAIR for end in (np.maximum, np.minimum))
    return even.size > 0 and 1 - (1 - np.mean(above | below)) ** pairs <= FEW


def stored_types(
    stages: tuple[FusionGroup, ...], views: Views, precision: str, machine: Machine, pairs: Mapping[str, str]
) -> Types:
    """Of a network's ``stages`` on a CPU: floats in ``precision``, bytes in what the machine multiplies: those whose
    products are not added up in ``pairs`` of bytes. What the Graph itself has of words of 16 bits may be anything:
    beside that bytes stay bytes."""
    graph, lanes = views.graph, machine.lanes(COMPUTE)
    storage, products = dict[str, str](), exact_in_floats(stages, graph, machine)
    if precision != COMPUTE:
        floats = _agreed(stages, views, precision, lambda root: narrow_inputs(root, graph, precision, lanes))
        storage, products = floats[0], products | floats[1]
    if machine.multiplies_words and all(t.dtype != HALF_WORD for t in graph.types.values()):
        wide = {**products, **pairs}
        words = _agreed(stages, views, HALF_WORD, lambda root: _byte_inputs(root, graph, lanes, wide), products)
        storage, products = storage | words[0], products | words[1]
    return storage, products


def exactly_half(values: np.ndarray) -> str:
    """The type of 16 bits that holds all numbers of a float32 constant as they are; "" where there is none."""
    flat, kinds = np.ascontiguousarray(values).reshape(-1), {F16: _are_f16, BF16: _are_bf16}
    few = np.ascontiguousarray(flat[:: max(1, flat.size // SAMPLE)])
    parts = (few, *(flat[i : i + CHUNK] for i in range(0, flat.size, CHUNK)))
    return next((kind for kind, holds in kinds.items() if all(map(holds, parts))), "")


def _are_bf16(values: np.ndarray) -> bool:
    return not (values.view("uint32") & 0xFFFF).any()


def _are_f16(values: np.ndarray) -> bool:
    """Whether the last 13 bits are zero of what is no smaller than 2^-14, and all else is a multiple of 2^-24."""
    bits = values.view("uint32") & 0x7FFFFFFF
    small = bits < 0x38800000
    if (((bits & 0x1FFF) != 0) & ~small).any() or bits.max(initial=0) >= 0x47800000:
        return False
    steps = values[small] * np.asarray(1 << 24, COMPUTE)
    return bool((steps == np.rint(steps)).all())


def in_words(e: Expr) -> Expr:
    """A value of a byte type as a word of 16 bits, as :data:`~mononn_core.element.HALF_WORD` is stored."""
    match e:
        case Const():
            return Const(e.value, HALF_WORD)
        case Select():
            return Select(e.condition, in_words(e.then), in_words(e.otherwise))
        case Cast(value=Load(dtype=dtype) as loaded) if dtype == HALF_WORD:
            return loaded
        case Cast(value=Op("min", (Op("max", (_, Const() as low)), Const() as high)) as clipped, dtype=dtype):
            if clipped.dtype == COMPUTE and (low.value, high.value) == limits(dtype):
                return Cast(clipped, HALF_WORD)
        case Cast(value=Op("lookup") as found):
            return Cast(found, HALF_WORD)
    return Cast(Cast(e, COMPUTE), HALF_WORD)


def passing(e: Expr) -> Expr:
    """``e``; what is read of a byte that is stored as a word, of that word."""
    match e:
        case Cast(value=Cast(value=Load(dtype=dtype) as loaded)) if dtype == HALF_WORD:
            return Cast(loaded, e.dtype)
    return e


def _agreed(
    stages: tuple[FusionGroup, ...],
    views: Views,
    dtype: str,
    inputs: Callable[[Node], tuple[str, ...]],
    others: Mapping[str, str] = MappingProxyType({}),
) -> Types:
    """``dtype`` for the operands that ``inputs`` names of a template's node, where all of them are stored by some group
    and read by no template as what they are in the Graph. A convolution in groups that multiplies float32 reads either,
    and so do ``others``."""
    graph, products, own = views.graph, dict[str, list[set[str]]](), set[str]()
    for root in (s.root for s in stages if s.root is not None and is_template(s.root, graph)):
        chosen = inputs(root)
        if chosen:
            products[root.output] = [stored_behind((name,), views) for name in chosen]
        grouped = root.op == "conv" and root.attrs["group"] != 1 and graph.types[root.inputs[0]].dtype == COMPUTE
        widens = grouped or root.output in others  # what it loads
        own |= stored_behind(root.inputs[max(len(chosen), widens) :], views)
        if root.op == "recurrence":  # reads its own states
            own.add(root.output)
    kind = "uint8" if dtype == HALF_WORD else COMPUTE
    fits = {t for t in views.stored if graph.types[t].dtype == kind} - own - set(graph.outputs)
    while left_out := [o for o, read in products.items() if not all(tensors and tensors <= fits for tensors in read)]:
        for output in left_out:  # it reads them as they are, and so does whoever shares an operand with it
            fits -= set().union(*products.pop(output))
    stored = set().union(*(tensors for read in products.values() for tensors in read))
    return dict.fromkeys(sorted(stored), dtype), dict.fromkeys(products, dtype)


def exact_in_floats(stages: tuple[FusionGroup, ...], graph: Graph, machine: Machine) -> dict[str, str]:
    """Result -> float32, which holds the sums exactly, for convolutions of bytes in groups of one channel where no
    instruction multiplies bytes: then words of four channels would take more instructions."""
    found = dict[str, str]()
    for root in (s.root for s in stages if s.root is not None and s.root.op == "conv"):
        x, w = (graph.types[name] for name in root.inputs)
        alone, taps = w.shape[2] == 1 < w.shape[3] == root.attrs["group"], w.shape[0] * w.shape[1]
        whole = taps <= EXACT_TERMS or machine.lanes(COMPUTE) == 1
        if x.dtype in BYTES and alone and whole and machine.product(x.dtype) is None:
            found[root.output] = COMPUTE
    return found


def narrow_inputs(root: Node, graph: Graph, dtype: str, lanes: int) -> tuple[str, ...]:
    """The operands that a template can read as ``dtype``: of products and convolutions by constants, and of attention,
    where whole groups of terms lie side by side, and no vector of results is of several wide groups of channels."""
    word = together(dtype)
    types = [graph.types[name] for name in root.inputs if name]
    if types[0].dtype != COMPUTE or root.op in OTHERS:
        return ()
    if root.op == "attention":
        return root.inputs[:3] if types[0].shape[3] % word == 0 else ()
    if not graph.is_constant(root.inputs[1]):
        return ()
    if root.op == "conv":
        if root.attrs["group"] == 1:
            return root.inputs[:1]
        mine, width = _of_group(root, graph)
        fits = _beside(root, graph, lanes) or width % lanes == 0
        return root.inputs[:1] if fits and mine % word == 0 else ()
    return root.inputs[:1] if types[1].rank == 2 else ()


def _byte_inputs(root: Node, graph: Graph, lanes: int, others: Mapping[str, str]) -> tuple[str, ...]:
    """The left operand of a product or convolution of unsigned by constant signed bytes that is none of ``others`` and
    does not compute its channels side by side."""
    if root.output in others or _types(root, graph) != ("uint8", "int8") or root.op == "bytes_matmul":
        return ()
    beside = root.op == "conv" and root.attrs["group"] != 1 and _beside(root, graph, lanes)
    return () if beside else root.inputs[:1]


def _of_group(conv: Node, graph: Graph) -> tuple[int, int]:
    """Input and output channels of a group."""
    w = graph.types[conv.inputs[1]].shape
    return w[2], w[3] // integer(conv.attrs, "group")


def _beside(conv: Node, graph: Graph, lanes: int) -> bool:
    """Whether groups are so narrow, and as wide in as out, that channels are computed side by side in a vector."""
    mine, width = _of_group(conv, graph)
    return mine == width and mine < lanes and lanes % mine == 0
