"""A table of several precisions: a row a case, means and best rivals of each precision by itself."""

from dataclasses import replace

import pytest
from bench_report.records import a_case, a_system

from mononn_bench.analysis.cells import COLUMNS
from mononn_bench.analysis.pool import pool_tables
from mononn_bench.analysis.table import make_table
from mononn_bench.report import words
from mononn_bench.report.figures import draw_figures
from mononn_bench.report.figures.speed import GROUPS_A_ROW
from mononn_bench.report.grids import markdown
from mononn_bench.report.page import page_html
from mononn_bench.report.tables import case_grid, cells_csv, speed_grid

TIMES = {"mononn": 1.0, "openvino": 1.2, "onnxruntime": 1.5}


def in_precision(model, precision, ours):
    """A full-size case of three systems; in bf16 without ONNX Runtime, in int8 with errors of two kinds."""
    times = {label: ours * factor for label, factor in TIMES.items()}
    results = {}
    if precision == "bf16":
        times.pop("onnxruntime")
        results["onnxruntime"] = a_system("onnxruntime", "unavailable", "ONNX Runtime has no bf16 kernels for CPUs")
    record = replace(a_case(model, times, results, full_size=True), precision=precision)
    if precision != "int8":
        return record
    systems = [replace(s, accuracy=tuple(replace(c, unquantised_l2=0.1) for c in s.accuracy)) for s in record.systems]
    return replace(record, systems=tuple(systems))


@pytest.fixture(scope="module")
def records():
    scale = {"fp32": 0.1, "bf16": 0.05, "int8": 0.025}
    return [in_precision(m, p, ours) for p, ours in scale.items() for m in ("bert-base", "resnet50")]


@pytest.fixture(scope="module")
def table(records):
    return make_table(records)


def test_every_precision_has_its_own_rows_and_means(table):
    assert [case.name for case in table.cases] == [
        "bert-base", "resnet50", "bert-base-bf16", "resnet50-bf16", "bert-base-int8", "resnet50-int8",
    ]  # fmt: skip
    named = {headline.name: headline for headline in table.headlines}
    assert list(named) == ["full-size networks", "full-size networks in bf16", "full-size networks in int8"]
    assert [h.precision for h in table.headlines] == ["fp32", "bf16", "int8"]
    assert set(named["full-size networks"].means) == {"onnxruntime", "openvino"}
    assert set(named["full-size networks in bf16"].means) == {"openvino"}
    assert all(mean.total == 2 for headline in table.headlines for mean in headline.means.values())
    text = markdown(speed_grid(table))
    assert "Geometric mean over full-size networks in int8 (2): " in text
    assert "All 2 cases in bf16, onnxruntime: unavailable, ONNX Runtime has no bf16 kernels for CPUs." in text


def test_bf16_has_a_best_rival_without_onnxruntime_and_int8_has_none(table, records):
    best = {case.name: case.best and case.best[0] for case in table.cases}
    assert best["bert-base-bf16"] == best["bert-base-int8"] == "openvino"
    without = replace(records[4], systems=tuple(
        a_system("onnxruntime", "failed", "x") if s.label == "onnxruntime" else s for s in records[4].systems
    ))  # fmt: skip
    (case,) = make_table([without]).cases
    assert case.no_best == "onnxruntime not ok"


def test_only_fp32_is_held_against_the_sentinel(table):
    for cell in table.cells:
        assert (cell.roofline_share is not None) == (cell.precision == "fp32" and cell.median_ms is not None)
    assert not any("roofline" in flag for case in table.cases if case.precision != "fp32" for flag in case.flags)


def test_the_error_against_the_unquantised_model_is_a_column_where_there_is_one(table, records):
    header = cells_csv(table.cells).partition("\n")[0].split(",")
    assert header == list(COLUMNS)
    fp32 = make_table(records[:2])
    assert "unquantised_l2" not in cells_csv(fp32.cells)
    grids = {case.name: case_grid(table, case) for case in table.cases}
    assert "against the unquantised model" in grids["bert-base-int8"].header
    assert "against the unquantised model" not in grids["bert-base"].header
    row = dict(zip(grids["bert-base-int8"].header, grids["bert-base-int8"].rows[0], strict=True))
    assert row["against the unquantised model"] == words.number("unquantised_l2", 0.1) == "1.0e-01"
    assert "against the unquantised model" in page_html(table, records, {}, {})
    assert "against the unquantised model" not in page_html(fp32, records[:2], {}, {})
    assert pool_tables([table, table]).cell("bert-base-int8", "mononn").unquantised_l2 == 0.1


def test_a_precision_begins_a_row_of_the_figure_of_speed(table):
    figures = draw_figures(table)
    panels = figures["speedup"].axes
    assert len(panels) == 3
    titles = [[label.get_text() for label in axes.get_xticklabels()] for axes in panels]
    assert [len(row) for row in titles] == [3, 3, 3] and GROUPS_A_ROW >= 3
    assert "int8" in titles[2][0] and "in int8" in titles[2][2]
    names = [label.get_text() for label in figures["roofline"].axes[1].get_yticklabels()]
    assert names == ["bert-base", "resnet50"]
    assert draw_figures(make_table([in_precision("mlp", "bf16", 0.1)])), "a table without fp32 is drawn too"
