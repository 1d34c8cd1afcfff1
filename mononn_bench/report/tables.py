"""Tables as text: cells.csv, speedup.md and one table a model. The same records give the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from mononn_bench.analysis.cells import COLUMNS, OURS, CaseSummary, Cell, Headline, Table
from mononn_bench.analysis.stats import FEWEST_ROUNDS
from mononn_bench.codec import write_text

NOTHING = ""
MODEL_COLUMNS = (
    ("time, ms", "median_ms"),
    ("p90, ms", "p90_ms"),
    ("roofline", "roofline_share"),
    ("rel. L2 error", "rel_l2"),
    ("build, s", "build_s"),
    ("load, ms", "load_ms"),
    ("first run, ms", "first_run_ms"),
    ("memory, MB", "peak_mb"),
    ("artifact, MB", "artifact_mb"),
    ("one call, µs", "identity_us"),
    ("inferences/s", "inferences_per_s"),
)


def cells_csv(cells: Sequence[Cell]) -> str:
    """cells.csv: a header and one row a cell, floats with six significant digits, empty where there is no value."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in cells:
        writer.writerow([_plain(getattr(cell, column)) for column in COLUMNS])
    return stream.getvalue()


def speedup_markdown(table: Table) -> str:
    """speedup.md: a row a model, our time, each rival's ratio with its interval and verdict, and the best rival's."""
    rivals = [s for s in table.systems if s != OURS]
    by_key = {(c.model, c.system): c for c in table.cells}
    rows = []
    for case in table.cases:
        ours = by_key.get((case.model, OURS))
        row = [case.model, _time(ours) if ours else "not measured"]
        row += [_ratio_cell(by_key.get((case.model, rival))) for rival in rivals]
        rows.append([*row, _best(case)])
    header = ["model", f"{OURS}, ms", *rivals, "best rival"]
    parts = [
        f"# Speed on {table.machine}",
        f"Each rival's time over that of {OURS}, with its 95 % interval: over 1 means that {OURS} is faster.",
        _grid(header, rows),
        "\n".join(f"- {line}" for line in _beneath(table)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def model_markdown(table: Table, case: CaseSummary) -> str:
    """One model's table: a row a system with everything that was measured of it."""
    cells = [c for c in table.cells if c.model == case.model]
    rows = [
        [c.system, c.version or "?", c.status, _ratio(c), c.verdict or NOTHING]
        + [_number(column, getattr(c, column)) for _, column in MODEL_COLUMNS]
        for c in cells
    ]
    header = ["system", "version", "status", f"ratio to {OURS}", "verdict", *(name for name, _ in MODEL_COLUMNS)]
    run = next((c.run_id for c in cells), "")
    notes = [f"{c.system}: {c.status}, {c.reason}" for c in cells if c.reason]
    notes += [f"Flagged: {flag}." for flag in case.flags]
    notes.append(f"Run {run}; to make it again: `{case.command}`.")
    return f"# {case.model} on {table.machine}\n\n{_grid(header, rows)}\n\n" + "".join(f"- {n}\n" for n in notes)


def write_tables(table: Table, folder: Path) -> None:
    """Write all tables into `folder`, each under a temporary name first."""
    write_text(folder / "cells.csv", cells_csv(table.cells))
    for case in table.cases:
        write_text(folder / f"{case.model}.md", model_markdown(table, case))
    write_text(folder / "speedup.md", speedup_markdown(table))


def _beneath(table: Table) -> Iterable[str]:
    """What stands under the table: headlines, blind spots, what was flagged, and why a system has no speed."""
    yield from (_headline(h) for h in table.headlines)
    few = sorted({c.model for c in table.cases if c.rounds < FEWEST_ROUNDS})
    if few:
        yield f"No intervals and no verdicts for {', '.join(few)}: fewer than {FEWEST_ROUNDS} rounds."
    if table.detectable is not None:
        yield f"Smallest difference found four times in five: {(table.detectable - 1) * 100:.1f} %."
    if table.same_system is not None:
        rate = table.same_system
        yield (
            f"A system against itself: {rate.count} of {rate.total} comparisons differed "
            f"(rate's 95 % interval {rate.low * 100:.1f} to {rate.high * 100:.1f} %)."
        )
    yield "Verdicts are adjusted over this table (Holm): a difference that does not survive reads unresolved."
    yield from (f"{case.model}, flagged: {flag}." for case in table.cases for flag in case.flags)
    yield from (f"{c.model}, {c.system}: {c.status}, {c.reason}." for c in table.cells if c.status != "ok")


def _headline(headline: Headline) -> str:
    if headline.missing:
        return f"Geometric mean over {headline.name}: {headline.missing}."
    means = [
        f"{label} {m.value:.2f}" + (f" ({m.count} of {m.total})" if m.count < m.total else "")
        for label, m in headline.means.items()
    ]
    total = next((m.total for m in headline.means.values()), 0)
    return f"Geometric mean over {headline.name} ({total}): {', '.join(means) or 'no rival has a speed'}."


def _best(case: CaseSummary) -> str:
    if case.best is None:
        return f"none: {case.no_best}"
    name, e = case.best
    return f"{_interval(e.ratio, e.low, e.high)} {name}"


def _ratio_cell(cell: Cell | None) -> str:
    if cell is None:
        return "not measured"
    if cell.speedup is None:
        return f"{_time(cell)} ms" if cell.median_ms is not None else cell.status
    status = f" {cell.status}" if cell.status != "ok" else ""
    return f"{_ratio(cell)} {cell.verdict or ''}".rstrip() + status


def _ratio(cell: Cell) -> str:
    return NOTHING if cell.speedup is None else _interval(cell.speedup, cell.speedup_low, cell.speedup_high)


def _interval(ratio: float, low: float | None, high: float | None) -> str:
    digits = 3 if 0.9 < ratio < 1.1 else 2
    interval = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{ratio:.{digits}f}{interval}"


def _time(cell: Cell) -> str:
    return _number("median_ms", cell.median_ms) if cell.median_ms is not None else cell.status


def _number(column: str, value: float | None) -> str:
    """A number for a reader: three significant digits, a share in per cent, an error as a power of ten."""
    if value is None:
        return NOTHING
    if column == "roofline_share":
        return f"{value * 100:.0f} %"
    if column == "rel_l2":
        return f"{value:.1e}"
    digits = f"{value:.3g}"
    return f"{value:.0f}" if "e" in digits and value >= 1 else digits


def _plain(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, columns padded so that it reads as plain text too."""
    rows = [[text.replace("|", "\\|") for text in row] for row in rows]
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * w for w in widths], *rows]
    return "\n".join("| " + " | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) + " |" for line in lines)
