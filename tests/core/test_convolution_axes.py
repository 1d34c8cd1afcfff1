"""Convolutions of one and three axes, and transposed ones: products over images, right at every edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.importer import load
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run
from mononn_core.passes import pipeline
from mononn_core.runtime.session import Session
from tests.core.models import assert_agrees, model, node
from tests.core.test_convolution import Layer, chain, picture, reference

RANDOM = np.random.default_rng(3)
Shape = tuple[int, ...]


def convolution(op: str, x: Shape, w: Shape, bias: int, **attributes: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """y = op(x, w, bias) with its input."""
    constants = {
        "w": RANDOM.standard_normal(w).astype(np.float32),
        "b": RANDOM.standard_normal(bias).astype(np.float32),
    }
    proto = model([node(op, "x w b", "y", **attributes)], [("x", "float32", x)], ["y"], constants)
    return proto, {"x": RANDOM.standard_normal(x).astype(np.float32)}


CASES: dict[str, tuple[str, Shape, Shape, int, dict[str, Any]]] = {
    "sequence": ("Conv", (2, 6, 40), (10, 6, 3), 10, {"pads": [1, 1]}),
    "dilated sequence": ("Conv", (1, 6, 40), (10, 6, 3), 10, {"pads": [8, 2], "dilations": [4], "strides": [2]}),
    "sequence in groups": ("Conv", (1, 8, 21), (8, 2, 5), 8, {"group": 4}),
    "depthwise sequence": ("Conv", (1, 8, 21), (8, 1, 5), 8, {"group": 8, "pads": [4, 0]}),
    "volume": ("Conv", (2, 3, 7, 9, 8), (5, 3, 3, 3, 3), 5, {"pads": [1, 1, 1, 1, 1, 1]}),
    "strided volume": (
        "Conv",
        (1, 3, 9, 9, 8),
        (5, 3, 3, 2, 1),
        5,
        {"pads": [2, 0, 1, 1, 1, 0], "strides": [2, 1, 3], "dilations": [2, 1, 1]},
    ),
    "flat volume": ("Conv", (1, 4, 5, 6, 7), (8, 4, 1, 3, 3), 8, {"strides": [2, 1, 1]}),
    "volume in groups": ("Conv", (1, 4, 5, 6, 7), (8, 2, 3, 3, 3), 8, {"group": 2, "pads": [1] * 6}),
    "depthwise volume": ("Conv", (1, 6, 5, 6, 7), (6, 1, 3, 3, 3), 6, {"group": 6, "pads": [1] * 6}),
    "doubling": ("ConvTranspose", (1, 6, 5, 7), (6, 4, 2, 2), 4, {"strides": [2, 2]}),
    "overlapping": ("ConvTranspose", (2, 6, 5, 7), (6, 4, 4, 4), 4, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "uneven": (
        "ConvTranspose",
        (1, 6, 5, 7),
        (6, 4, 5, 3),
        4,
        {"strides": [3, 2], "pads": [2, 0, 1, 2], "output_padding": [2, 1]},
    ),
    "gaps": ("ConvTranspose", (1, 6, 5, 7), (6, 4, 2, 1), 4, {"strides": [3, 2]}),
    "same": ("ConvTranspose", (1, 3, 6, 5), (3, 4, 3, 3), 4, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "sequence upwards": ("ConvTranspose", (1, 6, 9), (6, 4, 8), 4, {"strides": [4], "pads": [2, 2]}),
    "volume upwards": ("ConvTranspose", (1, 3, 4, 5, 6), (3, 4, 2, 3, 2), 4, {"strides": [2, 2, 2]}),
    "in groups": ("ConvTranspose", (1, 6, 5, 7), (6, 2, 3, 3), 4, {"strides": [2, 2], "group": 2}),
    "each channel alone": ("ConvTranspose", (1, 6, 5, 7), (6, 1, 4, 3), 6, {"strides": [2, 3], "group": 6}),
    "a sequence's channels alone": (
        "ConvTranspose",
        (2, 6, 9),
        (6, 1, 4),
        6,
        {"strides": [2], "pads": [1, 1], "group": 6},
    ),
    "of stride 1": ("ConvTranspose", (1, 6, 5, 7), (6, 4, 3, 3), 4, {"pads": [1, 1, 1, 1]}),
}


@pytest.mark.parametrize("name", CASES)
def test_convolutions_of_every_kind(name: str) -> None:
    op, x, w, bias, attributes = CASES[name]
    assert_agrees(*convolution(op, x, w, bias, **attributes))


@pytest.mark.parametrize(
    "name", [n for n in CASES if "alone" not in n and n not in ("depthwise volume", "volume in groups")]
)
def test_none_is_a_product_of_unfolded_windows(name: str) -> None:
    op, x, w, bias, attributes = CASES[name]
    proto, _ = convolution(op, x, w, bias, **attributes)
    graph = pipeline.run(load(proto.SerializeToString()))
    assert [n.op for n in graph.nodes].count("conv") == 1
    assert not {"windows", "matmul"} & {n.op for n in graph.nodes}


def test_channels_alone_that_are_enlarged_are_convolved_as_they_are() -> None:
    """One depthwise convolution a phase, whose kernels have no zeros between (CenterNet's way up)."""
    proto, _ = convolution("ConvTranspose", (1, 6, 5, 7), (6, 1, 4, 4), 6, strides=[2, 2], pads=[1] * 4, group=6)
    graph = pipeline.run(load(proto.SerializeToString()))
    kernels = [graph.types[n.inputs[1]].shape for n in graph.nodes if n.op == "conv"]
    assert kernels == [(2, 2, 1, 6)] * 4
    far, _ = convolution("ConvTranspose", (1, 6, 5, 7), (6, 1, 8, 8), 6, strides=[8, 8], group=6)
    many = pipeline.run(load(far.SerializeToString()))
    assert [n.op for n in many.nodes].count("conv") == 1, "64 phases would be too many"


def test_a_transposed_convolution_multiplies_no_zeros() -> None:
    proto, _ = convolution("ConvTranspose", (1, 6, 5, 7), (6, 4, 2, 2), 4, strides=[2, 2])
    graph = pipeline.run(load(proto.SerializeToString()))
    (conv,) = (n for n in graph.nodes if n.op == "conv")
    assert graph.types[conv.inputs[0]].shape == (1, 5, 7, 6) and graph.types[conv.output].shape == (1, 5, 7, 16)


def test_a_sequence_that_is_made_longer_keeps_its_channels_side_by_side() -> None:
    """Convolutions and what they are added to, behind the longer one (as in Kong et al., HiFi-GAN, 2020)."""
    constants = {
        "up": RANDOM.standard_normal((6, 8, 4)).astype(np.float32),
        "bias": RANDOM.standard_normal(8).astype(np.float32),
        **{name: RANDOM.standard_normal((8, 8, 3)).astype(np.float32) for name in ("v", "w")},
    }
    nodes = [
        node("ConvTranspose", "x up bias", "long", strides=[2], pads=[1, 1]),
        node("LeakyRelu", "long", "l"),
        node("Conv", "l v", "c", pads=[1, 1]),
        node("Add", "long c", "s"),
        node("LeakyRelu", "s", "m"),
        node("Conv", "m w", "d", pads=[3, 3], dilations=[3]),
        node("Add", "s d", "y"),
    ]
    proto = model(nodes, [("x", "float32", (1, 6, 20))], ["y"], constants)
    graph = pipeline.run(load(proto.SerializeToString()))
    assert [n.op for n in graph.nodes].count("transpose") == 2, "of the input and of the output"
    assert_agrees(proto, {"x": RANDOM.standard_normal((1, 6, 20)).astype(np.float32)}, 1e-4)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_a_pool_of_a_sequence_keeps_its_channels_side_by_side(kind: str) -> None:
    constants = {name: RANDOM.standard_normal((6, 6, 3)).astype(np.float32) for name in ("v", "w")}
    pool = node(kind, "r", "p", kernel_shape=[3], strides=[2], pads=[1, 1])
    nodes = [node("Conv", "x v", "c", pads=[1, 1]), node("Relu", "c", "r"), pool, node("Conv", "p w", "y")]
    proto = model(nodes, [("x", "float32", (1, 6, 20))], ["y"], constants)
    graph = pipeline.run(load(proto.SerializeToString()))
    assert [n.op for n in graph.nodes].count("transpose") == 2, "of the input and of the output"
    assert_agrees(proto, {"x": RANDOM.standard_normal((1, 6, 20)).astype(np.float32)}, 1e-4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kernel", [1, 3])
def test_a_sequence_read_backwards_is_no_image_in_place(kernel: int, threads: int) -> None:
    """As a layer of two directions reverses it: its pixels follow one another upwards."""
    constants = {
        "v": RANDOM.standard_normal((4, 6, 3)).astype(np.float32),
        "w": RANDOM.standard_normal((8, 4, kernel)).astype(np.float32),
        **{name: np.array([value]) for name, value in (("last", -1), ("end", -(1 << 40)), ("axis", 2), ("back", -1))},
    }
    nodes = [
        node("Conv", "x v", "h"),
        node("Slice", "h last end axis back", "r"),
        node("Conv", "r w", "y", strides=[2]),
    ]
    proto = model(nodes, [("x", "float32", (2, 6, 28))], ["y"], constants)
    x = RANDOM.standard_normal((2, 6, 28)).astype(np.float32)
    stages = compiler.lower(proto.SerializeToString(), threads=threads)
    with Session(compiler.build(stages), threads=threads) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], run(stages.graph, {"x": x})["y"], atol=1e-4)


@pytest.mark.parametrize(("group", "asks"), [(8, True), (32, False)])
def test_narrow_groups_ask_for_what_they_store(group: int, asks: bool) -> None:
    """Their tiles multiply for long; those of groups of one channel do not."""
    layers = [Layer(32, pads=(1, 1, 1, 1), group=group), Layer(32, (1, 1))]  # what the last one stores lies in planes
    proto, x = chain((1, 32, 13, 14), layers), picture((1, 32, 13, 14))
    source = compiler.lower(proto, threads=2, machine=Machine.named("avx512")).source
    calls = [line for line in source.splitlines() if "mn::depthwise<" in line]
    assert calls
    assert {line.endswith(", element_, ahead_);") for line in calls} == {asks}
    assert ("mn::prefetch_write(" in source) == asks
    with Session(compiler.build(compiler.lower(proto, threads=2))) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], reference(proto, x), rtol=1e-4, atol=1e-5)
