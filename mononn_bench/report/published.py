"""Published results: several full runs on one kind of machine, pooled, and each run beside the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from mononn_bench.analysis.cells import OURS, Cell, Table
from mononn_bench.analysis.pool import pool_tables
from mononn_bench.analysis.table import make_table
from mononn_bench.record import CaseRecord, read_record
from mononn_bench.report import words
from mononn_bench.report.grids import Grid

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
"""In the order of a table's rows."""


@dataclass(frozen=True)
class Published:
    """The runs of one machine, in the order in which they were made."""

    machine: str
    runs: Sequence[Table]

    @cached_property
    def pooled(self) -> Table:
        """All runs as one table."""
        return pool_tables(self.runs)


def read_published(reference: Path) -> list[Published]:
    """What stands under `reference`/<machine>/<run>/raw; models from the largest to the smallest."""
    found: dict[str, list[Table]] = {}
    for folder in sorted(path for path in reference.glob("*/*/raw") if path.is_dir()):
        found.setdefault(folder.parents[1].name, []).append(make_table(read_folder(folder)))
    return [Published(machine, runs) for machine, runs in found.items()]


def read_suites(reference: Path) -> dict[str, Table]:
    """What stands under `reference`/<machine>/suites/<name>/raw, by name: of the first machine that has the suite."""
    folders: dict[str, Path] = {}
    for folder in sorted(reference.glob("*/suites/*/raw")):
        folders.setdefault(folder.parent.name, folder)
    return {name: make_table(read_folder(folders[name])) for name in sorted(folders)}


def read_folder(folder: Path) -> list[CaseRecord]:
    """The case records of one run: those of a precision together, models from the largest to the smallest."""
    records = [read_record(CaseRecord, path) for path in folder.glob("*.json")]
    return sorted(records, key=_place)


def _place(record: CaseRecord) -> tuple[int, int, str, int, int]:
    model, order = record.model, PRECISIONS.index(record.precision)
    return order, -model.flops, model.name, model.batch, record.settings.seed


def runs_grid(published: Published) -> Grid:
    """The runs side by side: for each ratio the median and the range of the runs' own estimates, and their verdicts."""
    table = published.pooled
    rows = []
    for case in table.cases:
        cells = {system: _of_runs(published, case.name, system) for system in table.systems}
        times = [cell.median_ms for cell in cells.get(OURS, []) if cell.median_ms is not None]
        row = [case.name, _time_cell(times) if times else "no time"]
        rows.append([*row, *(_ratio_cell(cells[rival]) for rival in table.rivals)])
    return Grid(
        title=f"The runs on {published.machine}",
        caption=f"Median of {len(published.runs)} runs and, in brackets, their smallest and largest: no interval.",
        header=["model", f"{OURS}, ms", *table.rivals],
        rows=rows,
        notes=list(_notes(published)),
    )


def _of_runs(published: Published, case: str, system: str) -> list[Cell]:
    return [cell for run in published.runs if (cell := run.cell(case, system)) is not None]


def _ratio_cell(cells: Sequence[Cell]) -> str:
    ratios = [cell.speedup for cell in cells if cell.speedup is not None]
    if not ratios:
        return " / ".join(dict.fromkeys(words.ratio_cell(cell) for cell in cells)) or "not measured"
    counts = {verdict: sum(cell.verdict == verdict for cell in cells) for cell in cells if (verdict := cell.verdict)}
    verdicts = ", ".join(f"{verdict} in {count}" for verdict, count in counts.items())
    failed = " ".join(dict.fromkeys(cell.status for cell in cells if cell.status != "ok"))
    middle = words.interval(median(ratios), min(ratios), max(ratios))
    return " ".join(part for part in (middle, verdicts, failed) if part)


def _time_cell(times: Sequence[float]) -> str:
    middle, least, most = (words.number("median_ms", time) for time in (median(times), min(times), max(times)))
    return f"{middle} [{least}, {most}]"


def _notes(published: Published) -> Iterable[str]:
    for number, run in enumerate(published.runs, start=1):
        detectable = "" if run.detectable is None else f"; {words.detectable(run)}"
        yield f"Run {number}: {words.provenance(run)}{detectable}."
    for case in published.pooled.cases:
        if case.flags:
            yield f"{case.name}, flagged: {'; '.join(case.flags)}."
