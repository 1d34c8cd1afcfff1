"""Nodes in an order in which each reads what is made before it: ONNX asks for it, but not every tool writes it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import onnx


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Reorder the nodes of ``graph`` and of graphs inside them, as little as needed. Those of a circle stay last."""
    for node in graph.node:
        for inner in _graphs(node):
            sort_nodes(inner)
    maker = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    waits = [{maker[name] for name in _reads(node) if name in maker} for node in graph.node]
    if all(max(needed, default=-1) < number for number, needed in enumerate(waits)):
        return
    readers: dict[int, list[int]] = {}
    for number, needed in enumerate(waits):
        for other in needed:
            readers.setdefault(other, []).append(number)
    ready = [number for number, needed in enumerate(waits) if not needed]
    done: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        done.append(number)
        for reader in readers.get(number, ()):
            waits[reader].discard(number)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    done += sorted(set(range(len(waits))) - set(done))
    nodes = [onnx.NodeProto.FromString(graph.node[number].SerializeToString()) for number in done]
    del graph.node[:]
    graph.node.extend(nodes)


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What it reads, and what the graphs inside it may take from around them."""
    yield from node.input
    for graph in _graphs(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own |= {name for inner in graph.node for name in inner.output}
        found = [name for inner in graph.node for name in _reads(inner)]
        yield from (name for name in (*found, *(value.name for value in graph.output)) if name not in own)
