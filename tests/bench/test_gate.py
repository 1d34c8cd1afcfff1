"""The accuracy gate lets the right model pass and catches each of many planted kernel bugs, small ones included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import helper, numpy_helper

from mononn_bench.codec import read_record
from mononn_bench.measure.accuracy import compare, failure_reason, fp32_limit, relative_l2, worst_errors
from mononn_bench.models.inputs import TIMED_SETS
from mononn_bench.record import ModelRecord

Edit = Callable[[onnx.GraphProto], None]


def nodes(graph: onnx.GraphProto, kind: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == kind]


def named(graph: onnx.GraphProto, part: str) -> onnx.NodeProto:
    """The node that reads the initializer whose name contains `part`."""
    return next(node for node in graph.node if any(part in name for name in node.input))


def bypass(node: onnx.NodeProto, kept: int = 0) -> None:
    """Let a node hand on one of its inputs as it is."""
    source = node.input[kept]
    del node.input[:], node.attribute[:]
    node.input.append(source)
    node.op_type = "Identity"


def set_attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def change_constant(graph: onnx.GraphProto, part: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    tensor = next(t for t in graph.initializer if part in t.name)
    changed = change(numpy_helper.to_array(tensor)).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    return (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def mask_added(graph: onnx.GraphProto) -> onnx.NodeProto:
    scores = nodes(graph, "Softmax")[0].input[0]
    return next(node for node in graph.node if scores in node.output)


def scale_of_scores(graph: onnx.GraphProto) -> onnx.NodeProto:
    return next(node for node in graph.node if mask_added(graph).input[0] in node.output)


def last_column_lost(graph: onnx.GraphProto) -> None:
    """As a product would that forgets the rest of its last tile."""
    change_constant(graph, "bert.pooler.dense.weight", lambda a: a * (np.arange(a.shape[1]) < a.shape[1] - 1))


BUGS: dict[str, Edit] = {
    "attention scale missing": lambda g: bypass(scale_of_scores(g)),
    "mask ignored": lambda g: bypass(mask_added(g)),
    "softmax over the wrong axis": lambda g: set_attribute(nodes(g, "Softmax")[1], "axis", -2),
    "bias of the query dropped": lambda g: bypass(named(g, "layer.0.attention.self.query.bias")),
    "bias of the second feed-forward product dropped": lambda g: bypass(named(g, "layer.1.output.dense.bias")),
    "shift of a layer norm dropped": lambda g: nodes(g, "LayerNormalization")[2].input.pop(),
    "epsilon of a layer norm 1e-3": lambda g: set_attribute(nodes(g, "LayerNormalization")[0], "epsilon", 1e-3),
    "gain of a layer norm dropped": lambda g: change_constant(g, "layer.0.output.LayerNorm.weight", np.ones_like),
    "GELU without the square root of two": lambda g: bypass(nodes(g, "Div")[0]),
    "residual dropped": lambda g: bypass(
        next(n for n in g.node if nodes(g, "LayerNormalization")[3].input[0] in n.output)
    ),
    "heads not transposed back": lambda g: set_attribute(nodes(g, "Transpose")[3], "perm", [0, 1, 2, 3]),
    "positions off by one": lambda g: change_constant(g, "embedding_2", lambda a: np.roll(a, 1, axis=-2)),
    "segments ignored": lambda g: change_constant(g, "token_type", lambda a: np.broadcast_to(a[:1], a.shape)),
    "key and value weights exchanged": lambda g: _exchange(g),
    "last column of a product lost": last_column_lost,
    "products in bfloat16": lambda g: change_constant(g, "bert.pooler.dense.weight", to_bfloat16),
    "a row of weights lost by one part in a thousand": lambda g: change_constant(
        g, "bert.pooler.dense.weight", lambda a: np.concatenate([a[:1] * 1.001, a[1:]])
    ),
}


def _exchange(graph: onnx.GraphProto) -> None:
    products = nodes(graph, "MatMul")
    products[1].input[1], products[2].input[1] = products[2].input[1], products[1].input[1]


def answers_of(model: onnx.ModelProto, folder: Path, path: Path) -> Path:
    """Answers of ONNX Runtime to every timed input set, as a worker would write them."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    stored = {}
    with np.load(folder / "reference.npz") as reference:
        for index in range(TIMED_SETS):
            given = {i.name: reference[f"{index}/in/{i.name}"] for i in session.get_inputs()}
            for output, answer in zip(session.get_outputs(), session.run(None, given), strict=True):
                stored[f"{index}/out/{output.name}"] = answer
    np.savez(path, **stored)
    return path


@pytest.fixture(scope="session")
def limits(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The gate's limits, from ONNX Runtime's own errors; the right model passes."""
    path = answers_of(
        onnx.load(bert_folder / "model.onnx"), bert_folder, tmp_path_factory.mktemp("right") / "right.npz"
    )
    record = read_record(ModelRecord, bert_folder / "model.json")
    anything = {tensor.name: np.inf for tensor in record.outputs}
    reference, sets = bert_folder / "reference.npz", range(TIMED_SETS)
    errors = worst_errors(compare(path, reference, record, sets, anything, "before"))
    found = {name: fp32_limit(error) for name, error in errors.items()}
    assert failure_reason(compare(path, reference, record, sets, found, "before")) == ""
    return found


@pytest.mark.parametrize("bug", BUGS)
def test_every_planted_bug_fails_the_gate(
    bug: str, bert_folder: Path, limits: dict[str, float], tmp_path: Path
) -> None:
    model = onnx.load(bert_folder / "model.onnx")
    BUGS[bug](model.graph)
    path = answers_of(model, bert_folder, tmp_path / "wrong.npz")
    record = read_record(ModelRecord, bert_folder / "model.json")
    reason = failure_reason(compare(path, bert_folder / "reference.npz", record, range(TIMED_SETS), limits, "before"))
    assert reason, f"{bug} passes"


def test_limits_follow_onnxruntime_between_floor_and_ceiling() -> None:
    assert fp32_limit(None) == 1e-5
    assert fp32_limit(float("inf")) == 1e-5
    assert fp32_limit(1e-6) == 1e-5
    assert fp32_limit(1e-5) == pytest.approx(4e-5)
    assert fp32_limit(1.0) == 1e-4


@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(-100, 100, width=32)), st.floats(1e-6, 1.0))
def test_relative_l2_is_the_scale_of_a_scaled_answer(reference: np.ndarray, scale: float) -> None:
    exact = reference.astype(np.float64)
    error = relative_l2(exact * (1 + scale), exact)
    assert error == pytest.approx(scale, rel=1e-6) or not exact.any()
    assert relative_l2(exact, exact) == 0
    assert relative_l2(np.full_like(exact, np.nan), exact) == np.inf
    assert relative_l2(exact[:2], exact) == np.inf
