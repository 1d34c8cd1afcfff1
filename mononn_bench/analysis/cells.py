"""Rows of the tables as plain values: one cell for a case and a system, and what stands under a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from mononn_bench.analysis.stats import Estimate, GeometricMean, Rate, Verdict
from mononn_bench.record import Ceilings

OURS = "mononn"
WITH_SPEED = ("ok", "undertuned")
"""The statuses whose times count as times of that model."""


def is_twin(label: str) -> bool:
    """Whether a label names a system measured beside itself (`name@2`)."""
    return "@" in label


def is_variant(label: str) -> bool:
    """Whether a label names a system with an option changed (`mononn[fuse=off]`): never the best rival."""
    return "[" in label and not is_twin(label)


def variant_of(label: str) -> str:
    """The system a label names a variant of; empty for none."""
    return label.partition("[")[0] if is_variant(label) else ""


@dataclass(frozen=True)
class Cell:
    """One row of cells.csv; None where a system left no such value.

    `case` names model, batch, precision and target as the tables do. `speedup` is the system's time over ours with its
    interval; times are in the unit the name ends with, `p90_ms` that of all kept `samples` where they are enough;
    `roofline_share`, `rel_l2` and its limit are fractions, `unquantised_l2` too, which is the largest error against the
    model that an 8-bit file was made of; `algorithm` names what saves arithmetic, so that a share may
    be over 1; `computes` is the precision of the arithmetic where the record says it; load and first run are medians
    over fresh processes with warm files, and with cold ones; `peak_mb`,
    `rest_mb` and `huge_mb` medians of `Start`'s; `batch_per_latency_s` is no throughput but batch over `median_ms`;
    `tuning_s` is what its search spent, its database's past included.
    """

    case: str
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
    samples: int | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict | None = None
    roofline_share: float | None = None
    algorithm: str = ""
    computes: str = ""
    rel_l2: float | None = None
    rel_l2_limit: float | None = None
    unquantised_l2: float | None = None
    build_s: float | None = None
    load_ms: float | None = None
    load_cold_ms: float | None = None
    first_run_ms: float | None = None
    first_run_cold_ms: float | None = None
    peak_mb: float | None = None
    rest_mb: float | None = None
    huge_mb: float | None = None
    artifact_mb: float | None = None
    identity_us: float | None = None
    batch_per_latency_s: float | None = None
    tuning_s: float | None = None
    tuning_cores: int | None = None
    tuning_trials: int | None = None
    run_id: str = ""


COLUMNS = tuple(field.name for field in fields(Cell))
OPTIONAL = frozenset({"unquantised_l2"})
"""Columns that a table has only where a cell has a value."""


def columns_of(cells: Sequence[Cell]) -> list[str]:
    """The columns of a table of `cells`."""
    return [c for c in COLUMNS if c not in OPTIONAL or any(getattr(cell, c) is not None for cell in cells)]


@dataclass(frozen=True)
class CaseSummary:
    """What one case says as a whole: its best rival, or why there is no such ratio, what was flagged, its command.

    `network` is the model whatever its batch, which a geometric mean takes one value of. `state` is that of the caches
    before a run: warm, cold or as warm. `needed` are the systems without which there is no best rival. `latency` maps
    a system with a speed to the quantiles of its raw samples, in seconds, at `QUANTILES`. `flops` and
    `compulsory_bytes` are the model's, `ceilings` the sentinel's. `created` and `revisions` say when and from which
    sources it was measured. `view`: experts' settings or each system's own defaults; `huge_pages`: the kernel's mode,
    where the systems' processes asked for them.
    """

    name: str
    model: str
    network: str
    source: str
    full_size: bool
    precision: str
    target: str
    state: str
    rounds: int
    needed: Sequence[str]
    best: tuple[str, Estimate] | None
    no_best: str
    flags: Sequence[str]
    command: str
    latency: Mapping[str, Sequence[float]]
    flops: int
    compulsory_bytes: int
    ceilings: Ceilings | None
    created: Sequence[str]
    revisions: Sequence[str]
    view: str
    huge_pages: str


QUANTILES = tuple(i / 200 for i in range(201))
"""At which the distributions of a `CaseSummary` are kept: from the smallest sample to the largest."""


@dataclass(frozen=True)
class Headline:
    """Geometric means over networks of one size in one precision, one for each rival; `missing` says why there are
    none.
    """

    name: str
    precision: str
    means: Mapping[str, GeometricMean]
    missing: str


@dataclass(frozen=True)
class Twin:
    """A system against itself in one case. `differs` says that the t test at 5 %, unadjusted, found a difference."""

    case: str
    system: str
    estimate: Estimate
    differs: bool


@dataclass(frozen=True)
class Effect:
    """The time of `variant` over that of its system as it is measured: over 1 means that the option makes it slower.

    `verdict` is adjusted over all effects of a table; `faster` says that the system as it is measured is.
    """

    case: str
    variant: str
    estimate: Estimate
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Lead:
    """The best rival's time over ours, as all systems are measured, and with each system's first variant instead.

    `change` is the first over the second, paired by rounds: under 1 means that ours leads by less as all are measured.
    """

    case: str
    best: str
    measured: Estimate
    varied_best: str
    varied: Estimate
    change: Estimate | None


@dataclass(frozen=True)
class Table:
    """Everything a report prints.

    `systems` are those of the rows, ours first where it takes part; `same_system` is how often a system differed from
    its own twin (None where none ran twice); `detectable` the smallest ratio that the hardest of the table's
    comparisons finds four times in five. `values` are the logs of each comparison's rounds by case and system,
    `runs` is how many runs the table pools, `effects` what changed options change, `leads` what they
    change against the best rival.
    """

    machine: str
    systems: Sequence[str]
    cells: Sequence[Cell]
    cases: Sequence[CaseSummary]
    headlines: Sequence[Headline]
    twins: Sequence[Twin]
    same_system: Rate | None
    detectable: float | None
    values: Mapping[tuple[str, str], np.ndarray]
    runs: int = 1
    effects: Sequence[Effect] = ()
    leads: Sequence[Lead] = ()

    @property
    def view(self) -> str:
        """That of all its cases: `experts` or `defaults`."""
        return next((case.view for case in self.cases), "experts")

    @property
    def comparisons(self) -> int:
        """How many ratios have a verdict: what Holm's adjustment is over."""
        return sum(cell.verdict is not None for cell in self.cells)

    @property
    def rivals(self) -> list[str]:
        """Every system but ours: what a ratio is given for."""
        return [system for system in self.systems if system != OURS]

    def cell(self, case: str, system: str) -> Cell | None:
        """The cell of a case and a system, None where that system took no part."""
        return next((c for c in self.cells if (c.case, c.system) == (case, system)), None)
