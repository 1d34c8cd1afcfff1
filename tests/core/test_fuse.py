"""What a network stores between its stages, and what is evaluated where it is read."""

from __future__ import annotations

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from tests.core.models import model, node


def phases(nodes: list, shape: tuple[int, ...], constants: dict[str, np.ndarray], output: str) -> list[str]:  # type: ignore[type-arg]
    """As they are executed, of the compiled network, whose answer is checked on the virtual machine."""
    source = model(nodes, [("x", "float32", shape)], [output], constants).SerializeToString()
    stages = compiler.lower(source, threads=2, machine=Machine.named("avx2"))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})[output]
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)[output]
    np.testing.assert_allclose(seen.reshape(want.shape), want, rtol=1e-4, atol=1e-5)
    return [p["id"].partition("[")[0].partition("_")[2] for p in stages.manifest["phases"]]


def test_a_group_norm_stores_what_ends_it_alone() -> None:
    """Neither what is centred, which the variance and the end read, nor what a sigmoid and a product read of it."""
    random = np.random.default_rng(1)
    weights = {name: random.standard_normal((8, 8, 3, 3)).astype(np.float32) for name in ("w", "u")}
    constants = {**weights, "s": random.uniform(0.5, 2, 2).astype(np.float32), "b": np.ones(2, np.float32)}
    shapes = {"joined": np.array([1, 2, -1]), "apart": np.array([1, 8, 6, 6])}
    nodes = [
        node("Conv", "x w", "y", pads=[1] * 4),
        node("Reshape", "y joined", "z"),
        node("InstanceNormalization", "z s b", "n"),
        node("Reshape", "n apart", "m"),
        node("Sigmoid", "m", "g"),
        node("Mul", "m g", "a"),
        node("Conv", "a u", "out", pads=[1] * 4),
    ]
    found = phases(nodes, (1, 8, 6, 6), {**constants, **shapes}, "out")
    assert [name for name in found if name not in ("reduce_mean", "conv")] == ["pad", "pad"]


@pytest.mark.parametrize(("second", "stored"), [("scale", 1), ("x", 2)])
def test_what_two_stages_read_is_stored_unless_it_is_light(second: str, stored: int) -> None:
    """A sum of a tensor and a small one is evaluated twice; one of two large ones is not."""
    nodes = [
        node("Add", f"x {second}", "y"),
        node("ReduceSum", "y", "q", keepdims=0),
        node("Mul", "y q", "out"),
    ]
    found = phases(nodes, (12, 8), {"scale": np.arange(8, dtype=np.float32)}, "out")
    assert len(found) == 1 + stored


@pytest.mark.parametrize(("times", "stored"), [(4, 0), (20, 1)])
def test_what_an_expansion_spreads_far_is_computed_once(times: int, stored: int) -> None:
    nodes = [
        node("Sigmoid", "x", "s"),
        node("Exp", "s", "y"),
        node("Expand", "y shape", "e"),
        node("Transpose", "e", "t", perm=[1, 2, 0]),
        node("Mul", "t scale", "out"),
    ]
    constants = {"shape": np.array([times, 6, 8]), "scale": np.arange(48.0 * times, dtype=np.float32).reshape(6, 8, -1)}
    assert len(phases(nodes, (6, 8), constants, "out")) == 1 + stored


def test_diamonds_upon_diamonds_are_stored_before_they_grow() -> None:
    """x tanh(x), forty times: evaluated in place each would double what is computed of the one before."""
    nodes, name = [], "x"
    for step in range(40):
        nodes += [node("Tanh", name, f"s{step}"), node("Mul", f"{name} s{step}", f"y{step}")]
        name = f"y{step}"
    assert 2 <= len(phases(nodes, (4, 8), {}, name)) < 40
