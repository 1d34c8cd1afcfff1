"""Where tensors are quantised and dequantised: one scale a channel in front of depthwise convolutions, as tools do it;
movements in between."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from tests.core.test_quantised import LEVELS, STEP, Quantised, real

CHANNELS, SIZE = 20, (9, 11)


def depthwise(zeros: str, activations: str = "uint8", each: int = 1, source: str = "conv") -> bytes:
    """x [1, 20, 9, 11] -> y [1, 20 each, 9, 11]: quantised by channels in front of a depthwise convolution.
    ``zeros``: "same" for one zero point, "apart" for one a channel. ``source`` of what is quantised: a 1x1 convolution
    ("conv"), one with a clip ("clipped"), one that something else reads ("read"), a "pool", what is "given"."""
    b = Quantised(activations, "int8", per_channel=True)
    y = b.rounded("x")
    if source in ("conv", "read", "clipped"):
        y = b.add("Conv", y, b.quantised_weight(CHANNELS, CHANNELS, 1, 1, axis=0))
        ends = (b.constant(np.float32(n)) for n in (-0.1, 0.4))
        y = b.add("Clip", y, *ends) if source == "clipped" else b.add("HardSwish", y)
    elif source == "pool":
        y = b.add("AveragePool", y, kernel_shape=[3, 3], pads=[1] * 4)
    scale = b.constant((b.random.random(CHANNELS) * 0.02 + 0.005).astype(np.float32))
    low = {"uint8": 0, "int8": -128}[activations]
    points = np.full(CHANNELS, 30) if zeros == "same" else b.random.integers(0, 90, CHANNELS)
    zero = b.constant((points + low).astype(activations))
    q = b.add("DequantizeLinear", b.add("QuantizeLinear", y, scale, zero, axis=1), scale, zero, axis=1)
    w = b.quantised_weight(CHANNELS * each, 1, 3, 3, axis=0)
    y = b.add("Conv", q, w, b.weight(CHANNELS * each), group=CHANNELS, pads=[1] * 4)
    b.rounded(b.add("Add", y, q) if source == "read" else y, output="y")
    return b.model({"x": (TensorProto.FLOAT, (1, CHANNELS, *SIZE))}, {"y": (1, CHANNELS * each, *SIZE)})


def given(stages: compiler.Stages) -> np.ndarray:
    x: np.ndarray = np.random.default_rng(3).standard_normal(stages.graph.types["x"].shape).astype(np.float32)
    return x


@pytest.mark.in_turn("level", "form")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "form",
    [
        ("same", "uint8", 1, "conv"),
        ("same", "int8", 2, "conv"),
        *(("apart", "uint8", 1, source) for source in ("conv", "clipped", "read", "pool", "given")),
        ("same", "int8", 1, "clipped"),
        ("apart", "int8", 2, "conv"),
    ],
)
def test_near_the_graph(form: tuple[str, str, int, str], level: str) -> None:
    """The convolution is one of bytes; its scales and zero points are those of its channels."""
    stages = compiler.lower(depthwise(*form), threads=2, machine=LEVELS[level])
    types = [stages.optimized.types[n.output].dtype for n in stages.optimized.nodes if n.op == "conv"]
    assert set(types) == {"int32"}
    x, answers = given(stages), []
    artifact = compiler.build(stages)
    for workers in (1, 2, 3):
        with Session(artifact, threads=workers) as session:
            answers.append(session.run({"x": x})["y"])
    steps = np.abs(answers[0] - real(stages.graph, x)) / STEP
    assert steps.max() < 1.01 and (steps > 0.01).mean() < 0.01, "more than a rare tie differs"
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


@pytest.mark.parametrize("zeros", ["same", "apart"])
def test_the_virtual_machine_agrees(zeros: str) -> None:
    stages = compiler.lower(depthwise(zeros), threads=2)
    x = given(stages)
    seen = run(stages.program, {"x": x.reshape(stages.program.buffer("x").shape)}, stages.lowered.weights, workers=2)
    steps = np.abs(seen["y"].reshape(-1) - real(stages.graph, x).reshape(-1)) / STEP
    assert steps.max() < 1.01 and (steps > 0.01).mean() < 0.01


@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_zero_points_of_channels_are_taken_off_in_vectors(level: str) -> None:
    """What is quantised and dequantised on its way by zero points of its channels is no scalar integer."""
    source = compiler.lower(depthwise("apart"), threads=2, machine=Machine.named(level)).source
    assert "mn::round<T>" in source and "lane_" not in source


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_moved_between_is_stored_unsigned(level: str) -> None:
    """As converters from channels last write it: int8 transposed and reshaped before it is dequantised."""
    b = Quantised("int8", "int8", per_channel=True)
    q = b.add("QuantizeLinear", b.add("Conv", b.rounded("x"), b.quantised_weight(16, 8, 1, 1, axis=0)), b.scale, b.zero)
    rows = b.add("Reshape", b.add("Transpose", q, perm=[0, 2, 3, 1]), b.constant(np.array([63, 16])))
    y = b.add("MatMul", b.add("DequantizeLinear", rows, b.scale, b.zero), b.quantised_weight(16, 24, axis=1))
    b.rounded(y, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, 8, 7, 9))}, {"y": (63, 24)})
    stages = compiler.lower(model, threads=2, machine=LEVELS[level])
    assert not {b.dtype for b in stages.program.buffers if b.space == "arena"} & {"int8", "int32"}
    x = given(stages)
    with Session(compiler.build(stages), threads=2) as session:
        steps = np.abs(session.run({"x": x})["y"] - real(stages.graph, x)) / STEP
    assert steps.max() < 1.01 and (steps > 0.01).mean() < 0.01, "more than a rare tie differs"


@pytest.mark.parametrize(("op", "low", "high"), [("Neg", -100, 100), ("Round", -3.5, 3.5), ("Round", -128, 127)])
def test_what_is_cast_to_an_integer_is_one_when_it_is_dequantised(op: str, low: float, high: float) -> None:
    """As quantisation spelt out by others is, or only looks like."""
    b = Quantised("int8", "int8", per_channel=True)
    clipped = b.add("Clip", b.add(op, "x"), *(b.constant(np.float32(n)) for n in (low, high)))
    b.add("DequantizeLinear", b.add("Cast", clipped, to=TensorProto.INT8), b.scale, b.zero, output="y")
    x = np.random.default_rng(0).uniform(-6, 6, (8, 40)).astype(np.float32)
    model = b.model({"x": (TensorProto.FLOAT, x.shape)}, {"y": x.shape})
    with Session(compiler.build(compiler.lower(model, threads=1))) as session:
        found = session.run({"x": x})["y"]
    whole = np.clip(-x if op == "Neg" else np.round(x), np.float32(low), np.float32(high)).astype(np.int8)
    np.testing.assert_allclose(found, (whole.astype(np.float32) + 9) * np.float32(STEP), atol=1e-6)


@pytest.mark.parametrize("each", ["row", "column", "all"])
def test_rows_of_a_quantised_table_stay_bytes(each: str) -> None:
    """What a file takes for a table of 4,000 rows: a byte an element."""
    random, (rows, width) = np.random.default_rng(7), (4000, 64)
    shape = {"row": (rows, 1), "column": (1, width), "all": ()}[each]
    table = random.integers(-128, 128, (rows, width)).astype(np.int8)
    scale, zero = random.uniform(0.01, 0.03, shape).astype(np.float32), random.integers(-9, 9, shape).astype(np.int8)
    parts = {
        "t": table,
        "s": scale.reshape(-1) if each != "all" else scale,
        "z": zero.reshape(-1) if each != "all" else zero,
    }
    axis = {"axis": {"row": 0, "column": 1, "all": 0}[each]}
    nodes = [
        helper.make_node("DequantizeLinear", ["t", "s", "z"], ["r"], **axis),
        helper.make_node("Gather", ["r", "x"], ["y"]),
    ]
    edges = [
        helper.make_tensor_value_info("x", TensorProto.INT64, (2, 3)),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3, width)),
    ]
    graph = helper.make_graph(
        nodes, "table", edges[:1], edges[1:], [numpy_helper.from_array(v, n) for n, v in parts.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    stages = compiler.lower(model.SerializeToString(), threads=2)
    x = np.array([[0, 3999, -1], [17, 17, 256]])
    with Session(compiler.build(stages)) as session:
        np.testing.assert_allclose(
            session.run({"x": x})["y"], ((table - zero.astype(np.float64)) * scale)[x], rtol=1e-6
        )
    assert stages.program.weight_bytes < rows * (width + 2 * 4) + 10_000
