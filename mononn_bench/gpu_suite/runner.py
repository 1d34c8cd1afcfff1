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
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mononn_bench.codec import read_record, write_record
from mononn_bench.errors import RecordError
from mononn_bench.gpu_suite.case import write_json
from mononn_bench.gpu_suite.plan import LANES, Step, next_step
from mononn_bench.gpu_suite.records import StepRecord, SuiteRecord
from mononn_bench.measure.process import PACKAGE

LEAST_S = 10.0
"""With less time left no step is begun."""
POLL_S, LEAVING_S = 0.2, 3.0
"""How often steps are looked at, and how long a process may take to leave after its last answer."""
SITE, CUBINS = "site", "cubins"
"""Folders of the suite's work: packages for every step's path (``pip install --target``), and compiled objects."""
MAKERS = ("models:", "build:")
"""Steps whose outcome lies in the suite's work and not in the record."""
UNDER_WAY = "under way"
LOG_TAIL = 300
Say = Callable[[str], None]


def finished(path: Path, suite: SuiteRecord, work: Path) -> tuple[StepRecord, ...]:
    """The steps that an earlier call of the same code, on the same machine and GPU, has an outcome of. Those whose time
    was up, or for which none was left, are to be run again, and those that make files where `work` is another folder
    than theirs was. None where there is no such record.
    """
    try:
        earlier = read_record(SuiteRecord, path)
    except RecordError:
        return ()
    if _identity(earlier) != _identity(suite):
        return ()
    whole = (step for step in earlier.steps if step.status not in ("timeout", "left out"))
    return tuple(step for step in whole if not step.name.startswith(MAKERS) or _answer_path(work, step.name).exists())


def _identity(suite: SuiteRecord) -> tuple[object, ...]:
    return suite.sources, suite.rehearsal, suite.gpus, suite.machine.name


def run_plan(
    steps: Sequence[Step], suite: SuiteRecord, out: Path, work: Path, minutes: float | None, say: Say
) -> SuiteRecord:
    """Run what of `steps` the suite has no record of yet and write `out`/records.json after each; what there is no time
    for is left out. Each lane runs its steps one after the other, in order as far as their needs allow.
    """
    deadline = time.monotonic() + minutes * 60 if minutes else float("inf")
    known = {record.name for record in suite.steps}
    pending = [step for step in steps if step.name not in known]
    running: dict[str, RunningStep] = {}
    cores = lane_cores(sorted(os.sched_getaffinity(0)))

    def keep(record: StepRecord) -> None:
        nonlocal suite
        suite = replace(suite, steps=(*suite.steps, record))
        write_record(suite, out / "records.json")
        reason = f": {record.reason}" if record.reason else ""
        say(f"[{len(suite.steps)}/{len(steps)}] {record.name}: {record.status}{reason[:200]} ({record.seconds:.1f} s)")

    try:
        while pending or running:
            left = deadline - time.monotonic()
            for lane in LANES if left >= LEAST_S else ():
                step = next_step(pending, [one.step.name for one in running.values()], lane)
                if lane not in running and step is not None:
                    pending.remove(step)
                    seconds = min(step.seconds, left)
                    running[lane] = RunningStep(step, seconds, suite.rehearsal, out, work, cores[lane])
                    for one in running.values():
                        one.beside |= {other.step.name for other in running.values()} - {one.step.name}
            if not running:
                keep(StepRecord(pending.pop(0).name, "left out", "no time was left", suite.rehearsal, _now(), 0.0, {}))
                continue
            time.sleep(POLL_S)
            for lane, one in list(running.items()):
                if one.ended():
                    del running[lane]
                    keep(one.record())
    finally:
        for one in running.values():
            one.end()
    return suite


def lane_cores(cores: Sequence[int]) -> dict[str, list[int]]:
    """The cores of each lane, half of them, so that whoever compiles takes nothing from what is measured beside it; a
    single core is both lanes'.
    """
    half = max(1, len(cores) // 2)
    return {"gpu": list(cores[:half]), "host": list(cores[half:] or cores)}


class RunningStep:
    """The process of one step.

    Attributes:
        beside: names of the steps that ran at the same time, at some time.
    """

    def __init__(
        self, step: Step, seconds: float, emulate: bool, out: Path, work: Path, cores: Sequence[int] = ()
    ) -> None:
        """`seconds`: when it is ended; `cores`: those it may use, all where there are none."""
        self.step, self.beside = step, set[str]()
        self._seconds, self._emulate = seconds, emulate
        self._answer = _answer_path(work, step.name)
        self._answer.parent.mkdir(parents=True, exist_ok=True)
        self._answer.unlink(missing_ok=True)
        self._log, request = self._answer.with_name("log.txt"), self._answer.with_name("request.json")
        write_json(request, {
            "kind": step.kind, "arguments": dict(step.arguments), "seconds": seconds, "emulate": emulate,
            "out": str(out), "work": str(work), "answer": str(self._answer), "parent": os.getpid(),
            "cores": list(cores),
        })  # fmt: skip
        self._started, self._began = _now(), time.monotonic()
        self._deadline, self._left = self._began + seconds, False
        with self._log.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mononn_bench.gpu_suite.child", str(request)], stdin=subprocess.DEVNULL,
                stdout=stream, stderr=stream, env=step_variables(work), cwd=PACKAGE.parent, start_new_session=True,
            )  # fmt: skip

    def ended(self) -> bool:
        """Whether the process is gone, its time is up, or it did not leave soon after its last answer."""
        now = time.monotonic()
        if self._process.poll() is not None or now > self._deadline:
            return True
        if not self._left and _final(self._answer):
            self._left, self._deadline = True, min(self._deadline, now + LEAVING_S)
        return False

    def end(self) -> None:
        """End the process, and what it started too, if they are still there."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def record(self) -> StepRecord:
        """What became of the step; its process is gone afterwards."""
        code = self._process.poll()
        self.end()
        log = self._log.read_text(errors="replace")
        status, reason, result = judge(code, _read(self._answer), log, self._seconds)
        seconds = time.monotonic() - self._began
        beside = tuple(sorted(self.beside))
        return StepRecord(self.step.name, status, reason, self._emulate, self._started, seconds, result, beside)


def _answer_path(work: Path, name: str) -> Path:
    return work / "steps" / name.replace(":", "_") / "answer.json"


def step_variables(work: Path) -> dict[str, str]:
    """The environment of a step: packages and cubins that were brought along in `work` are found there, and what
    compilers make is kept there.
    """
    path = [str(PACKAGE.parent), str(work / SITE)]
    cubins = str(work / CUBINS)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "MONONN_CACHE": cubins, "MONONN_CUBINS": cubins}


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


def _final(answer: Path) -> dict[str, Any] | None:
    """The step's answer once it is its last."""
    told = _read(answer)
    return told if told and told["status"] != UNDER_WAY else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        read: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return read


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
