"""How near networks come that are rebuilt from their bricks: shares of networks by error, a panel a system."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mononn_bench.analysis.bricks import NEAR, VERY_NEAR, Rebuilt
from mononn_bench.report.figures.style import FAILED, FAINT, INK, new_figure, plain

FARTHEST = 50.0
"""Per cent of error at which the axis ends."""
LINES = ("-", "--", "-.", ":")


def bricks_figure(rows: Sequence[Rebuilt]) -> Figure:
    """The share of networks whose rebuilt time is within so many per cent of the measured one, a line a length; of
    networks with both times, whose number stands in the legend.
    """
    systems = list(dict.fromkeys(row.system for row in rows))
    lengths = sorted({row.length for row in rows})
    figure = new_figure(2.4)
    panels = figure.subplots(1, max(1, len(systems)), sharey=True, squeeze=False)[0]
    for axes, system in zip(panels, systems, strict=False):
        axes.set_title(plain(system))
        for border in (VERY_NEAR, NEAR):
            axes.axvline(border * 100, color=FAINT, linewidth=0.8)
        drawn = False
        for place, length in enumerate(lengths):
            found = [row.error for row in rows if (row.system, row.length) == (system, length)]
            errors = np.sort([abs(error) * 100 for error in found if error is not None])
            if errors.size:
                shares = np.arange(errors.size + 1) / errors.size * 100
                axes.step(
                    [0.0, *errors, max(FARTHEST, errors[-1])], [*shares, 100.0], where="post", color=INK,
                    linestyle=LINES[place % len(LINES)], linewidth=0.7 + 0.25 * place,
                    label=f"{length} layer{'s' if length > 1 else ''} ({errors.size})",
                )  # fmt: skip
                drawn = True
        if drawn:
            axes.legend(loc="lower right", fontsize=6.5, handlelength=2.2)
        else:
            axes.text(0.5, 0.5, "no network could be rebuilt", transform=axes.transAxes, ha="center", color=FAILED)
        axes.set(xlim=(0, FARTHEST), ylim=(0, 102), xlabel="error, %")
    panels[0].set_ylabel("networks within it, %")
    return figure
