"""Winograd's convolution of bytes: exact, whatever the bytes are, and chosen where nothing multiplies bytes."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from mononn_core.templates.winograd_bytes import MOST_CHANNELS, TEMPLATE
from tests.core.models import model

Feeds = dict[str, np.ndarray]  # type: ignore[type-arg]


def network(x: np.ndarray, w: np.ndarray, group: int = 1, apart: int = 1) -> tuple[bytes, Feeds, np.ndarray]:  # type: ignore[type-arg]
    """A ConvInteger of x [N, C, H, W], padded by its zero point 7; with its inputs and its answer."""
    attributes = {"pads": [apart] * 4, "dilations": [apart] * 2, "group": group}
    nodes = [helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"], **attributes)]
    proto = model(nodes, [("x", "uint8", x.shape)], ["y"], {"w": w, "zero": np.array(7, np.uint8)})
    return proto.SerializeToString(), {"x": x}, ReferenceEvaluator(proto).run(None, {"x": x})[0]


def check(level: str, serialized: bytes, feeds: Feeds, wanted: np.ndarray, interpreted: bool = True) -> None:  # type: ignore[type-arg]
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    stages = compiler.lower(serialized, threads=2, machine=machine)
    assert TEMPLATE.name in [p.task.template for p in stages.program.phases()]
    if interpreted:
        given = {"x": feeds["x"].reshape(stages.program.buffer("x").shape)}
        seen = run(stages.program, given, stages.lowered.weights, workers=2)["y"]
        np.testing.assert_array_equal(seen.reshape(wanted.shape), wanted)
    artifact = compiler.build(stages)
    for workers in (1, 2):
        with Session(artifact, threads=workers) as session:
            np.testing.assert_array_equal(session.run(feeds)["y"], wanted)


@pytest.mark.in_turn("level", "shape")
@pytest.mark.parametrize("level", ["avx2", "avx512"])
@pytest.mark.parametrize(
    ("shape", "results", "group", "apart"),
    [
        ((1, 32, 8, 10), 32, 1, 1),
        ((1, 64, 13, 15), 48, 1, 1),
        ((2, 32, 6, 14), 64, 1, 1),
        ((1, 256, 9, 7), 40, 1, 1),
        ((1, 64, 12, 9), 64, 2, 1),
        ((1, 32, 12, 20), 32, 1, 3),
    ],
)
def test_networks(level: str, shape: tuple[int, ...], results: int, group: int, apart: int) -> None:
    random = np.random.default_rng(1)
    x = random.integers(0, 256, shape).astype(np.uint8)
    w = random.integers(-128, 128, (results, shape[1] // group, 3, 3)).astype(np.int8)
    check(level, *network(x, w, group, apart), interpreted=x.size < 1 << 14)


@pytest.mark.parametrize("weight", [-128, 127])
def test_extremes(weight: int) -> None:
    """Of as many channels as an int32 holds; an image of zeros and of the largest bytes, in turns and in blocks."""
    channels = MOST_CHANNELS // 16 * 16
    x = np.zeros((1, channels, 6, 8), np.uint8)
    x[..., ::2, 1::2] = 255
    x[..., :, 4:] = 255
    w = np.full((16, channels, 3, 3), weight, np.int8)
    w[1::2, :, 1] = -1 - weight
    check("avx2", *network(x, w), interpreted=False)


@pytest.mark.parametrize("compiler_name", ["", "g++"])
def test_compiles_for_wider_vectors(compiler_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler_name:
        if not shutil.which(compiler_name):
            pytest.skip(f"there is no {compiler_name}")
        monkeypatch.setenv("MONONN_CXX", compiler_name)
    serialized, *_ = network(np.zeros((1, 64, 12, 9), np.uint8), np.ones((48, 64, 3, 3), np.int8))
    stages = compiler.lower(serialized, threads=2, machine=Machine.named("avx512"))
    assert TEMPLATE.name in [p.task.template for p in stages.program.phases()]
    compiler.build(stages)


def test_is_not_taken_where_bytes_are_multiplied() -> None:
    """Nor where there would be more channels than an int32 holds."""
    x = np.zeros((1, 64, 8, 8), np.uint8)
    serialized, *_ = network(x, np.ones((64, 64, 3, 3), np.int8))
    machine = Machine.named("avx2")
    with_instruction = Machine(**{**vars(machine), "features": machine.features | {"avxvnni"}})
    channels = MOST_CHANNELS // 16 * 16 + 16
    many = network(np.zeros((1, channels, 4, 4), np.uint8), np.ones((16, channels, 3, 3), np.int8))[0]
    for file, processor in ((serialized, with_instruction), (many, machine), (serialized, Machine.named("neon"))):
        phases = compiler.lower(file, threads=2, machine=processor).program.phases()
        assert TEMPLATE.name not in [p.task.template for p in phases]
