"""Executes a Graph by its operators' semantics, on any array namespace (numpy, jax.numpy, cupy)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mononn_core.graph import Graph
from mononn_core.ops import registry


def run(graph: Graph, inputs: Mapping[str, Any], xp: Any = np) -> dict[str, Any]:
    """The graph's outputs for ``inputs`` (name to array, shapes and dtypes as the graph declares them).

    Values are dropped once nothing reads them any more. Raises KeyError when an input is missing.
    """
    values: dict[str, Any] = {name: xp.asarray(inputs[name]) for name in graph.inputs}
    last: dict[str, int] = {name: position for position, node in enumerate(graph.nodes) for name in node.inputs}
    keep = set(graph.outputs)
    with np.errstate(all="ignore"):
        for position, node in enumerate(graph.nodes):
            for name in node.inputs:
                if name in graph.constants and name not in values:
                    values[name] = xp.asarray(graph.constants[name])
            arguments = [values[name] if name else None for name in node.inputs]
            results = registry.get(node.op).evaluate(xp, arguments, node.attrs)
            values.update(zip(node.outputs, results, strict=True))
            for name in set(node.inputs):
                if name and last[name] == position and name not in keep:
                    values.pop(name, None)
    return {name: values[name] for name in graph.outputs}
