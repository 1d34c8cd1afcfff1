"""Poolings whose windows reach far outside the image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.importer import load
from mononn_core.importer.convolution import Frame
from mononn_core.importer.pooling import clipped
from mononn_core.runtime.session import Session
from tests.core.models import assert_agrees, model, node


def seen(f: Frame, n: int) -> list[list[int]]:
    """The pixels inside an image of n that each window of one axis reads."""
    (k,), (s,), (d,), (before,) = f.kernel, f.strides, f.dilations, f.before
    windows = (n + before + f.after[0] + f.overhang[0] - (k - 1) * d - 1) // s + 1
    places = [[o * s - before + t * d for t in range(k)] for o in range(windows)]
    return [[p for p in window if 0 <= p < n] for window in places]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 60),
    st.integers(0, 60), st.integers(0, 3),
)  # fmt: skip
def test_a_clipped_window_reads_the_same_pixels(
    n: int, k: int, s: int, d: int, before: int, after: int, overhang: int
) -> None:
    f = Frame((k,), (s,), (d,), (before,), (after,), (overhang,))
    if n + before + after + overhang < (k - 1) * d + 1:
        return
    small = clipped(f, (n,))
    assert seen(small, n) == seen(f, n)
    assert small.kernel <= f.kernel and min(small.before[0], small.after[0]) >= 0
    if d == s == 1 and any(seen(f, n)):
        assert small.kernel[0] < n + len(seen(f, n))


AVERAGES: list[dict[str, Any]] = [
    {"kernel_shape": [64, 40], "pads": [30, 20, 28, 15]},
    {"kernel_shape": [64, 64], "pads": [60, 60, 60, 60], "strides": [7, 9]},
    {"kernel_shape": [3, 5], "pads": [1, 2, 1, 2], "strides": [2, 1]},
    {"kernel_shape": [3, 5], "auto_pad": "SAME_LOWER", "strides": [2, 3]},
]
CASES = [
    *(("AveragePool", {**attributes, "count_include_pad": count}) for attributes in AVERAGES for count in (0, 1)),
    ("MaxPool", {"kernel_shape": [9, 9], "pads": [8, 8, 8, 8]}),
    ("MaxPool", {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
    ("MaxPool", {"kernel_shape": [5, 7], "pads": [2, 0, 1, 3], "strides": [1, 2], "dilations": [2, 1]}),
    ("MaxPool", {"kernel_shape": [6, 5], "strides": [2, 1], "ceil_mode": 1}),
    ("MaxPool", {"kernel_shape": [5, 1], "strides": [1, 3]}),
    ("LpPool", {"kernel_shape": [30, 30], "pads": [20, 20, 20, 20]}),
]


@pytest.mark.parametrize(("op", "attributes"), CASES)
def test_windows_larger_than_the_image(op: str, attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 14)).astype(np.float32)
    proto = model([node(op, "x", "y", **attributes)], [("x", "float32", x.shape)], ["y"])
    assert_agrees(proto, {"x": x})


@pytest.mark.parametrize(("kernel", "strides", "taps"), [(5, 1, [5, 5]), (3, 1, [9]), (5, 4, [25]), (2, 2, [4])])
def test_wide_windows_are_compared_along_one_axis_after_the_other(kernel: int, strides: int, taps: list[int]) -> None:
    """Where that takes far fewer comparisons (as behind a detector's backbone)."""
    pool = node("MaxPool", "x", "y", kernel_shape=[kernel] * 2, strides=[strides] * 2)
    graph = load(model([pool], [("x", "float32", (1, 3, 14, 14))], ["y"]).SerializeToString())
    assert [int(np.prod(n.attrs["kernel"])) for n in graph.nodes if n.op == "windows"] == taps


def test_a_window_over_the_whole_image_takes_as_many_elements_as_it_has() -> None:
    attributes = {"kernel_shape": [300, 300], "pads": [144, 143, 144, 143]}
    proto = model([node("AveragePool", "x", "y", **attributes)], [("x", "float32", (1, 3, 12, 14))], ["y"])
    graph = load(proto.SerializeToString())
    assert graph.types["y"].shape == (1, 3, 1, 1)
    assert max(t.size for t in graph.types.values()) == 3 * 12 * 14


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_extremes_of_bytes_are_computed_in_vectors(kind: str) -> None:
    """Padded pools, and the smallest along an axis; the answers are bytes again."""
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    x = np.random.default_rng(0).integers(low, high + 1, (1, 37, 9, 11)).astype(kind)
    nodes = [
        node("MaxPool", "x", "p", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("MaxPool", "x", "q", kernel_shape=[3, 2], strides=[2, 2]),
        node("ReduceMin", "x axes", "r", keepdims=0),
    ]
    proto = model(nodes, [("x", kind, x.shape)], ["p", "q", "r"], {"axes": np.array([3])})
    stages = compiler.lower(proto.SerializeToString(), threads=2)
    assert "int8_t total" not in stages.source
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run({"x": x})
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=low)
    windows = np.lib.stride_tricks.sliding_window_view
    np.testing.assert_array_equal(found["p"], windows(padded, (3, 3), (2, 3)).max((4, 5)))
    np.testing.assert_array_equal(found["q"], windows(x, (3, 2), (2, 3))[:, :, ::2, ::2].max((4, 5)))
    np.testing.assert_array_equal(found["r"], x.min(3))
    assert {value.dtype.name for value in found.values()} == {kind}
