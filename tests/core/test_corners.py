"""Corners of the standard: small models whose answers ONNX's own evaluator gives, and what is refused in a sentence."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mononn_core as mononn
from mononn_core.errors import MononnError

I64, F16 = TensorProto.INT64, TensorProto.FLOAT16
LARGE = np.array([0, 5, 2**64 - 1], np.uint64)
ROW = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def node(op, inputs, outputs="y", **attrs):
    return helper.make_node(op, inputs.split(" ") if inputs else [], outputs.split(" "), **attrs)


def model_of(nodes, feeds, constants=(), outputs=("y",), opset=18, **more):
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in dict(constants).items()]
    ends = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(list(nodes), "corner", inputs, ends, stored)
    opsets = [helper.make_opsetid(*o) for o in (("", opset), ("local", 1), ("com.microsoft", 1))]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)
    return onnx.shape_inference.infer_shapes(made)


def answers(model, feeds):
    return mononn.compile(model.SerializeToString(), threads=1).run(feeds)


def const(**values):
    return values


CORNERS = {
    "uint64_max": ([node("Max", "x m")], {"x": LARGE}, const(m=np.array([2**63 + 5], np.uint64))),
    "uint64_clip": ([node("Clip", "x a b")], {"x": LARGE}, const(a=np.uint64(3), b=np.uint64(7))),
    "uint64_abs": ([node("Abs", "x")], {"x": LARGE}, {}),
    "uint64_reduce": ([node("ReduceMax", "x", keepdims=0)], {"x": LARGE}, {}),
    "int32_sign": ([node("Sign", "x")], {"x": np.array([-3, 0, 9], np.int32)}, {}),
    "int64_norm": ([node("ReduceL2", "x", keepdims=0)], {"x": np.array([3, 4, 5], np.int64)}, {}),
    "mean_variance_small": ([node("MeanVarianceNormalization", "x", axes=[0, 1])], {"x": ROW * 1e-5}, {}),
    "shrink_int32": ([node("Shrink", "x", bias=1.5, lambd=0.5)], {"x": np.array([0, 1, 2, -200], np.int32)}, {}),
    "shrink_uint8": ([node("Shrink", "x", bias=1.0, lambd=1.5)], {"x": np.array([0, 1, 2, 200], np.uint8)}, {}),
    "bytes_einsum": ([node("Einsum", "x x", equation="i,i->i")], {"x": np.array([2, 15], np.uint8)}, {}),
    "rounding_cast": (
        [node("Cast", "x", "h", to=TensorProto.DOUBLE), node("Cast", "h", to=I64)],
        {"x": np.array([2**53 + 1], np.int64)},
        {},
    ),
    "signed_zeros": ([node("Div", "x z")], {"x": np.ones(2, np.float32)}, const(z=np.array([0.0, -0.0], np.float32))),
    "overflow_of_a_factor": (
        [node("Mul", "x a", "h"), node("Mul", "h b")],
        {"x": np.array([1e20], np.float32)},
        const(a=np.float32(1e20), b=np.float32(1e-20)),
    ),
    "norm_of_more_axes": (
        [node("Mul", "x x", "q"), node("ReduceMean", "q a", "m"), node("Add", "m e", "v"), node("Sqrt", "v", "s"),
         node("Div", "x s")],
        {"x": ROW},
        const(a=np.array([-1]), e=np.full((1, 1, 1), 1e-5, np.float32)),
    ),
    "gelu_of_more_axes": (
        [node("Div", "x r", "d"), node("Erf", "d", "e"), node("Add", "e o", "s"), node("Mul", "x s", "m"),
         node("Mul", "m h")],
        {"x": ROW},
        const(r=np.float32(math.sqrt(2)), o=np.float32(1), h=np.full((1, 1, 1), 0.5, np.float32)),
    ),
    "empty_parts": (
        [node("Concat", "x z", "h", axis=1), node("MatMul", "h w")],
        {"x": np.ones((0, 3), np.float32)},
        const(z=np.ones((0, 4), np.float32), w=np.ones((7, 2), np.float32)),
    ),
    "reversed_nothing": (
        [node("Slice", "x s e a t")],
        {"x": np.ones((2, 0), np.float32)},
        const(s=np.array([-1]), e=np.array([-100]), a=np.array([1]), t=np.array([-1])),
    ),
    "bound_of_one_element": ([node("Clip", "x a")], {"x": ROW}, const(a=np.zeros(1, np.float32))),
    "pad_of_no_axis": (
        [node("Pad", "x p v a")], {"x": ROW}, const(p=np.zeros(0, np.int64), v=np.float32(1), a=np.zeros(0, np.int64)),
    ),
    "mask_and_bias": (
        [node("MatMul", "q k", "s"), node("Where", "m s f", "w"), node("Add", "w b", "h"),
         node("Softmax", "h", "p", axis=-1), node("MatMul", "p v")],
        {"q": ROW, "k": ROW.T.copy() @ np.ones((2, 2), np.float32), "v": np.array([[1.0, 2], [-3, 4]], np.float32)},
        const(m=np.array([[True, False], [True, True]]), f=np.float32(-1e9), b=np.array([[-1e9, 0]], np.float32)),
    ),
    "zero_points_of_another_axis": (
        [node("DequantizeLinear", "x s z", "r", axis=1), node("Pad", "r p")],
        {"x": np.arange(12, dtype=np.uint8).reshape(1, 3, 4, 1).repeat(3, axis=3)},
        const(s=np.float32([0.5, 1, 2]), z=np.uint8([1, 120, 200]), p=np.array([0, 0, 1, 0, 0, 0, 1, 0])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORNERS)
def test_a_corner_is_as_the_standard_says(name):
    nodes, feeds, constants = CORNERS[name]
    model = model_of(nodes, feeds, constants, opset=21)
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    found = answers(model, feeds)["y"]
    assert found.dtype == want.dtype and found.shape == want.shape
    np.testing.assert_allclose(found, want, *((2e-6, 1e-6) if want.dtype.kind == "f" else (0, 0)))


def test_functions_of_one_name_are_told_apart():
    bodies = [
        helper.make_function("local", "F", ["a"], ["b"], [node(op, "a", "b")], [helper.make_opsetid("", 18)])
        for op in ("Relu", "Neg")
    ]
    calls = [node("F", "x", end, domain="local") for end in ("r", "n")]
    for body, call, overload in zip(bodies, calls, ("one", "two"), strict=True):
        body.overload = call.overload = overload
    found = answers(model_of(calls, {"x": ROW}, outputs=("r", "n"), functions=bodies), {"x": ROW})
    np.testing.assert_array_equal(found["r"], np.maximum(ROW, 0))
    np.testing.assert_array_equal(found["n"], -ROW)


def test_bits_of_half_floats():
    half = ROW.astype(np.float16)
    nodes = [node("BitCast", "x", "i", to=TensorProto.INT16), node("BitCast", "i", "y", to=F16)]
    found = answers(model_of(nodes, {"x": half}, outputs=("i", "y"), opset=26), {"x": half})
    np.testing.assert_array_equal(found["i"], half.view(np.int16))
    np.testing.assert_array_equal(found["y"], half)


def test_statistics_of_a_half_floats_norm_are_float32():
    half, ones = ROW.astype(np.float16), np.ones(3, np.float16)
    model = model_of([node("LayerNormalization", "x g", "y m d")], {"x": half}, {"g": ones}, ("y", "m", "d"))
    found = answers(model, {"x": half})
    assert (found["y"].dtype, found["m"].dtype, found["d"].dtype) == ("float16", "float32", "float32")
    np.testing.assert_allclose(found["m"], half.astype(np.float64).mean(-1, keepdims=True), atol=1e-6)


def test_a_quantised_softmax_of_its_own_opset():
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    attrs = {"axis": 1, "opset": 12, "domain": "com.microsoft"}
    points = const(s=np.float32(0.25), z=np.uint8(0), t=np.float32(1 / 256), n=np.uint8(0))
    found = answers(model_of([node("QLinearSoftmax", "x s z t n", **attrs)], {"x": x}, points), {"x": x})["y"]
    flat = np.exp((x * 0.25).reshape(2, 12).astype(np.float64))
    want = np.rint(flat / flat.sum(1, keepdims=True) * 256).clip(0, 255).reshape(x.shape)
    assert np.abs(found.astype(int) - want).max() <= 1


def test_statistics_of_another_type_than_scales():
    x = ROW.astype(np.float16).reshape(1, 2, 3)
    half, single = np.ones(2, np.float16), np.full(2, 0.25, np.float32)
    nodes = [node("BatchNormalization", "x s b m v")]
    found = answers(model_of(nodes, {"x": x}, const(s=half, b=half, m=single, v=single)), {"x": x})["y"]
    np.testing.assert_allclose(found, (x - 0.25) / math.sqrt(0.25 + 1e-5) + 1, rtol=2e-3, atol=2e-3)


REFUSED = {
    "an_affine_activation": (
        [node("RNN", "x w r", "y", activations=["Affine"], activation_alpha=[0.5], hidden_size=2)],
        {"x": np.ones((1, 1, 2), np.float32)},
        const(w=np.ones((1, 2, 2), np.float32), r=np.ones((1, 2, 2), np.float32)),
        "affine",
    ),
    "powers_of_two_rounded_up": ([node("Cast", "x", to=TensorProto.FLOAT8E8M0)], {"x": ROW}, {}, "round_mode"),
    "an_output_that_is_an_input": ([node("Relu", "x", "r")], {"x": ROW}, {}, "'x' is also an input"),
    "an_output_twice": ([node("Relu", "x", "r")], {"x": ROW}, {}, "'r' is also another output"),
}
ENDS = {"an_output_that_is_an_input": ("x", "r"), "an_output_twice": ("r", "r")}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_is_said(name):
    nodes, feeds, constants, words = REFUSED[name]
    with pytest.raises(MononnError, match=words):
        answers(model_of(nodes, feeds, constants, ENDS.get(name, ("y",)), opset=24), feeds)
