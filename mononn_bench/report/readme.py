"""The README's table and figure, generated from the published records under results/reference."""

from __future__ import annotations

import sys
from pathlib import Path

from mononn_bench.codec import write_text
from mononn_bench.errors import BenchError
from mononn_bench.report.figures import figure_bytes, write_bytes
from mononn_bench.report.figures.speed import speed_figure
from mononn_bench.report.figures.style import styled
from mononn_bench.report.grids import markdown
from mononn_bench.report.published import Published, published_figure, published_grid, read_published
from mononn_bench.report.tables import speed_grid

BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"

PICTURE = "![Speed of each system, mononn = 1](docs/speedup.png)\n"


class DocumentError(BenchError):
    """A document lacks the marks between which a generated block belongs."""


def with_tables(text: str, published: list[Published]) -> str:
    """`text` with the block between its marks replaced; raises DocumentError where a mark is missing."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise DocumentError(f"The document has no {BEGIN} … {END}: put both marks where the table belongs.")
    blocks = [PICTURE] if published else []
    for one in published:
        grid = published_grid(one) if len(one.runs) > 1 else speed_grid(one.runs[0])
        blocks.append(markdown(grid, level=3))
    return "".join([head, BEGIN, "\n", "\n".join(blocks), END, tail])


def main(root: Path) -> None:
    """Fill README.md under `root`, and draw docs/speedup.png of the first machine."""
    published = read_published(root / "results" / "reference")
    write_text(root / "README.md", with_tables((root / "README.md").read_text(), published))
    if published:
        first = published[0]
        with styled():
            figure = published_figure(first) if len(first.runs) > 1 else speed_figure(first.runs[0])
        (root / "docs").mkdir(exist_ok=True)
        write_bytes(root / "docs" / "speedup.png", figure_bytes(figure, "png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
