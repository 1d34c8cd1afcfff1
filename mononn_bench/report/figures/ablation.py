"""What each decision of our own compiler is worth: its time without it over its time with it."""

from __future__ import annotations

from matplotlib.figure import Figure

from mononn_bench.analysis.cells import OURS, Table, variant_of
from mononn_bench.report.figures.style import FAILED, FAINT, INK, new_figure, plain, why_nothing


def variant_name(label: str) -> str:
    """`mononn[launch=phases]` as `launch=phases`."""
    return label.removeprefix(f"{OURS}[").removesuffix("]")


def ablation_figure(table: Table) -> Figure:
    """A panel a case; a row a variant, its time over that of the compiler as it is, with the 95 % interval."""
    variants = [system for system in table.systems if variant_of(system) == OURS]
    figure = new_figure(0.6 + 0.24 * (len(variants) + 1))
    panels = figure.subplots(1, len(table.cases), squeeze=False, sharey=True)[0]
    for axes, case in zip(panels, table.cases, strict=True):
        axes.axvline(1, color=INK, linewidth=0.8)
        for y, variant in enumerate(variants):
            cell = table.cell(case.name, variant)
            if cell is None:
                continue
            if cell.speedup is None:
                text = plain(why_nothing(cell, width=40))
                axes.annotate(text, (1, y), (4, 0), textcoords="offset points", va="center", fontsize=5.6, color=FAILED)
                continue
            low, high = cell.speedup_low or cell.speedup, cell.speedup_high or cell.speedup
            certain = cell.verdict in ("faster", "slower")
            axes.hlines(y, low, high, color=INK, linewidth=1.2)
            face = INK if certain else "white"
            axes.plot(cell.speedup, y, "o", color=INK, markerfacecolor=face, markersize=4.5)
            axes.annotate(
                f"{cell.speedup:.2f}", (cell.speedup, y), (0, 4), textcoords="offset points", ha="center", fontsize=6.5
            )
        axes.set_title(plain(case.name))
        axes.xaxis.grid(True, color=FAINT, linewidth=0.6)
        axes.margins(x=0.15)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(variants)), [plain(variant_name(v)) for v in variants])
    panels[0].set_ylim(len(variants) - 0.5, -0.7)
    figure.supxlabel("time over that with everything on (filled: a difference that survives Holm)", fontsize=8)
    return figure
