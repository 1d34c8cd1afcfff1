"""Requests of many lengths: how they are drawn, padded and cut, and a tiny case from build to record."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mononn_bench import cli
from mononn_bench.codec import read_record, write_record
from mononn_bench.errors import ModelError, RecordError
from mononn_bench.lengths.build import entries_of
from mononn_bench.lengths.case import disputed, serve_case
from mononn_bench.lengths.distribution import (
    SQUAD,
    draw_lengths,
    make_grid,
    mean_length,
    padded_length,
    quantile,
    read_distribution,
)
from mononn_bench.lengths.export import encoder_inputs, write_encoder
from mononn_bench.lengths.requests import Buffers, cut_answers, fill_padded, make_requests, shapes_at
from mononn_bench.lengths.serving import Serving
from mononn_bench.lengths.worker import Answering
from mononn_bench.models.zoo import get_model
from mononn_bench.record import AccuracyCheck, ModelRecord, ReferenceRecord, Tensor
from mononn_bench.served import Distribution, ServedModel, ServedSystem, ServingSettings
from mononn_bench.systems import get_system
from mononn_bench.systems.base import Task

SHORT = Distribution("short", "lengths for tests", "none", "none", 3, (1, 0, 2, 4, 0, 0, 3, 1))
FEW = ServingSettings(
    rounds=2, cycles=2, requests=3, step=4, memory_requests=12, warm_up_s=0.0, warm_up_runs=1, repeats=0,
    build_limit_s=60.0, answer_limit_s=30.0, memory_limit_mb=2000,
)  # fmt: skip
SPECS = encoder_inputs("bert-test")


def test_the_shipped_distribution_is_what_was_published() -> None:
    found = read_distribution()
    assert sum(found.counts) == 88641
    assert [quantile(found, share) for share in (0.0, 0.5, 1.0)] == [36, 159, 384]
    assert mean_length(found) == pytest.approx(172.036, abs=1e-3)
    assert found.counts[-1] == 1054  # what was cut at 384
    assert "2107.02027" in found.source


def test_lengths_are_drawn_as_often_as_they_occur() -> None:
    drawn = draw_lengths(SHORT, 11000, seed=0)
    counts = Counter(drawn)
    for place, count in enumerate(SHORT.counts):
        assert counts[3 + place] == pytest.approx(1000 * count, rel=0.15)
    assert draw_lengths(SHORT, 50, seed=0) == drawn[:50]
    assert draw_lengths(SHORT, 50, seed=1) != drawn[:50]


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=40), first=st.integers(1, 40), step=st.integers(1, 20))
def test_every_length_fits_in_the_grid_and_in_nothing_shorter(counts: list[int], first: int, step: int) -> None:
    one = replace(SHORT, first=first, counts=(*counts, 1))
    grid, longest = make_grid(one, step), quantile(one, 1.0)
    assert grid[-1] == longest and list(grid) == sorted(set(grid))
    assert all(end % step == 0 for end in grid[:-1])
    assert padded_length(quantile(one, 0.0), grid) == grid[0]
    for length in {*draw_lengths(one, 20, seed=0), quantile(one, 0.0), longest}:
        end = padded_length(length, grid)
        assert length <= end < length + step
    with pytest.raises(ValueError, match="more than"):
        padded_length(longest + 1, grid)


def test_a_file_without_lengths_is_no_distribution(tmp_path: Path) -> None:
    for broken in (replace(SHORT, counts=()), replace(SHORT, counts=(0, 0)), replace(SHORT, first=0)):
        write_record(broken, tmp_path / "d.json")
        with pytest.raises(RecordError, match="correct the file"):
            read_distribution(tmp_path / "d.json")
    assert read_distribution(SQUAD).name == "squad-1.1"


def test_requests_have_their_length_and_no_padding() -> None:
    lengths = [5, 9, 3]
    requests = make_requests(SPECS, lengths, seed=0)
    for number, length in enumerate(lengths):
        found = requests.inputs(number, SPECS)
        assert {name: array.shape for name, array in found.items()} == dict.fromkeys(found, (1, length))
        assert found["attention_mask"].all()
        assert found["input_ids"].min() >= 4 and found["input_ids"].max() < 99
        segments = found["token_type_ids"][0]
        assert (np.diff(segments) >= 0).all() and segments[0] == 0
    again = make_requests(SPECS, lengths, seed=0)
    assert all(np.array_equal(requests.inputs(1, SPECS)[n], a) for n, a in again.inputs(1, SPECS).items())


class Pooling(Serving):
    """A network by hand: the states of tokens, and their mean over the mask, which are what the mask lets through."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.seen: list[int] = []

    def bind(self, inputs, outputs):  # type: ignore[no-untyped-def]
        self.seen.append(inputs["input_ids"].shape[1])

        def run():  # type: ignore[no-untyped-def]
            mask = inputs["attention_mask"][0].astype(np.float32)
            states = np.cos(inputs["input_ids"][0, :, None] * np.arange(1.0, self.width + 1))
            mean = mask @ states / mask.sum()
            outputs["last_hidden_state"][0] = states + mean
            outputs["pooler_output"][0] = mean
            return outputs

        return run


def a_model(width: int = 32) -> ModelRecord:
    return ModelRecord(
        name="bert-test", batch=1, full_size=False, weights="seeded", seed=0, source="", digest="", opset=18,
        inputs=tuple(Tensor(s.name, s.dtype, (1, 0)) for s in SPECS),
        outputs=(Tensor("last_hidden_state", "float32", (1, 0, width)), Tensor("pooler_output", "float32", (1, width))),
        flops=0, weight_bytes=0, compulsory_bytes=0, versions={},
    )  # fmt: skip


@given(lengths=st.lists(st.integers(1, 16), min_size=1, max_size=8), step=st.sampled_from([3, 4, 16]))
def test_padded_answers_are_the_exact_ones_whatever_came_before(lengths: list[int], step: int) -> None:
    grid = make_grid(replace(SHORT, first=1, counts=(1,) * 16), step)
    exact, padded = (Answering(Pooling(32), a_model(), g, 16) for g in ((), grid))
    requests = make_requests(SPECS, lengths, seed=1)
    for number, length in enumerate(lengths):
        given_inputs = requests.inputs(number, SPECS)
        wanted = {name: np.array(array) for name, array in exact(given_inputs).items()}
        found = padded(given_inputs)
        assert found["last_hidden_state"].shape == (1, length, 32)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_what_is_padded_to_is_bound_once_and_what_is_not_each_time() -> None:
    requests = make_requests(SPECS, [5, 6, 5, 9], seed=1)
    for grid, seen in (((8, 16), [8, 16]), ((), [5, 6, 5, 9])):
        serving = Pooling(32)
        answering = Answering(serving, a_model(), grid, 16)
        for number in range(4):
            answering(requests.inputs(number, SPECS))
        assert serving.seen == seen


def test_padding_is_zeros_and_is_cut_away() -> None:
    model, room = a_model(), Buffers(a_model().inputs, 16)
    arrays = room.at(8)
    for array in arrays.values():
        array[:] = 7
    request = make_requests(SPECS, [5], seed=0).inputs(0, SPECS)
    fill_padded(arrays, request)
    assert all((array[0, 5:] == 0).all() and array.flags.c_contiguous for array in arrays.values())
    assert arrays["input_ids"][0, :5].tolist() == request["input_ids"][0].tolist()
    assert all(np.shares_memory(array, room.at(16)[name]) for name, array in arrays.items())
    answers = {name: np.zeros(shape) for name, shape in shapes_at(model.outputs, 8).items()}
    cut = cut_answers(answers, model.outputs, 5)
    assert {name: array.shape for name, array in cut.items()} == {
        "last_hidden_state": (1, 5, 32), "pooler_output": (1, 32),
    }  # fmt: skip


def test_only_encoders_of_tokens_are_asked(tmp_path: Path) -> None:
    assert [spec.name for spec in encoder_inputs("t5-test")] == ["input_ids", "attention_mask"]
    with pytest.raises(ModelError, match="name a BERT or a T5"):
        encoder_inputs("mlp")
    with pytest.raises(ModelError, match="positions for 32 tokens"):
        write_encoder("bert-test", read_distribution(), tmp_path)
    for more in (["--target", "cuda"], ["--defaults"], ["--precision", "bf16"], ["--path", "m.onnx"]):
        assert cli.main(["lengths", "--model", "bert-test", *more]) == 2


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """T5's encoder, small, with an open axis."""
    folder = tmp_path_factory.mktemp("encoder")
    write_encoder("t5-test", SHORT, folder)
    return folder


def test_an_encoder_has_an_open_axis_and_right_answers_at_several_lengths(encoder: Path) -> None:
    model = read_record(ModelRecord, encoder / "model.json")
    assert [tensor.shape for tensor in (*model.inputs, *model.outputs)] == [(1, 0), (1, 0), (1, 0, 32)]
    with np.load(encoder / "reference.npz") as stored:
        lengths = [stored[f"{i}/out/last_hidden_state"].shape[1] for i in range(9)]
        assert stored["0/out/last_hidden_state"].dtype == np.float64
    assert lengths == [3, 5, 6, 9, 10, 3, 6, 9, 10]
    task = Task(model, encoder, encoder / "build", 1, "fp32", "cpu")
    task.build_folder.mkdir()
    answers = []
    for grid in ((), (4, 8, 10)):
        serving = Serving(get_system("fake-ok")(), (4, 8, 10))
        serving.build(task)
        serving.load(task)
        specs = encoder_inputs("t5-test")
        request = make_requests(specs, [5], 0).inputs(0, specs)
        answers.append(np.array(Answering(serving, model, grid, 10)(request)["last_hidden_state"]))
    assert answers[0].shape == (1, 5, 32)
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4, atol=1e-5)


def a_case(encoder: Path, folder: Path, systems: list[str], settings: ServingSettings, said: list[str]) -> ServedModel:
    entries = [entry for name in systems for entry in entries_of(name, Path(sys.executable), "made-by")]
    return serve_case(
        encoder, entries, SHORT, settings, cores=(0,), scratch=folder / "scratch", builds=folder / "builds",
        machine_name="here", command="again", say=said.append, lock=folder / "lock",
    )  # fmt: skip


def test_requests_are_answered_in_turns_and_failures_are_rows(encoder: Path, tmp_path: Path) -> None:
    systems = ["fake-ok", "fake-wrong", "fake-crash", "fake-missing", "fake-broken", "tvm"]
    said = list[str]()
    found = a_case(encoder, tmp_path, systems, FEW, said)
    rows = {one.system: one for one in found.systems}
    assert {name: one.status for name, one in rows.items()} == {
        "fake-ok": "ok", "fake-wrong": "incorrect", "fake-crash": "failed", "fake-missing": "unavailable",
        "fake-broken": "failed", "tvm": "unavailable",
    }  # fmt: skip
    assert "relative L2 1.0e-03" in rows["fake-wrong"].reason
    assert rows["fake-crash"].reason == "ended by SIGSEGV in answer"
    assert rows["fake-missing"].reason == "the library fake is not installed"
    assert (len(found.lengths), [c.first for r in found.rounds for c in r.cycles]) == (12, [0, 3, 6, 9])
    for one in found.rounds:
        numbers = range(6 * one.index, 6 * one.index + 6)
        of_numbers = [found.lengths[n] for n in numbers]
        assert sorted(one.warmed) == sorted({numbers.start + of_numbers.index(length) for length in of_numbers})
        assert len(one.first_ns["fake-ok, dynamic"]) == len(one.warmed)
        for cycle in one.cycles:
            blocks = {block.contestant: block for block in cycle.blocks}
            assert set(blocks) == {"fake-ok, dynamic", "fake-wrong, dynamic"}
            assert all(len(block.samples_ns) == 3 and min(block.samples_ns) > 0 for block in blocks.values())
            assert cycle.sentinel is not None
    assert [reading.requests for reading in rows["fake-ok"].memory] == [0, 1, 10, 12]
    assert all(reading.proportional_mb > 0 for reading in rows["fake-ok"].memory)
    assert {check.when for check in rows["fake-ok"].accuracy} == {"before", "after"}
    assert not (tmp_path / "scratch").exists()
    write_record(found, tmp_path / "record.json")
    assert read_record(ServedModel, tmp_path / "record.json") == found
    said.clear()
    a_case(encoder, tmp_path, ["fake-ok"], FEW, said)
    assert not any("building" in line for line in said)


def test_ours_and_a_runtime_answer_alike_in_each_form(encoder: Path, tmp_path: Path) -> None:
    settings = replace(FEW, rounds=1, cycles=1, memory_requests=0)
    found = a_case(encoder, tmp_path, ["mononn", "onnxruntime"], settings, [])
    assert [one.label for one in found.systems] == [
        "mononn", "mononn@2", "onnxruntime, dynamic", "onnxruntime, bucketed",
    ]  # fmt: skip
    assert [(one.status, one.reason) for one in found.systems] == [("ok", "")] * 4
    assert found.grid == (4, 8, 10)
    assert len(found.rounds[0].cycles[0].blocks) == 4


def test_a_reference_that_no_independent_system_agrees_with_is_disputed() -> None:
    check = AccuracyCheck("y", 0, "before", 1.0, 1.0, 1e-5, passed=False)
    reference = ReferenceRecord("", "by hand", "pytorch", 1, 0, "", {})
    ours, torch = (
        ServedSystem("mononn", "mononn", "family", "ok", ""),
        ServedSystem("t", "torch-inductor", "d", "ok", ""),
    )
    wrong = ServedSystem("o", "onnxruntime", "dynamic", "incorrect", "off", accuracy=(check,))
    right = replace(wrong, system="openvino", status="ok")
    assert {row.status for row in disputed([ours, torch, wrong], reference)} == {"disputed"}
    for rows in ([ours, torch], [ours, wrong, right]):
        assert disputed(rows, reference) == tuple(rows)


def test_an_encoder_is_one_of_the_catalogue() -> None:
    assert get_model("bert-mini").config["max_position_embeddings"] >= quantile(read_distribution(), 1.0)
