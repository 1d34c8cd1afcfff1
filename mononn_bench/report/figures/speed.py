"""Normalised speed by model and system, with intervals: a bar for each speed, a cross and its reason for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mononn_bench.analysis.cells import OURS, Cell, Headline, Table
from mononn_bench.report.figures.style import (
    FAILED,
    FAINT,
    INK,
    Look,
    legend,
    looks,
    new_figure,
    plain,
    time_text,
    why_nothing,
)

GROUPS_A_ROW = 5
GROUP = 0.86
ROW_INCHES = 2.35
CROWDED = 5
"""With more systems than this, what stands at a bar is turned."""


@dataclass(frozen=True)
class Bar:
    """One bar: `speed` over ours with its interval, or None and the `reason` why there is none."""

    system: str
    speed: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class Group:
    """The bars over one tick: a case, or a geometric mean."""

    title: str
    bars: Sequence[Bar]


def speed_figure(table: Table) -> Figure:
    """For each case a bar a system, its speed over ours, whiskers the 95 % interval; geometric means follow.

    Ours is the line at 1; a bar under it belongs to a slower system.
    """
    parts = []
    for precision in dict.fromkeys(case.precision for case in table.cases):
        groups = [_case_group(table, case.name) for case in table.cases if case.precision == precision]
        means = [_mean_group(table, h) for h in table.headlines if h.precision == precision]
        parts.append([*groups, *(group for group in means if group is not None)])
    return _draw_groups(parts, table.systems)


def _draw_groups(parts: Sequence[Sequence[Group]], systems: Sequence[str]) -> Figure:
    """Rows of at most five groups, all on one scale; each part, which is a precision's, begins a row."""
    groups = [group for part in parts for group in part]
    rows = [part[i : i + GROUPS_A_ROW] for part in parts for i in range(0, len(part), GROUPS_A_ROW)] or [[]]
    figure = new_figure(0.35 + ROW_INCHES * len(rows))
    panels = figure.subplots(len(rows), 1, squeeze=False, sharey=True)[:, 0]
    tops = [bar.high or bar.speed for group in groups for bar in group.bars if bar.speed is not None]
    top = max([1.0, *(value for value in tops if value is not None)])
    widest = max(len(row) for row in rows)
    for axes, row in zip(panels, rows, strict=True):
        axes.set_ylim(0, top * 1.16)
        for x, group in enumerate(row):
            _draw_group(axes, group, x, looks(systems), top)
        axes.set_xticks(range(len(row)), [plain(group.title) for group in row])
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.5, max(widest, 2) - 0.5)
        axes.axhline(1, color=INK, linewidth=0.8, zorder=0.9)
        axes.set_ylabel(f"speed ({OURS} = 1)")
        axes.yaxis.grid(True, color=FAINT, linewidth=0.6)
    legend(figure, systems, marks=False)
    return figure


def _case_group(table: Table, case: str) -> Group:
    bars = []
    for system in table.systems:
        cell = table.cell(case, system)
        if cell is None:
            continue
        if cell.speedup is None:
            bars.append(Bar(system, None, reason=_reason(cell, len(table.systems))))
            continue
        note = "" if cell.status == "ok" else cell.status
        bars.append(_speed_bar(system, cell.speedup, cell.speedup_low, cell.speedup_high, note))
    ours = table.cell(case, OURS)
    time = f"\n({time_text(ours.median_ms)})" if ours and ours.median_ms is not None else ""
    return Group(f"{case}{time}", bars)


def _speed_bar(system: str, ratio: float, low: float | None, high: float | None, note: str) -> Bar:
    """The bar of a ratio of times: speed is its inverse."""
    return Bar(system, 1 / ratio, None if high is None else 1 / high, None if low is None else 1 / low, note=note)


def _reason(cell: Cell, systems: int) -> str:
    """One line where bars are narrow; the whole reason stands under the table."""
    return why_nothing(cell, 54) if systems > CROWDED else why_nothing(cell, 90, 45)


def _mean_group(table: Table, headline: Headline) -> Group | None:
    """The geometric mean of a headline, where it is one of several networks."""
    total = max((mean.total for mean in headline.means.values()), default=0)
    if total < 2:
        return None
    bars = [Bar(OURS, 1.0)]
    for system in table.rivals:
        mean = headline.means.get(system)
        if mean is None:
            bars.append(Bar(system, None, reason="no mean"))
        else:
            note = f"{mean.count} of {mean.total}" if mean.count < mean.total else ""
            bars.append(_speed_bar(system, mean.value, mean.low, mean.high, note))
    return Group(f"geometric mean\n({headline.name})", bars)


def _draw_group(axes: Axes, group: Group, centre: float, look: dict[str, Look], top: float) -> None:
    step = GROUP / max(1, len(look))
    positions = {system: centre + (i - (len(look) - 1) / 2) * step for i, system in enumerate(look)}
    for bar in group.bars:
        x = positions[bar.system]
        if bar.speed is None:
            _draw_cross(axes, bar, x, top)
        else:
            _draw_bar(axes, bar, x, step, look[bar.system], top, crowded=len(look) > CROWDED)


def _draw_bar(axes: Axes, bar: Bar, x: float, step: float, look: Look, top: float, *, crowded: bool) -> None:
    assert bar.speed is not None
    axes.bar(x, bar.speed, step, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.5)
    upper = bar.speed
    if bar.low is not None and bar.high is not None:
        whisker = [[bar.speed - bar.low], [bar.high - bar.speed]]
        axes.errorbar(x, bar.speed, whisker, color="white", linewidth=2.0)  # dark whiskers show on dark bars too
        axes.errorbar(x, bar.speed, whisker, color=INK, linewidth=0.8, capsize=1.4, capthick=0.8)
        upper = bar.high
    text = f"{bar.speed:.2f}" + (f" ({bar.note})" if bar.note else "")
    backing = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # the line at 1 does not cross the number
    axes.text(
        x, upper + top * 0.02, text, ha="center", va="bottom", fontsize=6, color=INK, bbox=backing,
        rotation=90 if crowded or bar.note else 0,
    )  # fmt: skip


def _draw_cross(axes: Axes, bar: Bar, x: float, top: float) -> None:
    axes.plot(x, top * 0.03, marker="x", color=FAILED, markersize=4, markeredgewidth=1.2, clip_on=False)
    axes.text(
        x, top * 0.075, plain(bar.reason), rotation=90, ha="center", va="bottom", fontsize=5.4, color=FAILED,
        linespacing=0.95,
    )  # fmt: skip
