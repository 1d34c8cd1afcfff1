"""What a request takes by its length, over the lengths that requests have, a panel a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mononn_bench.analysis.lengths import TWIN, block_times
from mononn_bench.report.figures.style import FAILED, FAINT, looks, new_figure, plain
from mononn_bench.served import ServedModel

LINES = {"dynamic": "-", "bucketed": "--", "static": ":", "family": "-"}
FEWEST = 3
"""Requests that a point is a median of."""


def lengths_figure(models: Sequence[ServedModel]) -> Figure:
    """Medians over requests whose lengths are padded to the same one, a line a contestant; how many requests there are
    of each stands behind them in grey.
    """
    figure = new_figure(2.9)
    panels = figure.subplots(1, max(1, len(models)), squeeze=False)[0]
    for axes, model in zip(panels, models, strict=False):
        axes.set(title=plain(model.model.name), xlabel="tokens", ylabel="ms")
        grid = np.asarray(model.grid)
        places = np.searchsorted(grid, model.lengths)
        counts = np.bincount(places, minlength=len(grid))
        shown = [s for s in model.systems if s.status == "ok" and s.label != TWIN]
        for system in shown:
            times = block_times(model, system.label).ravel()
            points = [(grid[i], np.nanmedian(times[places == i])) for i in range(len(grid))
                      if np.count_nonzero(~np.isnan(times[places == i])) >= FEWEST]  # fmt: skip
            look = looks([s.system for s in shown])[system.system]
            axes.plot(*zip(*points, strict=True) if points else ([], []), color=look.colour, linewidth=1.1,
                      linestyle=LINES.get(system.form, "-."), label=plain(system.label))  # fmt: skip
        if not shown:
            axes.text(0.5, 0.5, "no contestant is ok", transform=axes.transAxes, ha="center", color=FAILED)
        behind = axes.twinx()
        behind.bar(grid, counts, width=0.8 * model.settings.step, color=FAINT)
        behind.set(yticks=[], ylim=(0, 3 * max(1, int(counts.max(initial=0)))))
        behind.spines["right"].set_visible(False)
        axes.set_zorder(behind.get_zorder() + 1)
        axes.patch.set_visible(False)
        axes.set_ylim(bottom=0)
    named = {text: line for axes in panels for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    if named:
        figure.legend(named.values(), named, loc="outside upper center", ncols=4, fontsize=7.0, handlelength=2.2)
    return figure
