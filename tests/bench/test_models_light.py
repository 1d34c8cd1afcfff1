"""The light networks get weights that mean something, and references that follow the specification."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from mononn_bench.codec import read_record
from mononn_bench.models.evaluator import make_evaluator
from mononn_bench.models.folder import write_catalogued_model
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.light import FOLDER
from mononn_bench.models.reference import evaluate_onnx
from mononn_bench.models.zoo import ZOO, get_model
from mononn_bench.record import ModelRecord

NINE = [name for name in ZOO if name.startswith("light-")]


def one_node(op: str, shapes: dict[str, tuple[int, ...]], opset: int, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node(op, list(shapes), ["y"], **attributes)
    inputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.DOUBLE, next(iter(shapes.values())))
    graph = helper.make_graph([node], op, inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def test_the_catalogue_has_all_nine_with_the_ends_of_their_files() -> None:
    files = {ZOO[name].config["file"] for name in NINE}
    assert files == {path.name for path in FOLDER.glob("*.onnx")}
    for name in NINE:
        graph = onnx.load(FOLDER / ZOO[name].config["file"]).graph
        shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in graph.input}
        assert shapes[ZOO[name].inputs[0].name] == ZOO[name].inputs[0].shape
        assert [v.name for v in graph.output] == list(ZOO[name].outputs)


@pytest.mark.slow
def test_squeezenet_has_weights_a_reference_and_answers_of_its_inputs(tmp_path: Path) -> None:
    record = write_catalogued_model("light-squeezenet", "seeded", 0, tmp_path, tmp_path)
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert read_record(ModelRecord, tmp_path / "model.json") == record
    assert (record.weights, record.opset, record.batch) == ("seeded", 9, 1)
    assert 0.6e9 < record.flops < 0.8e9
    assert not (tmp_path / "weights.safetensors").exists()
    assert {n.op_type for n in model.graph.node}.isdisjoint({"ConstantOfShape"})
    for tensor in model.graph.initializer:
        assert onnx.numpy_helper.to_array(tensor).std() > 0
    inputs = make_inputs(get_model("light-squeezenet").inputs, sets=2, seed=0)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    exact = evaluate_onnx(tmp_path / "model.onnx", inputs)
    for arrays, answer in zip(inputs, exact, strict=True):
        theirs = session.run(None, arrays)[0]
        wanted = answer["softmaxout_1"]
        assert wanted.dtype == np.float64
        assert np.linalg.norm(theirs - wanted) / np.linalg.norm(wanted) < 1e-5
        assert wanted.max() > 5 * wanted.mean()
    first, second = (answer["softmaxout_1"] for answer in exact)
    assert np.linalg.norm(first - second) / np.linalg.norm(first) > 0.02


def test_a_batch_norm_keeps_its_statistics_and_a_norm_over_channels_its_channels() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 6, 4, 5)) * 40
    lrn = make_evaluator(one_node("LRN", {"x": x.shape}, 9, size=5, alpha=0.125, beta=0.75, bias=2.0))
    exact = torch.nn.functional.local_response_norm(torch.from_numpy(x), 5, alpha=0.125, beta=0.75, k=2.0)
    np.testing.assert_allclose(lrn.run(None, {"x": x})[0], exact.numpy(), rtol=1e-12)
    shapes = {"x": x.shape, "scale": (6,), "shift": (6,), "mean": (6,), "variance": (6,)}
    given = {name: random.uniform(0.5, 2, 6) for name in shapes}
    norm = make_evaluator(one_node("BatchNormalization", shapes, 9, epsilon=2**-10)).run(None, {**given, "x": x})[0]
    scale, shift, mean, variance = (torch.from_numpy(given[name]) for name in list(shapes)[1:])
    exact = torch.nn.functional.batch_norm(torch.from_numpy(x), mean, variance, scale, shift, eps=2**-10)
    np.testing.assert_allclose(norm, exact.numpy(), rtol=1e-12)


@pytest.mark.parametrize(("opset", "axes"), [(9, (1, 2, 3)), (13, (3,))])
def test_a_softmax_is_that_of_its_opset(opset: int, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 1))
    found = make_evaluator(one_node("Softmax", {"x": x.shape}, opset)).run(None, {"x": x})[0]
    np.testing.assert_allclose(found.sum(axes), 1, rtol=1e-12)
