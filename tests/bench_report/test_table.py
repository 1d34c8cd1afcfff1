"""What the analysis and the tables make of records whose times are known."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench_report.records import a_case, a_system, an_ablation, same_system_runs

from mononn_bench.analysis.blocks import accepted_blocks, paired_rounds
from mononn_bench.analysis.table import make_table
from mononn_bench.record import Round
from mononn_bench.report import tables, words
from mononn_bench.report.grids import escape_latex, latex, markdown
from mononn_bench.report.names import report_files
from mononn_bench.report.tables import speed_grid

TRIO = {"mononn": 1e-3, "onnxruntime": 2e-3, "openvino": 1.5e-3}


def cells_of(table, by="model"):
    return {(getattr(c, by), c.system): c for c in table.cells}


def test_ratios_come_back(records):
    cells = cells_of(make_table(records))
    assert cells["bert-tiny", "openvino"].speedup == pytest.approx(273 / 130, rel=0.05)
    assert cells["mlp", "onnxruntime"].speedup == pytest.approx(31 / 13, rel=0.03)
    assert cells["mlp", "onnxruntime"].verdict == "faster"
    assert cells["mlp", "mononn"].speedup == 1.0
    assert cells["mlp", "mononn"].samples == 4 * 4 * 9
    assert cells["bert-base", "torch-eager"].batch_per_latency_s == pytest.approx(1 / 0.151, rel=0.2)


def test_repeated_blocks_do_not_count(records):
    assert all(block.accepted and block.value_s < 0.9 for block in accepted_blocks(records[0], "mononn"))
    assert len(accepted_blocks(records[0], "mononn")) == 16


def test_what_the_samples_do_not_support_is_not_shown():
    table = make_table([a_case("mlp", TRIO, rounds=1)])  # 36 samples: enough for 90 %
    cell = cells_of(table)["mlp", "mononn"]
    assert (cell.samples, cell.p90_ms is None) == (36, False)
    record = a_case("mlp", TRIO, rounds=1)
    first = replace(record.rounds[0], cycles=record.rounds[0].cycles[:3])
    cell = cells_of(make_table([replace(record, rounds=(first,))]))["mlp", "mononn"]
    assert (cell.samples, cell.p90_ms) == (27, None)


def test_tables_say_when_and_from_which_source_they_were_measured():
    dirty = replace(a_case("mlp", TRIO), source_revision="abcdef0123456789+", created="2026-01-03T01:02:03+00:00")
    table = make_table([a_case("b", TRIO), dirty])
    said = "measured 2026-01-01 to 2026-01-03, source 000000000000 and abcdef012345+."
    assert any(note.endswith(said) for note in speed_grid(table).notes)
    assert "2026-01-03T01:02:03+00:00, source abcdef012345+;" in tables.case_grid(table, table.cases[1]).notes[-1]
    alone = make_table(same_system_runs("mlp", 1e-3, 2))
    assert any("source 000000000000" in note for note in tables.same_grid(alone, "").notes)


def test_a_system_without_a_speed_keeps_its_row_and_reason(records):
    cell = cells_of(make_table(records))["mlp", "torch-inductor"]
    assert (cell.status, cell.median_ms, cell.speedup, cell.verdict) == ("failed", None, None, None)
    assert "SIGSEGV" in cell.reason


@pytest.mark.parametrize("status", ["incorrect", "failed", "disputed", "timeout"])
def test_a_wrong_answer_has_no_speed_even_with_blocks(status):
    record = a_case("mlp", TRIO, {"openvino": a_system("openvino", status, "because")})
    cell = cells_of(make_table([record]))["mlp", "openvino"]
    assert (cell.median_ms, cell.speedup, cell.batch_per_latency_s) == (None, None, None)


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


def test_on_a_gpu_the_best_rival_needs_onnx_runtimes_cuda_provider():
    times = {"mononn": 1e-3, "onnxruntime-cuda": 2e-3, "tensorrt": 1.5e-3}
    record = replace(a_case("mlp", times), target="cuda")
    assert make_table([record]).cases[0].best[0] == "tensorrt"
    failed = {"onnxruntime-cuda": a_system("onnxruntime-cuda", "failed", "no such provider")}
    (case,) = make_table([replace(a_case("mlp", times, failed), target="cuda")]).cases
    assert (case.best, case.no_best) == (None, "onnxruntime-cuda not ok")


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
    assert " ms " in markdown(speed_grid(table)).splitlines()[6]
    assert cell.reason == "over 2 s a run: raw times only"
    noted = make_table([a_case("mlp", times, {"tvm": a_system("tvm", reason="a note", slow=True)})])
    assert cells_of(noted)["mlp", "tvm"].reason == "a note; over 2 s a run: raw times only"


@pytest.mark.parametrize("system", ["magic", "mononn"])
@pytest.mark.parametrize("algorithm", ["", "Winograd"])
def test_over_the_roofline_is_flagged_and_keeps_its_speed_whoever_it_is(system, algorithm):
    times = {**TRIO, system: 1e-6}
    table = make_table([a_case("mlp", times, {system: replace(a_system(system), algorithm=algorithm)})])
    cell = cells_of(table)["mlp", system]
    assert (cell.status, cell.reason) == ("ok", "")
    assert cell.roofline_share > 1 and cell.speedup is not None
    (flag,) = table.cases[0].flags
    assert flag.startswith(f"{system} at {cell.roofline_share:.0%} of the roofline: it does less arithmetic")
    assert ("algorithm (Winograd), or the count" in flag) == bool(algorithm)
    assert flag in markdown(tables.case_grid(table, table.cases[0])) and flag in markdown(speed_grid(table))
    saves = f"{system} saves arithmetic by Winograd"
    assert any(saves in note for note in tables.case_grid(table, table.cases[0]).notes) == bool(algorithm)
    if system == "magic":
        assert table.cases[0].best[0] == "magic", "it counts as any other rival"


def test_a_wrong_answer_over_the_roofline_is_wrong_and_without_a_ceiling_nothing_is_flagged():
    wrong = {"magic": a_system("magic", "incorrect", "off")}
    table = make_table([a_case("mlp", {**TRIO, "magic": 1e-6}, wrong)])
    assert cells_of(table)["mlp", "magic"].status == "incorrect"
    assert table.cases[0].flags == []
    unknown = make_table([a_case("mlp", {**TRIO, "magic": 1e-6}, ceilings=False)])
    assert cells_of(unknown)["mlp", "magic"].status == "ok"
    assert unknown.cases[0].flags == []


def test_twins_are_counted_and_are_no_rivals():
    table = make_table([a_case("mlp", {**TRIO, "mononn@2": 1e-3}, noise=0.02), a_case("b", {**TRIO, "mononn@2": 2e-3})])
    assert (table.same_system.count, table.same_system.total) == (1, 2)
    assert [twin.system for twin in table.twins] == ["mononn", "mononn"]
    assert all("@" not in cell.system for cell in table.cells)
    assert "1 of 2 comparisons differed" in markdown(speed_grid(table))


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
    assert "No intervals" in markdown(speed_grid(table))


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


def test_another_system_can_be_measured_against_itself():
    times = {"onnxruntime": 2e-3, "onnxruntime@2": 2e-3, "onnxruntime@3": 2e-3, "onnxruntime@4": 2.2e-3}
    table = make_table([a_case("mlp", times, noise=0.001)])
    assert [twin.differs for twin in table.twins] == [False, True]
    assert table.twins[1].estimate.ratio == pytest.approx(1.1, rel=0.01)
    assert table.rivals == ["onnxruntime"]


def test_variants_of_ours_are_no_rivals():
    record = a_case("mlp", {**TRIO, "mononn[fuse=off]": 1.1e-3})
    (case,) = make_table([record]).cases
    assert case.best[0] == "openvino"
    alone = make_table([an_ablation("mlp", 1e-3)])
    assert "best rival" not in speed_grid(alone).header
    assert cells_of(alone)["mlp", "mononn[launch=phases]"].speedup == pytest.approx(1.3, rel=0.03)


def test_every_status_keeps_its_row(whole_run):
    table = make_table(whole_run)
    statuses = {cell.status for cell in table.cells}
    assert statuses == {"ok", "unavailable", "failed", "incorrect", "timeout", "undertuned", "disputed"}
    assert len(table.cells) == 4 * 8
    assert all(cell.reason for cell in table.cells if cell.status != "ok")
    text = markdown(speed_grid(table))
    assert "tvm 1.5" in text and "(1 of 4)" in text
    assert "resnet50, tvm: undertuned, 12 of 34 tasks had no match in the database." in text
    assert "tvm tuned for 14400 s on 2 cores, 8000 trials, over 2 cases." in text


def test_what_could_be_missed_stands_under_every_table(whole_run):
    table = make_table(whole_run)
    grids = [speed_grid(table), *(tables.case_grid(table, case) for case in table.cases)]
    for grid in grids:
        assert any(note.startswith("A system against itself: 0 of 4 comparisons") for note in grid.notes)
        assert any(
            note.startswith(
                f"Smallest difference found four times in five, as the hardest of {table.comparisons} comparisons"
            )
            for note in grid.notes
        )


def test_batches_and_repetitions_have_names_of_their_own():
    single, batched = a_case("resnet50", TRIO), a_case("resnet50", TRIO, batch=8)
    table = make_table([single, batched])
    assert [case.name for case in table.cases] == ["resnet50", "resnet50-b8"]
    assert table.headlines[0].means["openvino"].total == 1
    assert cells_of(table, by="case")["resnet50-b8", "mononn"].batch_per_latency_s == pytest.approx(8000, rel=0.3)
    again = make_table(same_system_runs("mlp", 1e-3, 3))
    assert [case.name for case in again.cases] == ["mlp.01", "mlp.02", "mlp.03"]
    assert speed_grid(again).rows == []


def test_batches_of_a_network_stand_below_each_other(tmp_path):
    times = {"mononn": 8e-3, "openvino": 4e-3}
    table = make_table([a_case("resnet50", TRIO), a_case("resnet50", times, batch=8, noise=0.0), a_case("mlp", TRIO)])
    grid = tables.batches_grid(table)
    assert [row[:2] for row in grid.rows] == [["resnet50", "1"], ["resnet50-b8", "8"]]
    eight = dict(zip(grid.header, grid.rows[1], strict=True))
    assert eight["onnxruntime"] == words.NOTHING
    value, _, item = eight["mononn"].partition(" (")
    assert float(item.rstrip(")")) == pytest.approx(float(value) / 8, rel=0.01)
    tables.write_tables(table, tmp_path)
    assert "# Batch sizes on " in (tmp_path / "batches.md").read_text()


def test_one_value_a_network_whatever_the_name_of_its_batches():
    table = make_table([a_case("resnet50", TRIO), a_case("resnet50-b8", TRIO, batch=8)])
    assert [case.name for case in table.cases] == ["resnet50", "resnet50-b8"]
    assert table.headlines[0].means["openvino"].total == 1


def test_a_network_is_spelt_out_wherever_it_is_named():
    table = make_table([a_case("t5-small", TRIO), a_case("own", TRIO)])
    for text in (markdown(speed_grid(table)), markdown(tables.case_grid(table, table.cases[0]))):
        assert "128 tokens in, 16 out, one teacher-forced pass" in text
    assert "own: zoo." in markdown(speed_grid(table))


def test_cold_caches_are_named():
    cold = replace(a_case("mlp", TRIO), state="cold")
    assert speed_grid(make_table([cold])).rows[0][0] == "mlp (cold)"


def test_the_error_shown_is_the_one_nearest_its_limit():
    check = a_system("openvino").accuracy[0]
    near = replace(check, output="z", rel_l2=9e-7, limit=1e-6)
    far = replace(check, rel_l2=2e-6, limit=1e-4)
    result = replace(a_system("openvino"), accuracy=(far, near))
    cell = cells_of(make_table([a_case("mlp", TRIO, {"openvino": result})]))["mlp", "openvino"]
    assert (cell.rel_l2, cell.rel_l2_limit) == (9e-7, 1e-6)


def test_tables_of_all_kinds_are_written_as_announced(whole_run, tmp_path):
    for folder in ("a", "b"):
        tables.write_tables(make_table(whole_run), tmp_path / folder)
    names = [case.name for case in make_table(whole_run).cases]
    announced = {Path(f).name for f in report_files(names, list(TRIO)) if f.startswith("tables/")}
    written = {path.name for path in (tmp_path / "a").iterdir()}
    assert written == announced | {"aa.md", "aa.tex"}
    for name in written:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_repeated_cases_share_a_table(tmp_path):
    tables.write_tables(make_table(same_system_runs("mlp", 1e-3, 12)), tmp_path)
    assert {"mlp.md", "aa.md"} <= {path.name for path in tmp_path.iterdir()}
    assert "| mlp.12 | mononn |" in (tmp_path / "mlp.md").read_text()
    assert not any(path.startswith("figures/") for path in report_files(["mlp.01"], ["mononn", "mononn@2"]))


@pytest.mark.parametrize("count", [10, 11])
def test_flags_of_many_cases_are_told_by_kind(count):
    table = make_table(same_system_runs("mlp", 1e-3, count + 1))
    flags = ["round 1: the sentinel drifted by 6%", "round 12: the sentinel drifted by 17%", "nothing moved"]
    cases = [replace(case, flags=flags[: 1 + n % 3]) for n, case in enumerate(table.cases[1:])]
    said = [t for t in words.troubles(replace(table, cases=[table.cases[0], *cases])) if t.startswith("Flagged")]
    if count == 10:
        assert said[0].count("mlp.") == 4 * 1 + 3 * 2 + 3 * 3 and "round 12: the sentinel drifted by 17%" in said[0]
    else:
        kinds = "18 times the sentinel drifted by up to 17%; 3 times nothing moved"
        assert said == [f"Flagged: 11 of 12 cases of mlp ({kinds}); the records name each."]


def test_latex_is_balanced_and_escaped(whole_run):
    text = latex(tables.case_grid(make_table(whole_run), make_table(whole_run).cases[3]), "t5-small")
    body = [line for line in text.splitlines() if not line.startswith("%")]
    rows = [line for line in body if line.endswith(r"\\")]
    columns = len(re.search(r"\{(lr+)\}", text)[1])
    assert all(len(re.findall(r"(?<!\\)&", row)) == columns - 1 for row in rows)
    assert text.count(r"\begin{") == text.count(r"\end{")
    assert not any(re.search(r"(?<!\\)[%#$]", line) for line in body)
    assert escape_latex(r"a_b & 5 % \x<µ") == r"a\_b \& 5 \% \textbackslash{}x\textless{}\ensuremath{\mu}"
