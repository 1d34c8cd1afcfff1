"""One round: fresh workers, interleaved blocks in random order, the sentinel among them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from mononn_bench.measure.disturbance import difference, is_disturbed, steal_and_total, take_snapshot
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError
from mononn_bench.measure.sentinel import Sentinel
from mononn_bench.models.inputs import TIMED_SETS, UNSEEN_SETS
from mononn_bench.models.zoo import IDENTITY as IDENTITY_MODEL
from mononn_bench.record import Block, BuildRecord, Cycle, Round, SentinelReading, Settings

SENTINEL = "sentinel"
IDENTITY = IDENTITY_MODEL.name
DRIFT_LIMIT, STEAL_LIMIT = 0.05, 0.01
When = Literal["before", "after"]


@dataclass(frozen=True)
class Contestant:
    """A system in a case: its label there, interpreter and build."""

    label: str
    system: str
    python: Path
    build: BuildRecord
    build_folder: Path


@dataclass(frozen=True)
class Course:
    """What is the same for every worker of a case. `reference` is the npz with the input sets; `cold_bytes` the
    last-level cache to empty before each timed run, or 0.
    """

    model_folder: Path
    reference: Path
    precision: str
    target: str
    settings: Settings
    cores: tuple[int, ...]
    scratch: Path
    cold_bytes: int = 0


@dataclass
class Tally:
    """What the rounds add up to for one system; `failure` is set once and ends its part."""

    load_ms: list[float] = field(default_factory=list)
    first_run_ms: list[float] = field(default_factory=list)
    identity_us: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    slow: bool = False
    answers: list[tuple[Path, tuple[int, ...], When]] = field(default_factory=list)
    failure: WorkerFailedError | None = None


class Runner:
    """A contestant's live worker and the questions a case asks it."""

    def __init__(self, contestant: Contestant, course: Course, tag: str) -> None:
        self.contestant = contestant
        self._course = course
        settings = course.settings
        self._watched = Limits(settings.answer_limit_s, settings.memory_limit_mb)
        self._quiet = replace(self._watched, watch_s=1.0)
        self._tag = f"{contestant.label}-{tag}"
        self._scratch = course.scratch / self._tag
        self.worker = Worker(contestant.system, contestant.python, cores=course.cores, scratch=self._scratch)
        self.worker.send("probe")

    def imported(self) -> None:
        """Wait until the library is there: what was asked for when the worker was started."""
        self.worker.receive("probe", self._watched)

    def load(self, tally: Tally, *, watch: bool) -> None:
        """Load, bind and run; `watch` follows memory (which costs the load a little) and tells slow systems."""
        limits = self._watched if watch else self._quiet
        base = self.worker.resident_bytes()
        loaded = self.worker.ask("load", limits, **self._task("model", TIMED_SETS + UNSEEN_SETS))
        self.worker.note_memory()
        warm = self.worker.ask("warm_up", limits, slow_s=self._course.settings.slow_s)
        self.worker.note_memory()
        tally.load_ms.append(loaded["load_ms"])
        tally.first_run_ms.append(warm["first_run_ms"])
        if watch:
            tally.slow = warm["slow"]
        tally.peak_mb = max(tally.peak_mb, (self.worker.peak_bytes - base) / 1e6)

    def check(self, tally: Tally, sets: Sequence[int], when: When) -> None:
        """Write the answers to these sets for the parent to compare once it knows the limits."""
        path = self._course.scratch / f"{self._tag}-{when}.npz"
        self.worker.ask("check", self._watched, sets=list(sets), output=str(path))
        tally.answers.append((path, tuple(sets), when))

    def block(self, first: int, *, slow: bool = False) -> dict[str, Any]:
        """One block of timed runs; a slow system's has no warm-up beyond the runs it has had."""
        s = self._course.settings
        before = (0.0, 0) if slow else (s.warm_up_s, s.warm_up_runs)
        return self._block(TIMED_SETS, first, before, (s.block_s, s.block_runs), self._course.cold_bytes)

    def identity(self, tally: Tally) -> None:
        """Time the one-node model in the same process, after all else. A system that cannot run it has no value."""
        s = self._course.settings
        try:
            self.worker.ask("load", self._watched, **self._task(IDENTITY, 1))
            self.worker.ask("warm_up", self._watched, slow_s=s.slow_s)
            answer = self._block(1, 0, (s.warm_up_s, s.warm_up_runs), (s.block_s, 100))
        except WorkerFailedError:
            return
        tally.identity_us.append(answer["value_s"] * 1e6)

    def close(self) -> None:
        """End the worker and remove what it left in its temporary folder."""
        self.worker.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _block(
        self, sets: int, first: int, warm_up: tuple[float, int], timed: tuple[float, int], cold_bytes: int = 0
    ) -> dict[str, Any]:
        (warm_up_s, warm_up_runs), (block_s, block_runs) = warm_up, timed
        return self.worker.ask(
            "block", self._quiet, sets=sets, first=first, warm_up_s=warm_up_s, warm_up_runs=warm_up_runs,
            block_s=block_s, block_runs=block_runs, cold_bytes=cold_bytes,
        )  # fmt: skip

    def _task(self, part: str, sets: int) -> dict[str, Any]:
        course, model = self._course, part == "model"
        folder = course.model_folder if model else course.model_folder / IDENTITY
        return {
            "inputs": str(course.reference if model else folder / "inputs.npz"), "sets": sets,
            "model_folder": str(folder), "build_folder": str(self.contestant.build_folder / part),
            "threads": course.settings.threads, "precision": course.precision, "target": course.target,
        }  # fmt: skip


def measured_block(runner: Runner, settings: Settings, first: int, *, slow: bool = False) -> list[Block]:
    """A block, repeated while others disturb it; the last one is accepted. The parent sleeps while it runs."""
    blocks: list[Block] = []
    repeats = 0 if slow else settings.repeats
    for attempt in range(repeats + 1):
        before = take_snapshot(runner.worker.pid)
        answer = runner.block(first, slow=slow)
        what_else = difference(before, take_snapshot(runner.worker.pid))
        disturbed = is_disturbed(what_else, settings)
        accepted = not disturbed or attempt == repeats
        samples = tuple(answer.pop("samples_ns"))
        blocks.append(
            Block(
                system=runner.contestant.label,
                attempt=attempt,
                accepted=accepted,
                undisturbed=not disturbed,
                samples_ns=samples,
                disturbance=what_else,
                **answer,
            )
        )
        if accepted:
            break
    return blocks


def run_round(
    index: int,
    group: int,
    contestants: Sequence[Contestant],
    course: Course,
    tallies: Mapping[str, Tally],
    sentinel: Sentinel | None,
    *,
    last: bool,
) -> Round:
    """Measure one round of these contestants. One that fails is noted in its tally and leaves; the others go on."""
    order = random.Random(f"{course.settings.seed}/{index}/{group}")
    steal = steal_and_total()
    with ExitStack() as stack:
        runners = {c.label: Runner(c, course, f"{index}.{group}") for c in contestants}
        for runner in runners.values():
            stack.callback(runner.close)
        for label in list(runners):  # all import at once; what is timed comes after
            _guarded(runners, tallies, label, lambda r, _: r.imported())
        for label in list(runners):
            _guarded(runners, tallies, label, _start)
        cycles = tuple(_cycle(i, runners, course, tallies, sentinel, order) for i in range(course.settings.cycles))
        for label in list(runners):
            _guarded(runners, tallies, label, lambda r, t: _close(r, t, last=last))
    stolen, total = (after - before for after, before in zip(steal_and_total(), steal, strict=True))
    return _flagged(index, group, tuple(c.label for c in contestants), cycles, stolen / max(1, total))


def _cycle(
    index: int,
    runners: dict[str, Runner],
    course: Course,
    tallies: Mapping[str, Tally],
    sentinel: Sentinel | None,
    random_order: random.Random,
) -> Cycle:
    order = [*runners, SENTINEL] if sentinel else list(runners)
    random_order.shuffle(order)
    blocks: list[Block] = []
    reading: SentinelReading | None = None
    first = random_order.randrange(TIMED_SETS)
    for label in order:
        if label == SENTINEL and sentinel:
            reading = _undisturbed_reading(sentinel, course.settings)
        elif label in runners:
            _guarded(runners, tallies, label, lambda r, _: blocks.extend(_awake_block(r, course.settings, first)))
    return Cycle(index, tuple(order), tuple(blocks), reading)


def _undisturbed_reading(sentinel: Sentinel, settings: Settings) -> SentinelReading:
    """A reading, repeated like a block while others disturb it."""
    for _ in range(settings.repeats + 1):
        before = take_snapshot(os.getpid())
        reading = sentinel.read()
        if not is_disturbed(difference(before, take_snapshot(os.getpid())), settings):
            return reading
    return replace(reading, undisturbed=False)


def _start(runner: Runner, tally: Tally) -> None:
    runner.load(tally, watch=False)
    runner.worker.stop()


def _awake_block(runner: Runner, settings: Settings, first: int) -> list[Block]:
    runner.worker.resume()
    blocks = measured_block(runner, settings, first)
    runner.worker.note_memory()
    runner.worker.stop()
    return blocks


def _close(runner: Runner, tally: Tally, *, last: bool) -> None:
    """Unseen inputs in the process that was timed and, in the last round, what a call costs."""
    runner.worker.resume()
    runner.check(tally, range(TIMED_SETS, TIMED_SETS + UNSEEN_SETS), "after")
    if last:
        runner.identity(tally)
    runner.close()


def _guarded(
    runners: dict[str, Runner], tallies: Mapping[str, Tally], label: str, step: Callable[[Runner, Tally], object]
) -> None:
    """Take a step with one runner; if it fails, note why and go on without it."""
    try:
        step(runners[label], tallies[label])
    except WorkerFailedError as error:
        tallies[label].failure = error
        runners.pop(label).close()


def _flagged(index: int, group: int, systems: tuple[str, ...], cycles: tuple[Cycle, ...], steal: float) -> Round:
    rates = [cycle.sentinel.flops_per_s for cycle in cycles if cycle.sentinel]
    drift = (max(rates) - min(rates)) / median(rates) if rates else None
    flags = []
    if drift is not None and drift > DRIFT_LIMIT:
        flags.append(f"the sentinel drifted by {drift:.0%}")
    if steal > STEAL_LIMIT:
        flags.append(f"the hypervisor took {steal:.1%} of the time")
    return Round(index, group, systems, cycles, drift, steal, tuple(flags))
