"""Tables as rows of text, and their two forms: Markdown and LaTeX (booktabs)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "µ": r"\ensuremath{\mu}",
    "…": r"\ldots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}
_LATEX_SPECIAL = re.compile("|".join(re.escape(letter) for letter in _LATEX))


@dataclass(frozen=True)
class Grid:
    """A table of text: what stands above it, its header, its rows, and what stands beneath it."""

    title: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]


def markdown(grid: Grid, level: int = 1) -> str:
    """GitHub's Markdown, columns padded so that it reads as plain text too."""
    parts = [f"{'#' * level} {grid.title}", grid.caption, _bars(grid.header, grid.rows) if grid.rows else ""]
    parts.append("\n".join(f"- {line}" for line in grid.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(grid: Grid, label: str) -> str:
    """A table for the LaTeX package booktabs, its notes as comments; `label` names it for \\ref."""
    columns = "l" + "r" * (len(grid.header) - 1)
    lines = ["% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering", f"\\begin{{tabular}}{{{columns}}}"]
    lines += ["\\toprule", _row(grid.header), "\\midrule", *map(_row, grid.rows), "\\bottomrule", "\\end{tabular}"]
    lines += [f"\\caption{{{escape_latex(grid.caption or grid.title)}}}", f"\\label{{tab:{label}}}", "\\end{table}"]
    return "\n".join([*lines, *(f"% {' '.join(note.split())}" for note in grid.notes)]) + "\n"


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return _LATEX_SPECIAL.sub(lambda found: _LATEX[found[0]], text)


def _row(texts: Sequence[str]) -> str:
    return " & ".join(escape_latex(text) for text in texts) + r" \\"


def _bars(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rows = [[text.replace("|", "\\|") for text in row] for row in rows]
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * w for w in widths], *rows]
    return "\n".join("| " + " | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) + " |" for line in lines)
