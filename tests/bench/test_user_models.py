"""A user's own ONNX file: static shapes, inputs understood, and each kind of bad file refused in one sentence."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mononn_bench.by_hand import _command, own_file
from mononn_bench.cli import make_parser
from mononn_bench.codec import read_record
from mononn_bench.errors import ModelError, UnknownNameError
from mononn_bench.models.folder import write_user_model
from mononn_bench.models.reference import evaluate_onnx
from mononn_bench.models.user import describe_inputs, read_user_model
from mononn_bench.record import ModelRecord, ReferenceRecord
from tests.bench.conftest import linear_model
from tests.bench_report.records import a_case


def save_model(folder: Path, **options: object) -> Path:
    path = folder / "mine.onnx"
    onnx.save(linear_model(), path, **options)
    return path


def test_a_dynamic_dimension_needs_a_shape(tmp_path: Path) -> None:
    path = save_model(tmp_path)
    with pytest.raises(ModelError, match="dynamic dimension 'batch'"):
        read_user_model(path, {})
    model = read_user_model(path, {"x": (3, 8)})
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [3, 8]


@pytest.mark.parametrize(
    ("shapes", "error", "text"),
    [
        ({"z": (1, 8)}, UnknownNameError, "no input called 'z'"),
        ({"x": (1, 8, 1)}, ModelError, "has 2 dimensions"),
        ({"x": (1, 9)}, ModelError, "fixed to 8 where 9"),
    ],
)
def test_a_wrong_shape_is_named(tmp_path: Path, shapes: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        read_user_model(save_model(tmp_path), shapes)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no model file"):
        read_user_model(tmp_path / "gone.onnx", {})
    (tmp_path / "text.onnx").write_text("this is not a model")
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        read_user_model(tmp_path / "text.onnx", {})
    whole = save_model(tmp_path).read_bytes()
    (tmp_path / "half.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        read_user_model(tmp_path / "half.onnx", {})


def test_external_data_must_lie_beside_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = save_model(folder, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert read_user_model(path, {"x": (1, 8)}).graph.initializer[0].raw_data
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match=r"needs the file weights\.bin"):
        read_user_model(path, {"x": (1, 8)})
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.bin"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside its own folder"):
        read_user_model(path, {"x": (1, 8)})


def test_an_input_that_no_input_set_can_have_is_refused(tmp_path: Path) -> None:
    model = linear_model()
    model.graph.node.insert(0, helper.make_node("Cast", ["narrow"], ["x"], to=TensorProto.FLOAT))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("narrow", TensorProto.BFLOAT16, [1, 8]))
    onnx.save(model, tmp_path / "mine.onnx")
    with pytest.raises(ModelError, match=r"'narrow' is bfloat16.*: make it float32 or float16"):
        read_user_model(tmp_path / "mine.onnx", {})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.save(model, tmp_path / "mine.onnx")
    assert read_user_model(tmp_path / "mine.onnx", {})


def test_the_command_of_a_record_names_file_shapes_and_target() -> None:
    systems = ["mononn", "mononn[launch=graph]", "onnxruntime-cuda"]
    record = replace(a_case("mine", dict.fromkeys(systems, 1e-3)), target="cuda")
    arguments = ["--path", "my net.onnx", "--shape", "x=1x8", "--shape", "mask=1x4"]
    given = make_parser().parse_args(["measure", *arguments])
    command = shlex.split(_command(record) + own_file(given))
    again = make_parser().parse_args(command[1:])
    assert (command[0], again.model, again.systems, again.target) == ("mononn-bench", "mine", systems, "cuda")
    assert (again.path, again.shape) == (given.path, given.shape)
    catalogued = make_parser().parse_args(["measure", "--model", "mlp"])
    assert _command(replace(record, target="cpu")) + own_file(catalogued) == _command(record).replace(
        " --target cuda", ""
    )


def test_inputs_are_understood() -> None:
    table = numpy_helper.from_array(np.zeros((50, 4), np.float32), "table")
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 6]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, 6]),
        helper.make_tensor_value_info("token_type_ids", TensorProto.INT64, [1, 6]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4]),
    ]
    gather = helper.make_node("Gather", ["table", "ids"], ["y"])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 4])
    specs = describe_inputs(helper.make_model(helper.make_graph([gather], "g", inputs, [output], [table])))
    assert [(s.role, s.limit) for s in specs] == [("tokens", 50), ("mask", 2), ("segments", 2), ("dense", 0)]


def test_the_reference_of_a_users_model_is_double(linear_folder: Path) -> None:
    record = read_record(ModelRecord, linear_folder / "model.json")
    reference = read_record(ReferenceRecord, linear_folder / "reference.json")
    assert (record.weights, reference.family, reference.model_digest) == ("user", "onnx", record.digest)
    assert record.flops == 2 * 8 * 8
    assert record.compulsory_bytes == 4 * (64 + 8 + 8 + 8)
    with np.load(linear_folder / "reference.npz") as stored:
        x, y = stored["1/in/x"], stored["1/out/y"]
    model = onnx.load(linear_folder / "model.onnx")
    w, b = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, np.maximum(x.astype(np.float64) @ w + b, 0), rtol=1e-14)


@pytest.mark.parametrize(("dtype", "stored"), [(np.float16, "fp16"), (ml_dtypes.bfloat16, "bf16"), (np.float32, "")])
def test_a_file_says_whether_its_weights_are_of_16_bits(dtype: type, stored: str, tmp_path: Path) -> None:
    model = linear_model()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.graph.node.insert(0, helper.make_node("Cast", ["x"], ["narrow"], to=kind))
    model.graph.node[1].input[0] = "narrow"
    model.graph.output[0].type.tensor_type.elem_type = kind
    onnx.save(model, tmp_path / "mine.onnx")
    assert write_user_model("mine", tmp_path / "mine.onnx", {"x": (1, 8)}, tmp_path / "model").stored == stored
    large = numpy_helper.from_array(np.zeros((9, 9), np.float32), "large")
    model.graph.initializer.append(large)
    onnx.save(model, tmp_path / "mine.onnx")
    assert not write_user_model("mine", tmp_path / "mine.onnx", {"x": (1, 8)}, tmp_path / "more").stored, "most are not"


def test_casts_and_constants_are_widened(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["third"], value_float=1 / 3),
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "third"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(model, tmp_path / "m.onnx")
    (answer,) = evaluate_onnx(tmp_path / "m.onnx", [{"x": np.array([3])}])
    assert answer["y"].dtype == np.float64
    assert answer["y"][0] == pytest.approx(1.0, abs=1e-7)
