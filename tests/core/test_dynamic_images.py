"""Image networks as ONNX Runtime's tool quantises them dynamically: images stay channels last, and only the largest
number is searched for of what has no negative ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mononn_core as mononn
from mononn_core.importer import load
from mononn_core.passes import pipeline

SIZE = (1, 8, 30, 32)
RANDOM = np.random.default_rng(3)


def network(activation: str) -> bytes:
    """x [1, 8, 30, 32] -> y [1, 16, 30, 32]: two dynamically quantised convolutions, weights of uint8, with an
    activation behind each, a pad or a pooling in between."""
    constants = {"none": np.float32(0), "six": np.float32(6), "minus": np.float32(-1)}
    nodes, x = [], "x"
    for i, (m, c) in enumerate(((16, 8), (16, 16))):
        constants |= {
            f"w{i}": RANDOM.integers(0, 256, (m, c, 3, 3)).astype(np.uint8),
            f"wz{i}": np.uint8(131),
            f"ws{i}": np.float32(0.004),
            f"b{i}": RANDOM.standard_normal((m, 1, 1)).astype(np.float32),
        }
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [x], [f"q{i}", f"s{i}", f"z{i}"]),
            helper.make_node("ConvInteger", [f"q{i}", f"w{i}", f"z{i}", f"wz{i}"], [f"c{i}"], pads=[1] * 4),
            helper.make_node("Cast", [f"c{i}"], [f"f{i}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"s{i}", f"ws{i}"], [f"t{i}"]),
            helper.make_node("Mul", [f"f{i}", f"t{i}"], [f"r{i}"]),
            helper.make_node("Add", [f"r{i}", f"b{i}"], [f"a{i}"]),
        ]
        kind, _, bounds = activation.partition(" ")
        nodes.append(helper.make_node(kind, [f"a{i}", *bounds.split()], [f"y{i}"]))
        x = f"y{i}"
        if not i:
            nodes.append(helper.make_node("MaxPool", [x], ["pooled"], kernel_shape=[1, 1]))
            x = "pooled"
    edges = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, SIZE),
        helper.make_tensor_value_info("y1", TensorProto.FLOAT, (1, 16, *SIZE[2:])),
    ]
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "dynamic", edges[:1], edges[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize(
    ("activation", "searches"),
    [
        ("Relu", 1),
        pytest.param("Clip none six", 1, marks=pytest.mark.slow),
        ("Clip none ", 1),
        pytest.param("Sigmoid", 1, marks=pytest.mark.slow),
        pytest.param("Abs", 1, marks=pytest.mark.slow),
        ("Clip minus six", 2),
        pytest.param("LeakyRelu", 2, marks=pytest.mark.slow),
        pytest.param("HardSwish", 2, marks=pytest.mark.slow),
    ],
)
def test_least_numbers_are_searched_for_where_there_may_be_negative_ones(activation: str, searches: int) -> None:
    model = network(activation)
    graph = pipeline.run(load(model, {}))
    found = Counter(n.op for n in graph.nodes)
    assert found["reduce_min"] == searches
    images = [n for n in graph.nodes if n.op == "transpose" and graph.types[n.output].rank == 4]
    assert len(images) == 2, "one at each end"
    x = RANDOM.standard_normal(SIZE).astype(np.float32)
    (want,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, {"x": x})
    for threads in (1, 2, 3):
        got = mononn.compile(model, threads=threads).run({"x": x})["y1"]
        close = np.abs(got - want) <= 2e-5 * np.abs(want).max()
        assert close.mean() > 0.98, "but for a step of what is quantised anew, here and there"
        assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_whole_images_are_searched_in_vectors() -> None:
    """First over the places between one axis and the last, then over the last, then over that axis."""
    graph = pipeline.prepare(pipeline.run(load(network("Relu"), {})), "cpu")
    image = next(n for n in graph.nodes if n.op == "reduce_max" and graph.types[n.inputs[0]].shape == (1, 30, 32, 16))
    assert graph.types[image.output].shape == (1, 30, 1, 16)
    rows = next(n for n in graph.nodes if n.inputs and n.inputs[0] == image.output)
    assert graph.types[rows.output].size == 30
