"""Operator by operator, from a node's inputs beside those of the shorter Graph to its outputs beside its."""

from __future__ import annotations

from collections.abc import Callable

from mononn_core.compiler.padding.arithmetic import (
    attention_rule,
    by_weights_rule,
    conv_rule,
    cumulative_rule,
    elementwise_rule,
    matmul_rule,
    norm_rule,
    reduction_rule,
    softmax_rule,
)
from mononn_core.compiler.padding.bounds import anything
from mononn_core.compiler.padding.gathers import gather_elements_rule, gather_nd_rule, gather_rule
from mononn_core.compiler.padding.movements import (
    concat_rule,
    expand_rule,
    pad_rule,
    reshape_rule,
    slice_rule,
    tile_rule,
    transpose_rule,
    trilu_rule,
    windows_rule,
)
from mononn_core.compiler.padding.placed import Indices, Inputs, Placed, Step, UnprovenError
from mononn_core.element import is_float
from mononn_core.graph import Graph, Node
from mononn_core.ops import registry


def place(long: Graph, short: Graph, node: Node, inputs: Inputs, indices: Indices) -> list[Placed]:
    """Of each output; ``indices`` is the second input, of one of GATHERS, if constant. Raises UnprovenError where
    there is no rule, or what lies elsewhere comes in."""
    if any(x is not None and not x.alike and (node.op not in GATHERS or i != 1) for i, x in enumerate(inputs)):
        raise UnprovenError
    definition = registry.get(node.op)
    rule = _RULES.get(node.op) or _RULES.get(definition.kind)
    if rule is not None and len(node.outputs) == 1:
        kinds = tuple(long.types[n] if n else None for n in node.inputs)
        step = Step(node, kinds, long.types[node.output], short.types[node.output].shape, indices)
        return [rule(step, inputs)]
    if any(x is not None and x.longer for x in inputs):
        raise UnprovenError
    found = [long.types[name] for name in node.outputs]
    return [Placed((None,) * kind.rank, None if is_float(kind.dtype) else anything(kind.dtype)) for kind in found]


GATHERS = ("gather", "gather_nd")
_RULES: dict[str, Callable[[Step, Inputs], Placed]] = {
    "elementwise": elementwise_rule,
    "reduction": reduction_rule,
    "cumulative": cumulative_rule,
    "transpose": transpose_rule,
    "reshape": reshape_rule,
    "expand": expand_rule,
    "slice": slice_rule,
    "concat": concat_rule,
    "pad": pad_rule,
    "windows": windows_rule,
    "tile": tile_rule,
    "trilu": trilu_rule,
    "softmax": softmax_rule,
    "layer_norm": norm_rule,
    "rms_norm": norm_rule,
    "matmul": matmul_rule,
    "weight_only_matmul": by_weights_rule,
    "attention": attention_rule,
    "conv": conv_rule,
    "gather": gather_rule,
    "gather_nd": gather_nd_rule,
    "gather_elements": gather_elements_rule,
}
"""By operator, or by kind."""
