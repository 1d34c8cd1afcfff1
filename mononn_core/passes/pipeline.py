"""The passes in order, on one visible list."""

from __future__ import annotations

from collections.abc import Callable

from mononn_core.graph import Graph
from mononn_core.passes import (
    arithmetic,
    attention,
    borders,
    convolution,
    cse,
    dce,
    fold,
    gelu,
    layout,
    merge_matmuls,
    movement,
    norm,
    positions,
    scatters,
    sink,
    views,
)

Pass = Callable[[Graph], Graph]

CLEAN: tuple[tuple[str, Pass], ...] = (
    ("dce", dce.run),
    ("fold", fold.run),
    ("arithmetic", arithmetic.run),
    ("movement", movement.run),
    ("views", views.run),
    ("cse", cse.run),
)

PIPELINE: tuple[tuple[str, Pass], ...] = (
    *CLEAN,
    *CLEAN,
    ("layout", layout.run),
    *CLEAN,
    ("convolution", convolution.run),
    ("gelu", gelu.run),
    ("norm", norm.run),
    ("positions", positions.run),
    ("scatters", scatters.run),
    ("attention", attention.run),
    *CLEAN,
    ("sink", sink.run),
    *CLEAN,
    ("merge_matmuls", merge_matmuls.run),
    *CLEAN,
    ("dce", dce.run),
    ("borders", borders.run),
)
"""(name, pass) in order. CLEAN stands twice where its steps open work for each other."""


def run(graph: Graph) -> Graph:
    """The optimised Graph: same inputs, outputs and meaning, up to floating-point rounding."""
    for _, step in PIPELINE:
        graph = step(graph)
    return graph
