"""The README says what the published records say."""

from pathlib import Path

import pytest

from mononn_bench.analysis.table import make_table
from mononn_bench.record import write_record
from mononn_bench.report.readme import BEGIN, END, DocumentError, main, published_tables, with_tables

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_holds_what_the_published_records_give():
    text = (ROOT / "README.md").read_text()
    assert with_tables(text, published_tables(ROOT / "results" / "reference")) == text


def test_filling_is_repeatable_and_touches_nothing_else(records, tmp_path):
    (tmp_path / "docs").mkdir()
    for record in records:
        write_record(record, tmp_path / "results" / "reference" / "m" / "raw" / f"{record.model.name}.json")
    (tmp_path / "README.md").write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    main(tmp_path)
    first = (tmp_path / "README.md").read_text()
    main(tmp_path)
    assert (tmp_path / "README.md").read_text() == first
    assert first.startswith("before\n") and first.endswith("after\n")
    assert "old" not in first
    assert "| bert-base | " in first
    assert (tmp_path / "docs" / "speedup.png").stat().st_size > 10_000


def test_a_document_without_marks_is_refused(records):
    with pytest.raises(DocumentError, match="marks"):
        with_tables("no marks", [make_table(records)])
