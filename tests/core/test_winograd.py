"""Winograd's convolution: its transforms, its kernel, and networks whose schedule chooses it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, load_from_string
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.program.windows import Windows
from mononn_core.runtime.session import Session
from mononn_core.templates import winograd
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.toom import Toom, toom_cook
from mononn_core.templates.winograd import TEMPLATE as WINOGRAD
from mononn_core.templates.winograd import Winograd
from mononn_core.templates.winograd4 import TEMPLATE as WINOGRAD4
from tests.core.agree import assert_all_agree
from tests.core.networks import Builder

TEMPLATES = (WINOGRAD, WINOGRAD4)


@pytest.mark.parametrize(
    ("rows", "width", "pitch", "apart"),
    [(2, 2, 4, 1), (3, 5, 7, 1), (4, 7, 12, 1), (1, 1, 3, 1), (5, 6, 10, 2), (4, 9, 16, 3), (2, 1, 9, 4)],
)
@pytest.mark.parametrize("template", TEMPLATES)
def test_convolve_is_a_convolution(template: Winograd, rows: int, width: int, pitch: int, apart: int) -> None:
    random = np.random.default_rng(rows)
    windows = Windows((3, 3), (1, 1), (apart, apart), pitch, width, rows)
    pixels = random.standard_normal((windows.pixels(rows), 5))
    w = random.standard_normal((3, 3, 5, 4))
    direct = sum(tap @ part for tap, part in zip(windows.taps_of(pixels), w.reshape(9, 5, 4), strict=True))
    weights = winograd.transformed_weights(w, template.toom)
    np.testing.assert_allclose(winograd.convolve(windows, pixels, weights, template.toom), direct, atol=1e-12)


@pytest.mark.parametrize("points", [(0, 1, -1), (0, 0.625, -0.625, 1.5, -1.5), (0, 1, -1, 2)])
def test_transforms_filter(points: tuple[float, ...]) -> None:
    """Of any numbers, and of few additions where points come in pairs."""
    toom, random = toom_cook(*points), np.random.default_rng(len(points))
    d, g = random.standard_normal(toom.terms), random.standard_normal(3)
    want = [d[i : i + 3] @ g for i in range(toom.step)]
    np.testing.assert_allclose(toom.outputs @ ((toom.filters @ g) * (toom.inputs @ d)), want, atol=1e-12)
    assert (toom.step, toom.products) == (len(points) - 1, (len(points) + 1) ** 2)


def test_points_of_large_tiles_round_little() -> None:
    """As the module says: about five times a direct convolution's error, and half of what whole points give."""
    random = np.random.default_rng(0)
    windows = Windows((3, 3), (1, 1), (1, 1), 42, 40, 40)
    pixels = np.maximum(random.standard_normal((windows.pixels(40), 256)), 0).astype(np.float32)
    w = (random.standard_normal((3, 3, 256, 16)) / 48).astype(np.float32)
    weights = winograd.transformed_weights(w.astype(float), WINOGRAD.toom)
    exact = winograd.convolve(windows, pixels.astype(float), weights, WINOGRAD.toom)

    def error(toom: Toom) -> float:
        narrow = Toom(*(m.astype(np.float32) for m in (toom.inputs, toom.filters, toom.outputs)))
        found = winograd.convolve(windows, pixels, winograd.transformed_weights(w, toom), narrow)
        assert found.dtype == np.float32
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    taps = zip(windows.taps_of(pixels), w.reshape(9, 256, 16), strict=True)
    direct = float(np.linalg.norm(sum(t @ part for t, part in taps) - exact) / np.linalg.norm(exact))
    times = [error(toom) / direct for toom in (WINOGRAD.toom, WINOGRAD4.toom, toom_cook(0, 1, -1, 2, -2))]
    assert times[0] < 3 and 3 < times[1] < 7 and 8 < times[2] < 14, times


def prefer(template: Winograd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the two, wherever it can compute a convolution."""
    for one in TEMPLATES:
        rank = 3 if one is template else -3
        able = type(one).panels

        def preference(self: Winograd, stage: Any, builder: Any, able: Any = able, rank: int = rank) -> int | None:
            return rank if able(self, Conv.of(stage, builder), builder.lanes) else None

        monkeypatch.setattr(type(one), "preference", preference)


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


@pytest.mark.in_turn("template", "shape")
@pytest.mark.parametrize(
    ("shape", "level"),
    [
        ((32, 32, 8, 10), "avx512"),
        ((48, 48, 13, 15), "avx512"),
        ((64, 32, 60, 64), "avx512"),
        ((60, 44, 9, 10), "avx512"),
        ((29, 31, 8, 11, 1, 1, 2), "avx512"),
        ((17, 250, 6, 6, 2), "avx512"),
        ((20, 39, 7, 9, 2), "avx2"),
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
@pytest.mark.parametrize("template", TEMPLATES)
def test_networks(template: Winograd, shape: tuple[int, ...], level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(template, monkeypatch)
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    stages = compiler.lower(network(*shape), threads=2, machine=machine)
    assert [p.task.template for p in stages.program.phases()].count(template.name) == 2
    assert_all_agree(stages, atol=2e-5, interpreted=1 << 14)


@pytest.mark.parametrize("template", TEMPLATES)
def test_neon_and_gcc_compile(template: Winograd, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(template, monkeypatch)
    compiler.build(compiler.lower(network(32, 32, 8, 10), threads=2, machine=Machine.named("neon")))
    if shutil.which("g++"):
        monkeypatch.setenv("MONONN_CXX", "g++")
        compiler.build(compiler.lower(network(32, 32, 8, 10), threads=2, machine=Machine.named("avx512")))


@pytest.mark.parametrize(("channels", "level", "chosen"), [(60, "avx512", 2), (15, "avx512", 0), (15, "avx2", 2)])
def test_channels_need_not_fill_vectors_but_be_as_many_as_one_has(channels: int, level: str, chosen: int) -> None:
    program = compiler.lower(network(channels, channels, 32, 32), threads=2, machine=Machine.named(level)).program
    assert [p.task.template for p in program.phases()].count(WINOGRAD4.name) == chosen


@pytest.mark.parametrize(("shape", "chosen"), [((256, 256, 28, 28, 2), WINOGRAD4), ((512, 512, 7, 7, 4), WINOGRAD)])
def test_large_weights_of_few_tiles_are_not_made_larger(shape: tuple[int, ...], chosen: Winograd) -> None:
    """They are read once for every image."""
    program = compiler.lower(network(*shape), threads=2, machine=Machine.named("avx512")).program
    assert [p.task.template for p in program.phases()].count(chosen.name) == 2


def test_weights_are_transformed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many partitions and tiles are looked at."""
    seen: list[tuple[int, ...]] = []
    right = winograd.transformed_weights

    def counted(w: np.ndarray, toom: Toom) -> np.ndarray:
        seen.append(w.shape)
        return right(w, toom)

    monkeypatch.setattr(winograd, "transformed_weights", counted)
    compiler.lower(network(48, 64, 13, 15), threads=2, machine=Machine.named("avx2"))
    assert sorted(seen) == [(3, 3, 48, 64), (3, 3, 64, 64)]


@pytest.mark.parametrize(("kilobytes", "tile"), [(1024, (4, 7)), (768, (28, 1))])
def test_winograd_is_cut_where_weights_stay_beside_a_block(kilobytes: int, tile: tuple[int, int]) -> None:
    """An owner's windows exceed half of the cache: blocks of rows if the weights find room beside one of them."""
    b, random = Builder("blocks"), np.random.default_rng(0)
    weights = [b.constant(random.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24) for _ in range(2)]
    middle = b.add("Relu", b.add("Conv", "x", weights[0], pads=[1, 1, 1, 1]))
    b.add("Conv", middle, weights[1], output="y", pads=[1, 1, 1, 1])
    model = b.model({"x": (TensorProto.FLOAT, (1, 64, 56, 56))}, {"y": (1, 64, 56, 56)})
    machine = replace(Machine.named("avx512"), l2_bytes=kilobytes << 10)
    stages = compiler.lower(model, threads=2, machine=machine)
    tiles = [group.tile for group in stages.lowered.schedule.groups if group.template == "winograd4"]
    assert [t and (t.rows, t.blocks) for t in tiles] == [tile, tile]
    if not machine.features <= Machine.probe().features:
        pytest.skip("this processor has no avx512")
    x = {"x": random.standard_normal((1, 64, 56, 56)).astype(np.float32)}
    (want,) = ReferenceEvaluator(load_from_string(model)).run(None, x)
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run(x)["y"], want, rtol=1e-4, atol=1e-4)
