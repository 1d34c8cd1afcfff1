"""Quantised models: products of integers, exact on every processor; tensors are stored as they are quantised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.compiler.cpu import product_features
from mononn_core.graph import Graph
from mononn_core.importer import load
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.ops.quantise import MOST_TERMS
from mononn_core.passes import pipeline
from mononn_core.passes.pipeline import real_products
from mononn_core.program.interpret import run
from mononn_core.runtime.loading import load as load_artifact
from mononn_core.runtime.session import Session
from tests.core.models import model, node
from tests.core.networks import Builder
from tests.core.tiles import TILED, built

HERE = Machine.probe()
LEVELS = {"here": HERE, "plain": replace(HERE, features=HERE.level_features)}
LEVELS |= {name: Machine.named(name) for name in ("avx2", "scalar") if Machine.named(name).features <= HERE.features}
STEP = 0.04
"""Of all activations."""


class Quantised(Builder):
    """A network in the QDQ form: activations of one type, weights of another."""

    def __init__(self, activations: str, weights: str, per_channel: bool, dynamic: bool = False) -> None:
        super().__init__(f"{activations} {weights}")
        self.activations, self.weights_type, self.per_channel = activations, weights, per_channel
        zero = np.array({"uint8": 117, "int8": -9}[activations], activations)
        self.scale, self.zero = self.constant(np.float32(STEP)), self.constant(zero)

    def rounded(self, x: str, output: str = "") -> str:
        """Quantised and dequantised."""
        q = self.add("QuantizeLinear", x, self.scale, self.zero)
        return self.add("DequantizeLinear", q, self.scale, self.zero, output=output)

    def quantised_weight(self, *shape: int, axis: int) -> str:
        low, high, zero = (-128, 128, 0) if self.weights_type == "int8" else (0, 256, 131)
        value = self.constant(self.random.integers(low, high, shape).astype(self.weights_type))
        size = (shape[axis],) if self.per_channel else ()
        fan = np.prod(shape) / shape[axis]
        scale = self.constant((self.random.random(size) + 0.5).astype(np.float32) * np.float32(fan**-0.5 / 70))
        points = self.constant(np.full(size, zero, self.weights_type))
        return self.add("DequantizeLinear", value, scale, points, **({"axis": axis} if self.per_channel else {}))


def perceptron(activations: str = "uint8", weights: str = "int8", per_channel: bool = True, rows: int = 19) -> bytes:
    """x [rows, 37] -> y [rows, 45]: two products, a residual sum, ragged in every direction."""
    b = Quantised(activations, weights, per_channel)
    x = b.rounded("x")
    y = b.add("Add", b.add("MatMul", x, b.quantised_weight(37, 70, axis=1)), b.weight(70))
    y = b.rounded(b.add("Relu", y))
    z = b.add("Gemm", y, b.quantised_weight(45, 70, axis=0), b.weight(45), transB=1)
    w = b.add("MatMul", x, b.quantised_weight(37, 45, axis=1))
    b.rounded(b.add("Add", b.rounded(z), b.rounded(w)), output="y")
    return b.model({"x": (TensorProto.FLOAT, (rows, 37))}, {"y": (rows, 45)})


def image(activations: str = "uint8", weights: str = "int8", per_channel: bool = True) -> bytes:
    """x [1, 3, 13, 14] -> y [1, 24, 7, 7]: a strided stem of three channels, a border, a residual sum, a pooling."""
    b = Quantised(activations, weights, per_channel)
    y = b.add("Conv", b.rounded("x"), b.quantised_weight(20, 3, 5, 5, axis=0), pads=[2, 2, 2, 2], strides=[1, 1])
    y = b.rounded(b.add("Relu", y))
    z = b.add("Conv", y, b.quantised_weight(20, 20, 3, 3, axis=0), b.weight(20), pads=[1, 1, 1, 1])
    z = b.rounded(b.add("Relu", b.add("Add", b.rounded(z), y)))
    z = b.rounded(b.add("MaxPool", z, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    b.rounded(b.add("Conv", z, b.quantised_weight(24, 20, 1, 1, axis=0)), output="y")
    return b.model({"x": (TensorProto.FLOAT, (1, 3, 13, 14))}, {"y": (1, 24, 7, 7)})


def real(graph: Graph, x: np.ndarray) -> np.ndarray:
    """The imported Graph on x; its sums of products in double precision round to the same integers, but for ties."""
    return evaluate(graph, {"x": x})["y"]


def grouped(activations: str = "uint8", weights: str = "int8", per_channel: bool = True) -> bytes:
    """x [1, 40, 9, 11] -> y [1, 18, 5, 6]: groups of 1, 2, 4 and 8 channels, and of more outputs than inputs."""
    b = Quantised(activations, weights, per_channel)
    y = b.rounded("x")
    for group, kernel in ((1, 3), (8, 3), (4, 3), (2, 3), (1, 5)):
        w = b.quantised_weight(40, group, kernel, kernel, axis=0)
        y = b.rounded(b.add("Relu", b.add("Conv", y, w, group=40 // group, pads=[kernel // 2] * 4)))
    y = b.rounded(
        b.add("Conv", y, b.quantised_weight(60, 10, 3, 2, axis=0), group=4, dilations=[2, 3], pads=[2, 1, 2, 2])
    )
    y = b.add("Conv", y, b.quantised_weight(18, 20, 1, 1, axis=0), group=3, strides=[2, 2])
    b.rounded(y, output="y")
    return b.model({"x": (TensorProto.FLOAT, (1, 40, 9, 11))}, {"y": (1, 18, 5, 6)})


FORMS = [("uint8", "int8", True), ("int8", "int8", True), ("uint8", "uint8", False), ("int8", "uint8", True)]


@pytest.mark.parametrize(
    ("network", "form"),
    [
        *zip((perceptron, image, perceptron, image, grouped), (*FORMS, FORMS[0]), strict=True),
        *(
            pytest.param(network, FORMS[i], marks=pytest.mark.slow)
            for network, i in ((perceptron, 1), (perceptron, 3), (image, 0), (image, 2), (grouped, 1), (grouped, 2))
        ),
    ],
)
def test_networks(network, form: tuple[str, str, bool]) -> None:  # type: ignore[no-untyped-def]
    """Near the Graph as imported, in integers; the same bits on every processor and for any number of workers."""
    model = network(*form)
    answers = []
    for machine in LEVELS.values():
        stages = compiler.lower(model, threads=2, machine=machine)
        whole = network is not grouped or form[1] == "int8"
        products = [n for n in stages.optimized.nodes if n.op in ("matmul", "conv")]
        integers = [stages.optimized.types[n.output].dtype == "int32" for n in products]
        if whole:
            assert len(products) == (7 if network is grouped else 3) and all(integers)
        else:
            assert integers.count(True) == 4, "two depthwise ones, each with one of ones; wide groups are real"
        x = np.random.default_rng(3).standard_normal(stages.graph.types["x"].shape).astype(np.float32)
        want = real(stages.graph, x)
        artifact = compiler.build(stages)
        for workers in (1, 2, 4):
            with Session(artifact, threads=workers) as session:
                answers.append(session.run({"x": x})["y"])
        np.testing.assert_array_equal(answers[-1], answers[-2])
        steps = np.abs(answers[-1] - want) / STEP
        assert steps.max() < 1.01 and (steps > 0.01).mean() < 0.01, "more than a rare tie differs"
    for answer in answers if all(integers) else ():
        np.testing.assert_array_equal(answer, answers[0])


@pytest.mark.parametrize("network", [perceptron, image, pytest.param(grouped, marks=pytest.mark.slow)])
def test_tile_registers_give_the_same_bits(network) -> None:  # type: ignore[no-untyped-def]
    model = network()
    stages = compiler.lower(model, threads=2, machine=TILED)
    x = np.random.default_rng(3).standard_normal(stages.graph.types["x"].shape).astype(np.float32)
    with Session(compiler.build(compiler.lower(model, threads=2, machine=LEVELS["plain"])), threads=2) as session:
        want = session.run({"x": x})["y"]
    for artifact in built(stages):
        for workers in (1, 2, 3):
            with Session(artifact, threads=workers) as session:
                np.testing.assert_array_equal(session.run({"x": x})["y"], want)


@pytest.mark.parametrize("level", ["avx2", "avx512vnni"])
@pytest.mark.parametrize("network", [perceptron, image, grouped])
def test_the_virtual_machine_agrees(network, level: str) -> None:  # type: ignore[no-untyped-def]
    plain = Machine.named("avx512")
    machine = replace(plain, features=plain.features | {level}) if level == "avx512vnni" else Machine.named(level)
    stages = compiler.lower(network(), threads=2, machine=machine)
    x = np.random.default_rng(4).standard_normal(stages.graph.types["x"].shape).astype(np.float32)
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)["y"]
    steps = np.abs(seen.reshape(-1) - real(stages.graph, x).reshape(-1)) / STEP
    assert steps.max() < 1.01 and (steps > 0.01).mean() < 0.01


@pytest.mark.parametrize(("more", "types"), [({"avxvnni"}, {"uint8"}), (set[str](), {"uint8", "int16"})])
def test_quantised_tensors_are_stored_narrow(more: set[str], types: set[str]) -> None:
    """Of the perceptron's activations only the result is float32 in memory; weights are bytes. Where words are
    multiplied, left sides are stored as such, and what is only added is not."""
    avx2 = Machine.named("avx2")
    stages = compiler.lower(perceptron(), threads=2, machine=replace(avx2, features=avx2.features | more))
    stored = {b.dtype for b in stages.program.buffers if b.space == "arena"}
    assert stored == types
    packed = {b.dtype for b in stages.program.buffers if b.space == "weight" and "@" in b.id}
    assert packed == {"int8"}


def test_features_beyond_the_level_are_named_where_they_are_used() -> None:
    machine = replace(Machine.named("avx512"), features=Machine.named("avx512").features | {"avx512vnni"})
    program = compiler.lower(perceptron(), threads=2, machine=machine).program
    assert product_features(program, machine) == {"avx512vnni"}
    assert product_features(program, Machine.named("avx512")) == frozenset()
    both = replace(machine, features=machine.features | {"avxvnni"})
    assert product_features(program, both) == {"avx512vnni"}, "the encoding of the widest vectors"


@pytest.mark.parametrize("a_type", ["uint8", "int8"])
@pytest.mark.parametrize("b_type", ["uint8", "int8"])
def test_integer_products_are_exact(a_type: str, b_type: str) -> None:
    """MatMulInteger with zero points of both sides, over all numbers of the types; a gigabyte of terms could not
    overflow what a word holds here."""
    b = Builder("integers")
    low = {"uint8": 0, "int8": -128}
    w = b.random.integers(low[b_type], low[b_type] + 256, (1031, 21)).astype(b_type)
    zeros = [b.constant(np.array(z, t)) for z, t in ((7, a_type), (101, b_type))]
    product = b.add("MatMulInteger", "x", b.constant(w), *zeros)
    b.add("Cast", product, to=TensorProto.FLOAT, output="y")
    kind = getattr(TensorProto, a_type.upper())
    model = b.model({"x": (kind, (5, 1031))}, {"y": (5, 21)})
    x = b.random.integers(low[a_type], low[a_type] + 256, (5, 1031)).astype(a_type)
    want = ((x.astype(np.int64) - 7) @ (w.astype(np.int64) - 101)).astype(np.float32)
    for machine in LEVELS.values():
        with Session(compiler.build(compiler.lower(model, threads=2, machine=machine)), threads=2) as session:
            np.testing.assert_array_equal(session.run({"x": x})["y"], want)


def test_a_vector_times_a_matrix() -> None:
    b = Quantised("uint8", "uint8", per_channel=True)
    b.add("MatMul", b.rounded("x"), b.quantised_weight(37, 45, axis=1), output="y")
    stages = compiler.lower(b.model({"x": (TensorProto.FLOAT, (37,))}, {"y": (45,)}), machine=HERE)
    assert "int32" in {stages.optimized.types[n.output].dtype for n in stages.optimized.nodes if n.op == "matmul"}
    x = np.random.default_rng(6).standard_normal(37).astype(np.float32)
    with Session(compiler.build(stages), threads=1) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], real(stages.graph, x), rtol=1e-4, atol=1e-4)


def test_sums_beyond_a_word_stay_real() -> None:
    b = Quantised("uint8", "int8", per_channel=False)
    terms = MOST_TERMS + 1
    b.add("MatMul", b.rounded("x"), b.quantised_weight(terms, 2, axis=1), output="y")
    after = pipeline.run(load(b.model({"x": (TensorProto.FLOAT, (1, terms))}, {"y": (1, 2)}), {}))
    assert {after.types[n.output].dtype for n in after.nodes if n.op == "matmul"} == {"float32"}


def mixed(name: str) -> bytes:
    """x [1, 4, 6, 6] -> y: one product that is none of integers, for the reason of that name."""
    b = Quantised("uint8", "int8", per_channel=True)
    x = b.rounded("x")
    shape: tuple[int, ...] = (1, 4, 4, 4)
    if name == "rows":
        b.add("MatMul", x, b.quantised_weight(6, 5, axis=0), output="y")
        shape = (1, 4, 6, 5)
    elif name == "one number":
        scales, zeros = b.constant(np.linspace(0.1, 0.2, 5).astype(np.float32)), b.constant(np.zeros(5, np.int8))
        weights = b.add("DequantizeLinear", b.constant(np.full((5, 6), 2, np.int8)), scales, zeros, axis=0)
        b.add("MatMul", x, b.add("Transpose", weights, perm=[1, 0]), output="y")
        shape = (1, 4, 6, 5)
    elif name == "one side":
        b.add("Conv", x, b.weight(4, 4, 3, 3), output="y")
    elif name == "neither side":
        b.add("Conv", b.add("Relu", "x"), b.weight(4, 4, 3, 3), output="z")
        b.add("Add", "z", b.add("Slice", x, b.ints(0, 0), b.ints(4, 4), b.ints(2, 3)), output="y")
    else:
        scales = b.constant(np.linspace(0.03, 0.05, 6).astype(np.float32)), b.constant(np.full(6, 99, np.uint8))
        columns = b.add("DequantizeLinear", b.add("QuantizeLinear", "x", *scales, axis=3), *scales, axis=3)
        b.add("MatMul", x, columns, output="y")
        shape = (1, 4, 6, 6)
    return b.model({"x": (TensorProto.FLOAT, (1, 4, 6, 6))}, {"y": shape})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("rows", "differs within a column"),
        ("one number", "all its weights are one number"),
        ("one side", "its right side is not quantised"),
        ("neither side", "neither side is quantised"),
        ("computed", "its right side is no constant matrix, and one has not one constant scale"),
    ],
)
def test_why_a_product_is_none_of_integers(name: str, why: str) -> None:
    (found,) = real_products(load(mixed(name), {})).items()
    assert why in found[1] and ("MatMul" in found[0] or "Conv" in found[0])
    assert real_products(load(perceptron(), {})) == {}
    stages = compiler.lower(mixed(name), threads=2, machine=HERE)
    x = np.random.default_rng(8).standard_normal((1, 4, 6, 6)).astype(np.float32)
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], real(stages.graph, x), rtol=1e-4, atol=1e-4)


def test_a_gpu_multiplies_real_numbers() -> None:
    graph = pipeline.run(load(perceptron(), {}), "cuda")
    assert "dequantize" not in {n.op for n in graph.nodes if n.inputs[0] in graph.constants}
    assert all(graph.types[n.output].dtype == "float32" for n in graph.nodes if n.op == "matmul")


def test_a_gpu_stores_quantised_tensors(tmp_path: Path) -> None:
    """On the emulator: the same integers, of products in float32."""
    stages = compiler.lower(perceptron(), target="cuda-emulated")
    compiler.build(stages).save(tmp_path / "gpu.mono")
    x = np.random.default_rng(3).standard_normal((19, 37)).astype(np.float32)
    with load_artifact(tmp_path / "gpu.mono") as session:
        steps = np.abs(session.run({"x": x})["y"] - real(stages.graph, x)) / STEP
    assert steps.max() < 1.01 and (steps > 0.01).mean() < 0.01


def test_pixels_of_an_image_of_few_channels_are_computed_side_by_side() -> None:
    stages = compiler.lower(image(), threads=2, machine=Machine.named("avx2"))
    first = stages.source[stages.source.index("phase_000") : stages.source.index("phase_001")]
    assert "mn::store_in_turn<T, 3>" in first and "between<T>" in first and "/ 17" not in first


@pytest.mark.parametrize("b_type", ["uint8", "int8"])
@pytest.mark.parametrize("a_type", ["uint8", "int8"])
def test_a_product_of_two_given_sides(a_type: str, b_type: str) -> None:
    b = Builder("given")
    zeros = [b.constant(np.array(z, t)) for z, t in ((7, a_type), (101, b_type))]
    b.add("Cast", b.add("MatMulInteger", "x", "w", *zeros), to=TensorProto.FLOAT, output="y")
    kinds = [getattr(TensorProto, t.upper()) for t in (a_type, b_type)]
    stages = compiler.lower(b.model({"x": (kinds[0], (5, 7)), "w": (kinds[1], (7, 6))}, {"y": (5, 6)}), machine=HERE)
    x, w = (b.random.integers(0, 128, shape).astype(t) for shape, t in (((5, 7), a_type), ((7, 6), b_type)))
    with Session(compiler.build(stages), threads=1) as session:
        found = session.run({"x": x, "w": w})["y"]
    np.testing.assert_array_equal(found, (x.astype(int) - 7) @ (w.astype(int) - 101))


def test_large_constants_are_moved_by_128_and_what_int8_activations_become_is_unsigned() -> None:
    """A matrix beyond what is folded; a product of int8 by uint8 is one of a template all the same."""
    b = Quantised("int8", "uint8", per_channel=False)
    b.add("MatMul", b.rounded("x"), b.quantised_weight(1500, 800, axis=1), output="y")
    stages = compiler.lower(b.model({"x": (TensorProto.FLOAT, (2, 1500))}, {"y": (2, 800)}), threads=2, machine=HERE)
    assert [p.task.template for p in stages.program.phases() if p.task.template != "nest"] == ["matmul"]
    assert "int8" not in {buffer.dtype for buffer in stages.program.buffers if buffer.space == "arena"}
    x = np.random.default_rng(6).standard_normal((2, 1500)).astype(np.float32)
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], real(stages.graph, x), rtol=1e-3, atol=1e-3)


def test_weights_that_are_joined_and_quantised_again_are_constants() -> None:
    """As exporters write the gates of a recurrent layer: dequantised, concatenated, quantised, dequantised."""
    b = Quantised("uint8", "int8", False)
    joined = b.add("Concat", *(b.quantised_weight(40, 16, axis=1) for _ in range(3)), axis=1)
    scale, zero = b.constant(np.float32(0.002)), b.constant(np.int8(0))
    w = b.add("DequantizeLinear", b.add("QuantizeLinear", joined, scale, zero), scale, zero)
    b.add("MatMul", b.rounded("x"), w, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (7, 40))}, {"y": (7, 48)})
    stages = compiler.lower(model, threads=2)
    assert [p.task.template for p in stages.program.phases()] == ["nest", "matmul"]
    x = np.random.default_rng(3).standard_normal((7, 40)).astype(np.float32)
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], real(load(model), x), rtol=1e-5, atol=1e-5)


def test_a_number_that_must_be_known_may_be_dequantised() -> None:
    """As ONNX Runtime's tool leaves what a Pad fills with."""
    constants = {"s": np.float32(0.5), "z": np.uint8(10), "pads": np.array([0, 1, 0, 2]), "q": np.uint8(13)}
    nodes = [node("DequantizeLinear", "q s z", "fill"), node("Pad", "x pads fill", "y")]
    graph = load(model(nodes, [("x", "float32", (2, 3))], ["y"], constants).SerializeToString())
    x = np.ones((2, 3), np.float32)
    assert (real(graph, x) == np.pad(x, ((0, 0), (1, 2)), constant_values=1.5)).all()


@pytest.mark.parametrize("machine", LEVELS.values(), ids=LEVELS)
def test_one_channel_becomes_one(machine: Machine) -> None:
    """As a mask is smoothed: one group of one channel, which is no depthwise convolution."""
    b = Quantised("uint8", "int8", per_channel=False)
    b.add("Conv", b.rounded("x"), b.quantised_weight(1, 1, 3, 3, axis=0), pads=[1] * 4, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, 1, 12, 12))}, {"y": (1, 1, 12, 12)})
    x = np.random.default_rng(4).standard_normal((1, 1, 12, 12)).astype(np.float32)
    with Session(compiler.build(compiler.lower(model, threads=1, machine=machine)), threads=1) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], real(load(model), x), rtol=1e-4, atol=1e-4)


def test_weights_that_are_one_integer_have_a_scale_a_channel() -> None:
    """As a tool leaves those of one input: each is the largest of its channel."""
    b = Quantised("uint8", "int8", per_channel=True)
    w, scale = (
        b.constant(np.full((5, 1, 1, 1), 127, np.int8)),
        b.constant(np.linspace(0.001, 0.01, 5, dtype=np.float32)),
    )
    points = b.constant(np.zeros(5, np.int8))
    b.add("Conv", b.rounded("x"), b.add("DequantizeLinear", w, scale, points, axis=0), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, 1, 4, 4))}, {"y": (1, 5, 4, 4)})
    x = np.random.default_rng(4).standard_normal((1, 1, 4, 4)).astype(np.float32)
    found = evaluate(pipeline.prepare(pipeline.run(load(model)), "cpu"), {"x": x})["y"]
    np.testing.assert_allclose(found, real(load(model), x), rtol=1e-5, atol=1e-5)


def test_a_triangle_of_a_dequantised_matrix_has_zeros_elsewhere() -> None:
    """Which are its zero point where it is moved as integers."""
    b = Quantised("uint8", "int8", per_channel=False)
    b.add("Trilu", b.rounded("x"), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (5, 6))}, {"y": (5, 6)})
    x = np.random.default_rng(4).standard_normal((5, 6)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(pipeline.run(load(model)), {"x": x})["y"], real(load(model), x))


def test_a_large_window_of_weights_of_nine_bits_is_summed_in_a_loop() -> None:
    """A patch of 16x16 pixels, u8 weights less a zero point: 256 taps are no chain of 256 sums."""
    random = np.random.default_rng(0)
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "ws": np.float32(0.01), "wz": np.uint8(3), "ys": np.float32(2),
        "yz": np.uint8(128), "w": random.integers(0, 256, (8, 3, 16, 16)).astype(np.uint8),
    }  # fmt: skip
    names = "x xs xz w ws wz ys yz"
    proto = model(
        [node("QLinearConv", names, "y", strides=[16, 16])], [("x", "uint8", (1, 3, 32, 48))], ["y"], constants
    )
    x = random.integers(0, 256, (1, 3, 32, 48)).astype(np.uint8)
    stages = compiler.lower(proto.SerializeToString(), threads=2)
    assert [p.task.template for p in stages.program.phases()].count("conv") == 1
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run({"x": x})["y"].astype(int)
    want = ReferenceEvaluator(proto).run(None, {"x": x})[0].astype(int)
    assert len(stages.source) < 20_000
    assert np.abs(found - want).max() <= 1
    assert (found != want).mean() < 0.02
