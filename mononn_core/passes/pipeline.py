"""The passes in order, on visible lists: one for every target, then each target's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile

from mononn_core.graph import Graph
from mononn_core.graph.verify import verify
from mononn_core.ops.registry import infer
from mononn_core.passes import (
    arithmetic,
    attention,
    borders,
    chosen,
    convolution,
    copies,
    cse,
    cumulative,
    dce,
    empties,
    fold,
    gates,
    gelu,
    late,
    layout,
    matrices,
    merge_matmuls,
    movement,
    norm,
    order,
    parted,
    planes,
    positions,
    quantised,
    recurrent,
    requantised,
    scatters,
    short,
    sink,
    sums,
    supported,
    tables,
    transposed,
    views,
    weight_only,
    whole,
    widened,
    windows,
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

CPU_FORMS: tuple[tuple[str, Pass], ...] = (
    ("empties", empties.run),
    ("order", order.on_cpu),
    ("cumulative", cumulative.on_cpu),
    ("scatters", scatters.on_cpu),
    ("sums", sums.run),
    ("chosen", chosen.run),
    ("planes", planes.run),
    ("parted", parted.run),
    ("tables", tables.run),
    ("requantised", requantised.run),
    ("short", short.on_cpu),
    ("supported", supported.run),
    ("whole", whole.on_cpu),
    ("matrices", matrices.run),
    ("transposed", transposed.run),
    ("windows", windows.on_cpu),
)
IN_FLOATS: tuple[tuple[str, Pass], ...] = (("gates", gates.run),)
"""What comes before CPU_FORMS where products of float32 are computed as such: weights become computed ones."""
CUDA_FORMS: tuple[tuple[str, Pass], ...] = (
    ("empties", empties.run),
    ("order", order.on_gpu),
    ("cumulative", cumulative.on_gpu),
    ("served", supported.served),
    ("supported", supported.run),
    ("matrices", matrices.run),
    ("transposed", transposed.run),
    ("windows", windows.on_gpu),
    ("even", matrices.even),
    ("fold", fold.run),
    ("dce", dce.run),
    ("copies", copies.run),
)
FORMS = {"cpu": CPU_FORMS, "cuda": CUDA_FORMS, "cuda-emulated": CUDA_FORMS}
"""target -> (name, pass) in order: what brings a Graph into the forms that the target's templates and loops take."""


def _quantised(target: str, rule: str) -> tuple[tuple[str, Pass], ...]:
    if target != "cpu":
        return (("floats", quantised.floats), ("weights", weight_only.floats), ("recurrences", recurrent.on_gpu))
    return (
        *CLEAN,
        ("late", late.run),
        *CLEAN,
        ("attention", attention.integers),
        ("attention", attention.beside_integers),
        ("recurrent", recurrent.integers(rule)),
        ("integers", quantised.integers),
        ("weight_only", weight_only.runs(rule)),
        ("reals", quantised.reals),
        ("recurrences", recurrent.on_cpu),
    )


QUANTISED = {(target, rule): _quantised(target, rule) for target in FORMS for rule in weight_only.RULES}
"""(target, rule for left sides) -> (name, pass) in order: what stands before PIPELINE and says what quantised tensors
are multiplied as."""


def steps(target: str, rule: str = weight_only.REALS) -> tuple[tuple[str, Pass], ...]:
    """All of :func:`run`, in order."""
    return (("widened", widened.run), *QUANTISED[target, rule], *PIPELINE)


def run(graph: Graph, target: str = "cpu", rule: str = weight_only.REALS) -> Graph:
    """The optimised Graph: same inputs, outputs and meaning, up to floating-point rounding, and on a CPU that of the
    left sides of products by quantised weights, where ``rule`` lets it (:mod:`mononn_core.passes.weight_only`)."""
    return _through(graph, steps(target, rule))


def real_products(graph: Graph) -> dict[str, str]:
    """Of an imported Graph: the products and convolutions that a CPU multiplies no integers of the model in, and why;
    none of a Graph that is not quantised."""
    return quantised.real_products(_before("integers", graph))


def rounded_products(graph: Graph, rule: str) -> dict[str, str]:
    """Of these the products and recurrences by quantised weights whose left sides ``rule`` rounds on a CPU, and to
    which type."""
    return weight_only.rounded(_before("weight_only", graph, rule), rule)


def _before(step: str, graph: Graph, rule: str = weight_only.REALS) -> Graph:
    """``graph`` as the first such pass for a CPU finds it."""
    return _through(graph, takewhile(lambda other: other[0] != step, steps("cpu", rule)))


def prepare(graph: Graph, target: str, in_floats: bool = False) -> Graph:
    """An optimised Graph in the forms that ``target`` takes, verified.

    Args:
        in_floats: for a CPU that multiplies float32 as it is.

    Raises:
        UnsupportedError: there is no such form; the message names the node.
        VerifyError: a pass made a Graph that is not legal, which is a bug of the compiler.
    """
    graph = _through(graph, (*(IN_FLOATS if in_floats else ()), *FORMS[target]))
    verify(graph, infer)
    return graph


def _through(graph: Graph, passes: Iterable[tuple[str, Pass]]) -> Graph:
    """``graph`` after ``passes``; one that has left a Graph as it is is not run on the same one again."""
    left: dict[Pass, Graph] = {}
    for _, step in passes:
        if left.get(step) is not graph:
            found = step(graph)
            if found is graph:
                left[step] = graph
            graph = found
    return graph
