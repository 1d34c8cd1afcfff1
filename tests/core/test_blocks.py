"""Scatters to blocks of the data, as exporters write what is set in a slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.importer import load
from mononn_core.ops.evaluate import run
from mononn_core.passes import pipeline
from mononn_core.runtime.session import Session
from tests.core.models import assert_agrees, model, node

Array = np.ndarray[Any, Any]
COMBINE = {"none": lambda old, new: new, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def scattered(shape: tuple[int, ...], indices: Array, updates: tuple[int, ...], how: str) -> onnx.ModelProto:
    nodes = [node("ScatterND", "x i u", "y", reduction=how)]
    return model(nodes, [("x", "float32", shape), ("u", "float32", updates)], ["y"], {"i": indices})


@st.composite
def blocks(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    starts = [draw(st.integers(0, extent - 1)) for extent in shape[: draw(st.integers(1, len(shape)))]]
    ends = [draw(st.integers(start + 1, extent)) for start, extent in zip(starts, shape, strict=False)]
    return shape, tuple(slice(a, e) for a, e in zip(starts, ends, strict=True))


@settings(max_examples=150, deadline=None)
@given(blocks(), st.sampled_from(list(COMBINE)), st.booleans())
def test_a_block_is_set_or_combined(
    drawn: tuple[tuple[int, ...], tuple[slice, ...]], how: str, from_the_end: bool
) -> None:
    (shape, where), random = drawn, np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    grid = np.meshgrid(*(np.arange(s.start, s.stop) for s in where), indexing="ij")
    indices = np.stack(grid, -1) - (np.array(shape[: len(where)]) if from_the_end else 0)
    u = random.standard_normal(x[where].shape).astype(np.float32)
    graph = pipeline.run(load(scattered(shape, indices, u.shape, how).SerializeToString()))
    assert not {"scatter_nd", "gather", "where"} & {n.op for n in graph.nodes}
    want = x.copy()
    want[where] = COMBINE[how](x[where], u)
    np.testing.assert_array_equal(run(graph, {"x": x, "u": u})["y"], want)


@pytest.mark.parametrize("order", [[0, 2, 1], [0, 1, 1], [-1, 0, 1]], ids=["turned", "twice", "across the end"])
def test_other_positions_are_no_block(order: list[int]) -> None:
    x, u = (np.random.default_rng(n).standard_normal((3, 4)).astype(np.float32) for n in range(2))
    assert_agrees(scattered((3, 4), np.array(order)[:, None], (3, 4), "none"), {"x": x, "u": u})


def test_positions_that_take_too_much_to_be_constants_are_seen_through() -> None:
    """Rows of numbers that are spread over the other axes and joined (as of relative positions of a vision
    transformer, which are added in place)."""
    shape, start = (2, 300, 200), 7
    block = (2, 300, 200 - start)
    constants, nodes = {"to": np.array(block), "one": np.array([*block, 1])}, []
    for axis, extent in enumerate(block):
        first = start if axis == 2 else 0
        constants[f"c{axis}"] = np.arange(first, first + extent).reshape(-1, *(1,) * (2 - axis))
        nodes += [node("Expand", f"c{axis} to", f"e{axis}"), node("Reshape", f"e{axis} one", f"r{axis}")]
    nodes += [node("Concat", "r0 r1 r2", "i", axis=-1), node("Relu", "u", "v"), node("ScatterND", "x i v", "y")]
    proto = model(nodes, [("x", "float32", shape), ("u", "float32", block)], ["y"], constants)
    x, u = (np.random.default_rng(0).standard_normal(kind).astype(np.float32) for kind in (shape, block))
    stages = compiler.lower(proto.SerializeToString(), threads=2)
    assert {n.op for n in stages.optimized.nodes} == {"concat", "relu", "slice"}
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run({"x": x, "u": u})["y"]
    np.testing.assert_array_equal(found, np.concatenate([x[..., :start], np.maximum(u, 0)], -1))
