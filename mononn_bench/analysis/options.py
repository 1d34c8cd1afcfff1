"""What an option changes: a system beside itself with one option changed, in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mononn_bench.analysis.blocks import paired_rounds
from mononn_bench.analysis.cells import WITH_SPEED, Effect, variant_of
from mononn_bench.analysis.stats import estimate, verdicts
from mononn_bench.record import CaseRecord


def effects(cases: Sequence[tuple[str, CaseRecord]]) -> list[Effect]:
    """The effect of every variant whose system takes part in the same case, of records by the name of their case."""
    found = [effect for name, record in cases for effect in _of_case(name, record)]
    judged = verdicts([effect.estimate for effect in found])
    return [replace(effect, verdict=verdict) for effect, verdict in zip(found, judged, strict=True)]


def _of_case(name: str, record: CaseRecord) -> list[Effect]:
    able = [r.label for r in record.systems if r.status in WITH_SPEED and not r.slow]
    pairs = [(variant_of(label), label) for label in able if variant_of(label) in able]
    values = {label: paired_rounds(record, base, label) for base, label in pairs}
    return [Effect(name, label, estimate(found)) for label, found in values.items() if len(found)]
