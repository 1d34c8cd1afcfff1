"""What the analysis and the tables make of records whose times are known."""

import csv
import io
from dataclasses import replace

import pytest
from bench_report.records import a_case, a_system

from mononn_bench.analysis.blocks import accepted_blocks, paired_rounds
from mononn_bench.analysis.table import make_table
from mononn_bench.record import Round
from mononn_bench.report import figures, tables

TRIO = {"mononn": 1e-3, "onnxruntime": 2e-3, "openvino": 1.5e-3}


def cells_of(table):
    return {(c.model, c.system): c for c in table.cells}


def test_ratios_come_back(records):
    cells = cells_of(make_table(records))
    assert cells["bert-tiny", "openvino"].speedup == pytest.approx(273 / 130, rel=0.05)
    assert cells["mlp", "onnxruntime"].speedup == pytest.approx(31 / 13, rel=0.03)
    assert cells["mlp", "onnxruntime"].verdict == "faster"
    assert cells["mlp", "mononn"].speedup == 1.0
    assert cells["bert-base", "torch-eager"].inferences_per_s == pytest.approx(1 / 0.151, rel=0.2)


def test_repeated_blocks_do_not_count(records):
    assert all(block.accepted and block.value_s < 0.9 for block in accepted_blocks(records[0], "mononn"))
    assert len(accepted_blocks(records[0], "mononn")) == 16


def test_a_system_without_a_speed_keeps_its_row_and_reason(records):
    cell = cells_of(make_table(records))["mlp", "torch-inductor"]
    assert (cell.status, cell.median_ms, cell.speedup, cell.verdict) == ("failed", None, None, None)
    assert "SIGSEGV" in cell.reason


@pytest.mark.parametrize("status", ["incorrect", "failed", "disputed", "timeout"])
def test_a_wrong_answer_has_no_speed_even_with_blocks(status):
    record = a_case("mlp", TRIO, {"openvino": a_system("openvino", status, "because")})
    cell = cells_of(make_table([record]))["mlp", "openvino"]
    assert (cell.median_ms, cell.speedup, cell.inferences_per_s) == (None, None, None)


def test_the_best_rival_is_the_minimum():
    (case,) = make_table([a_case("mlp", TRIO)]).cases
    name, found = case.best
    assert name == "openvino"
    assert found.ratio == pytest.approx(1.5, rel=0.03)


@pytest.mark.parametrize("missing", ["onnxruntime", "openvino"])
def test_no_best_rival_without_onnx_runtime_and_openvino(missing):
    record = a_case("mlp", TRIO, {missing: a_system(missing, "unavailable", "no wheel for this machine")})
    (case,) = make_table([record]).cases
    assert case.best is None
    assert missing in case.no_best


def test_openvino_is_not_needed_on_another_architecture():
    record = a_case("mlp", TRIO, {"openvino": a_system("openvino", "unavailable", "no wheel")})
    record = replace(record, machine=replace(record.machine, architecture="aarch64"))
    assert make_table([record]).cases[0].best[0] == "onnxruntime"


def test_an_undertuned_system_stays_out_of_best_rivals_and_headlines():
    times = {**TRIO, "tvm": 1.1e-3}
    table = make_table([a_case("mlp", times, {"tvm": a_system("tvm", "undertuned", "12 tasks had no match")})])
    assert cells_of(table)["mlp", "tvm"].speedup == pytest.approx(1.1, rel=0.03)
    assert table.cases[0].best[0] == "openvino"
    assert "tvm" not in table.headlines[0].means


def test_a_slow_system_has_raw_times_only():
    times = {**TRIO, "tvm": 3.0}
    table = make_table([a_case("mlp", times, {"tvm": a_system("tvm", slow=True)})])
    cell = cells_of(table)["mlp", "tvm"]
    assert cell.median_ms > 2000
    assert (cell.speedup, cell.verdict) == (None, None)
    assert "tvm" not in table.headlines[0].means
    assert " ms " in tables.speedup_markdown(table).splitlines()[6]
    assert "over 2 s a run" in cell.reason


def test_over_the_roofline_fails():
    table = make_table([a_case("mlp", {**TRIO, "magic": 1e-6})])
    cell = cells_of(table)["mlp", "magic"]
    assert cell.status == "failed"
    assert "roofline" in cell.reason
    assert cell.speedup is None
    unknown = make_table([a_case("mlp", {**TRIO, "magic": 1e-6}, ceilings=False)])
    assert cells_of(unknown)["mlp", "magic"].status == "ok"


def test_twins_are_counted_and_are_no_rivals():
    table = make_table([a_case("mlp", {**TRIO, "mononn@2": 1e-3}, noise=0.02), a_case("b", {**TRIO, "mononn@2": 2e-3})])
    assert (table.same_system.count, table.same_system.total) == (1, 2)
    assert all("@" not in cell.system for cell in table.cells)
    assert "1 of 2 comparisons differed" in tables.speedup_markdown(table)


def test_no_headline_where_ours_is_not_ok():
    broken = a_case("mlp", TRIO, {"mononn": a_system("mononn", "incorrect", "NaN in y")})
    table = make_table([a_case("bert-tiny", TRIO), broken])
    assert table.headlines[0].means == {}
    assert "mlp" in table.headlines[0].missing
    assert cells_of(table)["mlp", "openvino"].speedup is None


def test_full_size_and_small_networks_are_never_mixed(records):
    names = {h.name: h for h in make_table(records).headlines}
    assert names["full-size networks"].means["openvino"].total == 1
    eager = names["small networks"].means["torch-eager"]
    assert (eager.count, eager.total) == (1, 2)


def test_two_rounds_have_no_interval():
    table = make_table([a_case("mlp", TRIO, rounds=2)])
    cell = cells_of(table)["mlp", "openvino"]
    assert (cell.speedup_low, cell.verdict) == (None, None)
    assert "No intervals" in tables.speedup_markdown(table)


def test_in_pairs_mode_each_rival_has_its_own_rounds():
    record = a_case("mlp", TRIO, noise=0.0)
    rounds = []
    for one in record.rounds:
        for group, rival in enumerate(["onnxruntime", "openvino"]):
            kept = ("mononn", rival)
            cycles = [replace(c, blocks=tuple(b for b in c.blocks if b.system in kept)) for c in one.cycles]
            rounds.append(Round(one.index, group, kept, tuple(cycles), None, None, ()))
    paired = replace(record, rounds=tuple(rounds), pairs_mode=True)
    assert len(paired_rounds(paired, "mononn", "openvino")) == 4
    assert cells_of(make_table([paired]))["mlp", "openvino"].speedup == pytest.approx(1.5)


def test_cells_csv_reads_back(records):
    table = make_table(records)
    rows = list(csv.DictReader(io.StringIO(tables.cells_csv(table.cells))))
    assert len(rows) == 15
    assert rows[2]["system"] == "openvino"
    assert float(rows[2]["speedup"]) == pytest.approx(table.cells[2].speedup, rel=1e-5)
    assert rows[-1]["median_ms"] == ""


def test_the_same_records_give_the_same_bytes(records, tmp_path):
    for folder in ("a", "b"):
        table = make_table(records)
        tables.write_tables(table, tmp_path / folder)
        figures.write_figures(table, tmp_path / folder)
    written = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert written == [
        "bert-base.md",
        "bert-tiny.md",
        "cells.csv",
        "mlp.md",
        "speedup.md",
        "speedup.pdf",
        "speedup.png",
    ]
    for name in written:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_a_figure_marks_failures_with_their_reason(records):
    figure = figures.speed_figure(make_table(records))
    texts = " ".join(t.get_text().replace("\n", " ") for t in figure.axes[0].texts)
    assert "SIGSEGV" in texts
    assert "incorrect: relative L2 error" in texts


def test_a_figure_of_nothing_but_failures_can_be_drawn():
    failed = {name: a_system(name, "failed", "no luck") for name in TRIO}
    figure = figures.speed_figure(make_table([a_case("mlp", TRIO, failed)]))
    assert sum("no luck" in t.get_text() for t in figure.axes[0].texts) == 3
