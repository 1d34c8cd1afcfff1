"""A/A: each comparison of a system with itself, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mononn_bench.analysis.cells import Table, Twin
from mononn_bench.report.figures.style import FAILED, FAINT, INK, new_figure, plain
from mononn_bench.report.names import REPEATED


def same_figure(table: Table) -> Figure:
    """A panel a network: comparisons from the smallest ratio to the largest; those that differ are marked."""
    networks: dict[str, list[Twin]] = {}
    for twin in table.twins:
        networks.setdefault(REPEATED.sub("", twin.case), []).append(twin)
    figure = new_figure(2.4)
    panels = figure.subplots(1, max(1, len(networks)), squeeze=False, sharey=True)[0]
    for axes, (name, twins) in zip(panels, networks.items(), strict=True):
        _draw(axes, sorted(twins, key=lambda t: t.estimate.ratio))
        differing = sum(t.differs for t in twins)
        axes.set_title(f"{plain(name)}: {differing} of {len(twins)} differ", fontsize=8)
    panels[0].set_ylabel("time over its twin's")
    return figure


def _draw(axes: Axes, twins: Sequence[Twin]) -> None:
    for x, twin in enumerate(twins):
        e = twin.estimate
        colour, mark = (FAILED, "X") if twin.differs else (INK, "o")
        axes.vlines(x, e.low or e.ratio, e.high or e.ratio, color=colour, linewidth=0.8)
        axes.plot(x, e.ratio, mark, color=colour, markersize=2.8 if len(twins) > 20 else 4.5)
    axes.axhline(1, color="0.4", linewidth=0.8, zorder=0.9)
    axes.yaxis.grid(True, color=FAINT, linewidth=0.6)
    axes.set_xticks([])
    axes.set_xlim(-0.7, max(1, len(twins)) - 0.3)
