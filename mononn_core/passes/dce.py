"""Dead code elimination.

1. A node none of whose outputs is read, or is a graph output, goes; then what only it read.
2. Constants nobody reads go with it.
3. An ``identity`` that only gives a node's result its output name goes: the node makes that name itself.
"""

from __future__ import annotations

from mononn_core.graph import Graph
from mononn_core.passes.rewrite import drop_dead, settle_outputs


def run(graph: Graph) -> Graph:
    """``graph`` without dead nodes."""
    return drop_dead(settle_outputs(graph))
