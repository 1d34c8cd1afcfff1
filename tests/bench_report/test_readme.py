"""The README says what the published records say."""

from pathlib import Path

import pytest
from bench_report.records import a_case, a_system, a_whole_run

from mononn_bench.analysis.table import make_table
from mononn_bench.record import write_record
from mononn_bench.report.published import Published, published_figure, published_grid, read_published, read_suites
from mononn_bench.report.readme import BEGIN, END, DocumentError, main, with_suites, with_tables

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_holds_what_the_published_records_give():
    text = (ROOT / "README.md").read_text()
    assert with_tables(text, read_published(ROOT / "results" / "reference")) == text


def test_filling_is_repeatable_and_touches_nothing_else(records, tmp_path):
    (tmp_path / "docs").mkdir()
    for record in records:
        write_record(record, tmp_path / "results" / "reference" / "m" / "run-1" / "raw" / f"{record.model.name}.json")
    (tmp_path / "README.md").write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    main(tmp_path)
    first = (tmp_path / "README.md").read_text()
    main(tmp_path)
    assert (tmp_path / "README.md").read_text() == first
    assert first.startswith("before\n") and first.endswith("after\n")
    assert "old" not in first
    assert "| bert-base | " in first
    assert (tmp_path / "docs" / "speedup.png").stat().st_size > 10_000


def test_the_page_of_suites_holds_what_their_records_give():
    text = (ROOT / "docs" / "suites.md").read_text()
    assert with_suites(text, read_suites(ROOT / "results" / "reference")) == text


def test_a_published_suite_gets_its_table_and_picture(tmp_path):
    record = a_case("mlp", {"mononn": 1e-3, "mononn[fuse=off]": 1.5e-3}, noise=0.0)
    write_record(record, tmp_path / "results/reference/m/suites/ablation/raw/mlp.json")
    (tmp_path / "docs").mkdir()
    for path in (tmp_path / "README.md", tmp_path / "docs" / "suites.md"):
        path.write_text(f"{BEGIN}\n{END}\n")
    main(tmp_path)
    text = (tmp_path / "docs" / "suites.md").read_text()
    assert "## ablation on " in text
    assert "1.50 [1.50, 1.50]" in text
    assert "](ablation.png)" in text
    assert (tmp_path / "docs" / "ablation.png").stat().st_size > 10_000
    assert (tmp_path / "README.md").read_text() == f"{BEGIN}\n{END}\n"


def test_a_document_without_marks_is_refused(records):
    with pytest.raises(DocumentError, match="marks"):
        with_tables("no marks", [Published("m", [make_table(records)])])


TRIO = {"mononn": 1e-3, "onnxruntime": 2e-3, "openvino": 1.5e-3}


def test_several_runs_show_their_median_and_range():
    runs = [a_case("mlp", {**TRIO, "openvino": seconds}, noise=0.0) for seconds in (1.5e-3, 1.7e-3, 1.6e-3)]
    grid = published_grid(Published("m", [make_table([run]) for run in runs]))
    row = dict(zip(grid.header, grid.rows[0], strict=True))
    assert row["openvino"] == "1.60 [1.50, 1.70] faster"
    assert row["best rival"] == "1.60 [1.50, 1.70] openvino"
    assert grid.caption.startswith("3 full runs in a row")
    assert any("openvino 1.60 [1.50, 1.70]" in note for note in grid.notes)


def test_a_run_without_a_speed_is_counted_and_named():
    good = a_case("mlp", TRIO, noise=0.0)
    bad = a_case("mlp", TRIO, {"openvino": a_system("openvino", "failed", "no luck")}, noise=0.0)
    published = Published("m", [make_table([one]) for one in (good, bad, good)])
    row = dict(zip(published_grid(published).header, published_grid(published).rows[0], strict=True))
    assert row["openvino"] == "1.50 [1.50, 1.50] faster 2 of 3 runs failed"
    assert any(note == "mlp, openvino: failed, no luck." for note in published_grid(published).notes)


def test_three_runs_of_four_networks_and_eight_systems(tmp_path):
    for number in range(3):
        for record in a_whole_run(seed=10 * number):
            path = tmp_path / "some-machine" / f"run-{number + 1}" / "raw" / f"{record.model.name}.json"
            write_record(record, path)
    (published,) = read_published(tmp_path)
    grid = published_grid(published)
    assert [row[0] for row in grid.rows] == ["vit-base", "bert-base", "resnet50", "t5-small"]
    assert len(grid.header) == 10
    assert any(note.startswith("A system against itself: ") and " of 12 " in note for note in grid.notes)
    bars = published_figure(published).axes[0].patches
    assert len(bars) == sum(
        len(published.cells(c, s)) > 0 and any(cell.speedup for cell in published.cells(c, s))
        for c in published.cases
        for s in published.systems
    )
