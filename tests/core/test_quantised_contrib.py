"""ONNX Runtime's own quantised operators, node by node, against what their documentation says in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mononn_core.errors import UnsupportedError
from mononn_core.importer import load
from mononn_core.ops.evaluate import run

DOMAIN = "com.microsoft"
RANDOM = np.random.default_rng(11)
Array = np.ndarray
A_SCALE, B_SCALE, Y_SCALE = np.float32(0.07), np.float32(0.03), np.float32(0.11)
A_ZERO, B_ZERO, Y_ZERO = np.uint8(120), np.uint8(7), np.uint8(90)
A = RANDOM.integers(0, 256, (2, 3, 6, 4)).astype(np.uint8)
B = RANDOM.integers(0, 256, (1, 3, 1, 4)).astype(np.uint8)
WEIGHT = RANDOM.integers(-128, 128, (5, 8)).astype(np.int8)
COLUMNS = (RANDOM.random(8) * 0.02 + 0.01).astype(np.float32)
MATRIX = RANDOM.integers(0, 256, (3, 5)).astype(np.uint8)
BIAS = RANDOM.integers(-500, 500, 8).astype(np.int32)
REAL = RANDOM.standard_normal((3, 5)).astype(np.float32)


def of(x: Array, scale: Array | np.float32, zero: Array | np.generic) -> Array:
    return np.asarray((x.astype(np.float64) - np.float64(zero)) * np.float64(scale))


def rounded(y: Array) -> Array:
    return np.asarray(np.clip(np.rint(y / np.float64(Y_SCALE)) + int(Y_ZERO), 0, 255).astype(np.uint8))


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


a, b = of(A, A_SCALE, A_ZERO), of(B, B_SCALE, B_ZERO)
FIRST, RESULT = (A, A_SCALE, A_ZERO), (Y_SCALE, Y_ZERO)
low, high = min(REAL.min(), 0), max(REAL.max(), 0)
step = np.float32(high - low) / np.float32(255)
zero = np.clip(np.rint(-low / step), 0, 255)
dynamic = (np.clip(np.rint(REAL / step) + zero, 0, 255) - zero) * step
weight = WEIGHT.astype(np.float64) * COLUMNS
CASES: dict[str, tuple[tuple[Array | np.generic, ...], dict[str, object], Array]] = {
    "QLinearAdd": ((*FIRST, B, B_SCALE, B_ZERO, *RESULT), {}, rounded(a + b)),
    "QLinearMul": ((*FIRST, B, B_SCALE, B_ZERO, *RESULT), {}, rounded(a * b)),
    "QLinearWhere": ((A % 2 == 0, *FIRST, B, B_SCALE, B_ZERO, *RESULT), {}, rounded(np.where(A % 2 == 0, a, b))),
    "QLinearSigmoid": ((*FIRST, *RESULT), {}, rounded(1 / (1 + np.exp(-a)))),
    "QLinearLeakyRelu": ((*FIRST, *RESULT), {"alpha": 0.2}, rounded(np.where(a < 0, 0.2 * a, a))),
    "QLinearSoftmax": ((*FIRST, *RESULT), {"axis": -1, "opset": 13}, rounded(softmax(a))),
    "QLinearGlobalAveragePool": ((*FIRST, *RESULT), {"channels_last": 0}, rounded(a.mean((2, 3), keepdims=True))),
    "QLinearAveragePool": (
        (*FIRST, *RESULT),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        rounded(a.reshape(2, 3, 3, 2, 2, 2).mean((3, 5))),
    ),
    "QLinearConcat": (
        (*RESULT, *FIRST, np.repeat(B, 2, 0), B_SCALE, B_ZERO),
        {"axis": 2},
        rounded(np.concatenate([a, np.repeat(b, 2, 0)], 2)),
    ),
    "QGemm": (
        (MATRIX, A_SCALE, A_ZERO, WEIGHT, COLUMNS, np.zeros(8, np.int8), BIAS, *RESULT),
        {},
        rounded(of(MATRIX, A_SCALE, A_ZERO) @ weight + BIAS * (A_SCALE * COLUMNS)),
    ),
    "MatMulIntegerToFloat": (
        (MATRIX, WEIGHT, A_SCALE, COLUMNS, A_ZERO, np.zeros(8, np.int8), COLUMNS),
        {},
        of(MATRIX, A_SCALE, A_ZERO) @ weight + COLUMNS,
    ),
    "DynamicQuantizeMatMul": ((REAL, WEIGHT, COLUMNS, np.zeros(8, np.int8), COLUMNS), {}, dynamic @ weight + COLUMNS),
}


def node(op_type: str, values: tuple[Array | np.generic, ...], attributes: dict[str, object]) -> bytes:
    """A model of one node whose inputs are the model's own."""
    names = [f"in{i}" for i in range(len(values))]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.asarray(v).dtype), np.shape(v))
        for n, v in zip(names, values, strict=True)
    ]
    made = helper.make_node(op_type, names, ["y"], "node", domain=DOMAIN, **attributes)
    output = helper.make_tensor_value_info("y", TensorProto.UINT8, None)
    graph = helper.make_graph([made], "one", inputs, [output])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets).SerializeToString()


@pytest.mark.parametrize("op_type", CASES)
def test_operator(op_type: str) -> None:
    values, attributes, want = CASES[op_type]
    graph = load(node(op_type, values, attributes), {})
    (found,) = run(graph, {f"in{i}": np.asarray(v) for i, v in enumerate(values)}).values()
    assert found.shape == want.shape
    if want.dtype == np.uint8:
        assert found.dtype == np.uint8
        assert (np.abs(found.astype(int) - want) <= 1).all() and (found != want).mean() < 0.05
    else:
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_channels_last_is_refused_by_name() -> None:
    values, _, _ = CASES["QLinearGlobalAveragePool"]
    with pytest.raises(UnsupportedError, match=r"node.*channels last"):
        load(node("QLinearGlobalAveragePool", values, {"channels_last": 1}), {})
