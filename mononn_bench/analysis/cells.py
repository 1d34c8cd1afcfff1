"""Rows of the tables as plain values: one cell for a case and a system, and what stands under a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from mononn_bench.analysis.stats import Estimate, GeometricMean, Rate, Verdict

OURS = "mononn"


@dataclass(frozen=True)
class Cell:
    """One row of cells.csv; None where a system left no such value.

    `speedup` is the system's time over ours with its interval; times are in the unit the name ends with;
    `roofline_share` and `rel_l2` are fractions; `peak_mb` is what the system adds to its adapter's memory.
    """

    model: str
    batch: int
    precision: str
    target: str
    system: str
    version: str
    status: str
    reason: str
    median_ms: float | None = None
    p90_ms: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict | None = None
    roofline_share: float | None = None
    rel_l2: float | None = None
    build_s: float | None = None
    load_ms: float | None = None
    first_run_ms: float | None = None
    peak_mb: float | None = None
    artifact_mb: float | None = None
    identity_us: float | None = None
    inferences_per_s: float | None = None
    run_id: str = ""


COLUMNS = tuple(field.name for field in fields(Cell))


@dataclass(frozen=True)
class CaseSummary:
    """What one case says as a whole: its best rival, or why there is no such ratio, what was flagged, its command."""

    model: str
    full_size: bool
    rounds: int
    best: tuple[str, Estimate] | None
    no_best: str
    flags: Sequence[str]
    command: str


@dataclass(frozen=True)
class Headline:
    """Geometric means over networks of one size, one for each rival; `missing` says why there are none."""

    name: str
    means: Mapping[str, GeometricMean]
    missing: str


@dataclass(frozen=True)
class Table:
    """Everything a report prints.

    `same_system` is how often a system differed from its own twin (None where none ran twice); `detectable` the
    smallest ratio that a comparison finds four times in five.
    """

    machine: str
    systems: Sequence[str]
    cells: Sequence[Cell]
    cases: Sequence[CaseSummary]
    headlines: Sequence[Headline]
    same_system: Rate | None
    detectable: float | None
