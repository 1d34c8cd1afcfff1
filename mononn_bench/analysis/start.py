"""What first answers say: medians, and ratios of a system's to ours, which is started the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from mononn_bench.analysis.cells import OURS
from mononn_bench.analysis.stats import Estimate, estimate
from mononn_bench.started import Starter, StartRecord


@dataclass(frozen=True)
class StartRow:
    """One way of starting one system. Milliseconds until the first answer; `ratio` is that over ours with warm files,
    paired by round, and `cold_ratio` with cold ones; None where one of the two has none. Memory as in Starter.
    """

    case: str
    starter: Starter
    warm_ms: float | None
    cold_ms: float | None
    ratio: Estimate | None
    cold_ratio: Estimate | None


def case_of(record: StartRecord) -> str:
    """The model and, but for fp32, its precision."""
    model = record.model if record.batch == 1 else f"{record.model}-b{record.batch}"
    return model if record.precision == "fp32" else f"{model}-{record.precision}"


def start_rows(records: Sequence[StartRecord]) -> list[StartRow]:
    """A row for each way in each record. Wrong answers have no time."""
    rows = []
    for record in records:
        ours = {s.host: s for s in reversed(record.starters) if s.system == OURS and s.status == "ok"}
        for starter in record.starters:
            ok, base = starter.status == "ok", ours.get(starter.host)
            rows.append(
                StartRow(
                    case_of(record),
                    starter,
                    _median(starter.times("warm")) if ok else None,
                    _median(starter.times("cold")) if ok else None,
                    _ratio(starter, base, "warm") if ok and base else None,
                    _ratio(starter, base, "cold") if ok and base else None,
                )
            )
    return rows


def plain_rows(rows: Sequence[StartRow]) -> list[dict[str, Any]]:
    """The rows with every number, for a CSV file."""
    found = []
    for row in rows:
        plain = {name: value for name, value in asdict(row.starter).items() if name not in ("starts", "checks")}
        numbers: dict[str, Any] = {"warm_ms": row.warm_ms, "cold_ms": row.cold_ms}
        for name, ratio in (("ratio", row.ratio), ("cold_ratio", row.cold_ratio)):
            parts = (ratio.ratio, ratio.low, ratio.high) if ratio else (None, None, None)
            numbers |= dict(zip((name, f"{name}_low", f"{name}_high"), parts, strict=True))
        found.append({"case": row.case, **plain, **numbers})
    return found


def _median(times: Mapping[int, float]) -> float | None:
    return median(times.values()) if times else None


def _ratio(starter: Starter, ours: Starter, files: str) -> Estimate | None:
    mine, theirs = ours.times(files), starter.times(files)
    both = sorted(mine.keys() & theirs.keys())
    if starter is ours or not both:
        return None
    return estimate(np.array([math.log(theirs[index] / mine[index]) for index in both]))
