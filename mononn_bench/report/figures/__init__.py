"""Figures for print, of a table alone: the same records give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from mononn_bench.analysis.cells import OURS, Table, variant_of
from mononn_bench.report.figures.ablation import ablation_figure
from mononn_bench.report.figures.accuracy import accuracy_figure
from mononn_bench.report.figures.latency import latency_figure
from mononn_bench.report.figures.roofline import roofline_figure
from mononn_bench.report.figures.same import same_figure
from mononn_bench.report.figures.speed import speed_figure
from mononn_bench.report.figures.style import styled
from mononn_bench.report.names import FORMATS

DRAWN: dict[str, Callable[[Table], Figure]] = {
    "speedup": speed_figure,
    "latency": latency_figure,
    "roofline": roofline_figure,
    "accuracy": accuracy_figure,
}
METADATA = {"pdf": {"CreationDate": None, "Creator": "mononn-bench"}, "svg": {"Date": None, "Creator": None}}


def draw_figures(table: Table) -> dict[str, Figure]:
    """Every figure this table has something for, by name."""
    wanted = dict(DRAWN) if table.rivals else {}
    if any(variant_of(system) == OURS for system in table.systems):
        wanted["ablation"] = ablation_figure
    if table.twins:
        wanted["aa"] = same_figure
    with styled():
        return {name: draw(table) for name, draw in wanted.items()}


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """The figure as pdf, svg or png (300 dots an inch), without a date."""
    stream = io.BytesIO()
    with styled():
        figure.savefig(stream, format=suffix, dpi=300, metadata=METADATA.get(suffix))
    return stream.getvalue()


def write_figures(figures: dict[str, Figure], folder: Path) -> dict[str, str]:
    """Write each figure in every format into `folder`, under a temporary name first; returns the SVG texts by name."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {}
    for name, figure in figures.items():
        for suffix in FORMATS:
            content = figure_bytes(figure, suffix)
            write_bytes(folder / f"{name}.{suffix}", content)
            if suffix == "svg":
                texts[name] = content.decode()
    return texts


def write_bytes(path: Path, content: bytes) -> None:
    """Write under a temporary name in the same folder, then rename."""
    partial = path.with_name(f".partial.{path.name}")
    partial.write_bytes(content)
    partial.replace(path)
