"""What options change: a system beside itself with one changed, in the same rounds; and what all of them together
change between ours and its best rival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mononn_bench.analysis.blocks import paired_rounds
from mononn_bench.analysis.cells import OURS, WITH_SPEED, Effect, Lead, is_twin, variant_of
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


def leads(cases: Sequence[tuple[str, CaseRecord]]) -> list[Lead]:
    """Ours against its best rival, as all are measured and with each system's first variant in its place, of the cases
    in which ours has a variant. A rival without a variant stands only among those as they are measured.
    """
    return [lead for name, record in cases for lead in _lead(name, record)]


def _lead(name: str, record: CaseRecord) -> list[Lead]:
    able = [r.label for r in record.systems if r.status in WITH_SPEED and not r.slow and not is_twin(r.label)]
    varied: dict[str, str] = {}
    for label in able:
        varied.setdefault(variant_of(label), label)
    varied.pop("", None)
    ours = varied.pop(OURS, "")
    if OURS not in able or not ours or not varied:
        return []
    plain_best = _nearest(record, OURS, [label for label in able if not variant_of(label) and label != OURS])
    varied_best = _nearest(record, ours, list(varied.values()))
    if not plain_best or not varied_best:
        return []
    plain, other = paired_rounds(record, OURS, plain_best), paired_rounds(record, ours, varied_best)
    change = estimate(plain - other) if len(plain) == len(other) else None
    return [Lead(name, plain_best, estimate(plain), varied_best, estimate(other), change)]


def _nearest(record: CaseRecord, ours: str, rivals: Sequence[str]) -> str:
    """The rival whose time over ours is least, of those that were measured beside it; empty without one."""
    found = {rival: paired_rounds(record, ours, rival) for rival in rivals}
    beside = [rival for rival, values in found.items() if len(values)]
    return min(beside, key=lambda rival: float(found[rival].mean()), default="")
