"""A case profiled: a few runs of every system under its own profiler, under the counters of the processor
and under Nsight, alone on the machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from mononn_bench.codec import from_plain, read_record
from mononn_bench.errors import SystemUnavailableError
from mononn_bench.measure.case import source_revision
from mononn_bench.measure.environment import describe_machine
from mononn_bench.measure.exclusive import LOCK, exclusive_machine
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError, worker_command, worker_variables
from mononn_bench.measure.runner import Contestant, Course
from mononn_bench.measure.sentinel import make_sentinel
from mononn_bench.profile import nsight
from mononn_bench.profile.counters import Counting
from mononn_bench.profile.nodes import model_nodes, outputs_by_node, with_nodes
from mononn_bench.profile.outside import run
from mononn_bench.profile.timeline import operators
from mononn_bench.profiled import CaseProfile, ProfileRecord, Span, Step
from mononn_bench.record import ModelRecord

SERVER = "mononn_bench.profile.worker"
NSIGHT_RUNS = 5
READINGS = 3
"""Of the sentinel, before systems are profiled."""
Failure = Literal["unavailable", "failed", "timeout"]
Say = Callable[[str], None]
Spans = dict[str, tuple[Span, ...]]


def profile_case(
    contestants: Sequence[Contestant], course: Course, *, machine_name: str, command: str, say: Say, lock: Path = LOCK
) -> tuple[CaseProfile, Spans]:
    """Profile one model on all its systems. What fails is a status in the record; spans are by label."""
    model = read_record(ModelRecord, course.model_folder / "model.json")
    nodes = model_nodes(course.model_folder / "model.onnx")
    records: list[ProfileRecord] = []
    spans: Spans = {}
    try:
        with exclusive_machine(say, lock):
            course.scratch.mkdir(parents=True, exist_ok=True)
            sentinel = make_sentinel(course.scratch, course.cores, describe_machine().caches_kib)
            readings = [sentinel.read() for _ in range(READINGS)]
            for contestant in contestants:
                say(f"{model.name}: profiling {contestant.label}")
                record, counted, found = _own(contestant, course)
                made = outputs_by_node(contestant.build_folder / "model" / "model.onnx")
                record = replace(record, steps=with_nodes(record.steps, nodes, made))
                records += [record, counted, _nsight(contestant, course)]
                if found:
                    spans[contestant.label] = found
    finally:
        shutil.rmtree(course.scratch, ignore_errors=True)
    profile = CaseProfile(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model.name,
        batch=model.batch,
        model_digest=model.digest,
        machine=machine_name,
        cores=course.cores,
        profiles=tuple(records),
        command=command,
        source_revision=source_revision(),
        nodes=nodes,
        ceilings=sentinel.ceilings(readings),
    )
    return profile, spans


def _own(contestant: Contestant, course: Course) -> tuple[ProfileRecord, ProfileRecord, tuple[Span, ...]]:
    """The system's own profiler, and the counters of the processor and the kernel in runs without it."""
    label = contestant.label
    own, counted = ProfileRecord(label, "", "ok", ""), ProfileRecord(label, "perf stat", "ok", "")

    def neither(status: Failure, reason: str) -> tuple[ProfileRecord, ProfileRecord, tuple[Span, ...]]:
        return replace(own, status=status, reason=reason), replace(counted, status=status, reason=reason), ()

    if not contestant.build.stands:
        return neither("unavailable", contestant.build.reason or contestant.build.status)
    scratch = course.scratch / label
    try:
        with (
            Worker(
                contestant.system,
                contestant.python,
                cores=course.cores,
                scratch=scratch,
                server=SERVER,
                defaults=course.defaults,
            ) as worker,
            Counting(worker.pid, scratch) as counting,
        ):
            given = {"scratch": str(scratch), "gate": counting.pipes, **_load(contestant, course)}
            answer = worker.ask("profile", _limits(course), **given)
            counted = replace(counted, runs=answer["counted"], counters=counting.counts(answer["counted"]))
            if counting.reason:
                counted = replace(counted, status="unavailable", reason=counting.reason, runs=0)
    except WorkerFailedError as error:
        return neither(error.status, error.reason)
    if not answer["tool"]:
        reason = f"{contestant.system} has no profiler of its own here"
        return replace(own, status="unavailable", reason=reason), counted, ()
    spans = tuple(from_plain(Span, span) for span in answer["spans"])
    own = replace(
        own, tool=answer["tool"], operators=operators(spans), runs=answer["runs"],
        steps=tuple(from_plain(Step, step) for step in answer["steps"]),
        plain_s=answer["plain_s"], profiled_s=answer["profiled_s"],
    )  # fmt: skip
    return own, counted, spans


def _nsight(contestant: Contestant, course: Course) -> ProfileRecord:
    """Nsight Systems on a few runs, and Nsight Compute's counters where it is there too."""
    record = ProfileRecord(contestant.label, "Nsight Systems", "ok", "")
    try:
        times = nsight.systems_kernels(_watched(contestant, course, "nsys-rep", nsight.systems_launcher))
    except SystemUnavailableError as error:
        return replace(record, status="unavailable", reason=str(error))
    try:
        metrics = nsight.compute_counters(_watched(contestant, course, "ncu-rep", nsight.compute_launcher))
    except SystemUnavailableError as error:
        return replace(record, reason=f"no counters: {error}", runs=NSIGHT_RUNS, kernels=nsight.kernels(times, ""))
    found = nsight.kernels(times, metrics)
    return replace(record, tool="Nsight Systems and Compute", runs=NSIGHT_RUNS, kernels=found)


def _watched(
    contestant: Contestant,
    course: Course,
    suffix: str,
    launcher: Callable[[Path], list[str]],
) -> Path:
    """The report of a tool that watches a process from outside, which runs a few times and ends."""
    if not contestant.build.stands:
        raise SystemUnavailableError(contestant.build.reason or contestant.build.status)
    scratch, report = course.scratch / contestant.label, course.scratch / f"{contestant.label}.{suffix}"
    command = launcher(report)
    scratch.mkdir(parents=True, exist_ok=True)
    settings = {"cores": course.cores, "once": {"count": NSIGHT_RUNS, **_load(contestant, course)}}
    run(
        [*command, *worker_command(contestant.system, contestant.python, SERVER, settings)],
        worker_variables(contestant.system, scratch, defaults=course.defaults), course.settings.answer_limit_s,
    )  # fmt: skip
    return report


def _limits(course: Course) -> Limits:
    return Limits(course.settings.answer_limit_s, course.settings.memory_limit_mb)


def _load(contestant: Contestant, course: Course) -> dict[str, object]:
    return {
        "inputs": str(course.reference), "sets": 1, "model_folder": str(course.model_folder),
        "build_folder": str(contestant.build_folder / "model"), "threads": course.settings.threads,
        "precision": course.precision, "target": course.target, "defaults": course.defaults,
    }  # fmt: skip
