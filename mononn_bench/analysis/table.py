"""From case records to the table that a report prints: cells and cases, which compare.py concludes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from mononn_bench.analysis.blocks import latency_quantiles, median_and_p90, paired_rounds, sample_count
from mononn_bench.analysis.cells import OURS, WITH_SPEED, CaseSummary, Cell, Table, is_twin
from mononn_bench.analysis.compare import concluded
from mononn_bench.analysis.options import effects, leads
from mononn_bench.analysis.roofline import roofline_share
from mononn_bench.analysis.twins import twins_of
from mononn_bench.errors import RecordError
from mononn_bench.record import CaseRecord, Ceilings, ModelRecord, SystemResult

ALWAYS_NEEDED = ("onnxruntime",)
NEEDED_ON_X86 = ("openvino",)
NEEDED_ON_GPU = ("onnxruntime-cuda",)
LACKS_BF16 = ALWAYS_NEEDED
"""What has no kernels of that precision for CPUs: without it there is a best rival all the same."""


def make_table(records: Sequence[CaseRecord]) -> Table:
    """Analyse records of one machine and one view, in the order in which the table shall show their models.

    Raises RecordError where systems with experts' settings and with their own defaults would be mixed.
    """
    if len({record.view for record in records}) > 1:
        raise RecordError("These records are of two views, experts' settings and defaults: report each by itself.")
    records = [_judged(record) for record in records]
    names = case_names(records)
    named = list(zip(names, records, strict=True))
    cells = [_cell(record, result, name) for name, record in named for result in record.systems if _is_row(result)]
    table = concluded(
        machine=records[0].machine.name if records else "",
        cells=cells,
        cases=[_summary(record, name) for name, record in named],
        twins=[twin for name, record in named for twin in twins_of(record, name)],
        runs_of={(name, label): [v] for name, record in named for label, v in _compared(record).items()},
        counted={(cell.case, cell.system) for cell in cells if cell.status == "ok"},
    )
    return replace(table, effects=effects(named), leads=leads(named))


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
        share = roofline_share(times[0], record.model, _ceilings(record)) if times else None
        if share is not None and share > 1:
            how = f" ({result.algorithm})" if result.algorithm else ""
            why = f"it does less arithmetic than the direct algorithm{how}, or the count or the clock is off"
            flags.append(f"{result.label} at {share:.0%} of the roofline: {why}")
    return flags


def _is_row(result: SystemResult) -> bool:
    return not is_twin(result.label)


def _compared(record: CaseRecord) -> dict[str, np.ndarray]:
    """The round values of every rival of a case: none where our own system, or the other one, has no speed."""
    if not _has_speed(_result(record, OURS)):
        return {}
    rivals = [r.label for r in record.systems if r.label != OURS and _is_row(r) and _has_speed(r)]
    found = {label: paired_rounds(record, OURS, label) for label in rivals}
    return {label: values for label, values in found.items() if len(values)}


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
        unquantised_l2=max((c.unquantised_l2 for c in checks if c.unquantised_l2 is not None), default=None),
        build_s=result.build_s,
        artifact_mb=result.artifact_mb,
        algorithm=result.algorithm,
        computes=result.computes,
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
        p90_ms=None if times[1] is None else times[1] * 1e3,
        samples=sample_count(record, result.label),
        speedup=1.0 if result.label == OURS and not result.slow else None,
        roofline_share=roofline_share(times[0], record.model, _ceilings(record)),
        load_ms=result.load_ms,
        first_run_ms=result.first_run_ms,
        peak_mb=result.peak_mb,
        load_cold_ms=_middle(start.load_ms for start in result.starts if start.files == "cold"),
        first_run_cold_ms=_middle(start.first_run_ms for start in result.starts if start.files == "cold"),
        rest_mb=_middle(start.rest_mb for start in result.starts),
        huge_mb=_middle(start.huge_mb for start in result.starts),
        identity_us=result.identity_us,
        batch_per_latency_s=record.model.batch / times[0],
    )


def _middle(values: Iterable[float]) -> float | None:
    """The median, None of nothing."""
    found = list(values)
    return float(np.median(found)) if found else None


def _needed(record: CaseRecord) -> tuple[str, ...]:
    """The systems without which a case has no best rival."""
    if record.target != "cpu":
        return NEEDED_ON_GPU
    needed = (*ALWAYS_NEEDED, *(NEEDED_ON_X86 if record.machine.architecture == "x86_64" else ()))
    return tuple(name for name in needed if not (record.precision == "bf16" and name in LACKS_BF16))


def _ceilings(record: CaseRecord) -> Ceilings | None:
    """What the sentinel measured, where the case multiplies as the sentinel does: in fp32."""
    return record.ceilings if record.precision == "fp32" else None


def _summary(record: CaseRecord, name: str) -> CaseSummary:
    """A case without its best rival."""
    flags = [f"round {r.index + 1}: {flag}" for r in record.rounds if len(r.systems) > 1 for flag in r.flags]
    disturbed = sum(1 for r in record.rounds for c in r.cycles for b in c.blocks if b.accepted and not b.undisturbed)
    if disturbed:
        flags.append(f"{disturbed} blocks stayed disturbed after their repeats")
    flags += _over_roofline(record)
    latency = {r.label: latency_quantiles(record, r.label) for r in record.systems if r.status in WITH_SPEED}
    return CaseSummary(
        name=name,
        model=record.model.name,
        network=network_name(record.model),
        source=record.model.source,
        full_size=record.model.full_size,
        precision=record.precision,
        target=record.target,
        state=record.state,
        rounds=record.settings.rounds,
        needed=_needed(record),
        best=None,
        no_best="",
        flags=flags,
        command=record.command,
        latency={label: q for label, q in latency.items() if q and not is_twin(label)},
        flops=record.model.flops,
        compulsory_bytes=record.model.compulsory_bytes,
        ceilings=_ceilings(record),
        created=(record.created,),
        revisions=(record.source_revision,),
        view=record.view,
        huge_pages=record.machine.huge_pages,
    )
