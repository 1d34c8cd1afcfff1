"""The README's table and figure, and those of docs/suites.md, generated from the published records under
results/reference.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mononn_bench.analysis.cells import Table
from mononn_bench.codec import write_text
from mononn_bench.errors import BenchError
from mononn_bench.report.figures import figure_bytes, write_bytes
from mononn_bench.report.figures.ablation import ablation_figure
from mononn_bench.report.figures.speed import speed_figure
from mononn_bench.report.figures.style import styled
from mononn_bench.report.grids import markdown
from mononn_bench.report.published import Published, published_figure, published_grid, read_published, read_suites
from mononn_bench.report.tables import speed_grid

BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"

PICTURE = "![Speed of each system, mononn = 1](docs/speedup.png)\n"
ABLATION, ABLATION_PICTURE = "ablation", "![Time without each decision over time with it](ablation.png)\n"


class DocumentError(BenchError):
    """A document lacks the marks between which a generated block belongs."""


def with_tables(text: str, published: list[Published]) -> str:
    """`text` with the block between its marks replaced; raises DocumentError where a mark is missing."""
    blocks = [PICTURE] if published else []
    for one in published:
        grid = published_grid(one) if len(one.runs) > 1 else speed_grid(one.runs[0])
        blocks.append(markdown(grid, level=3))
    return _filled(text, blocks)


def with_suites(text: str, suites: Mapping[str, Table]) -> str:
    """As `with_tables`, of suites by name: the table of each, and the picture of the ablation."""
    blocks = []
    for name, table in suites.items():
        if name == ABLATION:
            blocks.append(ABLATION_PICTURE)
        blocks.append(markdown(replace(speed_grid(table), title=f"{name} on {table.machine}"), level=2))
    return _filled(text, blocks)


def main(root: Path) -> None:
    """Fill README.md and docs/suites.md under `root`; draw docs/speedup.png of the first machine, docs/ablation.png."""
    reference, suites_page = root / "results" / "reference", root / "docs" / "suites.md"
    published, suites = read_published(reference), read_suites(reference)
    write_text(root / "README.md", with_tables((root / "README.md").read_text(), published))
    if suites:
        write_text(suites_page, with_suites(suites_page.read_text(), suites))
    if ABLATION in suites:
        with styled():
            figure = ablation_figure(suites[ABLATION])
        write_bytes(root / "docs" / "ablation.png", figure_bytes(figure, "png"))
    if published:
        first = published[0]
        with styled():
            figure = published_figure(first) if len(first.runs) > 1 else speed_figure(first.runs[0])
        (root / "docs").mkdir(exist_ok=True)
        write_bytes(root / "docs" / "speedup.png", figure_bytes(figure, "png"))


def _filled(text: str, blocks: Sequence[str]) -> str:
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise DocumentError(f"The document has no {BEGIN} … {END}: put both marks where the table belongs.")
    return "".join([head, BEGIN, "\n", "\n".join(blocks), END, tail])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
