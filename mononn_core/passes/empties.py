"""Tensors without elements take no work: nodes that make nothing else are dropped. Graph outputs among them stay,
and are made by no node."""

from __future__ import annotations

from dataclasses import replace

from mononn_core.graph import Graph


def run(graph: Graph) -> Graph:
    """``graph`` without nodes whose results have no elements."""
    kept = tuple(n for n in graph.nodes if any(graph.types[name].size for name in n.outputs))
    return graph if len(kept) == len(graph.nodes) else replace(graph, nodes=kept)
