"""Products of one left operand with several constant matrices become one product.

1. matmul(x, W1), matmul(x, W2), ... with constant W of rank 2: slices of matmul(x, [W1 W2 ...]).
2. When each is only read by the addition of a constant vector: slices of matmul(x, [W1 W2 ..]) + [b1 b2 ..]
   (Q, K and V of an attention become one product).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.graph.graph import Attr
from mononn_core.ops.builder import Builder
from mononn_core.passes.rewrite import drop_dead, settle_outputs


@dataclass(frozen=True)
class Member:
    """One product of a group, and the addition of its bias (None without one)."""

    product: Node
    addition: Node | None
    bias: str

    @property
    def root(self) -> Node:
        """The node whose output becomes a slice."""
        return self.addition or self.product


def _members(graph: Graph) -> dict[tuple[str, bool], list[Member]]:
    """Candidates by left operand and by whether they have a bias, in order."""
    readers = graph.consumers()
    groups: dict[tuple[str, bool], list[Member]] = {}
    for node in graph.nodes:
        if node.op != "matmul" or node.attrs.get("transpose_b") or node.inputs[0] in graph.constants:
            continue
        if graph.types[node.output].dtype != COMPUTE:  # of integers each is scaled and stored narrow by itself
            continue
        left, right = (graph.types[n] for n in node.inputs)
        if node.inputs[1] not in graph.constants or right.rank != 2 or left.rank < 1:
            continue
        member = _with_bias(graph, node, readers[node.output])
        groups.setdefault((node.inputs[0], member.addition is not None), []).append(member)
    return {key: members for key, members in groups.items() if len(members) > 1}


def _with_bias(graph: Graph, node: Node, readers: Sequence[Node]) -> Member:
    if len(readers) == 1 and readers[0].op == "add" and node.output not in graph.outputs:
        addition = readers[0]
        for name in addition.inputs:
            if name in graph.constants and graph.types[name].shape == graph.types[node.output].shape[-1:]:
                return Member(node, addition, name)
    return Member(node, None, "")


def _merge(builder: Builder, left: str, members: list[Member]) -> dict[str, str]:
    """Append the merged product of ``left``; gives, for each root's output, the slice that replaces it."""
    joined = [name for m in members for node in (m.product, m.addition) if node for name in node.origin.names]
    origin = members[0].root.origin
    origin = replace(origin, joined=tuple(n for n in dict.fromkeys(joined) if n != origin.name))
    hint = members[0].product.output
    weights = np.concatenate([builder.constants[m.product.inputs[1]] for m in members], axis=1)
    name = builder.constant(weights, f"{hint}/merged_weight")
    total = builder.add("matmul", (left, name), origin, hint=f"{hint}/merged")
    if members[0].addition is not None:
        bias = builder.constant(np.concatenate([builder.constants[m.bias] for m in members]), f"{hint}/merged_bias")
        total = builder.add("add", (total, bias), origin, hint=f"{hint}/merged_sum")
    slices: dict[str, str] = {}
    position = 0
    for member in members:
        shape = builder.types[member.root.output].shape
        starts = (*((0,) * (len(shape) - 1)), position)
        attrs: dict[str, Attr] = {"starts": starts, "sizes": shape, "steps": (1,) * len(shape)}
        slices[member.root.output] = builder.add(
            "slice", (total,), member.root.origin, attrs, hint=f"{member.root.output}/part"
        )
        position += shape[-1]
    return slices


def run(graph: Graph) -> Graph:
    """``graph`` with such products merged."""
    groups = _members(graph)
    if not groups:
        return graph
    first = {members[0].product.output: members for members in groups.values()}
    roots = {m.root.output for members in groups.values() for m in members}
    builder = Builder(graph.types, graph.constants, folding=False)
    replaced: dict[str, str] = {}
    for node in graph.nodes:
        if node.outputs[0] in first:
            left = replaced.get(node.inputs[0], node.inputs[0])  # a part of another merged product
            replaced.update(_merge(builder, left, first[node.outputs[0]]))
        if node.outputs[0] not in roots:
            inputs = tuple(replaced.get(n, n) for n in node.inputs)
            builder.nodes.append(Node(node.op, inputs, node.outputs, node.origin, node.attrs))
        elif node.outputs[0] in graph.outputs:
            builder.nodes.append(Node("identity", (replaced[node.outputs[0]],), node.outputs, node.origin))
    merged = graph.rebuild(builder.nodes, builder.types, builder.constants)
    return drop_dead(settle_outputs(merged))
