"""From case records to the table that a report prints: cells, verdicts, best rivals, headlines, blind spots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mononn_bench.analysis.blocks import latency_quantiles, median_and_p90, paired_rounds
from mononn_bench.analysis.cells import OURS, WITH_SPEED, CaseSummary, Cell, Headline, Table, is_twin, is_variant
from mononn_bench.analysis.roofline import roofline_share
from mononn_bench.analysis.stats import Estimate, best_rival, estimate, geometric_mean, smallest_detectable, verdicts
from mononn_bench.analysis.twins import same_system_rate, twins_of
from mononn_bench.record import CaseRecord, ModelRecord, SystemResult

ALWAYS_NEEDED = ("onnxruntime",)
NEEDED_ON_X86 = ("openvino",)


@dataclass(frozen=True)
class _Comparison:
    """A rival's paired rounds in one case, and what they say."""

    case: int
    label: str
    values: np.ndarray
    estimate: Estimate


def make_table(records: Sequence[CaseRecord]) -> Table:
    """Analyse records of one machine, in the order in which the table shall show their models."""
    records = [_judged(record) for record in records]
    names = case_names(records)
    rivals = [c for i, record in enumerate(records) for c in _comparisons(i, record)]
    verdict_of = dict(zip([(c.case, c.label) for c in rivals], verdicts([c.estimate for c in rivals]), strict=True))
    cells = []
    for i, record in enumerate(records):
        mine = {c.label: c for c in rivals if c.case == i}
        for result in record.systems:
            if is_twin(result.label):
                continue
            cell = _cell(record, result, names[i])
            if result.label in mine and cell.status in WITH_SPEED:
                e = mine[result.label].estimate
                cell = replace(cell, speedup=e.ratio, speedup_low=e.low, speedup_high=e.high)
                cell = replace(cell, verdict=verdict_of[i, result.label])
            cells.append(cell)
    twins = [t for i, record in enumerate(records) for t in twins_of(record, names[i])]
    estimates = [c.estimate for c in rivals] + [t.estimate for t in twins]
    deviations = [e.deviation for e in estimates if e.deviation is not None]
    return Table(
        machine=records[0].machine.name if records else "",
        systems=list(dict.fromkeys(cell.system for cell in cells)),
        cells=cells,
        cases=[_summary(r, [c for c in rivals if c.case == i], names[i]) for i, r in enumerate(records)],
        headlines=_headlines(records, rivals),
        twins=twins,
        same_system=same_system_rate(twins),
        detectable=smallest_detectable(deviations, min((e.rounds for e in estimates), default=0)),
    )


def case_names(records: Sequence[CaseRecord]) -> list[str]:
    """A name for each case; one that is measured several times is numbered: `mlp.01`, `mlp.02`."""
    plain = [case_name(record.model, record.precision, record.target) for record in records]
    total, seen, names = Counter(plain), Counter[str](), []
    for name in plain:
        seen[name] += 1
        names.append(name if total[name] == 1 else f"{name}.{seen[name]:02d}")
    return names


def case_name(model: ModelRecord, precision: str, target: str) -> str:
    """The name of a case, fit for a file: `resnet50`, `resnet50-b8`, `resnet50-b8-fp16-cuda`."""
    batched = model.batch > 1 and model.weights != "user" and not model.name.endswith(f"-b{model.batch}")
    parts = [model.name, *([f"b{model.batch}"] if batched else [])]
    parts += [part for part, usual in ((precision, "fp32"), (target, "cpu")) if part != usual]
    return "-".join(parts)


def network_name(model: ModelRecord) -> str:
    """The network of a case, whatever its batch: what a geometric mean takes one value of."""
    return model.name if model.weights == "user" else model.name.removesuffix(f"-b{model.batch}")


def _result(record: CaseRecord, label: str) -> SystemResult | None:
    return next((r for r in record.systems if r.label == label), None)


def _has_speed(result: SystemResult | None) -> bool:
    return result is not None and result.status in WITH_SPEED and not result.slow


def _judged(record: CaseRecord) -> CaseRecord:
    """The record with what is said of a slow system."""
    slow = "over 2 s a run: raw times only"
    return replace(
        record,
        systems=tuple(
            replace(r, reason=f"{r.reason}; {slow}".removeprefix("; ")) if r.slow and r.status == "ok" else r
            for r in record.systems
        ),
    )


def _over_roofline(record: CaseRecord) -> list[str]:
    """A flag for each system, ours too, whose time is under the least that the direct algorithm could take."""
    flags = []
    for result in record.systems:
        speaks = result.status in WITH_SPEED and not is_twin(result.label)
        times = median_and_p90(record, result.label) if speaks else None
        share = roofline_share(times[0], record.model, record.ceilings) if times else None
        if share is not None and share > 1:
            how = f" ({result.algorithm})" if result.algorithm else ""
            why = f"it does less arithmetic than the direct algorithm{how}, or the count or the clock is off"
            flags.append(f"{result.label} at {share:.0%} of the roofline: {why}")
    return flags


def _comparisons(case: int, record: CaseRecord) -> list[_Comparison]:
    """Every paired comparison of a case: none where our own system, or the other one, has no speed."""
    if not _has_speed(_result(record, OURS)):
        return []
    found = []
    for result in record.systems:
        if result.label == OURS or is_twin(result.label):
            continue
        values = paired_rounds(record, OURS, result.label) if _has_speed(result) else np.empty(0)
        if len(values):
            found.append(_Comparison(case, result.label, values, estimate(values)))
    return found


def _cell(record: CaseRecord, result: SystemResult, name: str) -> Cell:
    """A row without its comparison. A wrong answer has no speed."""
    checks = [c for c in result.accuracy if c.rel_l2 is not None]
    worst = max(checks, key=lambda c: (c.rel_l2 or 0.0) / c.limit, default=None)
    tuning = result.tuning
    cell = Cell(
        case=name,
        model=record.model.name,
        batch=record.model.batch,
        precision=record.precision,
        target=record.target,
        system=result.label,
        version=result.version,
        status=result.status,
        reason=result.reason,
        rel_l2=worst.rel_l2 if worst else None,
        rel_l2_limit=worst.limit if worst else None,
        build_s=result.build_s,
        artifact_mb=result.artifact_mb,
        algorithm=result.algorithm,
        tuning_s=tuning.seconds if tuning else None,
        tuning_cores=tuning.cores if tuning else None,
        tuning_trials=tuning.trials if tuning else None,
        run_id=record.run_id,
    )
    times = median_and_p90(record, result.label) if result.status in WITH_SPEED else None
    if times is None:
        return cell
    return replace(
        cell,
        median_ms=times[0] * 1e3,
        p90_ms=times[1] * 1e3,
        speedup=1.0 if result.label == OURS and not result.slow else None,
        roofline_share=roofline_share(times[0], record.model, record.ceilings),
        load_ms=result.load_ms,
        first_run_ms=result.first_run_ms,
        peak_mb=result.peak_mb,
        load_cold_ms=_middle(start.load_ms for start in result.starts if start.files == "cold"),
        first_run_cold_ms=_middle(start.first_run_ms for start in result.starts if start.files == "cold"),
        rest_mb=_middle(start.rest_mb for start in result.starts),
        huge_mb=_middle(start.huge_mb for start in result.starts),
        identity_us=result.identity_us,
        inferences_per_s=record.model.batch / times[0],
    )


def _middle(values: Iterable[float]) -> float | None:
    """The median, None of nothing."""
    found = list(values)
    return float(np.median(found)) if found else None


def _summary(record: CaseRecord, rivals: Sequence[_Comparison], name: str) -> CaseSummary:
    values = {c.label: c.values for c in rivals if _is_ok(record, c.label) and not is_variant(c.label)}
    on_x86 = record.target == "cpu" and record.machine.architecture == "x86_64"
    missing = [needed for needed in (*ALWAYS_NEEDED, *(NEEDED_ON_X86 if on_x86 else ())) if needed not in values]
    flags = [f"round {r.index + 1}: {flag}" for r in record.rounds if len(r.systems) > 1 for flag in r.flags]
    disturbed = sum(1 for r in record.rounds for c in r.cycles for b in c.blocks if b.accepted and not b.undisturbed)
    if disturbed:
        flags.append(f"{disturbed} blocks stayed disturbed after their repeats")
    flags += _over_roofline(record)
    if not _has_speed(_result(record, OURS)):
        no_best = f"{OURS} has no speed here"
    else:
        no_best = f"{' and '.join(missing)} not ok" if missing else ""
    latency = {r.label: latency_quantiles(record, r.label) for r in record.systems if r.status in WITH_SPEED}
    return CaseSummary(
        name=name,
        model=record.model.name,
        source=record.model.source,
        full_size=record.model.full_size,
        target=record.target,
        state=record.state,
        rounds=record.settings.rounds,
        best=None if no_best else best_rival(values),
        no_best=no_best,
        flags=flags,
        command=record.command,
        latency={label: q for label, q in latency.items() if q and not is_twin(label)},
        flops=record.model.flops,
        compulsory_bytes=record.model.compulsory_bytes,
        ceilings=record.ceilings,
    )


def _is_ok(record: CaseRecord, label: str) -> bool:
    result = _result(record, label)
    return result is not None and result.status == "ok"


def _headlines(records: Sequence[CaseRecord], rivals: Sequence[_Comparison]) -> list[Headline]:
    """Geometric means for full-size and for small networks of one target, never mixed."""
    found = []
    for target in dict.fromkeys(record.target for record in records):
        for words, full_size in (("full-size networks", True), ("small networks", False)):
            cases = [i for i, r in enumerate(records) if r.model.full_size is full_size and r.target == target]
            if cases:
                name = words if target == "cpu" else f"{words} on {target}"
                found.append(_headline(name, cases, records, rivals))
    return found


def _headline(
    name: str, cases: Sequence[int], records: Sequence[CaseRecord], rivals: Sequence[_Comparison]
) -> Headline:
    networks = list(dict.fromkeys(network_name(records[i].model) for i in cases))
    without = sorted({network_name(records[i].model) for i in cases if not _is_ok(records[i], OURS)})
    if without:
        return Headline(name, {}, f"none, since {OURS} is not ok on {', '.join(without)}")
    taking_part = [c for c in rivals if c.case in cases and _is_ok(records[c.case], c.label)]
    means = {}
    for label in dict.fromkeys(c.label for c in taking_part):
        ratios: dict[str, list[float]] = {n: [] for n in networks}
        for c in taking_part:
            if c.label == label:
                ratios[network_name(records[c.case].model)].append(math.exp(float(c.values.mean())))
        mean = geometric_mean(ratios, networks)
        if mean is not None:
            means[label] = mean
    return Headline(name, means, "")
