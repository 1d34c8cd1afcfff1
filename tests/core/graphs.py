"""Small Graphs for the tests of operators and passes: a Builder with short calls, and before/after comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mononn_core.errors import MononnError
from mononn_core.graph import Graph, Origin, TensorType
from mononn_core.graph.verify import verify
from mononn_core.ops.builder import Builder
from mononn_core.ops.evaluate import run
from mononn_core.ops.registry import infer
from mononn_core.passes import pipeline

ORIGIN = Origin("node", "Op")
Pass = Callable[[Graph], Graph]


class Net:
    """A Graph under construction; nothing is folded."""

    def __init__(self) -> None:
        self.builder = Builder(folding=False)
        self.inputs: list[str] = []

    def input(self, *shape: int, dtype: str = "float32") -> str:
        name = self.builder.fresh(f"in{len(self.inputs)}")
        self.builder.types[name] = TensorType(dtype, shape)
        self.inputs.append(name)
        return name

    def const(self, value: Any, dtype: str = "float32") -> str:
        return self.builder.constant(value, "const", dtype)

    def random(self, *shape: int, seed: int = 0) -> str:
        return self.const(np.random.default_rng(seed).standard_normal(shape))

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.builder.add(op, inputs, Origin(f"{op}_{len(self.builder.nodes)}", op), attrs, hint=op)

    def graph(self, *outputs: str) -> Graph:
        """Outputs are named out0, out1, ..: a pass must keep these names."""
        names = []
        for number, name in enumerate(outputs):
            names.append(f"out{number}")
            self.builder.add("identity", [name], ORIGIN, output=names[-1])
        return self.builder.graph("net", tuple(self.inputs), tuple(names))


def inputs_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs: floats around 0, integers of 0 and 1, coins for booleans."""
    rng = np.random.default_rng(seed)
    values = {}
    for name in graph.inputs:
        t = graph.types[name]
        if "float" in t.dtype:
            values[name] = rng.standard_normal(t.shape).astype(t.dtype)
        else:
            values[name] = rng.integers(0, 2, t.shape).astype(t.dtype)
    return values


def edges(graph: Graph) -> list[list[tuple[str, TensorType]]]:
    """Names and types of the inputs and the outputs."""
    return [[(name, graph.types[name]) for name in names] for names in (graph.inputs, graph.outputs)]


def assert_same(before: Graph, after: Graph, tolerance: float = 1e-6, seeds: int = 2) -> None:
    """Both are legal, have the same edges, and give the same values (NaN where the other does)."""
    verify(after, infer)
    assert edges(before) == edges(after), "inputs or outputs differ"
    for seed in range(seeds):
        values = inputs_of(before, seed)
        wanted, found = run(before, values), run(after, values)
        for name in before.outputs:
            assert (found[name].dtype, found[name].shape) == (wanted[name].dtype, wanted[name].shape)
            np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance, equal_nan=True)


def checked(name: str, step: Pass) -> Pass:
    """``step``, whose result must be a legal Graph with the same edges; the error names it."""

    def run(graph: Graph) -> Graph:
        after = step(graph)
        try:
            if after is not graph:
                verify(after, infer)
                assert edges(graph) == edges(after), "inputs or outputs differ"
        except (AssertionError, MononnError) as error:
            raise AssertionError(f"pass {name}: {error}") from error
        return after

    return run


def stepped(graph: Graph, steps: Sequence[tuple[str, Pass]], tolerance: float = 1e-6) -> Graph:
    """``graph`` after all ``steps``, compared as above after each; the error names the step that broke it."""
    for name, step in steps:
        before, graph = graph, step(graph)
        try:
            if graph is not before:
                assert_same(before, graph, tolerance, seeds=1)
        except (AssertionError, MononnError) as error:
            raise AssertionError(f"pass {name}: {error}") from error
    return graph


def everything(graph: Graph, tolerance: float) -> Graph:
    """``graph`` after the general passes, step by step; every target's own are tried on it, but on convolutions in
    groups, which CUDA refuses."""
    after = stepped(graph, pipeline.PIPELINE, tolerance)
    for target in ("cpu", "cuda"):
        if target == "cpu" or not any(node.attrs.get("group", 1) != 1 for node in after.nodes):
            stepped(after, pipeline.FORMS[target], tolerance)
    return after


def operators(graph: Graph) -> dict[str, int]:
    """How often each operator stands in a Graph."""
    return dict(Counter(node.op for node in graph.nodes))


def becomes(step: Pass, graph: Graph, **wanted: int) -> Graph:
    """``step`` keeps the meaning, leaves exactly these operators (identities aside), and then has nothing to do."""
    after = step(graph)
    assert_same(graph, after)
    found = {op: n for op, n in operators(after).items() if op != "identity"}
    assert found == wanted, found
    assert step(after) is after
    return after


def unchanged(step: Pass, graph: Graph) -> None:
    assert step(graph) is graph
