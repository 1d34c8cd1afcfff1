"""Operators whose form changed between opsets, against ONNX Runtime in each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mononn_core.errors import UnsupportedError
from mononn_core.importer import load
from mononn_core.importer.opsets import OLDEST, newest
from mononn_core.ops.evaluate import run as evaluate
from tests.core.models import assert_agrees, model, node, random_inputs

X = [("x", "float32", (2, 3, 4))]
IMAGE = [("x", "float32", (1, 2, 5, 6))]


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CASES: dict[str, tuple[int, list[Any], dict[str, np.ndarray], list[Any]]] = {
    "Squeeze 11": (11, [node("Unsqueeze", "x", "u", axes=[0, 2]), node("Squeeze", "u", "y", axes=[0])], {}, X),
    "Squeeze 13": (13, [node("Unsqueeze", "x a", "u"), node("Squeeze", "u b", "y")], {"a": i64(0, -2), "b": i64(0)}, X),
    "Squeeze all": (13, [node("Unsqueeze", "x a", "u"), node("Squeeze", "u", "y")], {"a": i64(0, -2)}, X),
    "ReduceSum 11": (11, [node("ReduceSum", "x", "y", axes=[-1], keepdims=0)], {}, X),
    "ReduceSum 13": (13, [node("ReduceSum", "x a", "y")], {"a": i64(0, 2)}, X),
    "ReduceSum nothing": (13, [node("ReduceSum", "x", "y", noop_with_empty_axes=1)], {}, X),
    "ReduceMean 13": (13, [node("ReduceMean", "x", "y", axes=[1])], {}, X),
    "ReduceMean 18": (18, [node("ReduceMean", "x a", "y", keepdims=0)], {"a": i64(1)}, X),
    "ReduceL2": (13, [node("ReduceL2", "x", "y", axes=[1])], {}, X),
    "ReduceLogSumExp": (18, [node("ReduceLogSumExp", "x a", "y", keepdims=0)], {"a": i64(1)}, X),
    "Slice 9": (9, [node("Slice", "x", "y", axes=[1, 2], starts=[1, -3], ends=[9, -1])], {}, X),
    "Slice 13": (
        13,
        [node("Slice", "x s e a t", "y")],
        {"s": i64(-1, 0), "e": i64(-9, 99), "a": i64(1, -1), "t": i64(-2, 3)},
        X,
    ),
    "Split 11": (11, [node("Split", "x", "y z", axis=2, split=[1, 3])], {}, X),
    "Split 13": (13, [node("Split", "x s", "y z", axis=2)], {"s": i64(3, 1)}, X),
    "Split 18": (18, [node("Split", "x", "y z", axis=1, num_outputs=2)], {}, X),
    "Clip 6": (7, [node("Clip", "x", "y", min=-0.5, max=1.0)], {}, X),
    "Clip 11": (11, [node("Clip", "x - h", "y")], {"h": np.float32(0.25)}, X),
    "Pad 2": (7, [node("Pad", "x", "y", pads=[0, 1, 2, 0, 0, 1], value=3.0)], {}, X),
    "Pad 11": (11, [node("Pad", "x p v", "y")], {"p": i64(0, 1, 2, 0, 0, 1), "v": np.float32(2)}, X),
    "Pad 18": (18, [node("Pad", "x p - a", "y", mode="reflect")], {"p": i64(1, 2), "a": i64(-1)}, X),
    "Pad negative": (13, [node("Pad", "x p", "y")], {"p": i64(0, -1, 2, 0, 0, -1)}, X),
    "Softmax 11": (11, [node("Softmax", "x", "y")], {}, X),
    "Softmax 13": (13, [node("Softmax", "x", "y", axis=1)], {}, X),
    "LogSoftmax 12": (12, [node("LogSoftmax", "x", "y", axis=2)], {}, X),
    "Hardmax 11": (11, [node("Hardmax", "x", "y")], {}, X),
    "Dropout 10": (10, [node("Dropout", "x", "y", ratio=0.3)], {}, X),
    "Dropout 13": (13, [node("Dropout", "x r", "y")], {"r": np.float32(0.3)}, X),
    "TopK 11": (11, [node("TopK", "x k", "y z", axis=2)], {"k": i64(2)}, X),
    "Upsample 9": (9, [node("Upsample", "x s", "y", mode="nearest")], {"s": np.array([1, 1, 2, 3], np.float32)}, IMAGE),
    "Resize 10": (10, [node("Resize", "x s", "y", mode="linear")], {"s": np.array([1, 1, 2, 1.5], np.float32)}, IMAGE),
    "Resize 13": (
        13,
        [node("Resize", "x - - z", "y", mode="cubic", coordinate_transformation_mode="half_pixel")],
        {"z": i64(1, 2, 3, 9)},
        IMAGE,
    ),
    "Gemm 7": (
        7,
        [node("Gemm", "m w c", "y", alpha=0.5, beta=2.0, transA=1, transB=1)],
        {"w": np.ones((4, 3), np.float32), "c": np.arange(4, dtype=np.float32)},
        [("m", "float32", (3, 2))],
    ),
    "Gemm 13": (13, [node("Gemm", "m w", "y")], {"w": np.eye(2, 5, dtype=np.float32)}, [("m", "float32", (3, 2))]),
    "Expand": (8, [node("Expand", "x s", "y")], {"s": i64(5, 1, 1, 1)}, X),
    "Reshape": (14, [node("Reshape", "x s", "y")], {"s": i64(0, -1, 2)}, X),
    "ArgMax 12": (12, [node("ArgMax", "x", "y", axis=-1, keepdims=0, select_last_index=1)], {}, X),
    "LayerNormalization": (
        17,
        [node("LayerNormalization", "x g b", "y", axis=1, epsilon=1e-3)],
        {"g": np.linspace(1, 2, 12, dtype=np.float32).reshape(3, 4), "b": np.ones((3, 4), np.float32)},
        X,
    ),
    "Conv": (
        11,
        [node("Conv", "x w", "y", group=2, strides=[2, 1], dilations=[1, 2], pads=[1, 2, 0, 1])],
        {"w": np.linspace(-1, 1, 4 * 9, dtype=np.float32).reshape(4, 1, 3, 3)},
        IMAGE,
    ),
    "ConvTranspose": (
        11,
        [node("ConvTranspose", "x w", "y", strides=[2, 3], output_padding=[1, 0], pads=[1, 0, 0, 2])],
        {"w": np.linspace(-1, 1, 2 * 3 * 9, dtype=np.float32).reshape(2, 3, 3, 3)},
        IMAGE,
    ),
    "MaxPool ceil": (12, [node("MaxPool", "x", "y", kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1)], {}, IMAGE),
    "AveragePool": (11, [node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], {}, IMAGE),
    "Einsum": (12, [node("Einsum", "x w", "y", equation="bij,jk->bki")], {"w": np.ones((4, 2), np.float32)}, X),
    "Trilu": (14, [node("Trilu", "x", "y", upper=0)], {}, X),
    "CumSum": (11, [node("CumSum", "x a", "y", exclusive=1, reverse=1)], {"a": np.int32(1)}, X),
}


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str) -> None:
    opset, nodes, constants, inputs = CASES[name]
    proto = model(nodes, inputs, list(nodes[-1].output), constants, opset)
    assert_agrees(proto, random_inputs(inputs))


@pytest.mark.parametrize("opset", [OLDEST - 1, newest() + 1])
def test_other_opsets_are_refused(opset: int) -> None:
    proto = model([node("Relu", "x", "y")], X, ["y"], opset=opset)
    with pytest.raises(UnsupportedError, match=f"opset {opset}, and opsets {OLDEST} to {newest()}"):
        load(proto.SerializeToString())


def test_an_output_without_a_form_is_refused_where_somebody_reads_it() -> None:
    """Standardised weights are exported as a BatchNormalization before opset 14 whose further outputs nobody reads."""
    constants = {name: np.array(values, np.float32) for name, values in {"s": (1, 2), "b": (0, 1), "v": (1, 4)}.items()}
    normal = node("BatchNormalization", "x s b b v", "n m w p q", momentum=1.0)
    unread = model([normal, node("Relu", "n", "y")], IMAGE, ["y"], constants, 13)
    (x,) = random_inputs(IMAGE).values()
    (got,) = evaluate(load(unread.SerializeToString()), {"x": x}).values()
    np.testing.assert_allclose(got, np.maximum(x, 0), rtol=1e-4, atol=1e-4)
    inner = helper.make_graph([normal], "inner", [], [helper.make_tensor_value_info("p", TensorProto.FLOAT, (2,))])
    for nodes, outputs in (
        ([normal, node("Add", "n p", "y")], ["y"]),
        ([normal], ["n", "m"]),
        ([node("If", "c", "y", then_branch=inner, else_branch=inner)], ["y"]),
    ):
        proto = model(nodes, IMAGE, outputs, {**constants, "c": np.array(True)}, 13)
        with pytest.raises(UnsupportedError, match=r"its output [13] \('[mp]'\) is not supported"):
            load(proto.SerializeToString())


@pytest.mark.parametrize("onesided", [0, 1])
def test_a_short_time_transform_of_signals_without_an_axis_of_parts(onesided: int) -> None:
    """As exporters write it and ONNX Runtime reads it."""
    edges = [("x", "float32", (2, 40))]
    constants = {"step": np.array(3), "window": np.hanning(8).astype(np.float32)}
    made = model([node("STFT", "x step window", "y", onesided=onesided)], edges, ["y"], constants)
    assert_agrees(made, random_inputs(edges), tolerance=1e-5)
