"""Floats narrower than float32 become float32 everywhere but at the edges: inputs are cast when they are read, outputs
when they are made, and what lay between is no longer rounded. Constants stand for the same numbers.

What is multiplied narrow is the schedule's decision (``precision``), whatever type a model's own tensors have.
"""

from __future__ import annotations

from mononn_core.element import COMPUTE, NARROW
from mononn_core.graph import Graph, Node, TensorType
from mononn_core.graph.graph import Attr
from mononn_core.ops.builder import Builder
from mononn_core.passes.rewrite import settle_outputs


def run(graph: Graph) -> Graph:
    """``graph`` without tensors of such types inside; itself where there are none."""
    if not any(t.dtype in NARROW for t in graph.types.values()):
        return graph
    constants = {n: v.astype(COMPUTE) if _narrow(graph.types[n]) else v for n, v in graph.constants.items()}
    types = {
        n: TensorType(COMPUTE, graph.types[n].shape) if _narrow(graph.types[n]) else graph.types[n] for n in constants
    }
    types |= {n: graph.types[n] for n in graph.inputs}
    builder = Builder(types, constants, folding=False)
    builder.reserve(graph.types)
    wide: dict[str, str] = {}
    producers = graph.producers()
    for name in graph.inputs:
        if _narrow(types[name]):
            origin = next(n.origin for n in graph.nodes if name in n.inputs) if graph.consumers()[name] else None
            wide |= {name: builder.add("cast", [name], origin, {"to": COMPUTE})} if origin else {}
    for node in graph.nodes:
        edge = node.output in graph.outputs and _narrow(graph.types[node.output])
        made = builder.fresh(f"{node.output}/wide") if edge else node.output
        attrs = {key: _wide(value) for key, value in node.attrs.items()}
        if node.op == "bitcast":
            _cast_bits(builder, node, graph, wide.get(node.inputs[0], node.inputs[0]), made)
            if edge:
                wide[node.output] = made
            continue
        builder.add(node.op, (wide.get(n, n) for n in node.inputs), node.origin, attrs, output=made)
        if edge:
            wide[node.output] = made
    for name in graph.outputs:
        if name in wide and name in producers:
            attrs = {"to": graph.types[name].dtype}
            builder.add("cast", [wide[name]], producers[name].origin, attrs, output=name)
    return settle_outputs(graph.rebuild(builder.nodes, builder.types, builder.constants))


def _cast_bits(builder: Builder, node: Node, graph: Graph, source: str, made: str) -> None:
    """The bits of a narrow float, or such a float of bits, as ``made``."""
    before, after = (graph.types[name] for name in (node.inputs[0], node.output))
    if _narrow(before):
        source = builder.add("cast", [source], node.origin, {"to": before.dtype})
    if not _narrow(after):
        builder.add("bitcast", [source], node.origin, node.attrs, output=made)
        return
    bits = builder.add("bitcast", [source], node.origin, node.attrs)
    builder.add("cast", [bits], node.origin, {"to": COMPUTE}, output=made)


def _narrow(kind: TensorType) -> bool:
    return kind.dtype in NARROW


def _wide(value: Attr) -> Attr:
    """An attribute that may name a type."""
    return COMPUTE if isinstance(value, str) and value in NARROW else value
