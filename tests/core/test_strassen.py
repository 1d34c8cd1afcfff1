"""Strassen's products: weights, kernel, rows that are no numbers, and networks whose schedule chooses them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.runtime.session import Session
from mononn_core.templates import strassen
from mononn_core.templates.strassen import TEMPLATE as STRASSEN
from tests.core.agree import assert_all_agree
from tests.core.networks import Builder

AVX512 = replace(Machine.named("avx512"), strassen=True)


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it can compute a product."""

    def preference(stage: Any, builder: Any) -> int | None:
        return 1 if strassen._able(stage, builder) else None

    monkeypatch.setattr(STRASSEN, "preference", preference)


def products(rows: int, terms: int, columns: int, batch: int = 1) -> bytes:
    """A product with bias and GELU, and one back, by a matrix that lies transposed, to which the input is added."""
    b = Builder("products")
    wide = b.add("Add", b.add("MatMul", "x", b.weight(terms, columns)), b.weight(columns))
    turned = b.add("Transpose", b.weight(terms, columns), perm=[1, 0])
    b.add("Add", b.add("MatMul", b.add("Gelu", wide), turned), "x", output="y")
    shape = (batch, rows, terms) if batch > 1 else (rows, terms)
    return b.model({"x": (TensorProto.FLOAT, shape)}, {"y": shape})


def able(machine: Machine) -> None:
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {machine.level}")


def counted(stages: Any) -> int:
    return sum(p.task.template == STRASSEN.name for p in stages.program.phases())


@pytest.mark.parametrize(("terms", "columns", "panel"), [(32, 64, 64), (1056, 96, 96), (2080, 192, 96), (64, 32, 32)])
def test_weights_come_back(terms: int, columns: int, panel: int) -> None:
    w = np.random.default_rng(terms).standard_normal((terms, columns))
    found = strassen.transformed(w, panel)
    np.testing.assert_allclose(strassen.plain(found, panel), w, atol=1e-14)
    assert not np.array_equal(found, w) and found.shape == w.shape


def test_runs_hold_all_terms_in_halves() -> None:
    for terms in range(strassen.TERMS, 6000, strassen.TERMS):
        cut = strassen.runs(terms)
        assert [first for first, _ in cut] == [sum(2 * half for _, half in cut[:i]) for i in range(len(cut))]
        assert sum(2 * half for _, half in cut) == terms
        assert all(0 < 2 * half <= strassen.RUN and half % 16 == 0 for _, half in cut)


@pytest.mark.parametrize(
    ("shape", "level", "l2_bytes"),
    [
        ((1, 64, 64), "avx512", 1 << 20),
        ((27, 96, 192), "avx512", 1 << 20),
        ((56, 64, 128), "avx512", 1 << 20),
        ((7, 1056, 192), "avx512", 1 << 20),
        ((400, 64, 640), "avx512", 64 << 10),
        ((99, 192, 288, 2), "avx512", 1 << 20),
        ((30, 1088, 32), "avx2", 1 << 20),
        ((9, 64, 32), "scalar", 1 << 20),
    ],
)
def test_networks(shape: tuple[int, ...], level: str, l2_bytes: int, preferred: None) -> None:
    machine = replace(Machine.named(level), l2_bytes=l2_bytes)
    able(machine)
    stages = compiler.lower(products(*shape), threads=2, machine=machine)
    whole = [n % (4 * machine.lanes("float32")) == 0 or n % (6 * machine.lanes("float32")) == 0 for n in shape[1:3]]
    assert counted(stages) == sum(whole) > 0
    tiles = [group.tile for group in stages.lowered.schedule.groups if group.template == STRASSEN.name]
    assert (max(tile.blocks for tile in tiles if tile) > 1) == (l2_bytes < 1 << 20)
    assert_all_agree(stages, atol=1e-5, interpreted=1 << 13)


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf, 3e38, 1e30])
def test_what_is_no_number_spoils_its_own_row(what: float, preferred: None) -> None:
    """Nor does one too large for sums with others: all are multiplied plainly then, and as before afterwards."""
    able(AVX512)
    b = Builder("rows")
    w = b.weight(1088, 192)
    b.add("MatMul", "x", w, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (29, 1088))}, {"y": (29, 192)})
    stages = compiler.lower(model, threads=2, machine=AVX512)
    assert counted(stages) == 1
    x = np.random.default_rng(2).standard_normal((29, 1088)).astype(np.float32)
    spoilt = x.copy()
    spoilt[3, 700] = what
    want = x.astype(np.float64) @ stages.graph.constants[w].astype(np.float64)
    others = np.arange(29) != 3
    with Session(compiler.build(stages), threads=2) as session:
        before, found, after = (session.run({"x": given})["y"].copy() for given in (x, spoilt, x))
    np.testing.assert_array_equal(before, after)
    np.testing.assert_allclose(found[others], want[others], rtol=1e-4, atol=1e-5)
    row = spoilt[3].astype(np.float64) @ stages.graph.constants[w].astype(np.float64)
    if what == 1e30:
        np.testing.assert_allclose(found[3], row, rtol=1e-4)
    elif what == 3e38:
        np.testing.assert_allclose(found[3], row.astype(np.float32), rtol=1e-4)
    else:
        assert not np.isfinite(found[3]).any()


def test_rounding_is_about_twice_that_of_plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows alike; small rows beside large ones have errors relative to those."""
    able(AVX512)
    b, random = Builder("rounding"), np.random.default_rng(3)
    b.add("MatMul", "x", b.weight(768, 768), output="y")
    stages = compiler.lower(b.model({"x": (TensorProto.FLOAT, (128, 768))}, {"y": (128, 768)}), machine=AVX512)
    (weights,) = stages.graph.constants.values()
    monkeypatch.setattr(STRASSEN, "preference", lambda stage, builder: -1)
    plain = compiler.lower(b.model({"x": (TensorProto.FLOAT, (128, 768))}, {"y": (128, 768)}), machine=AVX512)
    assert (counted(stages), counted(plain)) == (1, 0)
    x = random.standard_normal((128, 768)).astype(np.float32)
    uneven = x * np.where(np.arange(128) < 64, 1000, 1).astype(np.float32)[:, None]
    with Session(compiler.build(stages)) as fast, Session(compiler.build(plain)) as slow:

        def errors(given: np.ndarray) -> list[np.ndarray]:
            want = given.astype(np.float64) @ weights.astype(np.float64)
            return [np.linalg.norm(s.run({"x": given})["y"] - want, axis=1) for s in (fast, slow)]

        mine, other = errors(x)
        assert 1 < np.linalg.norm(mine) / np.linalg.norm(other) < 2.5
        mine, other = errors(uneven)
        assert (mine[:64] < 4 * other[:64]).all() and (mine[64:] < 4 * other[:64].max()).all()


@pytest.mark.parametrize(
    ("shape", "machine", "chosen"),
    [
        ((128, 768, 3072), AVX512, 2),
        ((49, 1024, 1024), AVX512, 2),
        ((16, 64, 64), AVX512, 0),
        ((128, 768, 3072), Machine.named("avx512"), 0),
        ((128, 768, 1000), AVX512, 0),
    ],
)
def test_where_it_is_chosen(shape: tuple[int, ...], machine: Machine, chosen: int) -> None:
    """Where it saves time, in whole panels."""
    assert counted(compiler.lower(products(*shape), threads=2, machine=machine)) == chosen


@pytest.mark.parametrize(("value", "chosen"), [(2.0**20, 1), (2.0**21, 0), (np.nan, 0)])
def test_weights_are_such_that_sums_do_not_overflow(value: float, chosen: int) -> None:
    """With any left sides that are not multiplied plainly."""
    b = Builder("weights")
    w = b.random.standard_normal((768, 768)).astype(np.float32)
    w[5, 7] = value
    b.add("MatMul", "x", b.constant(w), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (128, 768))}, {"y": (128, 768)})
    assert counted(compiler.lower(model, threads=2, machine=AVX512)) == chosen


@pytest.mark.parametrize(("few", "chosen"), [(49, True), (20, False)])
def test_specialisations_share_weights(few: int, chosen: bool) -> None:
    """Those of few rows would read them more slowly, so that all are multiplied plainly."""
    able(AVX512)
    b = Builder("family")
    w = b.weight(768, 768)
    b.add("Relu", b.add("MatMul", "x", w), output="y")
    model = b.model({"x": (TensorProto.FLOAT, ("rows", 768))}, {"y": ("rows", 768)})
    shapes = [{"x": (rows, 768)} for rows in (few, 130)]
    artifact = compiler.build_family(model, shapes, threads=2, machine=replace(AVX512, l2_bytes=1 << 19))
    assert artifact.weights.nbytes < 1.01 * 4 * 768 * 768
    assert [STRASSEN.name in text for name, text in artifact.texts.items() if "program" in name] == [chosen, chosen]
    weights = compiler.lower(model, shapes=shapes[0]).graph.constants[w]
    x = np.random.default_rng(4).standard_normal((130, 768)).astype(np.float32)
    with Session(artifact, threads=2) as session:
        for rows in (130, few):
            want = np.maximum(x[:rows] @ weights, 0)
            np.testing.assert_allclose(session.run({"x": x[:rows]})["y"], want, rtol=1e-4, atol=1e-5)


def test_neon_and_gcc_compile(monkeypatch: pytest.MonkeyPatch, preferred: None) -> None:
    model = products(9, 64, 96)
    compiler.build(compiler.lower(model, threads=2, machine=Machine.named("neon")))
    if shutil.which("g++"):
        monkeypatch.setenv("MONONN_CXX", "g++")
        compiler.build(compiler.lower(model, threads=2, machine=AVX512))
