"""A user's own file that is quantised already: measured as it is, by the rule of 8-bit files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mononn_bench.codec import read_record
from mononn_bench.errors import ModelError
from mononn_bench.models.evaluator import make_evaluator
from mononn_bench.models.reference import evaluate_onnx
from mononn_bench.models.spec import QUANTISED, is_quantised
from mononn_bench.record import ReferenceRecord
from mononn_bench.workflow.plan import make_plan
from tests.bench.conftest import linear_model

RANDOM = np.random.default_rng(3)


def quantised(folder: Path) -> Path:
    """x [1024, 8] quantised, times 8 by 6 numbers of 8 bits."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "middle"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "middle"], ["real"]),
        helper.make_node("DequantizeLinear", ["w", "step"], ["weights"]),
        helper.make_node("MatMul", ["real", "weights"], ["y"]),
    ]
    constants = {
        "step": np.float32(0.02),
        "middle": np.uint8(128),
        "w": RANDOM.integers(-127, 128, (8, 6)).astype(np.int8),
    }
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1024, 8]), ("y", [1024, 6]))]
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "q.onnx")
    return folder / "q.onnx"


def test_a_quantised_file_is_told_by_its_operators(tmp_path: Path) -> None:
    assert is_quantised(quantised(tmp_path))
    onnx.save(linear_model(), tmp_path / "linear.onnx")
    assert not is_quantised(tmp_path / "linear.onnx")
    for name in QUANTISED:
        node = helper.make_node(name, ["QLinearConv"], ["y"], name="n", domain="com.microsoft")
        (tmp_path / f"{name}.onnx").write_bytes(node.SerializeToString())
        assert is_quantised(tmp_path / f"{name}.onnx")
    other = helper.make_node("Relu", ["QLinearConv"], ["y"], name="QuantizeLinear")
    (tmp_path / "named.onnx").write_bytes(other.SerializeToString())
    assert not is_quantised(tmp_path / "named.onnx"), "tensors and nodes may be called anything"
    (tmp_path / "empty.onnx").touch()
    assert not is_quantised(tmp_path / "empty.onnx")


@pytest.mark.parametrize(
    ("precisions", "cases"),
    [(["fp32"], {"f", "q-int8"}), (["bf16"], {"f-bf16", "q-int8"}), (["int8"], {"f-int8", "q-int8"})],
)
def test_it_is_measured_once_in_int8_as_it_is(tmp_path: Path, precisions: list[str], cases: set[str]) -> None:
    onnx.save(linear_model(), tmp_path / "f.onnx")
    models = {"q": {"path": str(quantised(tmp_path))}, "f": {"path": str(tmp_path / "f.onnx"), "shapes": {"x": [1, 8]}}}
    plan = make_plan({"models": models, "systems": ["mononn"], "precisions": precisions})
    assert set(plan.cases) == cases
    (build,) = plan.groups["q-int8"]
    assert (build.precision, build.model.unquantised, build.model.folder) == ("int8", None, plan.models["q"].folder)
    assert set(plan.quantised) == ({"f"} if precisions == ["int8"] else set())


def test_its_limits_count_what_one_rounding_the_other_way_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mononn_bench.cli import main

    folder = tmp_path / "q"
    assert main(["export", "--model", "q", "--path", str(quantised(tmp_path)), "--output", str(folder)]) == 0
    assert main(["reference", "--model-folder", str(folder)]) == 0
    reference = read_record(ReferenceRecord, folder / "reference.json")
    assert 1e-6 < reference.fp32_errors["y"] < 5e-2, "in float32 it would be 1e-7"
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("bits", "k", "zeros"),
    [(4, 64, None), (4, 64, "packed"), (4, 40, "packed"), (4, 40, "real"), (8, 48, None), (8, 48, "packed")],
)
def test_products_by_few_bits_are_answered_as_by_onnx_runtime(
    bits: int, k: int, zeros: str | None, tmp_path: Path
) -> None:
    n, block = 6, 16
    blocks, each = -(-k // block), 8 // bits
    constants = {
        "b": RANDOM.integers(0, 256, (n, blocks, block // each)).astype(np.uint8),
        "s": RANDOM.uniform(0.01, 0.03, n * blocks).astype(np.float32),
    }
    if zeros == "packed":
        constants["z"] = RANDOM.integers(0, 256, n * -(-blocks // each)).astype(np.uint8)
    elif zeros == "real":
        constants["z"] = RANDOM.uniform(0, 15, n * blocks).astype(np.float32)
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block}
    node = helper.make_node("MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", **sizes)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, e]) for name, e in (("x", k), ("y", n))]
    tensors = [numpy_helper.from_array(v, name) for name, v in constants.items()]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", ends[:1], ends[1:], tensors), opset_imports=opsets, ir_version=9
    )
    onnx.save(model, tmp_path / "m.onnx")
    x = RANDOM.standard_normal((3, k)).astype(np.float32)
    (found,) = evaluate_onnx(tmp_path / "m.onnx", [{"x": x}])
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert found["y"].dtype == np.float64
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)


def test_an_operator_that_has_no_right_answers_is_named() -> None:
    kinds = ("MatMulNBits", "FusedMatMul")
    nodes = [helper.make_node(kind, ["x", "x"], [kind], domain="com.microsoft") for kind in kinds]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in ("x", "FusedMatMul")]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=opsets)
    with pytest.raises(ModelError, match="does not know FusedMatMul: without them no answer can be judged"):
        make_evaluator(model)


def test_elements_are_gathered_along_an_axis_of_one() -> None:
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)
    ends = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("x", TensorProto.FLOAT, [3, 1]),
            ("i", TensorProto.INT64, [2, 4]),
            ("y", TensorProto.FLOAT, [2, 4]),
        )
    ]
    model = helper.make_model(
        helper.make_graph([node], "g", ends[:2], ends[2:]), opset_imports=[helper.make_opsetid("", 18)]
    )
    x, i = np.arange(3, dtype=np.float32).reshape(3, 1), np.zeros((2, 4), np.int64)
    (found,) = make_evaluator(model).run(None, {"x": x, "i": i})
    np.testing.assert_array_equal(found, [[0] * 4, [1] * 4])
