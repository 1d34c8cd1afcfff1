"""Taps of a dilated convolution that see zeros around the image alone are dropped when a model is read."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.importer.reader import load
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.runtime.session import Session
from tests.core.networks import Builder

Pair = tuple[int, int]


def model_of(
    size: Pair, kernel: Pair, strides: Pair, dilations: Pair, pads: tuple[int, ...], group: int = 1
) -> tuple[onnx.ModelProto, np.ndarray]:
    """One convolution of four channels, of small whole numbers, whose sums are exact."""
    b, random = Builder("clipped"), np.random.default_rng(3)
    weight = random.integers(-3, 4, (4, 4 // group, *kernel)).astype(np.float32)
    how = {"strides": list(strides), "dilations": list(dilations), "pads": list(pads), "group": group}
    b.add("Conv", "x", b.constant(weight), output="y", **how)
    proto = onnx.load_from_string(b.model({"x": (TensorProto.FLOAT, (1, 4, *size))}, {"y": (1, 4, "h", "w")}))
    return proto, random.integers(-3, 4, (1, 4, *size)).astype(np.float32)


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Pair, Pair, Pair, Pair, tuple[int, ...]]:
    """Images smaller than what a kernel spans, with borders that leave room for it."""
    axes = []
    for _ in range(2):
        size, taps, stride = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
        dilation, before = draw(st.integers(1, 9)), draw(st.integers(0, 20))
        after = draw(st.integers(max(0, (taps - 1) * dilation + 1 - size - before), 40))
        axes.append((size, taps, stride, dilation, before, after))
    size, taps, stride, dilation, before, after = zip(*axes, strict=True)
    return size, taps, stride, dilation, (*before, *after)  # type: ignore[return-value]


@settings(max_examples=150, deadline=None)
@given(geometries(), st.sampled_from([1, 4]))
def test_what_is_left_gives_the_same(geometry: tuple[Pair, Pair, Pair, Pair, tuple[int, ...]], group: int) -> None:
    proto, x = model_of(*geometry, group)
    (want,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(evaluate(load(proto.SerializeToString()), {"x": x})["y"], want)


@pytest.mark.parametrize(
    ("kernel", "dilations", "pads", "left"),
    [
        ((3, 3), (24, 24), (24, 24, 24, 24), (1, 1)),  # atrous pyramid pooling of a small image
        ((3, 3), (12, 12), (12, 12, 12, 12), (3, 3)),
        ((3, 3), (24, 12), (24, 12, 24, 12), (1, 3)),
        ((2, 1), (20, 1), (20, 0, 0, 0), (1, 1)),  # causal
        ((3, 1), (9, 1), (0, 0, 2, 0), (2, 1)),  # the last tap reaches beyond
    ],
)
def test_taps_that_see_no_image_are_dropped(kernel: Pair, dilations: Pair, pads: tuple[int, ...], left: Pair) -> None:
    proto, x = model_of((17, 16), kernel, (1, 1), dilations, pads)
    graph = load(proto.SerializeToString())
    (conv,) = (node for node in graph.nodes if node.op == "conv")
    assert graph.types[conv.inputs[1]].shape[:2] == left
    (want,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], want)


@pytest.mark.parametrize("group", [1, 32])
def test_quantised_ones_are_multiplied_as_integers(group: int) -> None:
    b, random = Builder("quantised"), np.random.default_rng(5)
    scale, zero = b.constant(np.float32(0.02)), b.constant(np.uint8(120))
    x = b.add("DequantizeLinear", b.add("QuantizeLinear", "x", scale, zero), scale, zero)
    whole = random.integers(-127, 128, (32, 32 // group, 3, 3)).astype(np.int8)
    scales, none = random.uniform(0.01, 0.02, 32).astype(np.float32), np.zeros(32, np.int8)
    weight = b.add("DequantizeLinear", b.constant(whole), b.constant(scales), b.constant(none), axis=0)
    y = b.add("Conv", x, weight, dilations=[9, 9], pads=[9, 9, 9, 9], group=group)
    again = b.constant(np.float32(0.05))
    b.add("DequantizeLinear", b.add("QuantizeLinear", y, again, zero), again, zero, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, 32, 8, 8))}, {"y": (1, 32, 8, 8)})
    value = random.standard_normal((1, 32, 8, 8)).astype(np.float32)
    (want,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, {"x": value})
    stages = compiler.lower(model, threads=2)
    types = {n.outputs[0]: stages.optimized.types[n.outputs[0]].dtype for n in stages.optimized.nodes if n.op == "conv"}
    assert set(types.values()) == {"int32"}
    with Session(compiler.build(stages)) as session:
        got = session.run({"x": value})["y"]
    assert (np.abs(got - want) <= 0.0501).all() and (got == want).mean() > 0.99  # a tie may be rounded either way
