"""Decisions and kernels where weights stream from memory, or panels do not stay in a near cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.runtime.session import Session
from tests.core.networks import Builder

AVX512 = Machine.named("avx512")
FAR, NEAR = replace(AVX512, l3_bytes=1 << 20), replace(AVX512, l3_bytes=1 << 30)
"""Machines whose last-level cache holds no weights of these networks, and all."""


def products(rows: int) -> bytes:
    """Two products of a transformer's size."""
    b = Builder("products")
    hidden = b.add("Relu", b.add("MatMul", "x", b.weight(768, 3072)))
    b.add("MatMul", hidden, b.weight(3072, 768), output="y")
    return b.model({"x": (TensorProto.FLOAT, (rows, 768))}, {"y": (rows, 768)})


def convolution(channels: int, results: int, size: int, kernel: int) -> bytes:
    """A convolution that keeps the size of its image."""
    b = Builder("convolution")
    pads = (kernel // 2,) * 4
    b.add("Conv", "x", b.weight(results, channels, kernel, kernel), output="y", pads=pads)
    return b.model({"x": (TensorProto.FLOAT, (1, channels, size, size))}, {"y": (1, results, size, size)})


def schedule(model: bytes, machine: Machine, threads: int = 2) -> str:
    return compiler.lower(model, threads=threads, machine=machine).lowered.schedule.to_text()


def test_owners_of_few_rows_read_other_weights() -> None:
    """Each owner of rows reads all weights: of many rows that costs nothing."""
    assert schedule(products(48), FAR).count("matmul by columns") == 2
    assert schedule(products(256), FAR).count("matmul by rows") == 2


def test_winograd_where_its_larger_weights_are_near() -> None:
    """16 products for 9: of an image of 7 x 7 reading them takes longer than a direct convolution."""
    small = convolution(512, 512, 7, 3)
    assert "winograd" in schedule(small, NEAR)
    assert "winograd" not in schedule(small, FAR)
    assert "winograd" in schedule(convolution(512, 512, 28, 3), FAR)


@pytest.mark.parametrize(("size", "share"), [(42, 21), (44, 22), (46, 23)])
def test_blocks_end_where_an_owners_rows_do(size: int, share: int) -> None:
    """So that both owners have as much to do: 21 rows are 7 blocks of 3, not 6 of 4."""
    stages = compiler.lower(convolution(1080, 216, size, 1), threads=2, machine=AVX512)
    (tile,) = (g.tile for g in stages.lowered.schedule.groups if g.tile is not None)
    assert tile.blocks > 1
    assert tile.rows * tile.blocks - share < min(2, tile.rows)


def test_pixels_of_long_sums_are_one_block() -> None:
    """Tiles pass over some terms of a panel at a time, so that all pixels are near; shorter sums are read whole."""
    for channels, blocks in ((4096, 1), (2000, 2)):
        stages = compiler.lower(convolution(channels, 64, 14, 1), threads=1, machine=AVX512)
        (tile,) = (g.tile for g in stages.lowered.schedule.groups if g.tile is not None)
        assert tile.blocks == blocks, channels


@pytest.mark.parametrize(("rows", "terms"), [(300, 2500), (7, 1025), (20, 1024), (400, 3072)])
def test_sums_in_runs(rows: int, terms: int) -> None:
    """Of more rows than have sums that may wait, and of runs that are not whole."""
    b = Builder("runs")
    x = b.random.standard_normal((rows, terms)).astype(np.float32)
    w = b.random.standard_normal((terms, 96)).astype(np.float32)
    b.add("MatMul", "x", b.constant(w), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (rows, terms))}, {"y": (rows, 96)})
    (y,) = Session(compiler.build(compiler.lower(model, threads=1))).run({"x": x}).values()
    wide = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(y, wide, atol=3e-5 * np.abs(wide).max())
