"""What is measured beside cases and has tables, a figure and a section of its own on the page: one entry a study.

A study's records lie in a folder of its name beside the cases' records; its tables and figures have its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mononn_bench.analysis.lengths import length_rows
from mononn_bench.analysis.start import plain_rows, start_rows
from mononn_bench.codec import read_record
from mononn_bench.report.figures.lengths import lengths_figure
from mononn_bench.report.figures.start import start_figure
from mononn_bench.report.figures.style import styled
from mononn_bench.report.grids import Grid
from mononn_bench.report.lengths import length_grids
from mononn_bench.report.start import start_grids
from mononn_bench.served import ServedModel
from mononn_bench.started import StartRecord


@dataclass(frozen=True)
class Study:
    """`record` is the type of its records, of which `grids`, `rows` (for a CSV file) and `draw` are made; `order` sorts
    them, which otherwise stand as their files do.
    """

    name: str
    heading: str
    caption: str
    record: type[Any]
    grids: Callable[[Sequence[Any]], list[Grid]]
    rows: Callable[[Sequence[Any]], Sequence[Any]]
    draw: Callable[[Sequence[Any]], Figure]
    order: Callable[[Any], Any] | None = None


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
    Study(
        name="lengths",
        heading="Requests of many lengths",
        caption="Medians over requests that are padded to the same length, and how many there are of each (grey).",
        record=ServedModel,
        grids=length_grids,
        rows=length_rows,
        draw=lengths_figure,
        order=lambda record: (-record.model.flops, record.model.name),
    ),
)


def read_studies(folder: Path) -> dict[str, list[Any]]:
    """The records of every study that has any in a report's folder, by its name."""
    found = {}
    for study in STUDIES:
        records = [read_record(study.record, path) for path in sorted((folder / study.name).glob("*.json"))]
        if records:
            found[study.name] = sorted(records, key=study.order) if study.order else records
    return found


def draw_studies(records: Mapping[str, Sequence[Any]]) -> dict[str, Figure]:
    """The figure of every study with records, by its name."""
    with styled():
        return {study.name: study.draw(records[study.name]) for study in STUDIES if study.name in records}
