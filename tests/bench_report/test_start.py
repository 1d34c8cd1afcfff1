"""First answers as rows, table, figure and page, of records with times that can be divided by hand."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from bench_report.starts import RECORD

from mononn_bench.analysis.start import start_rows
from mononn_bench.codec import read_record, write_record
from mononn_bench.report.names import report_files
from mononn_bench.report.start import start_grids
from mononn_bench.report.write import write_report
from mononn_bench.started import StartRecord


def test_a_rival_is_held_against_ours_started_the_same_way_round_by_round() -> None:
    rows = {row.starter.label: row for row in start_rows([RECORD])}
    assert rows["mononn native shared"].ratio is None
    assert (rows["mononn native shared"].warm_ms, rows["mononn native shared"].cold_ms) == (10.0, 100.0)
    rival = rows["rival native"]
    assert rival.ratio and rival.ratio.ratio == pytest.approx(4.0)
    assert rival.ratio.low == pytest.approx(rival.ratio.high)  # each round says the same
    assert rival.cold_ratio and rival.cold_ratio.ratio == pytest.approx(3.0)
    assert rival.cold_ratio.low is None  # two rounds have no interval
    assert (rows["mononn native private"].ratio or rival.ratio).ratio == pytest.approx(2.0)
    wrong = rows["rival Python"]
    assert (wrong.warm_ms, wrong.ratio) == (None, None)


def test_without_ours_there_are_times_and_no_ratios() -> None:
    rows = start_rows([replace(RECORD, starters=RECORD.starters[3:])])
    assert [(row.warm_ms, row.ratio) for row in rows] == [(40.0, None), (None, None)]


def test_the_table_has_every_row_and_says_why_one_has_no_time() -> None:
    (grid,) = start_grids([RECORD, replace(RECORD, precision="int8")])
    assert [row[0] for row in grid.rows] == ["net"] * 5 + ["net-int8"] * 5
    assert list(grid.rows[3]) == [
        "net", "rival native", "40.0", "4.00 [4.00, 4.00]", "300", "3.00", "123", "20.0", "457", "100",
    ]  # fmt: skip
    assert grid.rows[4][2] == "incorrect"
    assert "net, rival Python: incorrect, output y is off." in grid.notes
    assert any(note.startswith("6 starts stand although") for note in grid.notes)
    assert not any("8 at once did not" in note for note in grid.notes)
    (alone,) = start_grids([replace(RECORD, starters=(replace(RECORD.starters[3], all_mb=None),))])
    assert any(note.startswith("net, rival native: 8 at once did not") for note in alone.notes)
    assert start_grids([]) == []


def test_the_report_has_tables_figure_and_section(tmp_path: Path) -> None:
    write_record(RECORD, tmp_path / "start" / "net.json")
    assert read_record(StartRecord, tmp_path / "start" / "net.json") == RECORD
    write_report([], tmp_path)
    for name in report_files([], ["mononn", "rival"], studies=["start"]):
        assert (tmp_path / name).stat().st_size, name
    rows = list(csv.DictReader((tmp_path / "tables" / "start.csv").open()))
    assert [row["label"] for row in rows] == [s.label for s in RECORD.starters]
    assert float(rows[3]["ratio"]) == pytest.approx(4.0)
    page = (tmp_path / "report.html").read_text()
    assert '<section id="start">' in page and 'id="figure-start"' in page and "rival Python" in page
    assert "Inference speed on here" in page
