"""Scales of sums that are quantised at once lie in what is summed."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core.graph import Graph
from mononn_core.importer import load
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.passes import pipeline
from tests.core.test_quantised import STEP, Quantised, grouped, image, perceptron


def prepared(model: bytes) -> Graph:
    return pipeline.prepare(pipeline.run(load(model, {})), "cpu")


def scales(graph: Graph) -> list[float]:
    """What is computed is divided by where it is quantised, in order."""
    computed = {n.output for n in graph.nodes if n.op != "transpose"}
    return [float(graph.constants[n.inputs[1]]) for n in graph.nodes if n.op == "quantize" and n.inputs[0] in computed]


@pytest.mark.parametrize(("network", "sums"), [(perceptron, 4), (image, 4), (grouped, 7)])
def test_the_same_integers_in_steps_of_one(network, sums: int) -> None:  # type: ignore[no-untyped-def]
    graph = load(network(), {})
    after = prepared(network())
    assert scales(after).count(1.0) == sums
    x = np.random.default_rng(2).standard_normal(graph.types["x"].shape).astype(np.float32)
    found, want = (evaluate(g, {"x": x})["y"] for g in (after, graph))
    steps = np.abs(found - want) / STEP
    assert steps.max() < 1.01 and (steps > 0.01).mean() < 0.01


def total(b: Quantised) -> str:
    """x [4, 5] times a matrix, a vector and x added."""
    x = b.rounded("x")
    return b.add("Add", b.add("Add", b.add("MatMul", x, b.quantised_weight(5, 5, axis=1)), b.weight(5)), x)


@pytest.mark.parametrize(
    ("around", "outputs", "left"),
    [
        ((), ("y",), [1.0]),
        (("Relu",), ("y",), [1.0]),
        (("Sigmoid",), ("y",), [np.float32(STEP)]),
        ((), ("y", "z"), [np.float32(STEP)]),
    ],
    ids=["a sum", "a relu around it", "no sum", "read by others"],
)
def test_where(around: tuple[str, ...], outputs: tuple[str, ...], left: list[float]) -> None:
    b = Quantised("int8", "int8", per_channel=True)
    z = total(b)
    for op in around:
        z = b.add(op, z)
    b.rounded(z, output="y")
    if "z" in outputs:
        b.add("Neg", z, output="z")
    model = b.model({"x": (TensorProto.FLOAT, (4, 5))}, dict.fromkeys(outputs, (4, 5)))
    graph, after = load(model, {}), prepared(model)
    assert scales(after) == left
    assert ("relu" in {n.op for n in after.nodes}) == ("Relu" in around), "int8 has numbers below 0"
    x = np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32)
    for name in outputs:
        np.testing.assert_allclose(evaluate(after, {"x": x})[name], evaluate(graph, {"x": x})[name], atol=1e-5)


@pytest.mark.parametrize(
    ("low", "high", "kept"),
    [(-100, 100, set()), (-1, 100, {"max"}), (0, 100, {"relu"}), (-100, 1, {"min"}), (-0.5, 0.5, {"max", "min"})],
)
def test_a_clip_around_it(low: float, high: float, kept: set[str]) -> None:
    """Of its ends those stay that there are integers beyond."""
    b = Quantised("int8", "int8", per_channel=True)
    b.rounded(b.add("Clip", total(b), b.constant(np.float32(low)), b.constant(np.float32(high))), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (4, 5))}, {"y": (4, 5)})
    graph, after = load(model, {}), prepared(model)
    assert scales(after) == [1.0]
    assert {n.op for n in after.nodes} & {"clip", "max", "min", "relu"} == kept
    x = 9 * np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32)
    np.testing.assert_allclose(evaluate(after, {"x": x})["y"], evaluate(graph, {"x": x})["y"], atol=1e-5)


@pytest.mark.parametrize("shared", [False, True], ids=["", "also read as real numbers"])
def test_what_is_joined_is_quantised_part_by_part(shared: bool) -> None:
    """A part that had the scale before moves as it is."""
    b = Quantised("uint8", "int8", per_channel=True)
    coarse = b.constant(np.float32(2 * STEP))
    other = b.add("DequantizeLinear", b.add("QuantizeLinear", "x", coarse, b.zero), coarse, b.zero)
    joined = b.add("Concat", b.rounded("x"), other, b.add("Relu", "x"), axis=1)
    b.rounded(joined, output="y")
    outputs = {"y": (4, 15)}
    if shared:
        b.add("Neg", joined, output="z")
        outputs["z"] = (4, 15)
    model = b.model({"x": (TensorProto.FLOAT, (4, 5))}, outputs)
    graph = load(model, {})
    after = pipeline.run(graph)
    (concat,) = (n for n in after.nodes if n.op == "concat")
    assert after.types[concat.output].dtype == ("float32" if shared else "uint8")
    made = {n.output: n for n in after.nodes}
    if not shared:
        first, second, third = (made[name] for name in concat.inputs)
        assert [made.get(n.inputs[0], n).op for n in (first, second, third)] == ["quantize", "dequantize", "relu"]
    x = np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32)
    found, want = evaluate(after, {"x": x}), evaluate(graph, {"x": x})
    for name in outputs:
        np.testing.assert_array_equal(found[name], want[name])
