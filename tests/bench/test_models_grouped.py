"""Single convolutions in groups: named by their shape, and exported as one node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from mononn_bench.codec import read_record
from mononn_bench.errors import ModelError, UnknownNameError
from mononn_bench.models.distance import relative_l2
from mononn_bench.models.folder import ONNX, RECORD
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.zoo import get_model
from mononn_bench.record import ModelRecord
from mononn_bench.systems.base import Task
from mononn_bench.systems.gspc import Gspc
from tests.bench.test_models_networks import check, exact_answers


def test_a_layer_is_named_by_its_shape() -> None:
    spec = get_model("grouped-128x56-g32")
    assert (spec.name, spec.inputs[0].shape, spec.full_size) == ("grouped-128x56-g32", (1, 128, 56, 56), False)
    assert spec.config["groups"] == 32
    assert get_model("grouped-128x56-g32-b8").inputs[0].shape == (8, 128, 56, 56)
    with pytest.raises(ModelError, match="3 groups do not divide 64 channels"):
        get_model("grouped-64x56-g3")
    with pytest.raises(UnknownNameError):
        get_model("grouped-64x56")


def test_a_layer_is_exported_as_one_convolution(tmp_path: Path) -> None:
    name = "grouped-16x10-g4"
    check(name, tmp_path)
    graph = onnx.load(tmp_path / ONNX).graph
    assert [node.op_type for node in graph.node] == ["Conv"]
    assert len(graph.initializer) == 1
    record = read_record(ModelRecord, tmp_path / RECORD)
    assert record.flops == 2 * 10 * 10 * 16 * 4 * 9
    arrays = make_inputs(get_model(name).inputs, sets=1, seed=0)
    (exact,) = exact_answers(tmp_path, arrays)
    assert 0.3 < float(np.std(exact["y"])) < 3
    task = Task(record, tmp_path, tmp_path / "build", 1, "fp32", "cpu")
    task.build_folder.mkdir()
    Gspc().build(task)
    system = Gspc()
    system.load(task)
    system.bind(arrays[0])
    system.run()
    assert relative_l2(system.outputs()["y"], exact["y"]) < 1e-6
