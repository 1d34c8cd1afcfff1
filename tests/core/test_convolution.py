"""Convolutions from the ONNX node to the machine: semantics, layout, borders, groups, and every geometry at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.graph import Graph
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from mononn_core.templates.conv import Direct
from mononn_core.templates.conv_node import Conv
from tests.core.graphs import operators
from tests.core.networks import Builder


@dataclass(frozen=True)
class Layer:
    """A convolution of a chain; ``pool`` or ``relu`` after it."""

    outputs: int
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    group: int = 1
    after: str = "Relu"


def add_layer(b: Builder, x: str, channels: int, layer: Layer, output: str = "") -> str:
    shape = (layer.outputs, channels // layer.group, *layer.kernel)
    scale = np.float32(np.prod(shape[1:]) ** -0.5)
    weight = b.constant(b.random.standard_normal(shape).astype(np.float32) * scale)
    x = b.add(
        "Conv",
        x,
        weight,
        b.weight(layer.outputs),
        output="" if layer.after else output,
        strides=list(layer.strides),
        pads=list(layer.pads),
        dilations=list(layer.dilations),
        group=layer.group,
    )
    return b.add(layer.after, x, output=output) if layer.after else x


def chain(shape: tuple[int, int, int, int], layers: list[Layer], seed: int = 0) -> bytes:
    b, x, channels = Builder("chain", seed), "x", shape[1]
    for number, layer in enumerate(layers):
        x = add_layer(b, x, channels, layer, "y" if number == len(layers) - 1 else "")
        channels = layer.outputs
    model = b.model({"x": (TensorProto.FLOAT, shape)}, {"y": ("n", channels, "h", "w")})  # type: ignore[dict-item]
    return onnx.shape_inference.infer_shapes(onnx.load_from_string(model)).SerializeToString()


def picture(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def reference(model: bytes, x: np.ndarray) -> np.ndarray:
    (y,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, {"x": x})
    return np.asarray(y)


def on_the_machine(stages: compiler.Stages, x: np.ndarray, workers: int, seed: int) -> np.ndarray:
    given_x = x.reshape(stages.program.buffer("x").shape)
    return run(stages.program, {"x": given_x}, stages.lowered.weights, workers, seed)["y"]


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, int, int, int], list[Layer]]:
    """One to three convolutions whose images stay at least one pixel large."""
    n, channels = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 3, 8, 16]))
    h, w = draw(st.integers(3, 9)), draw(st.integers(3, 9))
    shape, layers = (n, channels, h, w), []
    for _ in range(draw(st.integers(1, 3))):
        kernel = (draw(st.integers(1, min(3, h))), draw(st.integers(1, min(3, w))))
        pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
        strides = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
        spans = (h + pads[0] + pads[2] - kernel[0], w + pads[1] + pads[3] - kernel[1])
        dilations = tuple(draw(st.integers(1, 2)) if (k - 1) <= s else 1 for k, s in zip(kernel, spans, strict=True))
        group = draw(st.sampled_from([g for g in (1, 1, 2, 4, channels) if channels % g == 0]))
        outputs = group * draw(st.sampled_from([1, 2, 5, 9]))
        every = zip(spans, kernel, dilations, strides, strict=True)
        h, w = ((space - (k - 1) * (d - 1)) // step + 1 for space, k, d, step in every)
        after = draw(st.sampled_from(["Relu", "", "Sigmoid"]))
        layers.append(Layer(outputs, kernel, strides, pads, dilations, group, after))  # type: ignore[arg-type]
        channels = outputs
    return shape, layers


EMPTY_PANEL = ((2, 16, 6, 8), [Layer(36, pads=(0, 0, 1, 2), group=4)])
"""Five panels among three owners."""


@settings(max_examples=25, deadline=None)
@example(EMPTY_PANEL, 3, 0)
@given(chains(), st.integers(1, 3), st.integers(0, 99))
def test_every_geometry_is_lowered_right(
    case: tuple[tuple[int, int, int, int], list[Layer]], threads: int, seed: int
) -> None:
    """The Program passes the verifier, and the virtual machine agrees with onnx's reference."""
    shape, layers = case
    model, x = chain(shape, layers), picture(shape)
    want = reference(model, x)
    stages = compiler.lower(model, threads=threads, machine=Machine.named("avx2"))
    np.testing.assert_allclose(evaluate(stages.graph, {"x": x})["y"], want, rtol=1e-4, atol=1e-5)
    got = on_the_machine(stages, x, workers=1 + seed % 4, seed=seed)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-4, atol=1e-5)


BANK = {
    "stem": (3, Layer(16, (7, 7), (2, 2), (3, 3, 3, 3))),
    "one channel": (1, Layer(5, (5, 5), pads=(2, 2, 2, 2))),
    "three by three": (16, Layer(48, pads=(1, 1, 1, 1))),
    "winograd": (32, Layer(32, pads=(1, 1, 1, 1))),
    "winograd, more": (48, Layer(80, pads=(1, 1, 1, 1), after="")),
    "pointwise": (40, Layer(24, (1, 1))),
    "pointwise with strides": (24, Layer(33, (1, 1), (2, 2), after="")),
    "dilated": (8, Layer(8, pads=(2, 2, 2, 2), dilations=(2, 2))),
    "flat": (8, Layer(8, (1, 5), pads=(0, 2, 0, 2))),
    "depthwise": (40, Layer(40, pads=(1, 1, 1, 1), group=40)),
    "depthwise with strides": (24, Layer(24, strides=(2, 2), pads=(1, 1, 1, 1), group=24, after="")),
    "depthwise, wide kernel": (8, Layer(8, (5, 5), pads=(2, 2, 2, 2), group=8)),
    "groups of four": (32, Layer(32, pads=(1, 1, 1, 1), group=8)),
    "groups of three": (15, Layer(25, pads=(1, 1, 1, 1), group=5)),
    "wide groups": (64, Layer(64, (1, 1), group=2)),
    "groups that end within panels, half a panel": (24, Layer(136, (1, 1), group=4)),
    "and of longer vectors": (8, Layer(144, (1, 1), group=2)),
    "channel multiplier": (6, Layer(12, pads=(1, 1, 1, 1), group=6)),
}


def bank(size: int) -> tuple[bytes, dict[str, np.ndarray]]:
    """One model with a convolution of every kind, each with its own input and output."""
    b, inputs, outputs, values = Builder("bank"), {}, {}, {}
    for number, (channels, layer) in enumerate(BANK.values()):
        shape = (1, channels, size, size + 1)
        inputs[f"x{number}"] = (TensorProto.FLOAT, shape)
        add_layer(b, f"x{number}", channels, layer, f"y{number}")
        outputs[f"y{number}"] = (1, layer.outputs, f"h{number}", f"w{number}")
        values[f"x{number}"] = picture(shape)
    model = onnx.load_from_string(b.model(inputs, outputs))  # type: ignore[arg-type]
    return onnx.shape_inference.infer_shapes(model).SerializeToString(), values


FAR = {
    "atrous": Layer(40, pads=(9, 9, 9, 9), dilations=(9, 9)),
    "beyond the image": Layer(33, pads=(20, 20, 20, 20), dilations=(20, 20)),
    "uneven": Layer(32, kernel=(3, 2), pads=(7, 0, 3, 5), dilations=(5, 5)),
    "strided": Layer(32, kernel=(5, 3), strides=(2, 2), pads=(8, 4, 8, 4), dilations=(4, 4)),
    "causal": Layer(32, kernel=(3, 1), pads=(12, 0, 0, 0), dilations=(6, 1)),
}
"""Convolutions whose taps often lie in the border: (name, layer)."""


@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_taps_that_read_the_border_alone_are_left_out(level: str) -> None:
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    b, outputs, shape = Builder("far", 3), {}, (1, 24, 17, 21)
    for number, layer in enumerate(FAR.values()):
        add_layer(b, "x", shape[1], layer, f"y{number}")
        outputs[f"y{number}"] = (1, layer.outputs, f"h{number}", f"w{number}")
    model = onnx.load_from_string(b.model({"x": (TensorProto.FLOAT, shape)}, outputs))  # type: ignore[arg-type]
    proto, x = onnx.shape_inference.infer_shapes(model).SerializeToString(), {"x": picture(shape)}
    wanted, answers = ReferenceEvaluator(onnx.load_from_string(proto)).run(None, x), []
    stages = compiler.lower(proto, threads=2, machine=machine)
    assert len(set(re.findall("mn::Inside<.*?>", stages.source))) >= 4
    for workers in (1, 2, 3):
        with Session(compiler.build(stages), threads=workers) as session:
            answers.append(list(session.run(x).values()))
    for want, *found in zip(wanted, *answers, strict=True):
        np.testing.assert_allclose(found[0], want, rtol=1e-4, atol=1e-5)
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("size", [13])
def test_compiled_convolutions_agree_with_the_reference(size: int) -> None:
    model, values = bank(size)
    names = list(BANK)
    want = ReferenceEvaluator(onnx.load_from_string(model)).run(None, values)
    stages = compiler.lower(model, threads=2)
    templates = {p.task.template for p in stages.program.phases()}
    assert {"conv", "depthwise", "winograd4"} <= templates
    with Session(compiler.build(stages)) as session:
        got = session.run(values)
    for number, expected in enumerate(want):
        error = np.linalg.norm(got[f"y{number}"] - expected) / np.linalg.norm(expected)
        assert error < 3e-6, names[number]


def optimised(b: Builder, shape: tuple[int, ...], output: tuple[int, ...]) -> Graph:
    return compiler.lower(
        b.model({"x": (TensorProto.FLOAT, shape)}, {"y": output}), threads=1, machine=Machine.named("avx2")
    ).optimized


def test_images_stay_channels_last_and_norms_go_into_weights() -> None:
    """Of a residual block with batch norms, pooling and a head one transposition is left: the input's."""
    b = Builder("block")

    def normalised(x: str) -> str:
        conv = b.add("Conv", x, b.constant(picture((8, 8, 3, 3))), pads=[1, 1, 1, 1])
        stats = [b.weight(8), b.weight(8), b.weight(8), b.constant(np.ones(8, np.float32))]
        return b.add("BatchNormalization", conv, *stats)

    x = b.add("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])
    y = b.add("Relu", b.add("Add", normalised(b.add("Relu", normalised(x))), x))
    both = b.add("Concat", y, b.add("AveragePool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), axis=1)
    pooled = b.add("ReduceMean", both, b.ints(2, 3), keepdims=0)
    b.add("Gemm", pooled, b.weight(16, 4), output="y")
    found = operators(optimised(b, (1, 8, 8, 8), (1, 4)))
    assert found["transpose"] == 1
    assert found["conv"] == 2
    assert "mul" not in found


def test_a_flattened_image_reaches_its_product_without_a_transposition() -> None:
    b = Builder("flat")
    conv = b.add("Conv", "x", b.constant(picture((6, 3, 3, 3))))
    b.add("Gemm", b.add("Flatten", b.add("Relu", conv)), b.weight(5, 6 * 16), output="y", transB=1)
    graph = optimised(b, (2, 3, 6, 6), (2, 5))
    assert operators(graph)["transpose"] == 1


def test_an_image_with_and_without_border_is_stored_once() -> None:
    b = Builder("shared")
    x = b.add("Relu", b.add("Conv", "x", b.constant(picture((8, 3, 1, 1)))))
    wide = b.add("Conv", x, b.constant(picture((8, 8, 3, 3))), pads=[1, 1, 1, 1])
    narrow = b.add("Conv", x, b.constant(picture((8, 8, 1, 1))))
    b.add("Add", b.add("Add", wide, narrow), x, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, 3, 6, 6))}, {"y": (1, 8, 6, 6)})
    stages = compiler.lower(model, threads=2, machine=Machine.named("avx2"))
    stored = [buffer.shape for buffer in stages.program.buffers if buffer.space == "arena"]
    assert sorted(stored) == [(36, 3), (36, 8), (64, 8)]  # the picture, one convolution, the image with its border
    x_value = picture((1, 3, 6, 6))
    got = on_the_machine(stages, x_value, workers=2, seed=0)
    np.testing.assert_allclose(got.reshape(1, 8, 6, 6), reference(model, x_value), rtol=1e-4, atol=1e-4)


def test_weights_that_are_computed_take_the_product_over_windows() -> None:
    b = Builder("dynamic")
    b.add("Conv", "x", b.add("Relu", "w"), output="y", pads=[1, 1, 1, 1], group=2)
    inputs = {"x": (TensorProto.FLOAT, (1, 4, 5, 5)), "w": (TensorProto.FLOAT, (6, 2, 3, 3))}
    model = b.model(inputs, {"y": (1, 6, 5, 5)})
    values = {"x": picture((1, 4, 5, 5)), "w": picture((6, 2, 3, 3))}
    stages = compiler.lower(model, threads=2, machine=Machine.named("avx2"))
    shaped = {n: v.reshape(stages.program.buffer(n).shape) for n, v in values.items()}
    got = run(stages.program, shaped, stages.lowered.weights, 2, 0)["y"]
    (want,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, values)
    np.testing.assert_allclose(got.reshape(1, 6, 5, 5), want, rtol=1e-4, atol=1e-5)


def answers(level: str, channels: int, kernel: int) -> tuple[np.ndarray, str]:
    """Of a convolution by the first ``channels`` of 48 filters, and its source."""
    weights = np.random.default_rng(5).standard_normal((48, 12, kernel, kernel)).astype(np.float32)[:channels]
    b = Builder("ragged")
    hidden = b.add("Relu", "x")
    b.add("Conv", hidden, b.constant(weights), output="y", pads=[kernel // 2] * 4)
    shape = (1, 12, 6, 19)
    model = b.model({"x": (TensorProto.FLOAT, shape)}, {"y": (1, channels, 6, 19)})
    artifact = compiler.build(compiler.lower(model, threads=2, machine=Machine.named(level)))
    with Session(artifact, threads=2) as session:
        x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
        return session.run({"x": x})["y"], artifact.texts["source"]


@pytest.mark.parametrize(("level", "lanes"), [("avx512", 16), ("avx2", 8), ("scalar", 1)])
@pytest.mark.parametrize("kernel", [1, 5])
def test_a_panel_half_empty_has_the_bits_of_a_full_one(level: str, lanes: int, kernel: int) -> None:
    """Channels to fill one panel of two vectors, and half of the next one or less."""
    if not Machine.named(level).features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    whole, _ = answers(level, 48, kernel)
    for channels in {5 * lanes if lanes == 8 else 3 * lanes, 2 * lanes + 1}:  # three of 8 are a panel
        found, source = answers(level, channels, kernel)
        np.testing.assert_array_equal(found, whole[:, :channels])
        assert "mn::conv_ragged" in source
    assert "mn::conv_ragged" not in answers(level, 2 * lanes, kernel)[1]


@pytest.mark.parametrize(("width", "panel"), [(8, 8), (12, 8), (24, 8), (28, 16), (32, 16), (34, 16), (68, 16)])
def test_panels_span_groups_where_few_zeros_are_multiplied(width: int, panel: int) -> None:
    image = (1, 7, 7, 4 * width)
    conv = Conv(image, image, (1, 1), (1, 1), (1, 1), group=4)
    assert Direct().panels(conv, 8) == (panel, 24 - panel)


@pytest.mark.parametrize(
    ("channels", "lanes", "panels"), [(24, 8, (24, 16, 8)), (40, 8, (16, 8)), (48, 4, (8, 4)), (48, 16, (32, 16))]
)
def test_panels_of_three_vectors_where_channels_fill_them(channels: int, lanes: int, panels: tuple[int, ...]) -> None:
    image = (1, 7, 7, channels)
    conv = Conv(image, image, (1, 1), (1, 1), (1, 1), group=1)
    assert Direct().panels(conv, lanes) == panels
    assert 3 * lanes not in Direct().panels(replace(conv, dtype="uint8"), lanes)


@pytest.mark.parametrize("group", [1, 16])
@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_a_long_sequence_is_dealt_to_workers(group: int, level: str) -> None:
    """Whatever its channels are few; only where it begins and ends."""
    b = Builder("sequence")
    x = b.add("Conv", "x", b.weight(16, 16 // group, 3), b.weight(16), group=group, pads=[4, 4], dilations=[4])
    b.add("Conv", b.add("Relu", x), b.weight(16, 16 // group, 5), output="y", group=group, strides=[2])
    model = b.model({"x": (TensorProto.FLOAT, (1, 16, 2001))}, {"y": (1, 16, 999)})
    stages = compiler.lower(model, threads=2, machine=Machine.named(level))
    first, second = (p for p in stages.manifest["phases"] if p["template"] in ("conv", "depthwise"))
    assert first["tasks"] >= 2 and second["tasks"] >= 2
    x = np.random.default_rng(1).standard_normal((1, 16, 2001)).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})["y"]
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)["y"]
    np.testing.assert_allclose(seen.reshape(want.shape), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_rows_that_end_within_a_vector_end_in_their_padding(level: str) -> None:
    """A convolution with a residual, a product behind it, and one that writes the first columns of a joined image: of
    the last a whole vector would reach into the others' columns."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    b = Builder("rows")
    first = b.add("Relu", b.add("Conv", "x", b.weight(20, 12, 1, 1), b.weight(20)))
    added = b.add("Add", b.add("Conv", first, b.weight(20, 20, 1, 1), b.weight(20)), first)
    beside = b.add("Conv", added, b.weight(28, 20, 1, 1), b.weight(28))
    joined = b.add("Concat", b.add("Conv", added, b.weight(20, 20, 1, 1), b.weight(20)), beside, axis=1)
    b.add("Conv", joined, b.weight(9, 48, 1, 1), output="y")
    proto = b.model({"x": (TensorProto.FLOAT, (1, 12, 9, 11))}, {"y": (1, 9, 9, 11)})
    stages = compiler.lower(proto, threads=2, machine=machine)
    edges = [line for line in stages.source.splitlines() if "edge_ = " in line]
    padded = ["n < end_" in line for line in edges]
    assert (padded.count(True), padded.count(False)) == (2, 3), edges
    x = picture((1, 12, 9, 11))
    want = evaluate(stages.graph, {"x": x})["y"]
    with Session(compiler.build(stages)) as session:
        for _ in range(2):  # the second finds what the first left in the padding
            np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [3, 5, 8])
@pytest.mark.parametrize("kernel", [1, 3])
def test_owners_without_rows_fill_no_border(threads: int, kernel: int) -> None:
    for height in range(3, 13):
        shape, pads = (1, 8, height, 20), (kernel // 2,) * 4
        model = chain(shape, [Layer(48, (kernel, kernel), pads=pads), Layer(48, (3, 3), pads=(1, 1, 1, 1))])
        stages, x = compiler.lower(model, threads=threads, machine=Machine.named("avx2")), picture(shape)
        want = reference(model, x)
        seen = on_the_machine(stages, x, threads, 0)
        np.testing.assert_allclose(seen.reshape(want.shape), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", ["avx512", "avx2"])
@pytest.mark.parametrize(("channels", "quantised"), [(1, True), (5, False), (19, True)])
def test_the_few_channels_of_a_head_are_computed_side_by_side(channels: int, quantised: bool, level: str) -> None:
    """Where a vector of channels ends beyond the last one, its lanes are not computed one by one, be they stored apart
    as the planes of a result or side by side."""
    b = Builder("head", 7)
    x = b.add("Relu", b.add("Conv", "x", b.weight(16, 8, 1, 1)))
    y = b.add("Conv", x, b.weight(channels, 16, 3, 3), b.weight(channels), pads=[1, 1, 1, 1])
    if quantised:
        scale, zero = b.constant(np.float32(0.05)), b.constant(np.uint8(128))
        y = b.add("DequantizeLinear", b.add("QuantizeLinear", y, scale, zero), scale, zero)
    b.add("Clip", y, b.constant(np.float32(-2)), b.constant(np.float32(2)), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, 8, 9, 11))}, {"y": (1, channels, 9, 11)})
    value = picture((1, 8, 9, 11))
    want = reference(model, value)
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    stages = compiler.lower(model, threads=2, machine=machine)
    assert "int count_ = mn::W" in stages.source
    with Session(compiler.build(stages)) as session:
        got = session.run({"x": value})["y"]
    assert np.abs(got - want).max() <= (0.0501 if quantised else 1e-5)  # a tie may be rounded either way
    assert (np.abs(got - want) < 1e-5).mean() > 0.99
