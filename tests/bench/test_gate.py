"""The accuracy gate lets the right model pass and catches each of many planted kernel bugs, small ones included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from mononn_bench.measure.accuracy import (
    check,
    compare,
    failure_reason,
    fp32_limit,
    limits_of,
    max_abs_limit,
    rel_l2_limits,
    worst_errors,
)
from mononn_bench.measure.case import judge
from mononn_bench.measure.rounds import Contestant, Course, Tally
from mononn_bench.models.distance import relative_l2
from mononn_bench.models.inputs import TIMED_SETS
from mononn_bench.record import AccuracyCheck, BuildRecord, ModelRecord, ReferenceRecord, Settings

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
    assert fp32_limit(1e-6) == 1e-5
    assert fp32_limit(1e-5) == pytest.approx(4e-5)
    assert fp32_limit(9e-5) == 1e-4
    assert fp32_limit(2e-6, independent=9e-6) == 1e-5, "the other counts only where ONNX Runtime's does not"


@pytest.mark.parametrize("wrong", [None, 2e-4, 1.0, float("inf"), float("nan")])
def test_a_wrong_or_missing_onnxruntime_loosens_nothing(wrong: float | None) -> None:
    assert fp32_limit(wrong) == 1e-5
    assert fp32_limit(wrong, independent=1.1e-5) == pytest.approx(4.4e-5)
    assert fp32_limit(wrong, independent=5e-3) == 1e-5, "nor does a wrong stand-in"
    assert fp32_limit(5e-5, independent=1e-6) == 1e-5, "over 4 times what another implementation needs"


def half(answer: np.ndarray, exact: np.ndarray, precision: str = "bf16") -> AccuracyCheck:
    (limit,) = rel_l2_limits(precision, ["y"], {}, {}).values()
    return check("y", 0, "before", answer, exact, precision=precision, limit=limit)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("power", [1, 3])
def test_rounding_to_16_bits_passes_and_twice_the_noise_does_not(precision: str, power: int) -> None:
    exact = np.random.default_rng(0).normal(size=(64, 1000)) ** power
    rounded = exact.astype(np.float16) if precision == "fp16" else to_bfloat16(exact.astype(np.float32))
    assert half(rounded, exact, precision).passed
    noise = np.random.default_rng(1).normal(size=exact.shape) * np.sqrt(np.mean(exact**2))
    assert half(exact + 0.015 * noise, exact, precision).passed
    assert "relative L2 3.0e-02 (limit 2e-02)" in failure_reason([half(exact + 0.03 * noise, exact, precision)])


def test_one_element_far_off_fails_in_16_bits() -> None:
    exact = np.random.default_rng(0).normal(size=(64, 1000))
    exact[5, 7] = 0.0
    for wrong, passes in ((0.19, True), (0.21, False)):
        answer = exact.copy()
        answer[5, 7] = wrong
        found = half(answer, exact)
        assert found.rel_l2 is not None and found.rel_l2 < 1e-3
        assert found.passed is passes
    assert "in one place (limit 2.0e-01)" in failure_reason([found])
    exact[0, 0] = answer[0, 0] = 12.0
    assert half(answer, exact).passed, "an output with large values has a larger scale"


def test_top_1_counts_where_the_margin_is_clear() -> None:
    exact = np.random.default_rng(0).uniform(-1, 0, size=(64, 1000))
    limit = max_abs_limit(exact, "fp16")
    assert limit == pytest.approx(0.02 * 10 / 3**0.5, rel=0.01)
    for margin, passes in ((0.9 * limit, True), (1.1 * limit, False)):
        exact[3, :2] = 0.1 + margin, 0.1
        answer = exact.copy()
        answer[3, :2] += -0.6 * limit, 0.6 * limit
        found = half(answer, exact, "fp16")
        assert (found.rel_l2 or 1) < 2e-2 and (found.max_abs or 1) < limit
        assert (found.passed, found.top1_clear, found.top1_different) == (passes, int(not passes), int(not passes))
    assert "another largest value in 1 of 1 places" in failure_reason([found])


def test_nothing_that_is_not_finite_passes_in_any_precision() -> None:
    exact = np.ones((2, 3))
    for precision in ("fp32", "bf16", "fp16"):
        for value in (np.nan, np.inf):
            answer = exact.copy()
            answer[1, 2] = value
            found = check("y", 0, "after", answer, exact, precision=precision, limit=float("inf"))
            assert not found.passed
            assert "not finite" in failure_reason([found])
    assert half(exact, exact).passed


def contestant(name: str, precision: str, details: dict[str, str], folder: Path) -> Contestant:
    build = BuildRecord(
        name, "linear", "", precision, "cpu", 1, "ok", "", "", {}, (), None, None, None, None, details
    )  # fmt: skip
    return Contestant(name, name, Path("python"), build, folder)


@pytest.mark.parametrize("others", [("openvino",), ("onnxruntime", "openvino")])
def test_a_grossly_wrong_onnxruntime_is_incorrect_and_loosens_nobodys_limit(
    others: tuple[str, ...], linear_folder: Path, tmp_path: Path
) -> None:
    reference = replace(read_record(ReferenceRecord, linear_folder / "reference.json"), fp32_errors={"y": 5e-6})
    model = read_record(ModelRecord, linear_folder / "model.json")
    factors = {"onnxruntime": 1.5, "openvino": 1 + 1.5e-5, "xla": 1 + 3e-5, "torch-eager": 1 + 1e-2}
    tallies, contestants = {}, []
    for name in (*others, "xla", "torch-eager"):
        with np.load(linear_folder / "reference.npz") as stored:
            answers = {key: stored[key] * factors[name] for key in stored.files if "/out/" in key}
        np.savez(tmp_path / f"{name}.npz", **answers)
        tallies[name] = Tally(answers=[(tmp_path / f"{name}.npz", (0, 1), "before")])
        details = {"precision": "bf16"} if name == "torch-eager" else {"note": "a note"}
        contestants.append(contestant(name, "fp32", details, tmp_path))
    course = Course(linear_folder, linear_folder / "reference.npz", "fp32", "cpu", Settings(), (0,), tmp_path)
    judged = judge(contestants, course, model, reference, tallies)
    expected = {"onnxruntime": "incorrect", "openvino": "ok", "xla": "incorrect", "torch-eager": "ok"}
    assert {name: verdict.status for name, verdict in judged.items()} == {n: expected[n] for n in judged}
    assert judged["openvino"].reason == "a note"
    limits = {name: {c.limit for c in verdict.checks} for name, verdict in judged.items()}
    assert limits["openvino"] == {2e-5}
    assert limits["torch-eager"] == {2e-2}, "judged by the precision that its build says it computes in"

    halves = judge(contestants, course, replace(model, stored="fp16"), reference, tallies)
    assert {c.limit for verdict in halves.values() for c in verdict.checks} == {2e-2}, "its weights are of 16 bits"
    assert {name for name, verdict in halves.items() if verdict.status == "incorrect"} == {"onnxruntime"} & set(halves)


def test_who_quantises_by_itself_is_no_witness_of_the_files_answers(linear_folder: Path, tmp_path: Path) -> None:
    """It is held against the unquantised model; nobody agrees with the reference that the others are held against."""
    reference = read_record(ReferenceRecord, linear_folder / "reference.json")
    model = read_record(ModelRecord, linear_folder / "model.json")
    with np.load(linear_folder / "reference.npz") as stored:
        exact = {key: stored[key] for key in stored.files if key[:2] in ("0/", "1/")}
    before = {key.replace("/out/", "/unquantised/"): 1.1 * value for key, value in exact.items() if "/out/" in key}
    np.savez(tmp_path / "reference.npz", **exact, **before)
    factors = {"onnxruntime": 1.2, "openvino": 1.3, "torch-inductor": 1.1}
    tallies, contestants = {}, []
    for name, factor in factors.items():
        np.savez(tmp_path / f"{name}.npz", **{key: factor * value for key, value in exact.items() if "/out/" in key})
        tallies[name] = Tally(answers=[(tmp_path / f"{name}.npz", (0, 1), "before")])
        details = {"precision": "own int8"} if name == "torch-inductor" else {}
        contestants.append(contestant(name, "int8", details, tmp_path))
    course = Course(linear_folder, tmp_path / "reference.npz", "int8", "cpu", Settings(), (0,), tmp_path)
    judged = judge(contestants, course, model, reference, tallies)
    statuses = {name: verdict.status for name, verdict in judged.items()}
    assert statuses == {"onnxruntime": "disputed", "openvino": "disputed", "torch-inductor": "ok"}


def test_a_reference_says_what_float32_costs(linear_folder: Path, bert_folder: Path) -> None:
    for folder, outputs in ((linear_folder, {"y"}), (bert_folder, {"last_hidden_state", "pooler_output"})):
        errors = read_record(ReferenceRecord, folder / "reference.json").fp32_errors
        assert set(errors) == outputs
        assert all(1e-8 < error < 1e-5 for error in errors.values())


@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(-100, 100, width=32)), st.floats(1e-6, 1.0))
def test_relative_l2_is_the_scale_of_a_scaled_answer(reference: np.ndarray, scale: float) -> None:
    exact = reference.astype(np.float64)
    error = relative_l2(exact * (1 + scale), exact)
    assert error == pytest.approx(scale, rel=1e-6) or not exact.any()
    assert relative_l2(exact, exact) == 0
    assert relative_l2(np.full_like(exact, np.nan), exact) == np.inf
    assert relative_l2(exact[:2], exact) == np.inf


@pytest.mark.parametrize(
    ("rivals", "limit"),
    [
        ([4e-3, 1e-2], 2e-2),
        ([2e-2, 4e-2], 5e-2),
        ([1e-6, None], 6e-3),
        ([2e-2, 0.3], 5e-2),
        ([0.3, float("inf")], 5e-2),
        ([1e-3, 2e-3], 6e-3),
        ([], 6e-3),
    ],
)
def test_an_8_bit_file_is_held_to_twice_what_others_are_off_by(rivals: list[float | None], limit: float) -> None:
    """Two rivals, and the reference whose numbers are moved."""
    given = [{"y": error} for error in rivals if error is not None]
    assert limits_of("int8", ["y"], given, {"y": 3e-3}) == {"y": pytest.approx(limit)}


def test_the_error_against_the_unquantised_model_stands_beside_the_other(tmp_path: Path, linear_folder: Path) -> None:
    model = read_record(ModelRecord, linear_folder / "model.json")
    exact = np.random.default_rng(0).normal(size=(1, 8))
    np.savez(tmp_path / "reference.npz", **{"0/out/y": exact, "0/unquantised/y": exact / 1.1})
    np.savez(tmp_path / "answers.npz", **{"0/out/y": exact * 1.01})
    held = {"y": 0.05}
    (found,) = compare(tmp_path / "answers.npz", tmp_path / "reference.npz", model, [0], held, "before", "int8")
    assert found.rel_l2 == pytest.approx(0.01) and found.passed
    assert found.unquantised_l2 == pytest.approx(0.111)


def test_who_quantises_by_itself_is_held_against_the_unquantised_model(tmp_path: Path, linear_folder: Path) -> None:
    given = [{"y": 0.04}, {"y": 0.03}]
    limits = limits_of("own int8", ["y"], given, {})
    assert limits == {"y": pytest.approx(0.08)}, "the file itself may be farther from the model than 5e-2"
    assert limits_of("own int8", ["y"], [], {"y": 0.01}) == {"y": pytest.approx(0.02)}
    model = read_record(ModelRecord, linear_folder / "model.json")
    exact = np.random.default_rng(0).normal(size=(1, 8))
    np.savez(tmp_path / "reference.npz", **{"0/out/y": exact * 1.2, "0/unquantised/y": exact})
    for error, passed in ((0.07, True), (0.09, False)):
        np.savez(tmp_path / "answers.npz", **{"0/out/y": exact * (1 + error)})
        files = tmp_path / "answers.npz", tmp_path / "reference.npz"
        (found,) = compare(*files, model, [0], limits, "before", "own int8")
        assert (found.rel_l2, found.unquantised_l2, found.passed) == (*[pytest.approx(error)] * 2, passed)


def test_another_largest_value_fails_in_8_bits_where_the_margin_is_clear() -> None:
    exact = np.random.default_rng(0).uniform(-1, 0, size=(4, 1000))
    margin = 5e-2 * 10 / 3**0.5
    for lead, passes in ((0.9 * margin, True), (1.1 * margin, False)):
        exact[3, :2] = 0.1 + lead, 0.1
        answer = exact.copy()
        answer[3, :2] = 0.1, 0.1 + lead
        found = check("y", 0, "before", answer, exact, precision="int8", limit=0.05)
        assert (found.passed, found.top1_clear) == (passes, int(not passes))
        assert found.max_abs_limit is None
