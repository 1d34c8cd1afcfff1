"""Attention over more keys than stay in a near cache: parts of them one after the other, each row's sums rescaled."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.runtime.session import Session
from tests.core.networks import Builder

LEVELS = [n for n in ("avx512", "avx2") if Machine.named(n).features <= Machine.probe().features]
ROWS, DEPTH = 20, 64


def attention(keys: int, heads: int, masked: bool) -> bytes:
    """softmax(q k^T / 8 + mask) v of so many heads."""
    b = Builder("long")
    scores = b.add(
        "Mul", b.add("MatMul", "q", b.add("Transpose", "k", perm=[0, 1, 3, 2])), b.constant(np.float32(0.125))
    )
    if masked:
        scores = b.add("Add", scores, "mask")
    b.add("MatMul", b.add("Softmax", scores, axis=-1), "v", output="y")
    shapes = {"q": (1, heads, ROWS, DEPTH), "k": (1, heads, keys, DEPTH), "v": (1, heads, keys, DEPTH)}
    shapes |= {"mask": (1, 1, ROWS, keys)} if masked else {}
    inputs = {name: (TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    return b.model(inputs, {"y": (1, heads, ROWS, DEPTH)})


def wanted(feeds: dict[str, np.ndarray]) -> np.ndarray:
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    with np.errstate(all="ignore"):
        s = q @ k.swapaxes(-1, -2) / 8 + feeds.get("mask", np.zeros(1)).astype(np.float64)
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v


def inputs(keys: int, heads: int, spread: float, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    sizes = {"q": ROWS, "k": keys, "v": keys}
    return {n: (random.standard_normal((1, heads, s, DEPTH)) * spread).astype(np.float32) for n, s in sizes.items()}


def answer(model: bytes, level: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    stages = compiler.lower(model, threads=2, machine=Machine.named(level))
    assert any(p.task.template == "attention" for p in stages.program.phases())
    with Session(compiler.build(stages), threads=2) as session:
        return session.run(feeds)["y"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("keys", "spread"),
    [
        (1024, 1.0),  # whole, rows of scores a multiple of 4,096 bytes long
        (1025, 1.0),  # two parts and one key
        (1536, 3.0),  # scores up to a few hundred: the largest one grows from part to part
    ],
)
def test_parts_give_what_the_whole_does(keys: int, spread: float, level: str) -> None:
    feeds = inputs(keys, 2, spread)
    got, want = answer(attention(keys, 2, masked=False), level, feeds), wanted(feeds)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < (3e-6 if spread > 1 else 1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_rows_that_are_masked_in_parts_or_altogether(level: str) -> None:
    keys = 1500
    feeds = inputs(keys, 2, 1.0)
    mask = np.zeros((1, 1, ROWS, keys), np.float32)
    mask[..., 0, :600] = -np.inf  # all of the first part
    mask[..., 1, 512:1024] = -np.inf  # all of the second
    mask[..., 2, 1:] = -np.inf  # all but one key
    mask[..., 3, :-1] = -np.inf
    mask[..., 4, ::2] = np.finfo(np.float32).min
    mask[..., 5, :] = -np.inf
    feeds["mask"] = mask
    feeds["v"][0, 1, 700, 3] = np.nan
    got, want = answer(attention(keys, 2, masked=True), level, feeds), wanted(feeds)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(got[0, :, 5]).all() and np.isnan(got[0, 1, :, 3]).all()
    fine = ~np.isnan(want)
    np.testing.assert_allclose(got[fine], want[fine], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("level", LEVELS[:1])
def test_a_score_that_is_no_number_shows(level: str) -> None:
    feeds = inputs(1500, 2, 1.0)
    feeds["q"][0, 0, 7, 5] = np.nan
    got, want = answer(attention(1500, 2, masked=False), level, feeds), wanted(feeds)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("level", LEVELS)
def test_probabilities_of_scores_far_apart(level: str) -> None:
    """Read by values that are one at one key: to a few last digits, and one more for each unit of a score."""
    feeds = inputs(DEPTH, 2, 0.0)
    below = (-80 * np.linspace(1, 0, DEPTH) ** 3).astype(np.float32)  # most of them near zero
    feeds["q"][..., 0], feeds["k"][..., 0], feeds["v"][...] = 8, below, np.eye(DEPTH)
    got, want = answer(attention(DEPTH, 2, masked=False), level, feeds), wanted(feeds)
    assert (np.abs(got / want - 1) <= 4e-7 - 8e-8 * below).all()
