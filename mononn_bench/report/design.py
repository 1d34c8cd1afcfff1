"""What the choice of estimator, rounds and cycles rests on, as text: `mononn-bench simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from mononn_bench.analysis.design import (
    Cost,
    cost_of,
    halved_readings,
    judge_designs,
    judge_estimators,
    pooled_ways,
    rival_pairs,
    run_ratios,
    same_pairs,
)
from mononn_bench.analysis.table import make_table
from mononn_bench.errors import BenchError
from mononn_bench.record import CaseRecord
from mononn_bench.report.grids import Grid, markdown
from mononn_bench.report.published import read_folder

SIZES = ((4, 4), (5, 3), (6, 2), (6, 3), (6, 5), (8, 2), (8, 3), (8, 4), (10, 2), (10, 3), (12, 3))
ADDED = (0.0, 0.25, 0.5, 1.0, 2.0)


class NothingToSimulateError(BenchError):
    """There are no published runs with A/A comparisons."""


def simulation(reference: Path) -> str:
    """Three tables, from the runs and the suite aa of the first machine under `reference` that has both.

    Raises NothingToSimulateError where there is none.
    """
    for machine in sorted(path for path in reference.glob("*") if path.is_dir()):
        runs = [read_folder(folder) for folder in sorted(machine.glob("*/raw"))]
        same = read_folder(machine / "suites" / "aa" / "raw")
        if runs and same:
            grids = (*_choices(runs, same), *([_pooling(runs)] if len(runs) > 1 else []))
            return "\n".join(markdown(grid, level=4) for grid in grids)
    raise NothingToSimulateError(
        f"{reference} has no machine with published runs (<machine>/run-1/raw) and suites/aa/raw: name another folder."
    )


def _choices(runs: Sequence[Sequence[CaseRecord]], same: Sequence[CaseRecord]) -> tuple[Grid, Grid]:
    records = [record for run in runs for record in run]
    rivals, twins = rival_pairs(records), same_pairs(same)
    halved, readings = halved_readings(records)
    chance = halved / max(1, readings)
    how = records[0].settings
    estimators = [
        [
            j.name,
            f"{j.alarms} of {j.comparisons}",
            f"{j.spread:.1%}",
            f"{j.half_width:.1%}",
            f"{j.struck[0]:.1%}, {j.struck[1]:.1%}",
            f"{j.coverage:.1%}",
        ]
        for j in judge_estimators(rivals, twins, chance)
    ]
    comparisons = make_table(runs[0]).comparisons
    designs = [
        [f"{d.rounds} x {d.cycles}", f"{d.minutes:.1f}", f"{d.detectable:.1%}", f"{d.alarms:.1%}"]
        for d in judge_designs(SIZES, rivals, twins, _costs(runs), comparisons)
    ]
    return (
        Grid(
            "What a round's value is",
            f"On the published rounds ({how.rounds} x {how.cycles} blocks), logarithms as per cent. In the last column "
            f"each block is halved with a chance of {chance:.1%}: {halved} of {readings} readings of the sentinel were "
            "made at half speed.",
            ["value", "A/A alarms", "spread", "half-width", "one block moves it (median, worst 5 %)", "A/A coverage"],
            estimators,
            [],
        ),
        Grid(
            "Rounds x cycles",
            f"Minutes of {len(runs[0])} cases; the smallest difference found four times in five as the hardest of "
            f"{comparisons} comparisons; how often a system differs from itself.",
            ["rounds x cycles", "minutes", "smallest difference", "A/A alarms"],
            designs,
            [],
        ),
    )


def _costs(runs: Sequence[Sequence[CaseRecord]]) -> list[Cost]:
    """The cost of each case, the mean over runs."""
    each = [[cost_of(record) for record in run] for run in runs]
    return [
        Cost(sum(c.start_s for c in costs) / len(costs), sum(c.cycle_s for c in costs) / len(costs))
        for costs in zip(*each, strict=True)
    ]


def _pooling(runs: Sequence[Sequence[CaseRecord]]) -> Grid:
    rounds = runs[0][0].settings.rounds
    rows, header = [], ["runs differ by"]
    for added in ADDED:
        ways = pooled_ways(len(runs), rounds, added)
        header = ["runs differ by", *ways]
        rows.append([f"{added:g}", *(f"{held:.1%}, {half:.2f}" for held, half in ways.values())])
    ratios = run_ratios([make_table(run) for run in runs])
    return Grid(
        f"{len(runs)} runs of {rounds} rounds",
        "How often the interval holds the truth, and its median half-width; in deviations between rounds of a run.",
        header,
        rows,
        [
            f"In the records the runs' means vary {median(ratios):.1f} times as much as their rounds explain in the "
            f"median comparison, and {max(ratios):.0f} times in the worst of {len(ratios)}."
        ],
    )
