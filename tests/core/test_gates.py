"""What scales an image channel by channel scales the weights of the convolution behind it, where these are fewer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.compiler.cpu import groups_of
from mononn_core.machine import Machine
from tests.core.networks import Builder
from tests.core.test_joined import check

PLAIN = Machine.named("avx2")
HALVES = replace(Machine.named("avx512"), features=Machine.named("avx512").features | {"avx512bf16"})
CHANNELS, SIZE = 20, 6


def excited(
    results: int = 12, images: int = 1, kernel: int = 1, group: int = 1, more: str = "", gate: str = "sums"
) -> bytes:
    """x, scaled by a gate that is computed of its ``sums`` or ``pixels``, then a convolution; ``more`` reads it too."""
    b = Builder("excited")
    x = b.add("Conv", "x", b.weight(CHANNELS, CHANNELS, 1, 1))
    x = b.add("Mul", x, b.add("Sigmoid", x))
    if gate == "sums":
        g = b.add("Conv", b.add("ReduceMean", x, b.ints(2, 3)), b.weight(CHANNELS, CHANNELS, 1, 1))
    else:
        g = b.add("ReduceMean", x, b.ints(1))
    scaled = b.add("Mul", b.add("Sigmoid", g), x)
    shape = (results, CHANNELS // group, kernel, kernel)
    y = b.add("Conv", scaled, b.weight(*shape), group=group, pads=[kernel // 2] * 4)
    if more:
        y = b.add("Add", y, b.add(more, b.add("Slice", scaled, b.ints(0), b.ints(results), b.ints(1))))
    b.add("Relu", y, output="y")
    return b.model({"x": (TensorProto.FLOAT, (images, CHANNELS, SIZE, SIZE))}, {"y": (images, results, SIZE, SIZE)})


def scaled(model: bytes, machine: Machine = PLAIN, precision: str = "fp32") -> list[str]:
    """Of what a gate scales: "weights", "image"."""
    stages = compiler.lower(model, threads=1, machine=machine, precision=precision)
    graph = groups_of(stages.optimized, stages.options, machine).graph
    weights = [node for node in graph.nodes if node.op == "conv" and not graph.is_constant(node.inputs[1])]
    shapes = [[graph.types[name].shape for name in node.inputs] for node in graph.nodes if node.op == "mul"]
    images = [pair for pair in shapes if pair[0] != pair[1] and any(shape[1:3] == (SIZE, SIZE) for shape in pair)]
    return ["weights"] * len(weights) + ["image"] * len(images)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("results", [12, 16, 18])
def test_the_gate_scales_the_weights(results: int, threads: int) -> None:
    model = excited(results)
    assert scaled(model) == ["weights"]
    check(model, threads, shape=(1, CHANNELS, SIZE, SIZE))


@pytest.mark.parametrize(
    "changed",
    [
        {"results": 19},
        {"images": 2},
        {"kernel": 3},
        {"group": 2},
        {"more": "Relu"},
        {"gate": "pixels"},
    ],
    ids=str,
)
def test_an_image_is_scaled_where_it_must_or_takes_less(changed: dict[str, Any]) -> None:
    model = excited(**changed)
    assert scaled(model) == ["image"]
    check(model, 2, shape=(changed.get("images", 1), CHANNELS, SIZE, SIZE))


def test_products_of_bf16_keep_their_constant_weights() -> None:
    found = [scaled(excited(), HALVES, precision) for precision in ("fp32", "bf16")]
    assert found == [["weights"], ["image"]]
    assert scaled(excited(), Machine.named("avx512"), "bf16") == ["weights"], "float32 is multiplied there"
