"""What is measured beside cases and has tables, a figure and a section of its own on the page: one entry a study.

A study's records lie in a folder of its name beside the cases' records; its tables and figures have its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mononn_bench.analysis.start import plain_rows, start_rows
from mononn_bench.codec import read_record
from mononn_bench.report.figures.start import start_figure
from mononn_bench.report.figures.style import styled
from mononn_bench.report.grids import Grid
from mononn_bench.report.start import start_grids
from mononn_bench.started import StartRecord


@dataclass(frozen=True)
class Study:
    """`record` is the type of its records, of which `grids`, `rows` (for a CSV file) and `draw` are made."""

    name: str
    heading: str
    caption: str
    record: type[Any]
    grids: Callable[[Sequence[Any]], list[Grid]]
    rows: Callable[[Sequence[Any]], Sequence[Any]]
    draw: Callable[[Sequence[Any]], Figure]


@dataclass(frozen=True)
class Shown:
    """A study that has records, for the page."""

    study: Study
    grids: list[Grid]


STUDIES = (
    Study(
        name="start",
        heading="From the start of a process to its first answer",
        caption="Milliseconds from just before a process is started until its first answer is there: bars with what it "
        "reads in the page cache, diamonds with that dropped.",
        record=StartRecord,
        grids=start_grids,
        rows=lambda records: plain_rows(start_rows(records)),
        draw=lambda records: start_figure(start_rows(records)),
    ),
)


def read_studies(folder: Path) -> dict[str, list[Any]]:
    """The records of every study that has any in a report's folder, by its name; of each in the order of its files."""
    found = {s.name: [read_record(s.record, p) for p in sorted((folder / s.name).glob("*.json"))] for s in STUDIES}
    return {name: records for name, records in found.items() if records}


def draw_studies(records: Mapping[str, Sequence[Any]]) -> dict[str, Figure]:
    """The figure of every study with records, by its name."""
    with styled():
        return {study.name: study.draw(records[study.name]) for study in STUDIES if study.name in records}
