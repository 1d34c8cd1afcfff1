"""What each step does, in its own process. A step returns its result; `tell` writes down what it has so far."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mononn_bench.codec import read_record
from mononn_bench.errors import SystemUnavailableError
from mononn_bench.gpu_suite import compare as comparison
from mononn_bench.gpu_suite import contenders, device, ours, tools
from mononn_bench.gpu_suite.case import Case, make_models
from mononn_bench.gpu_suite.records import SuiteRecord
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError

Result = dict[str, Any]
CORRECT = Limits(120.0, comparison.MEMORY_MB)
"""For all answers of one case, and its build where that is missing."""


@dataclass(frozen=True)
class Context:
    """What a step is told: the folders, whether it is a rehearsal, how long it may take, where to write so far."""

    out: Path
    work: Path
    emulate: bool
    seconds: float
    tell: Callable[[Result], None]

    @property
    def target(self) -> str:
        return "cpu" if self.emulate else "cuda"


class IncorrectError(Exception):
    """A step found a wrong answer; `result` says which."""

    def __init__(self, reason: str, result: Result) -> None:
        super().__init__(reason)
        self.result = result


def machine(context: Context, _: Mapping[str, Any]) -> Result:
    """The GPU, its driver and tools, and what this Python can import."""
    return device.describe(context.emulate)


def ceilings(context: Context, _: Mapping[str, Any]) -> Result:
    """Copy, matrix products, launches, barrier, hand-off, second-level cache."""
    return device.ceilings(context.work / "ceilings", context.emulate, context.tell)


def conformance(context: Context, _: Mapping[str, Any]) -> Result:
    """Every primitive of generated code: its outputs, compared with the emulator's."""
    result = ours.conformance(on_gpu=not context.emulate, output=context.out / "conformance.npz")
    if result.get("different"):
        raise IncorrectError(
            f"{len(result['different'])} primitives differ: {', '.join(result['different'][:5])}", result
        )
    return result


def preflight(context: Context, _: Mapping[str, Any]) -> Result:
    """That code loads, that a grid's barrier holds, and that a fault in a kernel is an error here."""
    return ours.preflight(on_gpu=not context.emulate)


def models(context: Context, arguments: Mapping[str, Any]) -> Result:
    """ONNX files, tensors and float64 references of networks, all batches and precisions; on the CPU, since the GPU may
    be measuring.
    """
    result: Result = {}
    for model in arguments["models"]:
        cases = [
            Case(str(context.work), model, batch, precision, context.target)
            for batch in arguments["batches"]
            for precision in arguments["precisions"]
        ]
        result[model] = {"weight_bytes": make_models(cases, "cpu")}
        context.tell(result)
    return result


def build(context: Context, arguments: Mapping[str, Any]) -> Result:
    """Our code for several cases and launches, on every core of the step at once; what fails has its reason."""
    results: Result = {}
    wanted = [(Case(**case), launch) for case, launch in arguments["builds"]]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = {
            pool.submit(contenders.compile_ours, case, launch): f"{case.label}:{launch}" for case, launch in wanted
        }
        for future in as_completed(futures):
            error = future.exception()
            results[futures[future]] = (
                future.result() if error is None else {"failed": f"{type(error).__name__}: {error}"}
            )
            context.tell(results)
    failed = {label: found["failed"] for label, found in results.items() if "failed" in found}
    if failed:
        label, reason = next(iter(failed.items()))
        raise RuntimeError(f"{len(failed)} of {len(results)} builds failed, as {label}: {reason}")
    return results


def correctness(context: Context, arguments: Mapping[str, Any]) -> Result:
    """Our answers to every input set of several cases against the float64 references, each bound once and run twice
    over. One process serves them all, for as long as none of them breaks or hangs the GPU's context.
    """
    rows: Result = {}
    wrong: list[str] = []
    scratch = context.work / "scratch" / "correctness"
    with ExitStack() as stack:
        worker: Worker | None = None
        for described, launch in arguments["builds"]:
            case = Case(**described)
            label = f"{case.label}:{launch}"
            worker = worker or stack.enter_context(comparison.start_worker(context.work, scratch))
            try:
                answer = worker.ask("correct", CORRECT, case=described, launch=launch)
                rows[label] = {**answer, "status": "incorrect" if answer["wrong"] else "ok"}
            except WorkerFailedError as error:
                rows[label] = {"status": error.status, "wrong": error.reason, "checks": []}
                worker.kill()
                worker = None
            wrong += [f"{label}: {rows[label]['wrong']}"] if rows[label]["wrong"] else []
            context.tell(rows)
    if wrong:
        reason = f"{len(wrong)} of {len(rows)} cases, as {wrong[0]}"
        if any(row["status"] == "incorrect" for row in rows.values()):
            raise IncorrectError(reason, rows)
        raise RuntimeError(reason)
    return rows


def sanitizer(context: Context, arguments: Mapping[str, Any]) -> Result:
    """compute-sanitizer's `tool` over one run of a tiny network; in a rehearsal the emulator's checks over it."""
    case, launch = Case(**arguments["case"]), arguments["launch"]
    mono = contenders.mono_path(case, launch)
    if not mono.exists():
        contenders.compile_ours(case, launch)
    if context.emulate:
        return tools.run_once(mono, case) | {"tool": "the emulator's own checks, in place of compute-sanitizer"}
    return tools.sanitize(arguments["tool"], mono, case, context.seconds)


def compare(context: Context, arguments: Mapping[str, Any]) -> Result:
    """One case, every contender; see compare.py."""
    case = Case(**arguments["case"])
    scratch = context.work / "scratch" / case.label
    return comparison.compare(
        case, arguments["contenders"], context.work, scratch, context.seconds * 0.75, context.tell
    )


def trace(context: Context, arguments: Mapping[str, Any]) -> Result:
    """Where the time of our kernel goes: a stamp a block and phase."""
    case, launch = Case(**arguments["case"]), arguments["launch"]
    rows, timeline = _traced(context, case, launch)
    tools.keep_trace(context.out / "traces.zip", f"{case.label}-{launch}.json", timeline)
    return {"phases": rows, "seconds": sum(row["seconds"] for row in rows)}


def _traced(context: Context, case: Case, launch: str) -> tuple[list[Result], str]:
    mono = contenders.mono_path(case, launch)
    if not mono.exists():
        contenders.compile_ours(case, launch)
    with ours.load(mono) as session:
        return ours.trace(session, case.sets()[0], 1 if context.emulate else 50)


def variants(context: Context, arguments: Mapping[str, Any]) -> Result:
    """Traces of one case under other launches and tiles: seconds in all and by the operators that phases come from, and
    which variant is the fastest for each.
    """
    case = Case(**arguments["case"])
    found: dict[str, dict[str, float]] = {}
    for launch in arguments["launches"]:
        rows, _ = _traced(context, case, launch)
        phases: dict[str, float] = {}
        for row in rows:
            phases[row["origin"]] = phases.get(row["origin"], 0.0) + row["seconds"]
        found[launch] = phases
        context.tell({"variants": found})
    whole = {launch: sum(phases.values()) for launch, phases in found.items()}
    origins = dict.fromkeys(origin for phases in found.values() for origin in phases)
    return {
        "variants": found,
        "seconds": whole,
        "fastest": min(whole, key=lambda launch: whole[launch]),
        "fastest_by_phase": {
            origin: min((launch for launch in found if origin in found[launch]), key=lambda one: found[one][origin])
            for origin in origins
        },
    }


def fit(context: Context, arguments: Mapping[str, Any]) -> Result:
    """The cost model's constants from the traces that the record holds."""
    records = {step.name: step for step in read_record(SuiteRecord, context.out / "records.json").steps}
    traced = [
        (Case(**case), launch, records[name].result["phases"])
        for name, case, launch in arguments["traced"]
        if name in records and records[name].status == "ok"
    ]
    if not traced:
        raise SystemUnavailableError("no trace stands in the record")
    return ours.fit_costs(
        [(contenders.fp32_model(case), contenders.target_of(case), case.precision, launch, rows)
         for case, launch, rows in traced]
    )  # fmt: skip


def ncu(context: Context, arguments: Mapping[str, Any]) -> Result:
    """Nsight Compute over one contender's run."""
    return tools.nsight(arguments["contender"], Case(**arguments["case"]), context.work / "ncu", context.seconds)


KINDS = (
    machine, preflight, ceilings, conformance, models, build, correctness, sanitizer, compare, trace, variants, fit,
    ncu,
)  # fmt: skip
STEPS: Mapping[str, Callable[[Context, Mapping[str, Any]], Result]] = {step.__name__: step for step in KINDS}
