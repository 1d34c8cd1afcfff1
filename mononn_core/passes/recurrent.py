"""Recurrences in the form that a target takes.

1. Written step by step where no template computes them: on a GPU, and where the weights are data or no float32. A
   sequence is then of few steps.
2. On a CPU weights of 8 bits on a scale, one of each column, stay as they are, where integers less their zero point are
   int8 still: a step reads a quarter of the bytes, and sums are multiplied by the scale. By the rules of
   :mod:`mononn_core.passes.weight_only` the states that they multiply are rounded, row by row; by "auto" as the model
   says, or to 16 bits, since each step rounds what the one before has rounded. No others are, and none on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mononn_core.element import COMPUTE
from mononn_core.errors import UnsupportedError
from mononn_core.graph import Graph, Node
from mononn_core.graph.graph import Attr
from mononn_core.ops.quantise import beyond
from mononn_core.ops.recurrent import INPUTS, SCALE, R, Unrolled, X
from mononn_core.ops.registry import is_template
from mononn_core.passes.rewrite import Rewriter, rewrite
from mononn_core.passes.weight_only import AUTO, REALS

MOST_STEPS = 256
"""Of a recurrence that is written step by step."""


class _Nodes:
    """Operators applied to tensors of a Graph."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter

    def add(self, op: str, /, *inputs: str, **attrs: Any) -> str:
        return self.rewriter.add(op, *inputs, **attrs)

    def one(self, like: str) -> str:
        return self.number(1, like)

    def number(self, value: float, like: str) -> str:
        return self.rewriter.number(value, like)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.rewriter.type(name).shape

    def dtype(self, name: str) -> str:
        return self.rewriter.type(name).dtype


def _unroll(rewriter: Rewriter, node: Node) -> str:
    steps = rewriter.type(node.inputs[X]).shape[0]
    if steps > MOST_STEPS:
        raise UnsupportedError(
            f"{node.origin}: a recurrence of {steps} steps is not compiled for this target, which writes at most "
            f"{MOST_STEPS} one after the other; use shorter sequences, or target cpu with constant float32 weights"
        )
    inputs = [n or None for n in (*node.inputs, *("",) * (INPUTS - len(node.inputs)))]
    found: str = Unrolled(_Nodes(rewriter), inputs, _unrounded(node)).states()
    return found


def on_cpu(graph: Graph) -> Graph:
    """``graph`` with the recurrences that a template computes, and no others; raises UnsupportedError for one of too
    many steps."""

    def unserved(rewriter: Rewriter, node: Node) -> str | None:
        wanted = node.op == "recurrence" and not is_template(node, graph)
        return _unroll(rewriter, node) if wanted else None

    return rewrite(graph, [unserved])


def integers(rule: str) -> Callable[[Graph], Graph]:
    """The pass that gives a Graph recurrences by weights of 8 bits, case 2, with states rounded by ``rule``."""

    def stored(rewriter: Rewriter, node: Node) -> str | None:
        if node.op != "recurrence" or len(node.inputs) > SCALE:
            return None
        found, attrs = _bytes(rewriter, node), _unrounded(node)
        if found is None:
            return rewriter.add(node.op, *node.inputs, **attrs) if "rounded" in node.attrs else None
        said = node.attrs.get("rounded", "int16") if rule == AUTO else rule
        if said != REALS:
            attrs["rounded"] = said
        inputs = [*node.inputs, *[""] * (SCALE - len(node.inputs))]
        inputs[R], scale = map(rewriter.make, found)
        return rewriter.add(node.op, *inputs, scale, **attrs)

    return lambda graph: rewrite(graph, [stored])


def _bytes(rewriter: Rewriter, node: Node) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """The weights of a recurrence as int8 and a scale for each of their columns."""
    source = rewriter.producer(node.inputs[R], "dequantize")
    if source is None or rewriter.type(source.output).dtype != COMPUTE:
        return None
    values = [v for n in source.inputs if (v := rewriter.constant(n)) is not None]
    if len(values) < len(source.inputs):
        return None
    q, scale, *zero = values
    whole, steps = q.astype(np.int32) - (zero[0].astype(np.int32) if zero else 0), np.broadcast_to(scale, q.shape)
    if (steps != steps[:, :1]).any() or beyond(whole, (0, 1, 2)):
        return None
    return whole.astype(np.int8), steps[:, 0]


def _unrounded(node: Node) -> dict[str, Attr]:
    """The attributes of a recurrence whose states stay as they are."""
    return {name: value for name, value in node.attrs.items() if name != "rounded"}


def on_gpu(graph: Graph) -> Graph:
    """``graph`` without recurrences; raises UnsupportedError for one of too many steps."""
    return rewrite(graph, [lambda rewriter, node: _unroll(rewriter, node) if node.op == "recurrence" else None])
