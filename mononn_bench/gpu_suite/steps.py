"""What each step does, in its own process. A step returns its result; `tell` writes down what it has so far."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mononn_bench.gpu_suite import compare as comparison
from mononn_bench.gpu_suite import contenders, device, ours, tools
from mononn_bench.gpu_suite.case import SETS, UNSEEN, Case, make_models
from mononn_bench.measure.accuracy import failure_reason, worst_errors
from mononn_bench.record import AccuracyCheck

Result = dict[str, Any]


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


def models(context: Context, arguments: Mapping[str, Any]) -> Result:
    """ONNX files, tensors and float64 references of one network, all batches and precisions."""
    import torch

    where = "cuda" if torch.cuda.is_available() and not context.emulate else "cpu"
    cases = [
        Case(str(context.work), arguments["model"], batch, precision, context.target)
        for batch in arguments["batches"]
        for precision in arguments["precisions"]
    ]
    return {"weight_bytes": make_models(cases, where), "reference_on": where}


def build(context: Context, arguments: Mapping[str, Any]) -> Result:
    """Our code for several cases and launches, on half the cores at once; what fails has its reason."""
    results: Result = {}
    wanted = [(Case(**case), launch) for case, launch in arguments["builds"]]
    with ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as pool:
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
    """Our answers to every input set against the float64 reference, bound once and run twice over."""
    case, launch = Case(**arguments["case"]), arguments["launch"]
    mono = contenders.mono_path(case, launch)
    about = {} if mono.exists() else contenders.compile_ours(case, launch)
    checks: list[AccuracyCheck] = []
    with ours.load(mono) as session, np.load(case.reference) as stored:
        for index in [*range(SETS + UNSEEN), 0]:
            given = {i.name: stored[f"{index}/in/{i.name}"] for i in case.spec.inputs}
            checks += case.check(stored, index, session.run(given), "before")
            context.tell({"checks": checks})
    result = {"checks": checks, "build": about, "blocks": session.workers}
    if wrong := failure_reason(checks):
        raise IncorrectError(wrong, result)
    return {**result, "worst": max(worst_errors(checks).values())}


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
    return comparison.compare(case, arguments["contenders"], scratch, context.seconds * 0.75, context.tell)


def trace(context: Context, arguments: Mapping[str, Any]) -> Result:
    """Where the time of our kernel goes: a stamp a block and phase."""
    case, launch = Case(**arguments["case"]), arguments["launch"]
    mono = contenders.mono_path(case, launch)
    if not mono.exists():
        contenders.compile_ours(case, launch)
    with ours.load(mono) as session:
        rows, timeline = ours.trace(session, case.sets()[0], 1 if context.emulate else 50)
    tools.keep_trace(context.out / "traces.zip", f"{case.label}-{launch}.json", timeline)
    return {"phases": rows, "seconds": sum(row["seconds"] for row in rows)}


def ncu(context: Context, arguments: Mapping[str, Any]) -> Result:
    """Nsight Compute over one contender's run."""
    return tools.nsight(arguments["contender"], Case(**arguments["case"]), context.work / "ncu", context.seconds)


STEPS: Mapping[str, Callable[[Context, Mapping[str, Any]], Result]] = {
    step.__name__: step
    for step in (machine, ceilings, conformance, models, build, correctness, sanitizer, compare, trace, ncu)
}
