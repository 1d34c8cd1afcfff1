"""Runs the plan: a process a step, ended when its time is up, and a record after each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mononn_bench.codec import read_record, write_record
from mononn_bench.errors import RecordError
from mononn_bench.gpu_suite.case import write_json
from mononn_bench.gpu_suite.plan import Step
from mononn_bench.gpu_suite.records import StepRecord, SuiteRecord
from mononn_bench.measure.process import PACKAGE

LEAST_S = 10.0
"""With less time left no step is begun."""
LOOK_S, LEAVING_S = 1.0, 3.0
"""How often a step's answer is looked at, and how long its process may take to leave after the last one."""
UNDER_WAY = "under way"
LOG_TAIL = 300
Say = Callable[[str], None]


def finished(path: Path, suite: SuiteRecord) -> tuple[StepRecord, ...]:
    """The steps that an earlier call of the same code, on the same machine and GPU, has an outcome of; those whose time
    was up, or for which none was left, are to be run again. None where there is no such record.
    """
    try:
        earlier = read_record(SuiteRecord, path)
    except RecordError:
        return ()
    if _identity(earlier) != _identity(suite):
        return ()
    return tuple(step for step in earlier.steps if step.status not in ("timeout", "left out"))


def _identity(suite: SuiteRecord) -> tuple[object, ...]:
    return suite.sources, suite.rehearsal, suite.gpus, suite.machine.name


def run_plan(
    steps: Sequence[Step], suite: SuiteRecord, out: Path, work: Path, minutes: float | None, say: Say
) -> SuiteRecord:
    """Run what of `steps` the suite has no record of yet, in order, and write `out`/records.json after each; what there
    is no time for is left out.
    """
    deadline = time.monotonic() + minutes * 60 if minutes else float("inf")
    records = list(suite.steps)
    known = {record.name for record in records}
    for number, step in enumerate(steps):
        if step.name in known:
            continue
        left = deadline - time.monotonic()
        if left < LEAST_S:
            reason = "no time was left"
            record = StepRecord(step.name, "left out", reason, suite.rehearsal, _now(), 0.0, {})
        else:
            record = run_step(step, min(step.seconds, left), suite.rehearsal, out, work)
        records.append(record)
        suite = SuiteRecord(**{**vars(suite), "steps": tuple(records)})
        write_record(suite, out / "records.json")
        reason = f": {record.reason}" if record.reason else ""
        say(f"[{number + 1}/{len(steps)}] {step.name}: {record.status}{reason[:200]} ({record.seconds:.1f} s)")
    return suite


def run_step(step: Step, seconds: float, emulate: bool, out: Path, work: Path) -> StepRecord:
    """The record of one step, whatever becomes of its process."""
    folder = work / "steps" / step.name.replace(":", "_")
    folder.mkdir(parents=True, exist_ok=True)
    answer, request, log = folder / "answer.json", folder / "request.json", folder / "log.txt"
    answer.unlink(missing_ok=True)
    write_json(request, {
        "kind": step.kind, "arguments": dict(step.arguments), "seconds": seconds, "emulate": emulate,
        "out": str(out), "work": str(work), "answer": str(answer), "parent": os.getpid(),
    })  # fmt: skip
    started, began = _now(), time.monotonic()
    command = [sys.executable, "-m", "mononn_bench.gpu_suite.child", str(request)]
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=variables, cwd=PACKAGE.parent,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = _ended(process, answer, seconds)
        finally:
            _end_group(process)
    status, reason, result = judge(code, _read(answer), log.read_text(errors="replace"), seconds)
    return StepRecord(step.name, status, reason, emulate, started, time.monotonic() - began, result)


def judge(code: int | None, answer: dict[str, Any] | None, log: str, seconds: float) -> tuple[Any, str, dict[str, Any]]:
    """Status, reason and result by how the process ended (None: its time was up) and what it had told."""
    result = answer["result"] if answer else {}
    if answer and answer["status"] != UNDER_WAY:
        return answer["status"], answer["reason"], result
    if code is None:
        return "timeout", f"not done within {seconds:.0f} s", result
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    last = (log.strip().splitlines() or [""])[-1][:LOG_TAIL]
    return "failed", f"{how}: {last}" if last else how, result


def _ended(process: subprocess.Popen[bytes], answer: Path, seconds: float) -> int | None:
    """How the process ended; None where its time was up, or where it did not leave soon after its last answer."""
    deadline, told = time.monotonic() + seconds, None
    while (left := deadline - time.monotonic()) > 0:
        try:
            return process.wait(min(left, LOOK_S))
        except subprocess.TimeoutExpired:
            if told is None and (told := _final(answer)):
                deadline = min(deadline, time.monotonic() + LEAVING_S)
    return None


def _final(answer: Path) -> dict[str, Any] | None:
    """The step's answer once it is its last."""
    told = _read(answer)
    return told if told and told["status"] != UNDER_WAY else None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what the step started too, and collect the process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        read: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return read


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
