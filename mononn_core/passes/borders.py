"""One stored image for all its readers: where a convolution needs an image with a zero border, the others read its
inside.

Where conv reads pad(x) and others read x too, they read slice(pad(x)) instead. Of several different borders around one
image the first is shared; an image with another border is stored apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mononn_core.graph import Graph, Node
from mononn_core.ops.common import fills_border, integers


def run(graph: Graph) -> Graph:
    """``graph`` with every image that a convolution pads stored once; the same object where nothing changes."""
    consumers = graph.consumers()
    inside: dict[str, Node] = {}  # tensor -> the pad whose inside it is
    for node in graph.nodes:
        if not fills_border(node.op, node.attrs) or not _shared(graph, node, consumers):
            continue
        if any(reader.op == "conv" and reader.inputs[0] == node.output for reader in consumers[node.output]):
            inside.setdefault(node.inputs[0], node)
    if not inside:
        return graph
    return _rewired(graph, inside)


def _shared(graph: Graph, pad: Node, consumers: Mapping[str, Sequence[Node]]) -> bool:
    """Whether others read what ``pad`` pads, and its producer can store it with the border."""
    x = pad.inputs[0]
    return len(consumers[x]) > 1 and x not in graph.outputs and x not in graph.inputs and not graph.is_constant(x)


def _rewired(graph: Graph, inside: dict[str, Node]) -> Graph:
    nodes: list[Node] = []
    types = dict(graph.types)
    views: dict[str, str] = {}
    moved = set()
    for node in graph.nodes:
        if node.output in moved:
            continue
        inputs = tuple(n if inside.get(n) is node else views.get(n, n) for n in node.inputs)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        for name in node.outputs:
            if name not in inside:
                continue
            pad = inside[name]
            view = f"{name}/inside"
            types[view] = types[name]
            starts, sizes = integers(pad.attrs, "before"), types[name].shape
            attrs = {"starts": starts, "sizes": sizes, "steps": (1,) * len(sizes)}
            nodes += [pad, Node("slice", pad.outputs, (view,), pad.origin, attrs)]
            views[name] = view
            moved.add(pad.output)
    return graph.rebuild(nodes, types)
