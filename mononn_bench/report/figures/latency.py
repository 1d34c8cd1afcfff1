"""Distributions of latency: for each case a row a system, from the raw samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from mononn_bench.analysis.cells import QUANTILES, CaseSummary, Cell, Table
from mononn_bench.analysis.stats import supports
from mononn_bench.report.figures.style import (
    FAILED,
    FAINT,
    INK,
    looks,
    new_figure,
    panel_letters,
    plain,
    time_text,
    why_nothing,
)

COLUMNS = 2
SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def latency_figure(table: Table) -> Figure:
    """A panel a case: box from 25 to 75 %, line at the median, whiskers 5 to 95 %, a tick at 99 %; logarithmic.

    Each of them only where the system's samples, whose number stands beside its name, are enough for it.
    """
    rows = math.ceil(len(table.cases) / COLUMNS) or 1
    figure = new_figure(rows * (0.55 + 0.19 * max(3, len(table.systems))))
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    used = list(panels[: len(table.cases)])
    for axes, case in zip(used, table.cases, strict=True):
        _draw_case(axes, case, table)
    panel_letters(used, [case.name for case in table.cases])
    for axes in panels[len(table.cases) :]:
        axes.set_axis_off()
    return figure


def _draw_case(axes: Axes, case: CaseSummary, table: Table) -> None:
    look = looks(table.systems)
    cells = [cell for system in table.systems if (cell := table.cell(case.name, system)) is not None]
    for y, cell in enumerate(cells):
        if cell.system in case.latency and cell.median_ms is not None:
            _draw_box(axes, case.latency[cell.system], cell.samples or 0, y, look[cell.system].colour)
    axes.set_xscale("log")
    shown = [
        _at(case.latency[cell.system], q)
        for cell in cells
        if cell.system in case.latency
        for q in SHOWN
        if supports(q, cell.samples or 0)
    ]
    if shown:
        axes.set_xlim(min(shown) * 1e3 / 1.08, max(shown) * 1e3 * 1.12)
    left, _ = axes.get_xlim()
    for y, cell in enumerate(cells):
        if cell.median_ms is None:
            axes.plot(left, y, marker="x", color=FAILED, markersize=4, markeredgewidth=1.2, clip_on=False)
            text = plain(why_nothing(cell))
            axes.annotate(text, (left, y), (6, 0), textcoords="offset points", va="center", fontsize=5.6, color=FAILED)
    axes.set_yticks(range(len(cells)), [_name(cell) for cell in cells])
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(LogLocator(subs=_ticks(*axes.get_xlim())))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.grid(True, color=FAINT, linewidth=0.6)


def _name(cell: Cell) -> str:
    return plain(cell.system) + (f" ({cell.samples})" if cell.samples else "")


def _draw_box(axes: Axes, quantiles: Sequence[float], samples: int, y: float, colour: str) -> None:
    low, first, middle, third, high, far = (_at(quantiles, q) * 1e3 if supports(q, samples) else None for q in SHOWN)
    if low is not None and high is not None:
        axes.plot([low, high], [y, y], color=colour, linewidth=1.0, solid_capstyle="butt")
    if first is not None and third is not None:
        axes.barh(y, third - first, 0.62, left=first, color=colour, edgecolor="white", linewidth=0.4)
    if middle is not None:
        axes.plot([middle, middle], [y - 0.31, y + 0.31], color="white", linewidth=1.4, solid_capstyle="butt")
        axes.plot([middle, middle], [y - 0.31, y + 0.31], color=INK, linewidth=0.7, solid_capstyle="butt")
    if far is not None:
        axes.plot(far, y, marker="|", color=colour, markersize=5, markeredgewidth=1.2)


def _at(quantiles: Sequence[float], share: float) -> float:
    return quantiles[round(share * (len(QUANTILES) - 1))]


def _ticks(low: float, high: float) -> tuple[float, ...]:
    """Which multiples of a power of ten to label: all of a narrow axis, few of a wide one."""
    decades = math.log10(high / low)
    if decades < 0.7:
        return tuple(i / 2 for i in range(2, 20)) if decades < 0.4 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    return (1, 2, 5) if decades < 2.2 else (1,)
