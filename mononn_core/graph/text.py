"""A Graph as text: one line a tensor or node, stable from run to run."""

from __future__ import annotations

import numpy as np

from mononn_core.graph.graph import Attr, Graph, Node

SHOWN = 4
"""Constants of up to this many elements are printed."""


def to_text(graph: Graph) -> str:
    """Inputs, constants and nodes with their types, attributes and origins."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input    {name}: {graph.types[name]}" for name in graph.inputs]
    lines += [f"  constant {name}: {graph.types[name]}{_value(graph, name)}" for name in graph.constants]
    lines += [f"  {_node(graph, node)}" for node in graph.nodes]
    lines.append(f"  return {', '.join(graph.outputs)}")
    return "\n".join(lines) + "\n"


def _value(graph: Graph, name: str) -> str:
    value = graph.constants[name]
    if value.size > SHOWN:
        return ""
    return " = " + np.array2string(value, separator=", ", max_line_width=200).replace("\n", "")


def _node(graph: Graph, node: Node) -> str:
    made = ", ".join(f"{name}: {graph.types[name]}" for name in node.outputs)
    attrs = ", ".join(f"{key}={_attr(value)}" for key, value in sorted(node.attrs.items()))
    read = ", ".join(name or "-" for name in node.inputs)
    return f"{made} = {node.op}({read}){' {' + attrs + '}' if attrs else ''}  # {node.origin}"


def _attr(value: Attr) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)
