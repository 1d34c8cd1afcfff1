"""Whole-tensor operators with static shapes: the compiler's first value."""

from mononn_core.errors import Origin
from mononn_core.graph.graph import Graph, Node, TensorType

__all__ = ["Graph", "Node", "Origin", "TensorType"]
