"""The small networks of models/wide.py: exported right, counted right, and compiled right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mononn_bench.codec import read_record
from mononn_bench.models.arithmetic import count_arithmetic
from mononn_bench.models.distance import relative_l2
from mononn_bench.models.folder import ONNX, RECORD
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.mobilenetv3 import eights
from mononn_bench.models.reference import evaluate_onnx
from mononn_bench.models.zoo import get_model
from mononn_bench.record import ModelRecord
from tests.bench.test_models_networks import check, exact_answers


def swin() -> int:
    """256 tokens 16 wide, then 64 tokens 32 wide, two layers each; windows of 16 tokens."""

    def layer(tokens: int, width: int) -> int:
        return tokens * (4 + 8) * width**2 + 2 * tokens * 16 * width

    return 256 * 48 * 16 + 2 * layer(256, 16) + 64 * 64 * 32 + 2 * layer(64, 32) + 32 * 10


def regnet() -> int:
    """Y blocks in groups of 8 channels: one with 16 channels, 16x16 pixels, two with 32 channels, 8x8 pixels."""
    first = 1024 * 8 * 16 + 256 * (16 * 8 * 9 + 16 * 16 + 8 * 16) + 2 * 16 * 2
    second = 256 * 16 * 32 + 64 * (32 * 8 * 9 + 32 * 32 + 16 * 32) + 2 * 32 * 4
    third = 64 * (32 * 32 + 32 * 8 * 9 + 32 * 32) + 2 * 32 * 8
    return 1024 * 27 * 8 + first + second + third + 32 * 10


def efficientnet() -> int:
    """Two blocks of 8 channels, 32x32 pixels, and two of 32 inner ones, 16x16 pixels after the first expansion."""
    plain = 1024 * (8 * 9 + 8 * 8) + 2 * 8 * 2
    inner = 256 * (32 * 25 + 32 * 8) + 2 * 32 * 2
    return 1024 * 27 * 8 + 2 * plain + (1024 + 256) * 8 * 32 + 2 * inner + 256 * 8 * 320 + 320 * 10


def mobilenetv3() -> int:
    """Four inverted residuals, their excitations of 8, 8, 16 and 16 channels."""
    first = 1024 * (8 * 9 + 8 * 8) + 2 * 8 * 8
    second = 1024 * 8 * 24 + 256 * (24 * 25 + 24 * 16) + 2 * 24 * 8
    third = 256 * (16 * 40 + 40 * 9 + 40 * 16) + 2 * 40 * 16
    fourth = 256 * (16 * 48 + 48 * 25 + 48 * 16) + 2 * 48 * 16
    return 1024 * 27 * 8 + first + second + third + fourth + 256 * 16 * 48 + 48 * 32 + 32 * 10


def unet() -> int:
    """256 pixels of 8 channels and 64 of 16, which attend to each other; step vectors of 32 numbers."""

    def residual(pixels: int, inputs: int, outputs: int) -> int:
        shortcut = inputs * outputs if inputs != outputs else 0
        return pixels * (9 * inputs * outputs + 9 * outputs**2 + shortcut) + 32 * outputs

    attention = 64 * 4 * 16**2 + 2 * 64 * 64 * 16
    down = residual(256, 8, 8) + 64 * 9 * 8 * 8 + residual(64, 8, 16) + attention
    middle = 2 * residual(64, 16, 16) + attention
    up = residual(64, 16 + 16, 16) + residual(64, 16 + 8, 16) + 2 * attention + 256 * 9 * 16 * 16
    up += residual(256, 16 + 8, 8) + residual(256, 8 + 8, 8)
    return 8 * 32 + 32 * 32 + 256 * 27 * 8 + down + middle + up + 256 * 9 * 8 * 3


def r3d() -> int:
    """A block of 8 channels over 4x16x16 positions and one of 16 over 2x8x8."""
    second = 128 * (27 * 8 * 16 + 27 * 16 * 16 + 8 * 16)
    return 1024 * (3 * 3 * 7 * 7 * 8 + 2 * 27 * 8 * 8) + second + 16 * 10


def wavenet() -> int:
    """Eight layers over 200 samples; nothing reads what the last one adds to its input."""
    layer = 2 * 2 * 8 * 8 + 8 * 8 + 8 * 16
    return 200 * (2 * 8 + 8 * layer - 8 * 8 + 2 * 16 * 16)


def lstm() -> int:
    """Two layers of two directions, four gates of 16 over 24, then 32 features and 16 states."""
    return 16 * 2 * 4 * 16 * ((24 + 16) + (32 + 16)) + 32 * 10


MULTIPLY_ADDS = {
    "swin-test": swin, "regnet-test": regnet, "efficientnet-test": efficientnet, "mobilenetv3-test": mobilenetv3,
    "unet-test": unet, "r3d-test": r3d, "wavenet-test": wavenet, "lstm-test": lstm,
}  # fmt: skip
SEEN = {"unet-test": {"Softmax": 4, "Resize": 1}, "wavenet-test": {"Tanh": 8, "Sigmoid": 8}, "lstm-test": {"LSTM": 2},
        "mobilenetv3-test": {"HardSwish": 7, "HardSigmoid": 4}}  # fmt: skip
"""Operators that a file has, and how often."""


LONGEST = ("unet-test", "wavenet-test", "swin-test", "r3d-test", "regnet-test")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONGEST else []) for name in MULTIPLY_ADDS]
)
def test_wide_networks_are_exported_counted_and_compiled_right(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
    inputs = make_inputs(get_model(name).inputs, sets=1, seed=0)
    ((exact,), (found,)) = exact_answers(tmp_path, inputs), evaluate_onnx(tmp_path / ONNX, inputs)
    assert all(relative_l2(found[output], exact[output]) < 1e-6 for output in exact)
    assert read_record(ModelRecord, tmp_path / RECORD).flops == 2 * MULTIPLY_ADDS[name]()
    kinds = [node.op_type for node in onnx.load(tmp_path / ONNX).graph.node]
    for kind, count in SEEN.get(name, {}).items():
        assert kinds.count(kind) == count, kind


def test_channels_of_an_excitation_are_a_multiple_of_8_no_tenth_below() -> None:
    """Inner channels of MobileNetV3-Large, and what the paper's code makes of a quarter of them."""
    assert [eights(c / 4) for c in (72, 120, 480, 672, 960)] == [24, 32, 120, 168, 240]


@pytest.mark.parametrize(
    ("kind", "x", "weights", "result", "attributes", "multiply_adds"),
    [
        ("Conv", (1, 4, 9), [(6, 2, 3)], (1, 6, 7), {"group": 2}, 7 * 6 * 2 * 3),
        ("Conv", (1, 4, 5, 6, 7), [(6, 4, 1, 2, 3)], (1, 6, 5, 5, 5), {}, 125 * 6 * 4 * 6),
        ("ConvTranspose", (1, 4, 5, 6), [(4, 3, 2, 2)], (1, 6, 10, 12), {"group": 2, "strides": [2, 2]}, 30 * 4 * 12),
        ("GRU", (5, 2, 7), [(2, 9, 7), (2, 9, 3)], (5, 2, 2, 3), {"hidden_size": 3, "direction": "bidirectional"},
         5 * 2 * 2 * 9 * 10),
    ],
)  # fmt: skip
def test_multiply_adds_of_one_operator(
    kind: str, x: tuple[int, ...], weights: list[tuple[int, ...]], result: tuple[int, ...],
    attributes: dict[str, object], multiply_adds: int,
) -> None:  # fmt: skip
    names = [f"w{i}" for i in range(len(weights))]
    constants = [onnx.numpy_helper.from_array(np.zeros(s, np.float32), n) for n, s in zip(names, weights, strict=True)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x), ("y", result))]
    node = helper.make_node(kind, ["x", *names], ["y"], **attributes)
    graph = helper.make_graph([node], "one", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    assert count_arithmetic(model).flops == 2 * multiply_adds
