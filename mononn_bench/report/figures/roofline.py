"""The roofline: where each model stands under the machine's ceilings, and each system's share of what is attainable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mononn_bench.analysis.cells import CaseSummary, Table
from mononn_bench.report.figures.style import FAILED, FAINT, INK, legend, looks, new_figure, plain


def roofline_figure(table: Table) -> Figure:
    """Left, arithmetic rate against intensity (direct-algorithm FLOP a compulsory byte), logarithmic, under three
    ceilings: multiply-adds from registers, bytes from the cache next to the cores, bytes from memory. Right, the share
    of the roofline, which also knows how much of a model the last-level cache holds. Cases in fp32 alone: the ceilings
    are those of that precision.
    """
    table = replace(table, cases=[case for case in table.cases if case.precision == "fp32"])
    cases = [case for case in table.cases if case.ceilings is not None]
    figure = new_figure(0.6 + max(2.0, 0.3 * len(table.cases)))
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.05]})
    _draw_ceilings(left, cases)
    for case in cases:
        _draw_case(left, case, table)
    left.set_ylim(bottom=left.get_ylim()[0] / 4)  # room for the names under the lowest marks
    _draw_shares(right, table)
    legend(figure, table.systems, marks=True)
    return figure


def _draw_ceilings(axes: Axes, cases: list[CaseSummary]) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("intensity, FLOP a byte")
    axes.set_ylabel("GFLOP/s")
    axes.grid(True, color=FAINT, linewidth=0.6)
    found = [case.ceilings for case in cases if case.ceilings is not None]
    if not found:
        axes.text(0.5, 0.5, "no ceilings were measured", transform=axes.transAxes, ha="center", color=FAILED)
        return
    top = replace(found[0], **{name: max(getattr(c, name) for c in found) for name in _RATES})
    intensities = [case.flops / max(1, case.compulsory_bytes) for case in cases]
    ridge = top.flops_per_s / top.cache_bytes_per_s
    x = np.geomspace(min(ridge, *intensities) / 6, max(10 * ridge, *intensities) * 4, 200)
    axes.set_xlim(x[0], x[-1])
    roofs = (("memory", top.dram_bytes_per_s, "--"), ("cache", top.cache_bytes_per_s, "-"))
    for name, rate, line in roofs:
        axes.plot(x, np.minimum(x * rate, top.flops_per_s) / 1e9, color=INK, linewidth=0.9, linestyle=line)
        axes.annotate(
            f"{name}, {rate / 1e9:.0f} GB/s", (x[8], x[8] * rate / 1e9), (-2, 2), textcoords="offset points",
            fontsize=6.5, rotation=45, rotation_mode="anchor", transform_rotates_text=True, va="bottom",
        )  # fmt: skip
    axes.annotate(
        f"{top.flops_per_s / 1e9:.0f} GFLOP/s", (x[-1], top.flops_per_s / 1e9), (0, 2), textcoords="offset points",
        ha="right", va="bottom", fontsize=6.5,
    )  # fmt: skip


_RATES = ("flops_per_s", "cache_bytes_per_s", "dram_bytes_per_s")


def _draw_case(axes: Axes, case: CaseSummary, table: Table) -> None:
    """A column of marks, one a system, over the model's intensity."""
    look = looks(table.systems)
    x = case.flops / max(1, case.compulsory_bytes)
    if x <= 0:
        return
    lowest = None
    for system in table.systems:
        cell = table.cell(case.name, system)
        if cell is None or cell.median_ms is None:
            continue
        y = case.flops / (cell.median_ms * 1e-3) / 1e9
        lowest = y if lowest is None else min(lowest, y)
        style = look[system]
        axes.plot(x, y, style.mark, color=style.colour, markersize=4.5, markeredgecolor="white", markeredgewidth=0.4)
    if lowest is not None:
        axes.annotate(
            plain(case.name), (x, lowest), (0, -7), textcoords="offset points", ha="center", va="top", fontsize=6,
            rotation=90,
        )  # fmt: skip


def _draw_shares(axes: Axes, table: Table) -> None:
    look = looks(table.systems)
    for y, case in enumerate(table.cases):
        axes.axhline(y, color=FAINT, linewidth=0.6)
        without = 0
        for system in table.systems:
            cell = table.cell(case.name, system)
            if cell is not None and cell.roofline_share is not None:
                style = look[system]
                axes.plot(
                    cell.roofline_share * 100, y, style.mark, color=style.colour, markersize=5, clip_on=False,
                    markeredgecolor="white", markeredgewidth=0.4,
                )  # fmt: skip
            elif cell is not None:
                axes.plot(-4 - 3.5 * without, y, "x", color=look[system].colour, markersize=4, clip_on=False)
                without += 1
    axes.set_xlim(0, max([100.0, *(cell.roofline_share * 102 for cell in table.cells if cell.roofline_share)]))
    axes.set_xlabel("share of the roofline, % (crosses: no speed)")
    axes.set_yticks(range(len(table.cases)), [plain(case.name) for case in table.cases])
    axes.tick_params(axis="y", length=0, pad=4 + 9 * _most_without(table))
    axes.set_ylim(max(1, len(table.cases)) - 0.5, -0.5)


def _most_without(table: Table) -> int:
    counts = [
        sum(1 for cell in table.cells if cell.case == case.name and cell.roofline_share is None) for case in table.cases
    ]
    return max(counts, default=0)
