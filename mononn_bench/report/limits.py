"""Where ours is not the faster one: every comparison of the published records that says so, or decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mononn_bench.analysis.cells import OURS, WITH_SPEED, Cell, Table, is_twin, is_variant
from mononn_bench.report import words
from mononn_bench.report.grids import Grid


def behind_grid(tables: Mapping[str, Table]) -> Grid:
    """A row a comparison that ours does not win, the worst first. Notes say how many there are of each kind, and which
    cases have no time of ours.

    Args:
        tables: by the name that a reader finds them under; of what holds ours against itself nothing is listed.
    """
    rows, counts, without = list[tuple[float, tuple[str, ...]]](), list[str](), list[str]()
    for name, table in tables.items():
        without += [
            f"{name}, {cell.case}, {OURS}: {cell.status}, {cell.reason}."
            for cell in table.cells
            if cell.system == OURS and cell.status not in WITH_SPEED
        ]
        rivals = [cell for cell in table.cells if _is_rival(cell)]
        verdicts = Counter(cell.verdict or "no verdict" for cell in rivals)
        if rivals:
            said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
            counts.append(f"{name}, {table.machine}, {words.provenance(table)}: {said}.")
        for cell in rivals:
            if cell.verdict not in ("faster", None):
                assert cell.speedup is not None
                rows.append((cell.speedup, _row(name, table, cell)))
    return Grid(
        title="Comparisons that are not won",
        caption=f"A rival's time over that of {OURS}, with its 95 % interval: under 1 means that the rival is faster. "
        "A tie lies within 3 %; unresolved: noise hides which of them is.",
        header=["suite", "model", "precision", f"{OURS}, ms", "rival", "ratio", ""],
        rows=[row for _, row in sorted(rows)],
        notes=[*counts, *without],
    )


def _is_rival(cell: Cell) -> bool:
    return cell.speedup is not None and cell.system != OURS and not is_twin(cell.system) and not is_variant(cell.system)


def _row(name: str, table: Table, cell: Cell) -> tuple[str, ...]:
    ours = table.cell(cell.case, OURS)
    time = words.time(ours) if ours is not None else words.NOTHING
    return (name, cell.case, cell.precision, time, cell.system, words.ratio(cell), cell.verdict or words.NOTHING)
