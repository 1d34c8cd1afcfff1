"""Figures for print, of a table alone: the same records give the same bytes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter

from mononn_bench.analysis.bricks import rebuild
from mononn_bench.analysis.cells import OURS, Table, variant_of
from mononn_bench.bricked import BrickedModel
from mononn_bench.report.figures.ablation import ablation_figure
from mononn_bench.report.figures.accuracy import accuracy_figure
from mononn_bench.report.figures.bricks import bricks_figure
from mononn_bench.report.figures.latency import latency_figure
from mononn_bench.report.figures.lengths import lengths_figure
from mononn_bench.report.figures.roofline import roofline_figure
from mononn_bench.report.figures.same import same_figure
from mononn_bench.report.figures.speed import speed_figure
from mononn_bench.report.figures.style import styled
from mononn_bench.report.names import FORMATS
from mononn_bench.served import ServedModel

DRAWN: dict[str, Callable[[Table], Figure]] = {
    "speedup": speed_figure,
    "latency": latency_figure,
    "roofline": roofline_figure,
    "accuracy": accuracy_figure,
}
DRAWN_DIGEST = "Drawn"
"""The key of `drawn_digest` among a PNG's texts."""
METADATA = {"pdf": {"CreationDate": None, "Creator": "mononn-bench"}, "svg": {"Date": None, "Creator": None}}


def draw_figures(
    table: Table, bricked: Sequence[BrickedModel] = (), served: Sequence[ServedModel] = ()
) -> dict[str, Figure]:
    """Every figure this table, networks cut into bricks, and requests of many lengths have something for, by name."""
    wanted = dict(DRAWN) if table.rivals else {}
    if any(variant_of(system) == OURS for system in table.systems):
        wanted["ablation"] = ablation_figure
    if table.twins:
        wanted["aa"] = same_figure
    with styled():
        drawn = {name: draw(table) for name, draw in wanted.items()}
        if bricked:
            drawn["bricks"] = bricks_figure(rebuild(bricked))
        if served:
            drawn["lengths"] = lengths_figure(served)
    return drawn


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """The figure as pdf, svg or png (300 dots an inch), without a date; a PNG carries the digest of what it shows."""
    stream = io.BytesIO()
    metadata = {DRAWN_DIGEST: drawn_digest(figure)} if suffix == "png" else METADATA[suffix]
    with styled():
        figure.savefig(stream, format=suffix, dpi=300, metadata=metadata)
    return stream.getvalue()


def drawn_digest(figure: Figure) -> str:
    """A hash of the texts of a figure and of its lines and bars in the units of its axes: what it says, whatever the
    fonts and the renderer of a machine make of it.
    """
    drawn: list[str] = []
    for axes in figure.axes:
        drawn += [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
        ticks = (axis.get_major_formatter() for axis in (axes.xaxis, axes.yaxis))
        drawn += [label for formatter in ticks if isinstance(formatter, FixedFormatter) for label in formatter.seq]
        shapes: list[np.ndarray] = [np.asarray(line.get_xydata(), dtype=np.float64) for line in axes.lines]
        shapes += [np.asarray(path.vertices) for group in axes.collections for path in group.get_paths()]
        shapes += [np.asarray(bar.get_path().transformed(bar.get_patch_transform()).vertices) for bar in axes.patches]
        numbers = [number for shape in shapes for number in shape.ravel()]
        drawn += [f"{number:.5g}" for number in numbers]
    return hashlib.sha256("\n".join(drawn).encode()).hexdigest()


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
