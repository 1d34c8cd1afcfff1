"""First answers as a table."""

from __future__ import annotations

from collections.abc import Sequence

from mononn_bench.analysis.cells import OURS
from mononn_bench.analysis.start import StartRow, start_rows
from mononn_bench.analysis.stats import Estimate
from mononn_bench.report.grids import Grid
from mononn_bench.started import StartRecord


def start_grids(records: Sequence[StartRecord]) -> list[Grid]:
    """One table of all records; none without."""
    return [_grid(records)] if records else []


def _grid(records: Sequence[StartRecord]) -> Grid:
    settings = records[0].settings
    rows = start_rows(records)
    together = settings.processes
    return Grid(
        title="From the start of a process to its first answer",
        caption="Milliseconds from just before a process is started until its first answer is there, medians of "
        f"{settings.warm} starts with warm and {settings.cold} with cold files; times over {OURS}'s, started the same "
        f"way, with 95 % intervals. Memory in MB, after the answer: of one process, what of it no file stands behind, "
        f"and of {together} processes together (proportional sets).",
        header=[
            "network", "started as", "warm", f"over {OURS}", "cold", f"over {OURS}", "one", "own",
            f"{together} at once", "files",
        ],
        rows=[_row(row) for row in rows],
        notes=list(_notes(rows, together)),
    )  # fmt: skip


def _row(row: StartRow) -> tuple[str, ...]:
    starter = row.starter
    if starter.status != "ok":
        return row.case, starter.label, starter.status, *[""] * 7
    memory = (starter.one_mb, starter.own_mb, starter.all_mb, starter.artifact_mb)
    return (
        row.case, starter.label, _number(row.warm_ms), _times(row.ratio), _number(row.cold_ms), _times(row.cold_ratio),
        *map(_number, memory),
    )  # fmt: skip


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _times(found: Estimate | None) -> str:
    if found is None:
        return ""
    ends = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.ratio:.2f}{ends}"


def _notes(rows: Sequence[StartRow], together: int) -> list[str]:
    how = dict.fromkeys(f"{row.starter.label}: {row.starter.how}." for row in rows if row.starter.how)
    failed = [
        f"{row.case}, {row.starter.label}: {row.starter.status}, {row.starter.reason.rstrip('.')}."
        for row in rows if row.starter.status != "ok"
    ]  # fmt: skip
    disturbed = sum(not one.undisturbed for row in rows for one in row.starter.starts)
    alone = [
        f"{row.case}, {row.starter.label}: {together} at once did not all stand, or would need most of the memory."
        for row in rows if together > 1 and row.starter.status == "ok" and row.starter.all_mb is None
    ]  # fmt: skip
    others = [f"{disturbed} starts stand although others used the machine meanwhile, four times in a row."]
    return [*how, *failed, *alone, *(others if disturbed else [])]
