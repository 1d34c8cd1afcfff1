"""The README says what the published records say."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench_report.bricks import MODEL
from bench_report.profiles import a_profile
from bench_report.records import a_case, a_system, a_whole_run
from bench_report.starts import RECORD
from PIL import Image

from mononn_bench.analysis.table import make_table
from mononn_bench.gpu_suite.records import StepRecord, SuiteRecord
from mononn_bench.measure.environment import describe_machine
from mononn_bench.profiled import Primitives, Reading
from mononn_bench.record import write_record
from mononn_bench.report.figures import DRAWN_DIGEST, drawn_digest
from mononn_bench.report.limits import behind_grid
from mononn_bench.report.published import Published, read_published, read_suites, runs_grid
from mononn_bench.report.readme import (
    BEGIN,
    END,
    DocumentError,
    brick_folders,
    further_precisions,
    main,
    pictures,
    read_profiles,
    study_folders,
    with_bricks,
    with_limits,
    with_reasons,
    with_runs,
    with_study,
    with_suites,
    with_tables,
)
from mononn_bench.report.tables import speed_grid

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def published():
    return read_published(ROOT / "results" / "reference")


@pytest.fixture(scope="module")
def suites():
    return read_suites(ROOT / "results" / "reference")


def test_the_documents_hold_what_the_published_records_give(published, suites):
    readme, runs, page = ((ROOT / name).read_text() for name in ("README.md", "docs/published.md", "docs/suites.md"))
    assert with_tables(readme, published, suites) == readme
    assert with_runs(runs, published) == runs
    assert with_suites(page, suites) == page
    why, limits = ((ROOT / "docs" / name).read_text() for name in ("why.md", "limits.md"))
    assert with_reasons(why, read_profiles(ROOT / "results" / "reference")) == why
    assert with_limits(limits, published, suites) == limits
    bricks = (ROOT / "docs" / "bricks.md").read_text()
    assert with_bricks(bricks, brick_folders(ROOT / "results" / "reference")) == bricks


@pytest.mark.parametrize("name", ["start", "lengths"])
def test_a_study_s_document_holds_what_its_records_give(name):
    text = (ROOT / "docs" / f"{name}.md").read_text()
    assert with_study(text, name, study_folders(ROOT / "results" / "reference", name)) == text


def test_published_studies_get_their_tables_by_machine(tmp_path):
    write_record(RECORD, tmp_path / "results/reference/m/suites/start/start/net.json")
    for path in (tmp_path / "README.md", tmp_path / "docs" / "start.md"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{BEGIN}\n{END}\n")
    main(tmp_path)
    text = (tmp_path / "docs" / "start.md").read_text()
    assert "## here, now, source r\n\n### From the start of a process to its first answer" in text
    assert "| net     | rival native" in text


@pytest.mark.parametrize("name", ["speedup.png", "ablation.png"])
def test_the_pictures_were_drawn_from_the_records_that_stand(name, published, suites):
    with Image.open(ROOT / "docs" / name) as picture:
        carried = picture.text[DRAWN_DIGEST]
    assert carried == drawn_digest(pictures(published, suites)[name])


def test_another_record_gives_another_picture(published):
    digests = set()
    for low in (None, 1.01, 1.1):
        table = published[0].pooled
        cell = table.cell("bert-base", "openvino")
        cells = [replace(c, speedup_low=low) if c is cell and low else c for c in table.cells]
        changed = Published("m", [replace(table, cells=cells)])
        digests.add(drawn_digest(pictures([changed], {})["speedup.png"]))
    assert len(digests) == 3


def test_filling_is_repeatable_and_touches_nothing_else(records, tmp_path):
    (tmp_path / "docs").mkdir()
    for record in records:
        write_record(record, tmp_path / "results" / "reference" / "m" / "run-1" / "raw" / f"{record.model.name}.json")
    for name in ("README.md", "docs/published.md"):
        (tmp_path / name).write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    main(tmp_path)
    first = (tmp_path / "README.md").read_text()
    main(tmp_path)
    assert (tmp_path / "README.md").read_text() == first
    assert first.startswith("before\n") and first.endswith("after\n")
    assert "old" not in first
    assert "| bert-base | " in first and "## The runs on " in (tmp_path / "docs" / "published.md").read_text()
    assert (tmp_path / "docs" / "speedup.png").stat().st_size > 10_000


def empty_documents(root, name):
    """README.md and a document in docs/ with room for tables."""
    (root / "docs").mkdir()
    for path in (root / "README.md", root / "docs" / f"{name}.md"):
        path.write_text(f"{BEGIN}\n{END}\n")


def test_a_published_suite_gets_its_table_and_picture(tmp_path):
    record = a_case("mlp", {"mononn": 1e-3, "mononn[fuse=off]": 1.5e-3}, noise=0.0)
    write_record(record, tmp_path / "results/reference/m/suites/ablation/raw/mlp.json")
    empty_documents(tmp_path, "suites")
    main(tmp_path)
    text = (tmp_path / "docs" / "suites.md").read_text()
    assert "## ablation on " in text
    assert "1.50 [1.50, 1.50]" in text
    assert "](ablation.png)" in text
    assert (tmp_path / "docs" / "ablation.png").stat().st_size > 10_000
    assert (tmp_path / "README.md").read_text() == f"{BEGIN}\n{END}\n"


def test_published_bricks_get_their_tables_beside_what_the_machine_gives(tmp_path):
    write_record(MODEL, tmp_path / "results/reference/m/suites/bricks/bricks/net.json")
    readings = (Reading("barrier", "a flag", 2, "s", (4e-8,)),)
    given = Primitives("now", describe_machine(), "m", (0, 1), readings, "r")
    write_record(given, tmp_path / "results/reference/m/primitives.json")
    empty_documents(tmp_path, "bricks")
    main(tmp_path)
    text = (tmp_path / "docs" / "bricks.md").read_text()
    assert "## here\n\n### Networks rebuilt from their bricks" in text
    assert "### What m gives" in text


def test_profiles_beside_published_runs_get_their_reasons(tmp_path):
    folder = tmp_path / "results/reference/m/run-1/profiles"
    write_record(a_profile(), folder / "net.json")
    write_record(a_profile(profiles=()), folder / "none.json")
    empty_documents(tmp_path, "why")
    main(tmp_path)
    text = (tmp_path / "docs" / "why.md").read_text()
    assert text.count("## net beside openvino\n\nOn here, now, source ") == 1
    assert "### net: mononn beside openvino" in text


def test_what_is_not_won_stands_on_a_page_the_worst_first():
    won = a_case("mlp", {"mononn": 1e-3, "openvino": 2e-3, "mononn[fuse=off]": 0.5e-3}, noise=0.0)
    lost = a_case("bert-base", {"mononn": 1e-3, "openvino": 0.8e-3, "onnxruntime": 1.01e-3}, noise=0.0)
    worse = a_case("resnet50", {"mononn": 1e-3, "openvino": 0.5e-3}, noise=0.0)
    grid = behind_grid({"one": make_table([won, lost]), "two": make_table([worse])})
    assert [(row[0], row[1], row[4], row[6]) for row in grid.rows] == [
        ("two", "resnet50", "openvino", "slower"),
        ("one", "bert-base", "openvino", "slower"),
    ]
    assert grid.rows[0][5] == "0.50 [0.50, 0.50]"
    assert [note.rpartition(": ")[2] for note in grid.notes] == ["2 faster, 1 slower.", "1 slower."]


def test_what_has_no_time_of_ours_is_a_limit_too():
    wrong = a_case("mlp", TRIO, {"mononn": a_system("mononn", "incorrect", "NaN in y")}, noise=0.0)
    assert behind_grid({"one": make_table([wrong])}).notes == ["one, mlp, mononn: incorrect, NaN in y."]


def test_a_document_without_marks_is_refused(records):
    with pytest.raises(DocumentError, match="marks"):
        with_tables("no marks", [Published("m", [make_table(records)])], {})


TRIO = {"mononn": 1e-3, "onnxruntime": 2e-3, "openvino": 1.5e-3}


def runs_of(*records):
    return Published("m", [make_table([record]) for record in records])


def row_of(grid):
    return dict(zip(grid.header, grid.rows[0], strict=True))


def test_several_runs_are_pooled_and_their_ranges_stand_on_a_page_of_their_own():
    published = runs_of(*(a_case("mlp", {**TRIO, "openvino": s}, noise=0.0) for s in (1.5e-3, 1.7e-3, 1.6e-3)))
    grid = speed_grid(published.pooled)
    assert grid.caption.startswith("3 full runs, pooled.")
    cell = published.pooled.cell("mlp", "openvino")
    assert cell.speedup == pytest.approx((1.5 * 1.6 * 1.7) ** (1 / 3))
    assert row_of(grid)["openvino"] == "1.60 [1.37, 1.87] faster"  # wider than the range: three runs say little
    assert row_of(grid)["best rival"].startswith("1.60 [")
    assert any("openvino 1.60 [1.37, 1.87]" in note for note in grid.notes)
    assert row_of(runs_grid(published))["openvino"] == "1.60 [1.50, 1.70] faster in 3"
    assert published.pooled.cases[0].rounds == 12


def test_verdicts_are_adjusted_over_the_pooled_table():
    times = {**TRIO, "openvino": 1.012e-3} | {f"other{i}": 1e-3 for i in range(20)}
    few = {**TRIO, "openvino": 1.012e-3}
    alone, crowded = (
        runs_of(*(a_case("mlp", t, noise=0.012, seed=seed) for seed in range(3))).pooled for t in (few, times)
    )
    assert alone.comparisons == 2 and crowded.comparisons == 22
    assert crowded.detectable > alone.detectable


def test_a_run_without_a_speed_is_named_and_its_system_still_counts_as_a_rival():
    good = a_case("mlp", TRIO, noise=0.0)
    bad = a_case("mlp", TRIO, {"openvino": a_system("openvino", "failed", "no luck")}, noise=0.0)
    published = runs_of(good, bad, good)
    assert row_of(speed_grid(published.pooled))["openvino"] == "1.50 [1.50, 1.50] faster failed"
    assert published.pooled.cases[0].best[0] == "openvino"
    assert published.pooled.headlines[0].means["openvino"].count == 1
    said = "mlp, openvino: failed, in 1 of 3 runs, no luck."
    assert said in speed_grid(published.pooled).notes
    assert row_of(runs_grid(published))["openvino"] == "1.50 [1.50, 1.50] faster in 2 failed"


def test_pooled_numbers_are_medians_but_errors_the_largest_and_samples_add_up():
    runs = [
        a_case("mlp", {**TRIO, "mononn": s}, {"mononn": a_system("mononn", error=error)}, noise=0.0, seed=7)
        for s, error in ((1e-3, 2e-7), (1.5e-3, 9e-7), (1.1e-3, 3e-7))
    ]
    published = runs_of(*runs)
    cell = published.pooled.cell("mlp", "mononn")
    assert cell.median_ms == published.runs[2].cell("mlp", "mononn").median_ms
    assert (cell.rel_l2, cell.samples, cell.batch, cell.speedup) == (9e-7, 3 * 144, 1, 1.0)
    flagged = replace(runs[0], rounds=(replace(runs[0].rounds[0], flags=("it drifted by 9%",)), *runs[0].rounds[1:]))
    notes = speed_grid(runs_of(runs[1], flagged).pooled).notes
    assert "Flagged: mlp (it drifted by 9%)." in notes
    assert "mlp, flagged: run 2, round 1: it drifted by 9%." in runs_grid(runs_of(runs[1], flagged)).notes


def test_ours_must_be_ok_in_every_run():
    good = a_case("mlp", TRIO, noise=0.0)
    bad = a_case("mlp", TRIO, {"mononn": a_system("mononn", "incorrect", "NaN in y")}, noise=0.0)
    pooled = runs_of(good, bad, good).pooled
    assert pooled.headlines[0].means == {} and "mlp" in pooled.headlines[0].missing


def test_three_runs_of_four_networks_and_eight_systems(tmp_path):
    for number in range(3):
        for record in a_whole_run(seed=10 * number):
            path = tmp_path / "some-machine" / f"run-{number + 1}" / "raw" / f"{record.model.name}.json"
            write_record(record, path)
    (published,) = read_published(tmp_path)
    grid = speed_grid(published.pooled)
    assert [row[0] for row in grid.rows] == ["vit-base", "bert-base", "resnet50", "t5-small"]
    assert len(grid.header) == 10
    assert any(note.startswith("A system against itself: ") and " of 12 " in note for note in grid.notes)
    bars = pictures([published], {})["speedup.png"].axes[0].patches
    table = published.pooled
    assert len(bars) == sum(cell.speedup is not None for cell in table.cells) + len(table.headlines[0].means) + 1
    cell = table.cell("bert-base", "mononn")
    assert cell.samples == 3 * 144 and cell.run_id == "run-bert-base"


@pytest.mark.parametrize("machine", ["this", "that"])
def test_the_picture_shows_other_precisions_of_its_networks_on_its_machine(machine):
    def case(model, precision, on):
        found = a_case(model, {"mononn": 1e-3, "openvino": 2e-3, "mnn": 2e-3}, full_size=True)
        return replace(found, precision=precision, machine=replace(found.machine, name=on))

    first = make_table([case("bert-base", "fp32", "this"), case("vit-base", "fp32", "this")])
    first = replace(first, systems=["mononn", "openvino"], cells=[c for c in first.cells if c.system != "mnn"])
    second = [case("bert-base", kind, machine) for kind in ("fp32", "bf16", "int8")]
    lacking = tuple(replace(r, status="unavailable") if r.system == "openvino" else r for r in second[2].systems)
    second[2] = replace(second[2], systems=lacking)
    suites = {"precision": make_table([*second, case("mlp", "bf16", machine)])}
    others = further_precisions(first, suites)
    text = with_tables(f"{BEGIN}\n{END}\n", [Published("this", [first])], suites)
    figure = pictures([Published("this", [first])], suites)["speedup.png"]
    assert len(figure.axes) == (3 if machine == "this" else 1), "a row for each precision"
    assert ("In bf16 and int8, of the systems that have it: the suite `precision`" in text) == (machine == "this")
    if machine == "this":
        assert [cell.case for cell in others.cells] == ["bert-base-bf16"] * 2 + ["bert-base-int8"]
    else:
        assert others is None


def test_each_suite_is_of_the_first_machine_that_has_it(tmp_path):
    for machine, suite in [("b", "one"), ("a", "two"), ("b", "two")]:
        folder = tmp_path / machine / "suites" / suite / "raw"
        case = a_case("mlp", {"mononn": 1e-3, "onnxruntime": 2e-3})
        folder.mkdir(parents=True)
        write_record(replace(case, machine=replace(case.machine, name=f"machine-{machine}")), folder / "case.json")
    assert {name: table.machine for name, table in read_suites(tmp_path).items()} == {
        "one": "machine-b",
        "two": "machine-a",
    }


def test_a_gpu_s_calls_get_their_tables(tmp_path):
    step = {"case": {"model": "net", "batch": 2, "precision": "fp16"}, "contenders": {
        "mononn": {"status": "ok", "warm_device_us": 80.0, "warm_back_to_back_us": 79.0, "cold_device_us": 90.0},
        "torch-graph": {"status": "ok", "warm_device_us": 120.0, "warm_back_to_back_us": None, "cold_device_us": 130.0},
        "xla": {"status": "failed", "reason": "no"},
    }}  # fmt: skip
    ceiling = {
        "kernels": [{"name": "device", "sms": 132}, {"name": "barrier", "blocks": 4, "unit": "s", "value": 8e-7}]
    }
    build = {"net-b2-fp16:once": {"scheduled_for": {"name": "G"}, "predicted": {"G": {"seconds": 7e-5}}}}
    steps = tuple(
        StepRecord(name, "ok", "", False, "now", 1.0, result)
        for name, result in (("build:net", build), ("compare:net", step), ("ceilings", ceiling))
    )
    suite = SuiteRecord("2026-01-02", "run", "abc", describe_machine(), {}, False, steps, "", ("A GPU",))
    write_record(suite, tmp_path / "results/reference/a-gpu/first/records.json")
    empty_documents(tmp_path, "gpu")
    main(tmp_path)
    text = (tmp_path / "docs" / "gpu.md").read_text()
    assert "### first: A GPU, 2026-01-02, abc" in text
    assert re.search(r"\| net, batch 2, fp16 +\| mononn +\| 70\.0 +\| 80\.0 ", text)
    assert re.search(r"\| net, batch 2, fp16 +\| torch-graph +\| +\| 120\.0 +\| +\| 130\.0 +\| 1\.50 ", text)
    assert "xla" not in text and re.search(r"\| barrier +\| blocks 4 \| 8e-07 \| s +\|", text)
