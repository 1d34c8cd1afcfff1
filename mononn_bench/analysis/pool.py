"""Several full runs as one table: rounds within runs (docs/measuring.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from mononn_bench.analysis.cells import COLUMNS, OURS, CaseSummary, Cell, Table
from mononn_bench.analysis.compare import Key, concluded

SUMMED: dict[str, Callable[[Sequence[Any]], Any]] = {"samples": sum, "rel_l2": max, "unquantised_l2": max}
"""Columns of which runs do not give the median."""


def pool_tables(runs: Sequence[Table]) -> Table:
    """One table of several runs of the same cases on one machine; the table of the only one.

    A number is the median over the runs that have it, of errors the largest; samples add up, and ratios come from
    `pooled_estimate`. A system that is not ok in some runs says so; its ratio is that of the runs where it is, with
    which it counts as a rival: to leave it out would be kind to us. Our own system must be ok in every run. Twins are
    those of each run.
    """
    if len(runs) == 1:
        return runs[0]
    keys = list(dict.fromkeys((cell.case, cell.system) for run in runs for cell in run.cells))
    names = list(dict.fromkeys(case.name for run in runs for case in run.cases))
    chosen = {key: _runs_to_count(runs, key) for key in keys}
    return concluded(
        machine=runs[0].machine,
        cells=[_pooled_cell(runs, key) for key in keys],
        cases=[_pooled_case(runs, name) for name in names],
        twins=[twin for run in runs for twin in run.twins],
        runs_of={key: values for key in keys if (values := [t.values[key] for t in chosen[key] if key in t.values])},
        counted={key for key in keys if any(_cell(run, key).status == "ok" for run in chosen[key])},
    )


def _cell(run: Table, key: Key) -> Cell:
    found = run.cell(*key)
    assert found is not None
    return found


def _runs_to_count(runs: Sequence[Table], key: Key) -> list[Table]:
    """The runs in which a system is ok, or all that have it where there is none."""
    present = [run for run in runs if run.cell(*key) is not None]
    return [run for run in present if _cell(run, key).status == "ok"] or present


def _pooled_cell(runs: Sequence[Table], key: Key) -> Cell:
    present = [_cell(run, key) for run in runs if run.cell(*key) is not None]
    counted = [_cell(run, key) for run in _runs_to_count(runs, key)]
    troubled = [cell for cell in present if cell.status != "ok"]
    last = troubled[-1] if troubled else present[-1]
    reason = last.reason
    if counted[0].status == "ok" and troubled:
        reason = f"in {len(troubled)} of {len(present)} runs, {last.reason}"
    values: dict[str, Any] = {column: getattr(last, column) for column in COLUMNS}
    for column in COLUMNS:
        found = [value for cell in counted if (value := getattr(cell, column)) is not None]
        if column in SUMMED or (found and isinstance(found[0], float)):
            values[column] = SUMMED.get(column, median)(found) if found else None
    values |= {"reason": reason, "verdict": None, "speedup": None, "speedup_low": None, "speedup_high": None}
    if key[1] == OURS and all(cell.speedup is not None for cell in counted):
        values["speedup"] = 1.0
    return Cell(**values | {"run_id": ", ".join(dict.fromkeys(cell.run_id for cell in present))})


def _pooled_case(runs: Sequence[Table], name: str) -> CaseSummary:
    found = [(i + 1, case) for i, run in enumerate(runs) for case in run.cases if case.name == name]
    each = [case for _, case in found]
    return replace(
        each[-1],
        rounds=sum(case.rounds for case in each),
        best=None,
        no_best="",
        flags=[f"run {number}, {flag}" for number, case in found for flag in case.flags],
        created=_once(created for case in each for created in case.created),
        revisions=_once(revision for case in each for revision in case.revisions),
    )


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
