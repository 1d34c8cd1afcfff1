"""Winograd's convolution: its transforms, its kernel, and networks whose schedule chooses it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from mononn_core.program.windows import Windows
from mononn_core.runtime.session import Session
from mononn_core.templates import winograd
from tests.core.networks import Builder


@pytest.mark.parametrize(
    ("rows", "width", "pitch", "apart"),
    [(2, 2, 4, 1), (3, 5, 7, 1), (4, 7, 12, 1), (1, 1, 3, 1), (5, 6, 10, 2), (4, 9, 16, 3), (2, 1, 9, 4)],
)
def test_convolve_is_a_convolution(rows: int, width: int, pitch: int, apart: int) -> None:
    random = np.random.default_rng(rows)
    windows = Windows((3, 3), (1, 1), (apart, apart), pitch, width, rows)
    pixels = random.standard_normal((windows.pixels(rows), 5))
    w = random.standard_normal((3, 3, 5, 4))
    direct = sum(tap @ part for tap, part in zip(windows.taps_of(pixels), w.reshape(9, 5, 4), strict=True))
    np.testing.assert_allclose(winograd.convolve(windows, pixels, winograd.transformed_weights(w)), direct, atol=1e-12)


def network(
    channels: int, results: int, height: int, width: int, batch: int = 1, group: int = 1, apart: int = 1
) -> bytes:
    """Two 3x3 convolutions with bias and ReLU, the second of what the first stores with its border, and their sum."""
    b = Builder("winograd")
    settings = {"pads": [apart] * 4, "dilations": [apart] * 2, "group": group}
    each = [n // group for n in (channels, results)]
    weights = [b.random.standard_normal((results, c, 3, 3)) * (9 * c) ** -0.5 for c in each]
    first, second = (b.constant(w.astype(np.float32)) for w in weights)
    y = b.add("Relu", b.add("Conv", "x", first, b.weight(results), **settings))
    z = b.add("Conv", y, second, b.weight(results), **settings)
    b.add("Relu", b.add("Add", z, y), output="y")
    kind = (TensorProto.FLOAT, (batch, channels, height, width))
    return b.model({"x": kind}, {"y": (batch, results, height, width)})


@pytest.mark.parametrize(
    ("shape", "level"),
    [
        ((32, 32, 8, 10), "avx512"),
        ((48, 48, 13, 15), "avx512"),
        ((64, 32, 60, 64), "avx512"),
        ((32, 64, 6, 14, 2), "avx2"),
        ((48, 48, 13, 15), "avx2"),
        ((64, 96, 7, 9, 1, 2), "avx512"),
        ((64, 96, 7, 9, 2, 2), "avx2"),
        ((72, 72, 10, 6, 1, 3), "avx2"),
        ((32, 32, 8, 11, 1, 1, 2), "avx512"),
        ((32, 32, 8, 11, 1, 1, 2), "avx2"),
        ((16, 24, 12, 7, 2, 1, 3), "avx2"),
        ((32, 48, 20, 20, 1, 2, 5), "avx2"),
        ((32, 32, 8, 10), "scalar"),
    ],
)
def test_networks(shape: tuple[int, ...], level: str) -> None:
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    stages = compiler.lower(network(*shape), threads=2, machine=machine)
    assert [p.task.template for p in stages.program.phases()].count("winograd") == 2
    x = np.random.default_rng(1).standard_normal(stages.graph.types["x"].shape).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})["y"]
    if x.size < 1 << 14:
        given = {"x": x.reshape(stages.program.buffer("x").shape)}
        seen = run(stages.program, given, stages.lowered.weights, workers=2)
        np.testing.assert_allclose(seen["y"].reshape(want.shape), want, rtol=1e-4, atol=1e-5)
    artifact, answers = compiler.build(stages), []
    for workers in (1, 2, 4):
        with Session(artifact, threads=workers) as session:
            answers.append(session.run({"x": x})["y"])
        np.testing.assert_allclose(answers[-1], want, rtol=1e-4, atol=2e-5)
        np.testing.assert_array_equal(answers[-1], answers[0])


def test_neon_and_gcc_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.build(compiler.lower(network(32, 32, 8, 10), threads=2, machine=Machine.named("neon")))
    if shutil.which("g++"):
        monkeypatch.setenv("MONONN_CXX", "g++")
        compiler.build(compiler.lower(network(32, 32, 8, 10), threads=2, machine=Machine.named("avx512")))


def test_weights_are_transformed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many partitions and tiles are looked at."""
    seen: list[tuple[int, ...]] = []
    right = winograd.transformed_weights

    def counted(w: np.ndarray) -> np.ndarray:
        seen.append(w.shape)
        return right(w)

    monkeypatch.setattr(winograd, "transformed_weights", counted)
    compiler.lower(network(48, 64, 13, 15), threads=2, machine=Machine.named("avx2"))
    assert sorted(seen) == [(3, 3, 48, 64), (3, 3, 64, 64)]
