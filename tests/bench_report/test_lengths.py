"""Requests of many lengths as tables, a figure and a page, from a record whose times can be worked out by hand."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from bench_report.lengths import MODEL, MS

from mononn_bench.analysis.lengths import best_of, length_rows, mean_of_best
from mononn_bench.codec import read_record, write_record
from mononn_bench.report.figures.lengths import lengths_figure
from mononn_bench.report.figures.style import styled
from mononn_bench.report.lengths import length_grids, times_grid
from mononn_bench.report.names import report_files
from mononn_bench.report.write import write_report
from mononn_bench.served import ServedModel


def test_times_are_means_and_tails_over_requests_and_ratios_are_paired() -> None:
    rows = {row.contestant: row for row in length_rows([MODEL])}
    ours, rival = rows["mononn"], rows["onnxruntime, dynamic"]
    assert ours.mean_ms == pytest.approx(1.25)  # 3/4 of 1 and 1/4 of 2; repeated blocks do not count
    assert (ours.median_ms, ours.p99_ms, ours.ratio) == (1.0, 2.0, None)
    assert rival.ratio == pytest.approx((0.75 * 1.5 + 0.25 * 4) / 1.25)
    assert rival.p99_ratio == pytest.approx(2.0)
    assert rows["openvino, dynamic"].ratio == pytest.approx(1.2)
    assert rival.verdict == "faster" and rows["mononn@2"].verdict is None
    assert rows["mononn@2"].ratio == pytest.approx(1.0)
    assert (rival.padded, rival.first) == (0.0, pytest.approx(2.0))
    assert ours.padded == pytest.approx(1 - 12.5 / 17)
    assert (rival.loaded_mb, rival.served_mb, rival.memory_requests) == (90.0, 300.0, 1000)
    failed = rows["torch-inductor, dynamic"]
    assert (failed.status, failed.reason, failed.mean_ms, failed.ratio) == ("failed", "no compiler", None, None)


def test_too_few_requests_have_no_tail_and_too_few_rounds_no_interval() -> None:
    settings = replace(MODEL.settings, rounds=2)
    short = replace(MODEL, settings=settings, rounds=MODEL.rounds[:2], lengths=MODEL.lengths[: settings.timed])
    row = next(row for row in length_rows([short]) if row.contestant == "openvino, dynamic")
    assert row.p99_ms is None
    assert (row.ratio, row.low, row.verdict) == (pytest.approx(1.2), None, None)


def test_the_best_rival_is_the_best_form_of_all_and_needs_both_runtimes() -> None:
    found = best_of(MODEL)
    assert found is not None
    assert (found[0], found[1].ratio) == ("openvino, dynamic", pytest.approx(1.2))
    other = replace(MODEL, model=replace(MODEL.model, name="other"))
    assert mean_of_best([MODEL, other]) == pytest.approx(1.2)
    for gone in ("openvino, dynamic", "mononn"):
        systems = tuple(replace(s, status="failed") if s.label == gone else s for s in MODEL.systems)
        without = replace(other, systems=systems)
        assert best_of(without) is None
        assert mean_of_best([MODEL, without]) is None
    lame = replace(MODEL, systems=tuple(replace(s, status="failed") for s in MODEL.systems))
    assert all(row.ratio is None for row in length_rows([lame]))


def test_a_failure_is_a_row_with_its_reason() -> None:
    grid = times_grid([MODEL], length_rows([MODEL]))
    assert ("net", "torch-inductor, dynamic", "failed", "", "", "", "", "") in grid.rows
    assert "net, torch-inductor, dynamic: failed, no compiler." in grid.notes
    assert any("best rival openvino, dynamic, 1.200" in note for note in grid.notes)
    assert any(MODEL.distribution.source in note for note in grid.notes)


def test_requests_alone_make_a_report(tmp_path: Path) -> None:
    write_record(MODEL, tmp_path / "lengths" / "net.json")
    assert read_record(ServedModel, tmp_path / "lengths" / "net.json") == MODEL
    write_report([], tmp_path)
    assert all((tmp_path / name).exists() for name in report_files([], ["mononn"], studies=["lengths"]))
    page = (tmp_path / "report.html").read_text()
    assert 'id="figure-lengths"' in page and all(grid.title in page for grid in length_grids([MODEL]))
    text = (tmp_path / "tables" / "lengths.md").read_text()
    assert "+210" in text and "1.700 [1.700, 1.700] faster" in text
    assert r"\begin{tabular}" in (tmp_path / "tables" / "lengths.tex").read_text()
    with (tmp_path / "tables" / "lengths.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["contestant"] for row in rows] == [system.label for system in MODEL.systems]


def test_the_figure_has_a_line_a_contestant_that_is_ok() -> None:
    with styled():
        figure = lengths_figure([MODEL])
        nothing = lengths_figure([replace(MODEL, systems=(replace(MODEL.systems[0], status="failed"),))])
    lines = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].get_lines()}
    assert set(lines) == set(MS) - {"mononn@2"}
    assert lines["openvino, dynamic"] == [[16.0, 1.2], [20.0, 2.4]]
    assert "no contestant is ok" in nothing.axes[0].texts[0].get_text()
