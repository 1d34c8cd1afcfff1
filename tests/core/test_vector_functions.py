"""Exponentials and sines of generated code over all of float32: to a few units in the last place, and at the ends."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.compiler import lower_imported
from mononn_core.machine import Machine
from mononn_core.options import Options
from mononn_core.runtime.session import Session
from tests.core.graphs import Net

LEVELS = [n for n in ("avx512", "avx2", "scalar") if Machine.named(n).features <= Machine.probe().features]
COUNT = 1 << 16
SMALLEST = 1.7e-38
"""Below it an exponential may be zero."""


@cache
def functions(level: str) -> Session:
    net = Net()
    x, other = net.input(1, COUNT), net.input(1, COUNT)
    silu = net("mul", net("sigmoid", other), other)
    graph = net.graph(*(net(name, x) for name in ("exp", "sigmoid", "sin", "cos", "softplus")), silu)
    stages = lower_imported(graph, Options(threads=1), Machine.named(level))
    assert "mn::silu<T>" in stages.source
    return Session(compiler.build(stages))


def computed(level: str, x: np.ndarray, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(exp, sigmoid) in float32; the two from the ``first`` on of these, sin, cos, softplus, SiLU."""
    session = functions(level)
    padded = np.resize(x.astype(np.float32), (1, COUNT))
    found = session.run(dict.fromkeys(session.inputs, padded))
    one, other = (value[0, : x.size] for value in list(found.values())[first : first + 2])
    return one, other


@pytest.mark.parametrize("level", LEVELS)
def test_over_all_that_has_an_exponential(level: str) -> None:
    x = np.concatenate([np.linspace(-86.95, 88.7, COUNT // 2), np.random.default_rng(0).standard_normal(COUNT // 2)])
    x = x.astype(np.float32)
    exp, sigmoid = computed(level, x)
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(exp, exact, rtol=1.5e-7)
    np.testing.assert_allclose(sigmoid, exact / (1 + exact), rtol=2.5e-7)


@pytest.mark.parametrize("level", LEVELS)
def test_the_ends(level: str) -> None:
    far = np.array([-np.inf, -1e30, -104, -88, 88.8, 1e30, np.inf, np.nan])
    exp, sigmoid = computed(level, far)
    assert (exp[:4] <= SMALLEST).all() and (exp[:2] == 0).all()
    assert np.isinf(exp[4:7]).all() and np.isnan(exp[7])
    assert (sigmoid[:4] <= SMALLEST).all() and (sigmoid[4:7] == 1).all() and np.isnan(sigmoid[7])
    zeros = computed(level, np.array([0.0, -0.0]))
    assert (zeros[0] == 1).all() and (zeros[1] == 0.5).all()


@pytest.mark.parametrize("level", LEVELS)
def test_softplus(level: str) -> None:
    """log(1 + exp(x)); at the ends what it tends to, where a normal number's half would be none."""
    x = np.concatenate([np.linspace(-86, 90, COUNT // 2), np.random.default_rng(0).standard_normal(COUNT // 2)])
    x = x.astype(np.float32)
    np.testing.assert_allclose(computed(level, x, 4)[0], np.logaddexp(x.astype(np.float64), 0), rtol=2.5e-7)
    ends, _ = computed(level, np.array([-np.inf, -1e30, -87.5, 1e30, np.inf, np.nan]), 4)
    assert (ends[:3] == 0).all() and ends[3] == np.float32(1e30) and ends[4] == np.inf and np.isnan(ends[5])


@pytest.mark.parametrize("level", LEVELS)
def test_silu(level: str) -> None:
    """x sigmoid(x): relative to what it is above zero, to one below, where it never is under -0.28."""
    x = np.concatenate([np.linspace(-104, 90, COUNT // 2), 3 * np.random.default_rng(0).standard_normal(COUNT // 2)])
    x = x.astype(np.float32)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    found = computed(level, x, 4)[1]
    np.testing.assert_allclose(found[x >= 0], exact[x >= 0], rtol=2.5e-7)
    np.testing.assert_allclose(found[x < 0], exact[x < 0], rtol=0, atol=1e-7)
    ends = computed(level, np.array([-1e30, -200, -0.0, 0.0, 1e30, np.inf, np.nan]), 4)[1]
    assert (ends[:4] == 0).all() and ends[4] == np.float32(1e30) and ends[5] == np.inf and np.isnan(ends[6])


@pytest.mark.parametrize("level", LEVELS)
def test_sines_and_cosines(level: str) -> None:
    """Near and far, among them multiples of half a pi, and where the C library computes them."""
    random = np.random.default_rng(0)
    around = np.arange(-5000, 5001) * (np.pi / 2)
    near = np.concatenate([around, random.uniform(-8192, 8192, COUNT // 4), random.standard_normal(COUNT // 4)])
    for x in (near.astype(np.float32), (np.float32(1.5) ** np.arange(218)).astype(np.float32)):
        for found, exact in zip(computed(level, x, first=2), (np.sin, np.cos), strict=True):
            np.testing.assert_allclose(found, exact(x.astype(np.float64)), rtol=2e-7, atol=6e-8)
    strange = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    with np.errstate(invalid="ignore"):
        for found, exact in zip(computed(level, strange, first=2), (np.sin, np.cos), strict=True):
            np.testing.assert_array_equal(found, exact(strange.astype(np.float32)))
