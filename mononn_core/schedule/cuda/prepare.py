"""Brings a Graph into the forms that CUDA's templates take.

1. What :mod:`mononn_core.schedule.prepare` does; every convolution becomes a product over its windows.
2. A convolution in groups is refused: it would be a product a group, of a few columns each.
3. A product or an attention reads activations only from the arena, in the type it computes with and in aligned rows: a
   caller's input, an output and a constant (but a product's packed weights) are copied first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mononn_core.errors import UnsupportedError
from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.builder import Builder
from mononn_core.ops.common import integer
from mononn_core.passes import dce, fold
from mononn_core.schedule.operands import Product
from mononn_core.schedule.prepare import is_template
from mononn_core.schedule.prepare import prepare as prepare_products

MATRIX_INPUTS = {"matmul": 2, "attention": 3}
"""How many of a template's inputs are matrices it multiplies."""


def prepare(graph: Graph) -> Graph:
    """The same network in schedulable form.

    Raises:
        UnsupportedError: an operator has no generated form, or a convolution has groups; the message names the node.
    """
    for node in graph.nodes:
        if node.op == "conv" and integer(node.attrs, "group") > 1:
            raise UnsupportedError(
                f"{node.origin}: convolutions in groups have no CUDA kernel yet; compile with target cpu"
            )
    prepared = prepare_products(graph, convolutions=False)
    return _copies(prepared if prepared is graph else dce.run(fold.run(prepared)))


def _copies(graph: Graph) -> Graph:
    """Copies in front of operands that lie outside the arena; the same object where there are none."""
    builder = Builder(graph.types, graph.constants, folding=False)
    builder.reserve(graph.types)
    known: dict[str, str] = {}
    producers = graph.producers()
    for node in graph.nodes:
        inputs = list(node.inputs)
        for position in range(MATRIX_INPUTS.get(node.op, 0) if is_template(node, graph) else 0):
            if _outside(graph, producers, node, position):
                name = inputs[position]
                if name not in known:
                    known[name] = builder.add("identity", [name], node.origin)
                inputs[position] = known[name]
        builder.nodes.append(node if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs)))
    return graph.rebuild(builder.nodes, builder.types, builder.constants) if known else graph


def _outside(graph: Graph, producers: Mapping[str, Node], node: Node, position: int) -> bool:
    """Whether an operand is, or shows through movements, something that does not lie in the arena."""
    name = node.inputs[position]
    if graph.is_constant(name):
        return not (node.op == "matmul" and position == 1 and Product.of(node, graph.types).batch == 1)
    while name in producers and name not in graph.outputs:
        if registry.get(producers[name].op).kind != "movement":
            return False
        name = producers[name].inputs[0]
    return True
