"""Sums over large images in parts: the same sums, and each owner's its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.passes import parted
from mononn_core.program.ir import Barrier, Phase
from mononn_core.runtime.session import Session
from tests.core.networks import Builder


def moments(shape: tuple[int, ...], axes: tuple[int, ...], keep: bool, op: str = "ReduceMean") -> bytes:
    """A mean, or another reduction, of squares."""
    b = Builder("moments")
    b.add(op, b.add("Mul", "x", "x"), b.ints(*axes), output="y", keepdims=int(keep))
    out = tuple(1 if d in axes else n for d, n in enumerate(shape) if keep or d not in axes)
    return b.model({"x": (TensorProto.FLOAT, shape)}, {"y": out})


@settings(max_examples=40, deadline=None)
@given(
    lead=st.integers(0, 2),
    image=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    channels=st.integers(1, 70),
    keep=st.booleans(),
    op=st.sampled_from(["ReduceMean", "ReduceSum"]),
)
def test_sums_of_parts_are_the_sums(lead: int, image: list[int], channels: int, keep: bool, op: str):
    shape, axes = ((1,) * lead + tuple(image) + (channels,)), tuple(range(lead, lead + len(image)))
    graph = compiler.lower(moments(shape, axes, keep, op), threads=1).graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parted, "LARGE", 1)
        patch.setattr(parted, "FEWEST_PIXELS", 1)
        changed = parted.run(graph)
    apart = any(image[0] % n == 0 for n in parted.PARTS)
    assert (changed != graph) == apart
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want, seen = (evaluate(g, {"x": x})["y"] for g in (graph, changed))
    assert seen.shape == want.shape
    np.testing.assert_allclose(seen, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 128, 128, 32), (1, 2)),
        ((1, 32, 32, 512), (1, 2)),
        ((1, 64, 64, 8), (1, 2)),
        ((1, 129, 129, 32), (1, 2)),
        ((1, 128, 128, 32), (1, 3)),
    ],
)
def test_others_stay_as_they_are(shape: tuple[int, ...], axes: tuple[int, ...]):
    graph = compiler.lower(moments(shape, axes, keep=True), threads=1).graph
    assert parted.run(graph) == graph


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_owner_sums_up_what_it_has_stored_itself(threads: int):
    """A group norm's mean needs no barrier behind the convolution in front of it."""
    b = Builder("owned")
    image = b.add("Conv", "x", b.weight(32, 4, 3, 3), output="z", pads=[1, 1, 1, 1])
    b.add("ReduceMean", image, b.ints(2, 3), output="y", keepdims=0)
    model = b.model({"x": (TensorProto.FLOAT, (1, 4, 144, 144))}, {"z": (1, 32, 144, 144), "y": (1, 32)})
    stages = compiler.lower(model, threads=threads, machine=Machine.named("avx2"))
    body = list(stages.program.body)
    first = next(n for n, i in enumerate(body) if isinstance(i, Phase) and "reduce_sum" in i.id)
    conv = next(n for n, i in enumerate(body) if isinstance(i, Phase) and i.task.template != "nest")
    if threads == 2:
        assert body[first].tasks == 2 and not any(isinstance(i, Barrier) for i in body[conv:first])
    x = np.random.default_rng(0).standard_normal((1, 4, 144, 144)).astype(np.float32)
    with Session(compiler.build(stages), threads=threads) as session:
        seen = session.run({"x": x})
    np.testing.assert_allclose(seen["y"], seen["z"].astype(np.float64).mean((2, 3)), rtol=1e-4, atol=1e-6)
