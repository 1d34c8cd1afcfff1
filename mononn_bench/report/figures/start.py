"""First answers: a panel a network, a bar a way of starting it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mononn_bench.analysis.start import StartRow
from mononn_bench.report.figures.style import FAILED, FAINT, INK, looks, new_figure, plain, time_text

LINE_INCHES = 0.2
SHOWN = 70
"""Letters of a reason."""


def start_figure(rows: Sequence[StartRow]) -> Figure:
    """Milliseconds until the first answer on a logarithmic axis: bars with warm files, marks with cold ones."""
    cases = list(dict.fromkeys(row.case for row in rows))
    by_case = {case: [row for row in rows if row.case == case] for case in cases}
    heights = [LINE_INCHES * len(found) + 0.45 for found in by_case.values()]
    figure = new_figure(sum(heights) + 0.3)
    panels = figure.subplots(len(cases), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (case, found) in zip(panels, by_case.items(), strict=True):
        _panel(axes, case, found)
    panels[-1].set_xlabel("from the start of the process to the first answer, ms; bar: warm files, diamond: cold files")
    return figure


def _panel(axes: Axes, case: str, rows: Sequence[StartRow]) -> None:
    axes.set_title(plain(case))
    look = looks(list(dict.fromkeys(row.starter.system for row in rows)))
    least = min((row.warm_ms for row in rows if row.warm_ms), default=1.0)
    axes.set(xscale="log", yticks=range(len(rows)), ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticklabels([plain(row.starter.label) for row in rows])
    for place, row in enumerate(rows):
        style = look[row.starter.system]
        if row.warm_ms is None:
            text = f"{row.starter.status}: {row.starter.reason}"[:SHOWN]
            axes.text(least, place, f"× {plain(text)}", color=FAILED, va="center", fontsize=7)
            continue
        axes.barh(
            place, row.warm_ms, color=style.colour, hatch=style.hatch, edgecolor="white", linewidth=0, height=0.66
        )
        axes.text(row.warm_ms, place, f" {time_text(row.warm_ms)}", va="center", fontsize=7)
        if row.cold_ms is not None:
            axes.plot([row.cold_ms], [place], marker="D", color=FAINT, markeredgecolor=INK, markersize=4, linestyle="")
