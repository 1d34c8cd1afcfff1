"""Grouped convolutions: lane by lane where a group is narrower than a vector, in panels where it is not."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from tests.core.networks import Builder


def network(channels: int, groups: int, outputs: int, size: int, stride: int) -> bytes:
    """A grouped 3x3 convolution with bias and ReLU of an image with a border."""
    b = Builder("groups")
    w = b.random.standard_normal((outputs, channels // groups, 3, 3)).astype(np.float32)
    settings = {"pads": [1, 1, 1, 1], "strides": [stride, stride], "group": groups}
    b.add("Relu", b.add("Conv", "x", b.constant(w), b.weight(outputs), **settings), output="y")
    out = (size - 1) // stride + 1
    return b.model({"x": (TensorProto.FLOAT, (1, channels, size, size))}, {"y": (1, outputs, out, out)})


@pytest.mark.parametrize(
    ("shape", "level", "template"),
    [
        ((32, 8, 32, 9, 1), "avx512", "depthwise"),
        ((40, 10, 40, 8, 2), "avx512", "depthwise"),
        ((64, 8, 64, 14, 1), "avx512", "depthwise"),
        ((24, 6, 24, 9, 1), "avx2", "depthwise"),
        ((32, 2, 32, 8, 2), "avx512", "conv"),
        ((32, 2, 32, 12, 1), "avx512", "winograd4"),
        ((32, 4, 32, 12, 1), "avx2", "winograd4"),
        ((16, 4, 32, 8, 1), "avx512", "conv"),
        ((32, 4, 32, 8, 2), "avx2", "conv"),
        ((48, 2, 48, 8, 1), "avx512", "conv"),
        ((72, 3, 72, 7, 2), "avx512", "conv"),
        ((40, 2, 68, 9, 1), "avx512", "conv"),
        ((36, 3, 60, 6, 1), "avx2", "conv"),
    ],
)
def test_groups(shape: tuple[int, int, int, int, int], level: str, template: str) -> None:
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    stages = compiler.lower(network(*shape), threads=2, machine=machine)
    assert template in [p.task.template for p in stages.program.phases()]
    x = np.random.default_rng(1).standard_normal(stages.graph.types["x"].shape).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})["y"]
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)
    np.testing.assert_allclose(seen["y"].reshape(want.shape), want, rtol=1e-4, atol=1e-4)
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", ["avx512", "avx2"])
@pytest.mark.parametrize("quantised", [False, True])
def test_windows_far_apart_compile_at_once(quantised: bool, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in atrous pyramids: their kernels were unrolled over all that lies between their taps, for minutes."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    b = Builder("atrous")
    w = b.random.standard_normal((32, 1, 3, 3)).astype(np.float32)
    settings = {"pads": [36] * 4, "dilations": [36, 36], "group": 32}
    x, weights = "x", b.constant(w)
    if quantised:
        one, zero = b.constant(np.array(0.05, np.float32)), b.constant(np.array(3, np.uint8))
        x = b.add("DequantizeLinear", b.add("QuantizeLinear", x, one, zero), one, zero)
        small = b.constant(np.clip(np.round(w / 0.05), -127, 127).astype(np.int8))
        weights = b.add("DequantizeLinear", small, one, b.constant(np.array(0, np.int8)))
    b.add("Conv", x, weights, output="y", **settings)
    model = b.model({"x": (TensorProto.FLOAT, (1, 32, 40, 40))}, {"y": (1, 32, 40, 40)})
    stages = compiler.lower(model, threads=2, machine=machine)
    assert [p.task.template for p in stages.program.phases()].count("depthwise") == 1
    given = {"x": b.random.standard_normal((1, 32, 40, 40)).astype(np.float32)}
    monkeypatch.setenv("MONONN_CACHE", "")
    started = time.process_time() + sum(os.times()[2:4])
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(given)["y"]
    assert time.process_time() + sum(os.times()[2:4]) - started < 30
    np.testing.assert_allclose(found, evaluate(stages.graph, given)["y"], rtol=1e-4, atol=1e-4)
