"""The tables of a report: speed, one a network, A/A; as text in every form. The same records give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from mononn_bench.analysis.cells import OURS, CaseSummary, Cell, Table, Twin, columns_of, is_variant, variant_of
from mononn_bench.analysis.stats import Estimate, geometric_mean
from mononn_bench.analysis.twins import same_system_rate
from mononn_bench.codec import write_text
from mononn_bench.report import words
from mononn_bench.report.grids import Grid, latex, markdown
from mononn_bench.report.names import REPEATED

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DEFAULTS = ", each system with its own defaults"
OPTIONS = "options"


def cells_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """A row a cell, a column a measured or counted thing; what there is no value for is None."""
    columns = columns_of(cells)
    rows = [[getattr(cell, column) for column in columns] for cell in cells]
    return pd.DataFrame(rows, columns=columns, dtype=object)


def cells_csv(cells: Sequence[Cell]) -> str:
    """cells.csv: a header and one row a cell, floats with six significant digits, empty where there is no value."""
    return str(cells_frame(cells).map(_six_digits).to_csv(index=False, lineterminator="\n"))


def rows_csv(rows: Sequence[DataclassInstance | Mapping[str, Any]]) -> str:
    """Dataclasses of one kind, or mappings, as CSV: a header of their fields, a row each, floats with six significant
    digits.
    """
    frame = pd.DataFrame([row if isinstance(row, Mapping) else asdict(row) for row in rows], dtype=object)
    return str(frame.map(_six_digits).to_csv(index=False, lineterminator="\n"))


def _six_digits(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def speed_grid(table: Table) -> Grid:
    """A row a case, our time, each rival's ratio with its interval and verdict, and the best rival's.

    Of a table without rivals (A/A) only what stands beneath it is left.
    """
    rows = []
    for case in table.cases:
        ours = table.cell(case.name, OURS)
        row = [words.case(case), words.time(ours) if ours else "not measured"]
        row += [words.ratio_cell(table.cell(case.name, rival)) for rival in table.rivals]
        rows.append([*row, *([words.best(case)] if _shows_best(table) else [])])
    header = ["model", f"{OURS}, ms", *table.rivals, *(["best rival"] if _shows_best(table) else [])]
    what = f"Each rival's time over that of {OURS}, with its 95 % interval: over 1 means that {OURS} is faster."
    return Grid(
        title=f"Speed on {table.machine}" + (DEFAULTS if table.view == "defaults" else ""),
        caption=what if table.runs == 1 else f"{table.runs} full runs, pooled. {what}",
        header=header,
        rows=rows if table.rivals else [],
        notes=list(words.beneath(table)),
    )


def options_grid(table: Table) -> Grid:
    """A row an option that was changed in a system, a column a case: what it changes."""
    variants = dict.fromkeys(effect.variant for effect in table.effects)
    cases = [case.name for case in table.cases]
    found = {(effect.variant, effect.case): effect for effect in table.effects}
    return Grid(
        title=f"Options on {table.machine}",
        caption="The time of a system with an option changed over its time as it is measured, with the 95 % interval: "
        "over 1 means that the change makes it slower.",
        header=["system [option]", *cases],
        rows=[[variant, *(words.effect(found.get((variant, case))) for case in cases)] for variant in variants],
        notes=[*words.networks(table.cases), words.HOLM, *words.records(table), *words.troubles(table)],
    )


def leads_grid(table: Table) -> Grid:
    """A row a case, and their geometric mean: ours against its best rival with and without what the options change."""
    rows = [
        [one.case, *_lead(one.varied_best, one.varied), *_lead(one.best, one.measured), _ratio(one.change)]
        for one in table.leads
    ]
    columns = [[one.varied for one in table.leads], [one.measured for one in table.leads]]
    columns.append([one.change for one in table.leads if one.change])
    cases = [one.case for one in table.leads]
    before, now, change = (_mean(dict(zip(cases, column, strict=False)), cases) for column in columns)
    rows.append(["geometric mean", "", before, "", now, change])
    return Grid(
        title=f"What options change between {OURS} and its best rival on {table.machine}",
        caption=f"The best rival's time over {OURS}'s, with the 95 % interval: each system with its first variant, and "
        "as it is measured. The change is the second ratio over the first, paired by rounds.",
        header=["model", "best variant", "ratio", "best as measured", "ratio", "change"],
        rows=rows,
        notes=[*words.records(table)],
    )


def _lead(best: str, one: Estimate) -> tuple[str, str]:
    return best, words.interval(one.ratio, one.low, one.high)


def _ratio(one: Estimate | None) -> str:
    return words.interval(one.ratio, one.low, one.high) if one else words.NOTHING


def _mean(estimates: dict[str, Estimate], cases: Sequence[str]) -> str:
    mean = geometric_mean({case: [one] for case, one in estimates.items()}, cases)
    return words.interval(mean.value, mean.low, mean.high) if mean else words.NOTHING


def case_grid(table: Table, case: CaseSummary) -> Grid:
    """One case's table: a row a system with everything that was measured of it."""
    cells = [c for c in table.cells if c.case == case.name]
    columns = words.model_columns(cells)
    rows = [
        [c.system, c.version or "?", c.status, words.ratio(c), c.verdict or words.NOTHING]
        + [words.number(column, getattr(c, column)) for _, column in columns]
        for c in cells
    ]
    header = ["system", "version", "status", f"ratio to {OURS}", "verdict", *(name for name, _ in columns)]
    run = next((c.run_id for c in cells), "")
    notes = [f"{c.system}: {c.status}, {c.reason}." for c in cells if c.reason]
    notes += [
        f"{c.system} saves arithmetic by {c.algorithm}: the roofline counts direct algorithms."
        for c in cells
        if c.algorithm
    ]
    notes += [f"Flagged: {flag}." for flag in case.flags]
    notes += list(words.blind_spots(table))
    made = f"{' to '.join(case.created)}, source {words.revisions([case])}"
    notes.append(f"Run {run}, {made}; to make it again: `{case.command}`.")
    title = f"{words.case(case)} on {table.machine}"
    return Grid(title, f"{case.model}: {words.network(case)}.", header, rows, notes)


def batches_grid(table: Table) -> Grid:
    """A row a batch of each network that was measured with more than one: each system's time and what it is an item."""
    groups: dict[tuple[str, str, str], dict[int, str]] = {}
    for case in table.cases:
        batch = next((cell.batch for cell in table.cells if cell.case == case.name), 1)
        groups.setdefault((case.network, case.precision, case.target), {})[batch] = case.name
    rows = [
        [name, str(batch), *(_an_item(table.cell(name, system), batch) for system in table.systems)]
        for found in groups.values()
        for batch, name in sorted(found.items())
        if len(found) > 1
    ]
    return Grid(
        title=f"Batch sizes on {table.machine}",
        caption="Milliseconds of a run and, in brackets, of one item of its batch.",
        header=["model", "batch", *table.systems],
        rows=rows,
        notes=[],
    )


def _an_item(cell: Cell | None, batch: int) -> str:
    if cell is None or cell.median_ms is None:
        return words.NOTHING
    return f"{words.time(cell)} ({cell.median_ms / batch:.4g})"


def same_grid(table: Table, network: str) -> Grid:
    """A/A comparisons of one network, or of all (an empty name): how often a system differed from itself."""
    twins = [t for t in table.twins if network in ("", REPEATED.sub("", t.case))]
    rate = same_system_rate(twins)
    rows = [[t.case, t.system, _twin_ratio(t), "differs" if t.differs else ""] for t in twins]
    return Grid(
        title=f"A system against itself on {table.machine}" + (f": {network}" if network else ""),
        caption="The same build measured twice in every round; a ratio whose interval excludes 1 is a false alarm.",
        header=["case", "system", "ratio", ""],
        rows=rows,
        notes=[
            *([words.same_system(rate)] if rate else []),
            *([f"Records: {words.provenance(table)}."] if table.cases else []),
            *_first_command(table, network),
        ],
    )


def write_tables(table: Table, folder: Path) -> None:
    """Write all tables into `folder`, each under a temporary name first."""
    write_text(folder / "cells.csv", cells_csv(table.cells))
    grids = {REPEATED.sub("", c.name): case_grid(table, c) for c in table.cases}
    if not table.rivals and table.twins:
        grids = {name: same_grid(table, name) for name in grids}
    grids["speedup"] = speed_grid(table)
    if any(variant_of(effect.variant) != OURS for effect in table.effects):
        grids[OPTIONS] = options_grid(table)
        if table.leads:
            grids["leads"] = leads_grid(table)
    if table.twins:
        grids["aa"] = same_grid(table, "")
    if (batches := batches_grid(table)).rows:
        grids["batches"] = batches
    for name, grid in grids.items():
        write_text(folder / f"{name}.md", markdown(grid))
        write_text(folder / f"{name}.tex", latex(grid, name))


def _first_command(table: Table, network: str) -> list[str]:
    first = next((c for c in table.cases if network in ("", REPEATED.sub("", c.name))), None)
    return [f"To make the first of them again: `{first.command}`; the others differ in the seed."] if first else []


def _shows_best(table: Table) -> bool:
    """Best rivals are asked for where a rival takes part as it is."""
    return any(not is_variant(rival) for rival in table.rivals)


def _twin_ratio(twin: Twin) -> str:
    return words.interval(twin.estimate.ratio, twin.estimate.low, twin.estimate.high)
