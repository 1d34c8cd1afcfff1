"""A/A: a system measured beside itself, which must not differ (docs/measuring.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mononn_bench.analysis.blocks import paired_rounds
from mononn_bench.analysis.cells import WITH_SPEED, Twin
from mononn_bench.analysis.stats import CONFIDENCE, FEWEST_ROUNDS, Rate, estimate, false_positive_rate
from mononn_bench.record import CaseRecord


def twin_pairs(labels: Sequence[str]) -> list[tuple[str, str]]:
    """The labels of one case as pairs of the same system, no label in two pairs: (a, a@2), (a@3, a@4)."""
    pairs = []
    for label in labels:
        found = re.fullmatch(r"(.+)@(\d+)", label)
        if found and int(found[2]) % 2 == 0:
            first = found[1] if found[2] == "2" else f"{found[1]}@{int(found[2]) - 1}"
            if first in labels:
                pairs.append((first, label))
    return pairs


def twins_of(record: CaseRecord, case: str) -> list[Twin]:
    """Every A/A comparison of a case that has an interval."""
    able = [r.label for r in record.systems if r.status in WITH_SPEED and not r.slow]
    found = []
    for first, second in twin_pairs(able):
        values = paired_rounds(record, first, second)
        if len(values) >= FEWEST_ROUNDS:
            one = estimate(values)
            differs = one.p_value is not None and one.p_value < 1 - CONFIDENCE
            found.append(Twin(case, first.partition("@")[0], one, differs))
    return found


def same_system_rate(twins: Sequence[Twin]) -> Rate | None:
    """How often a system differed from itself, None where nothing was measured twice."""
    return false_positive_rate(sum(t.differs for t in twins), len(twins)) if twins else None
