"""How far each system's answers are from the reference, and the limits they are held to."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mononn_bench.analysis.cells import Table
from mononn_bench.report.figures.style import FAILED, FAINT, INK, legend, looks, new_figure, plain

SPAN = 0.8


def _points(axes: Axes, table: Table, floor: float, step: float) -> None:
    """The measured errors, systems side by side."""
    look = looks(table.systems)
    cells = [c for c in table.cells if c.rel_l2 is not None]
    frame = pd.DataFrame(
        {
            "case": [c.case for c in cells],
            "system": [c.system for c in cells],
            "error": [max(c.rel_l2 or floor, floor) for c in cells],
        }
    )
    sns.pointplot(
        frame, x="case", y="error", hue="system", order=[c.name for c in table.cases], hue_order=list(table.systems),
        dodge=step * (len(table.systems) - 1) or False, palette=[look[s].colour for s in table.systems],
        markers=[look[s].mark for s in table.systems], linestyle="none", errorbar=None, markersize=5,
        markeredgewidth=0, ax=axes, legend=False,
    )  # fmt: skip
    axes.set_xlabel("")


def accuracy_figure(table: Table) -> Figure:
    """The output of a cell that is nearest its limit: relative L2 error, logarithmic; the limit is the line above."""
    look = looks(table.systems)
    figure = new_figure(2.6)
    axes = figure.subplots()
    axes.set_yscale("log")
    step = SPAN / max(1, len(table.systems))
    smallest = min((c.rel_l2 for c in table.cells if c.rel_l2), default=1e-8)
    floor = smallest / 3
    for x, case in enumerate(table.cases):
        limits = [c.rel_l2_limit for c in table.cells if c.case == case.name and c.rel_l2_limit is not None]
        if limits:
            axes.hlines(max(limits), x - SPAN / 2, x + SPAN / 2, color=INK, linewidth=0.9)
            axes.annotate(
                "limit", (x + SPAN / 2, max(limits)), (0, 2), textcoords="offset points", ha="right", fontsize=6
            )
        for i, system in enumerate(table.systems):
            cell = table.cell(case.name, system)
            place = x + (i - (len(table.systems) - 1) / 2) * step
            if cell is None:
                continue
            if cell.rel_l2 is None:
                axes.plot(place, floor, "x", color=FAILED, markersize=4, markeredgewidth=1.2, clip_on=False)
                axes.annotate(
                    cell.status, (place, floor), (0, 5), textcoords="offset points", rotation=90, ha="center",
                    va="bottom", fontsize=5.6, color=FAILED,
                )  # fmt: skip
                continue
            if cell.status == "incorrect":
                axes.plot(
                    place, max(cell.rel_l2, floor), look[system].mark, color="none", markersize=7,
                    markeredgecolor=FAILED, markeredgewidth=1.2, zorder=4,
                )  # fmt: skip
    _points(axes, table, floor, step)
    axes.set_ylim(bottom=floor)
    axes.set_ylabel("relative L2 error")
    axes.set_xticks(range(len(table.cases)), [plain(case.name) for case in table.cases])
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, max(1, len(table.cases)) - 0.5)
    axes.yaxis.grid(True, color=FAINT, linewidth=0.6)
    legend(figure, table.systems, marks=True)
    return figure
