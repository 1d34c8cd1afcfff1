"""Which nodes a template computes on a GPU: asked by the passes, which make products of the other convolutions."""

from __future__ import annotations

from typing import ClassVar

from mononn_core.graph import Graph, Node
from mononn_core.ops.registry import is_template
from mononn_core.program.template import known


class GpuServing:
    """A template that computes nodes on a GPU.

    Attributes:
        op: the Graph's operator that it computes; "": of no operator in particular.
    """

    op: ClassVar[str] = ""

    def serves(self, node: Node, graph: Graph) -> bool:
        """Whether it computes ``node``, of its operator."""
        return True


def serving(node: Node | None, graph: Graph) -> GpuServing | None:
    """The template that computes ``node`` on a GPU; None where generated loops do, or what it is rewritten to."""
    if node is None or not is_template(node, graph):
        return None
    able = (t for t in known() if isinstance(t, GpuServing) and t.op == node.op and t.serves(node, graph))
    return next(able, None)
