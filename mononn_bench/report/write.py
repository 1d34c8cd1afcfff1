"""Records in, report out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mononn_bench.analysis.table import make_table
from mononn_bench.record import CaseRecord, read_record
from mononn_bench.report.figures import write_figures
from mononn_bench.report.tables import speedup_markdown, write_tables


def write_report(records: Sequence[Path], folder: Path) -> str:
    """Read case records, in the order of the table's rows, and write `folder`/tables and `folder`/figures.

    Returns the text of speedup.md. Raises RecordError for a file that is no case record.
    """
    table = make_table([read_record(CaseRecord, path) for path in records])
    write_figures(table, folder / "figures")
    write_tables(table, folder / "tables")
    return speedup_markdown(table)
