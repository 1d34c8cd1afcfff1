"""What all figures share: type, colours, hatches and marks that hold for a colour-blind reader and in grey."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mononn_bench.analysis.cells import OURS, Cell

WIDTH = 7.2
"""Inches: the text width of a two-column paper."""
INK, FAINT, FAILED = "0.12", "0.9", "#a02b20"
REASON_LETTERS = 76

STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "0.3",
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.0,
    "figure.constrained_layout.use": True,
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "DejaVu Serif"],
    "font.size": 8.5,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "mathtext.fontset": "stix",
    "pdf.fonttype": 42,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "mononn",
}


@dataclass(frozen=True)
class Look:
    """How a system is drawn everywhere: a colour (Okabe and Ito's, 2008), a hatch for bars, a mark for points."""

    colour: str
    hatch: str
    mark: str


LOOKS = {
    OURS: Look("#1b2a38", "", "o"),
    "onnxruntime": Look("#0072b2", "", "s"),
    "openvino": Look("#e69f00", "////", "^"),
    "torch-eager": Look("#009e73", "....", "v"),
    "torch-inductor": Look("#cc79a7", "", "D"),
    "zentorch": Look("#882255", "----", "<"),
    "xla": Look("#56b4e9", "\\\\\\\\", "P"),
    "tvm": Look("#d55e00", "xxxx", "X"),
    "tensorrt": Look("#f0e442", "", "*"),
}
MORE = (
    Look("#7f7f00", "++++", "<"),
    Look("#44aa99", "////", ">"),
    Look("#ddcc77", "----", "p"),
    Look("#332288", "....", "h"),
    Look("#999999", "||||", "d"),
)


def looks(systems: Sequence[str]) -> dict[str, Look]:
    """A look for each system; one that has no fixed one takes the next that is free."""
    spare = cycle(MORE)
    return {system: LOOKS.get(system) or next(spare) for system in systems}


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure, sizes in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def legend(figure: Figure, systems: Sequence[str], *, marks: bool) -> None:
    """One legend above everything; `marks` shows points, otherwise bars."""
    handles: list[Any] = []
    for system, look in looks(systems).items():
        if marks:
            handles.append(
                Line2D([], [], color=look.colour, marker=look.mark, linestyle="", markersize=5, label=system)
            )
        else:
            handles.append(Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0, label=system))
    figure.legend(
        handles=handles, loc="outside upper center", ncols=min(8, len(systems)), fontsize=8, handlelength=1.2,
        handleheight=0.9, columnspacing=1.1, handletextpad=0.4,
    )  # fmt: skip


def time_text(milliseconds: float) -> str:
    """A time for a reader, in the unit that suits it."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.3g} s"
    return f"{milliseconds:.3g} ms" if milliseconds >= 1 else f"{milliseconds * 1e3:.3g} µs"


def why_nothing(cell: Cell, letters: int = REASON_LETTERS, width: int = REASON_LETTERS) -> str:
    """Status and reason of a cell without a speed, cut to `letters`, in lines of at most `width`."""
    reason = cell.reason or ("" if cell.median_ms is None else f"but {OURS} has no speed here")
    whole = f"{cell.status}: {reason}" if reason else cell.status
    return "\n".join(textwrap.wrap(textwrap.shorten(whole, letters, placeholder=" …"), width))


def panel_letters(axes: Sequence[Axes], titles: Sequence[str]) -> None:
    """Title each panel."""
    for one, title in zip(axes, titles, strict=True):
        one.set_title(plain(title))


def plain(text: str) -> str:
    """Text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


def styled() -> Any:
    """The context in which figures are made and written."""
    return mpl.rc_context({**sns.axes_style("ticks"), **STYLE})
