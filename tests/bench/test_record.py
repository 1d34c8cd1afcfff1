"""Records go to JSON and back unchanged, and what does not fit is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mononn_bench import record
from mononn_bench.codec import from_plain, read_record, to_plain, write_record
from mononn_bench.errors import RecordError

MODEL = record.ModelRecord(
    name="mlp", batch=1, full_size=False, weights="seeded", seed=0, source="zoo", digest="ab", opset=18,
    inputs=(record.Tensor("x", "float32", (1, 4)),), outputs=(record.Tensor("y", "float32", (1, 4)),),
    flops=32, weight_bytes=64, compulsory_bytes=96, versions={"torch": "2"},
)  # fmt: skip


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.json"
    write_record(MODEL, path)
    assert read_record(record.ModelRecord, path) == MODEL
    assert [p.name for p in path.parent.iterdir()] == ["model.json"]


@given(st.builds(record.Block))
def test_every_block_survives_json(block: record.Block) -> None:
    def finite(x: float) -> float:
        return x if abs(x) < 1e300 else 0.0

    disturbance = replace(
        block.disturbance,
        elapsed_s=finite(block.disturbance.elapsed_s),
        others_s=finite(block.disturbance.others_s),
        others_share=finite(block.disturbance.others_share),
    )
    block = replace(block, value_s=finite(block.value_s), p90_s=finite(block.p90_s), disturbance=disturbance)
    assert from_plain(record.Block, json.loads(json.dumps(to_plain(block)))) == block


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"batch": "one"}, "batch"),
        ({"batch": True}, "batch"),
        ({"weights": "stolen"}, "weights"),
        ({"inputs": [{"name": "x", "dtype": "float32"}]}, "shape"),
        ({"inputs": [{"name": "x", "dtype": "float32", "shape": [1, "n"]}]}, r"shape\[1\]"),
        ({"colour": "red"}, "colour"),
        ({"schema_version": 0}, "schema version 0"),
    ],
)
def test_a_field_that_does_not_fit_is_named(tmp_path: Path, change: dict[str, object], field: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**to_plain(MODEL), **change}))
    with pytest.raises(RecordError, match=field):
        read_record(record.ModelRecord, path)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"gone\.json"):
        read_record(record.ModelRecord, tmp_path / "gone.json")
    (tmp_path / "half.json").write_text('{"name": ')
    with pytest.raises(RecordError, match=r"half\.json is not JSON"):
        read_record(record.ModelRecord, tmp_path / "half.json")
    plain = to_plain(MODEL)
    del plain["digest"]
    (tmp_path / "less.json").write_text(json.dumps(plain))
    with pytest.raises(RecordError, match="lacks the field 'digest'"):
        read_record(record.ModelRecord, tmp_path / "less.json")


def test_not_a_number_becomes_null() -> None:
    assert to_plain({"a": float("nan"), "b": (1.5, float("inf"))}) == {"a": None, "b": [1.5, None]}
