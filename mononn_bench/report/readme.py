"""The README's table and figure, generated from the published records under results/reference."""

from __future__ import annotations

import sys
from pathlib import Path

from mononn_bench.analysis.cells import Table
from mononn_bench.analysis.table import make_table
from mononn_bench.codec import write_text
from mononn_bench.errors import BenchError
from mononn_bench.record import CaseRecord, read_record
from mononn_bench.report.figures import write_figures
from mononn_bench.report.tables import speedup_markdown

BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"

PICTURE = "![Speed of each system, mononn = 1](docs/speedup.png)\n"


class DocumentError(BenchError):
    """A document lacks the marks between which a generated block belongs."""


def published_tables(reference: Path) -> list[Table]:
    """The table of each machine under `reference`, its models from the largest to the smallest."""
    tables = []
    for folder in sorted(p for p in reference.glob("*/raw") if p.is_dir()):
        records = [read_record(CaseRecord, path) for path in folder.glob("*.json")]
        tables.append(make_table(sorted(records, key=lambda r: (-r.model.flops, r.model.name))))
    return tables


def with_tables(text: str, tables: list[Table]) -> str:
    """`text` with the block between its marks replaced; raises DocumentError where a mark is missing."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise DocumentError(f"The document has no {BEGIN} … {END}: put both marks where the table belongs.")
    blocks = [PICTURE] if tables else []
    blocks += [speedup_markdown(table).replace("# Speed on", "### Speed on") for table in tables]
    return "".join([head, BEGIN, "\n", "\n".join(blocks), END, tail])


def main(root: Path) -> None:
    """Fill README.md under `root`, and draw docs/speedup.png of the first machine."""
    tables = published_tables(root / "results" / "reference")
    write_text(root / "README.md", with_tables((root / "README.md").read_text(), tables))
    if tables:
        write_figures(tables[0], root / "docs")
        (root / "docs" / "speedup.pdf").unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
