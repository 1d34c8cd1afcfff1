"""Inputs whose values are given when compiling: what decides branches and shapes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import mononn_core as mononn
from mononn_core.cli.main import main
from mononn_core.compiler import build_family
from mononn_core.errors import InputError, ShapeError
from mononn_core.importer.context import UnknownValueError
from mononn_core.importer.survey import check
from mononn_core.runtime.loading import open_session

ROWS = 3


def branch(op_type: str) -> onnx.GraphProto:
    node = helper.make_node(op_type, ["x"], ["then"])
    return helper.make_graph([node], op_type, [], [helper.make_tensor_value_info("then", TensorProto.FLOAT, None)])


def by_rate() -> bytes:
    """Exp or Neg of x [n, 4], as a rate says, in so many columns as a length says."""
    nodes = [
        helper.make_node("Constant", [], ["fast"], value_int=16000),
        helper.make_node("Equal", ["rate", "fast"], ["same"]),
        helper.make_node("If", ["same"], ["value"], then_branch=branch("Exp"), else_branch=branch("Neg")),
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("Constant", [], ["one"], value_ints=[1]),
        helper.make_node("Slice", ["value", "zero", "length", "one"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
        helper.make_tensor_value_info("rate", TensorProto.INT64, []),
        helper.make_tensor_value_info("length", TensorProto.INT64, [1]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    made = helper.make_model(
        helper.make_graph(nodes, "by_rate", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    return made.SerializeToString()


X = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32)


@pytest.mark.parametrize(("rate", "length"), [(16000, 2), (8000, 3)])
def test_answers_are_those_for_the_values(rate: int, length: int) -> None:
    given = {"rate": np.array(rate), "length": np.array([length])}
    (want,) = onnxruntime.InferenceSession(by_rate()).run(None, {"x": X, **given})
    for values in (given, {"rate": rate, "length": length}, {"rate": np.int32(rate), "length": [float(length)]}):
        with mononn.compile(by_rate(), shapes={"x": X.shape}, values=values, threads=1) as session:
            assert list(session.inputs) == ["x"]
            np.testing.assert_allclose(session.run({"x": X})["y"], want, rtol=1e-6)


def test_what_is_needed_is_said() -> None:
    with pytest.raises(UnknownValueError, match=r"depends on 'rate', and must be known .* as in --value rate=1, or"):
        mononn.compile(by_rate(), shapes={"x": X.shape})


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"speed": 1}, InputError, "the model has no input 'speed'; its inputs are x, rate, length"),
        ({"rate": 0.5}, InputError, "input 'rate' is of type int64, and its value 0.5 is none"),
        ({"rate": np.nan}, InputError, "input 'rate' is of type int64, and its value nan is none"),
        ({"rate": 1 << 64}, InputError, "input 'rate' is of type int64, and its value 18446744073709551616 is none"),
        ({"rate": "high"}, InputError, "input 'rate' is of type int64, and its value high is none"),
        ({"length": [1, 2]}, ShapeError, "input 'length': dimension 0 is 1, and the shape given says 2"),
        ({"rate": [1]}, ShapeError, r"input 'rate' has 0 dimensions, and shape \[1\] has 1"),
    ],
)
def test_values_that_an_input_cannot_have(values: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        mononn.compile(by_rate(), shapes={"x": X.shape}, values=values)  # type: ignore[arg-type]


def test_a_family_has_them_too() -> None:
    shapes = [{"x": (rows, 4)} for rows in (2, ROWS)]
    artifact = build_family(by_rate(), shapes, values={"rate": 1, "length": 4}, threads=1)
    with open_session(artifact) as session:
        for rows in (2, ROWS):
            np.testing.assert_array_equal(session.run({"x": X[:rows]})["y"], -X[:rows])


def test_the_commands_take_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, length = tmp_path / "model.onnx", tmp_path / "length.npy"
    path.write_bytes(by_rate())
    np.save(length, np.array([2]))
    given = [str(path), "--shape", f"x={ROWS}x4", "--value", "rate=16000", "--value", f"length={length}"]
    assert main(["compile", *given, "-o", str(tmp_path / "out.mono")]) == 0
    with mononn.load(tmp_path / "out.mono") as session:
        np.testing.assert_allclose(session.run({"x": X})["y"], np.exp(X[:, :2]), rtol=1e-6)
    assert main(["check", *given]) == main(["bisect", *given]) == main(["inspect", *given]) == 0
    assert main(["check", *given[:3]]) == 1
    capsys.readouterr()
    assert main(["check", *given, "--json"]) == 0
    assert {row["status"] for row in json.loads(capsys.readouterr().out)["nodes"]} == {"native"}
    assert {status for *_, status, _ in check(by_rate(), {"x": X.shape}, {"rate": 1, "length": 1})} == {"native"}


@pytest.mark.parametrize("value", ["rate", "rate=high", "rate=0x10"])
def test_words_that_are_no_values(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "model.onnx", "--value", value])
    assert ended.value.code == 2
    assert f"{value!r} is n" in capsys.readouterr().err


def test_a_value_is_given_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").write_bytes(by_rate())
    assert main(["check", str(tmp_path / "model.onnx"), "--value", "rate=1", "--value", "rate=2"]) != 0
    assert "--value gives 'rate' twice; give it once" in capsys.readouterr().err
