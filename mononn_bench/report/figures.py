"""Figures for print: normalised speed by model and system, with intervals, and marks where a system has no speed."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.axes import Axes

mpl.use("Agg")

import pandas as pd
import seaborn as sns

from mononn_bench.analysis.cells import OURS, Cell, Table

BAR_GROUP = 0.84
STYLE = {
    "axes.edgecolor": "0.3",
    "axes.linewidth": 0.7,
    "axes.titlelocation": "left",
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "DejaVu Serif"],
    "font.size": 9.0,
    "mathtext.fontset": "stix",
    "pdf.fonttype": 42,
    "svg.hashsalt": "mononn",
    "xtick.major.size": 0,
}


def speed_figure(table: Table) -> Any:
    """A matplotlib figure: for each model one bar a system, its speed over ours, whiskers the 95 % interval.

    Ours is the line at 1; a bar under it belongs to a slower system. A system without a speed has a cross and its
    reason where its bar would be.
    """
    frame = _frame(table)
    models = [case.model for case in table.cases]
    colours = dict(zip(table.systems, _palette(len(table.systems)), strict=True))
    with sns.axes_style("ticks"), mpl.rc_context(STYLE):
        width = max(3.4, 0.9 + 0.34 * len(models) * len(table.systems))
        figure, axes = pyplot.subplots(figsize=(min(width, 7.2), 2.7), layout="constrained")
        sns.barplot(
            frame, x="model", y="speed", hue="system", order=models, hue_order=list(table.systems), ax=axes,
            palette=colours, saturation=1, width=BAR_GROUP, edgecolor="white", linewidth=0.6, errorbar=None,
        )  # fmt: skip
        top = max([1.0, *frame["high"].dropna(), *frame["speed"].dropna()])
        axes.set_ylim(0, top * 1.14)
        step = BAR_GROUP / len(table.systems)
        cells = {(c.model, c.system): c for c in table.cells}
        for i, model in enumerate(models):
            for j, system in enumerate(table.systems):
                cell = cells.get((model, system))
                if cell is not None:
                    _annotate(axes, cell, i + (j - (len(table.systems) - 1) / 2) * step, top)
        axes.set_xticks(range(len(models)), [_tick(cells.get((model, OURS)), model) for model in models])
        _dress(axes, table)
    return figure


def write_figures(table: Table, folder: Path) -> None:
    """Write speedup.pdf and speedup.png into `folder`, without dates, each under a temporary name first."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = speed_figure(table)
    with mpl.rc_context(STYLE):
        for name, metadata in (("speedup.pdf", {"CreationDate": None, "Creator": "mononn-bench"}), ("speedup.png", {})):
            partial = folder / f".partial.{name}"
            figure.savefig(partial, dpi=300, metadata=metadata)
            partial.replace(folder / name)
    pyplot.close(figure)


def _frame(table: Table) -> pd.DataFrame:
    """A row a cell: speed relative to ours with its interval; a ratio's ends change places when it is inverted."""
    rows = [
        {
            "model": c.model,
            "system": c.system,
            "speed": None if c.speedup is None else 1 / c.speedup,
            "low": None if c.speedup_high is None else 1 / c.speedup_high,
            "high": None if c.speedup_low is None else 1 / c.speedup_low,
        }
        for c in table.cells
    ]
    return pd.DataFrame(rows, columns=["model", "system", "speed", "low", "high"]).astype(
        {"speed": float, "low": float, "high": float}
    )


def _palette(count: int) -> list[Any]:
    """Ours in a dark tone, rivals in colours that a colour-blind reader and a black-and-white printer tell apart."""
    rivals = sns.color_palette("colorblind", 10)
    chosen = [rivals[i] for i in (0, 1, 2, 4, 5, 6, 7, 8, 9, 3)]
    return ["#22313f", *chosen][:count] if count <= 11 else sns.color_palette("husl", count)


def _tick(ours: Cell | None, model: str) -> str:
    """The model's name, and under it our own time."""
    if ours is None or ours.median_ms is None:
        return model
    time = f"{ours.median_ms:.3g} ms" if ours.median_ms >= 1 else f"{ours.median_ms * 1e3:.3g} µs"
    return f"{model}\n({time})"


def _annotate(axes: Axes, cell: Cell, x: float, top: float) -> None:
    """What stands at one bar: its interval and value, or a cross and the reason why there is none."""
    if cell.speedup is not None:
        speed = 1 / cell.speedup
        upper = speed
        if cell.speedup_low is not None and cell.speedup_high is not None:
            low, upper = 1 / cell.speedup_high, 1 / cell.speedup_low
            axes.errorbar(x, speed, [[speed - low], [upper - speed]], color="0.1", linewidth=0.8, capsize=1.6)
        style = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # the line at 1 does not cross the number
        axes.text(
            x, upper + top * 0.02, f"{speed:.2f}", ha="center", va="bottom", fontsize=6.5, color="0.15", bbox=style
        )
        return
    whole = cell.reason or ("" if cell.median_ms is None else f"but {OURS} has no speed here")
    reason = textwrap.shorten(whole, 76, placeholder=" …") if whole else ""
    axes.plot(x, top * 0.03, marker="x", color="#b03a2e", markersize=4.5, markeredgewidth=1.2, clip_on=False)
    text = "\n".join(textwrap.wrap(f"{cell.status}: {reason}" if reason else cell.status, 44))
    axes.text(
        x, top * 0.075, text, rotation=90, ha="center", va="bottom", fontsize=5.8, color="#b03a2e", linespacing=0.95
    )


def _dress(axes: Axes, table: Table) -> None:
    axes.axhline(1, color="0.1", linewidth=0.8, zorder=0.9)
    axes.set_xlabel("")
    axes.set_ylabel(f"speed ({OURS} = 1)")
    axes.yaxis.grid(True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    sns.despine(ax=axes)
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(table.systems), frameon=False, fontsize=8,
        handlelength=1.0, handleheight=0.8, columnspacing=1.2, handletextpad=0.4, title=None,
    )  # fmt: skip
