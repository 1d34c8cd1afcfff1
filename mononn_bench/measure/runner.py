"""A contestant's live worker: start it, ask it for blocks and answers, and note how it started."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mononn_bench.measure.filecache import CacheState, drop_files, files_below, read_files
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError
from mononn_bench.models.inputs import TIMED_SETS, UNSEEN_SETS
from mononn_bench.models.zoo import IDENTITY as IDENTITY_MODEL
from mononn_bench.record import BuildRecord, Settings, Start

IDENTITY = IDENTITY_MODEL.name
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
    last-level cache to empty before each timed run, or 0; `defaults`: every system as its users find it.
    """

    model_folder: Path
    reference: Path
    precision: str
    target: str
    settings: Settings
    cores: tuple[int, ...]
    scratch: Path
    cold_bytes: int = 0
    defaults: bool = False


@dataclass
class Tally:
    """What the rounds add up to for one system; `failure` is set once and ends its part."""

    starts: list[Start] = field(default_factory=list)
    identity_us: list[float] = field(default_factory=list)
    slow: bool = False
    answers: list[tuple[Path, tuple[int, ...], When]] = field(default_factory=list)
    failure: WorkerFailedError | None = None

    def lacks(self, files: CacheState, wanted: int) -> bool:
        """Whether there are fewer than `wanted` starts with files so prepared."""
        return sum(start.files == files for start in self.starts) < wanted


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
        self.worker = Worker(
            contestant.system,
            contestant.python,
            cores=course.cores,
            scratch=self._scratch,
            defaults=course.defaults,
        )
        self.worker.send("probe")

    def imported(self) -> None:
        """Wait until the library is there: what was asked for when the worker was started."""
        self.worker.receive("probe", self._watched)

    def load(self, tally: Tally, files: CacheState = "neither", *, watch: bool = False) -> None:
        """Load, bind and run, with the build's files in the page cache or dropped from it as `files` says.

        `watch` ends a worker that outgrows its memory soon (which costs the load a little) and tells slow systems.
        """
        limits = self._watched if watch else self._quiet
        files = self._prepared(files)
        self.worker.forget_peak()
        before = self.worker.memory()
        loaded = self.worker.ask("load", limits, **self._task("model", TIMED_SETS + UNSEEN_SETS))
        warm = self.worker.ask("warm_up", limits, slow_s=self._course.settings.slow_s)
        after = self.worker.memory()
        tally.starts.append(
            Start(
                files,
                loaded["load_ms"],
                warm["first_run_ms"],
                peak_mb=(after.peak - before.resident) / 1e6,
                rest_mb=(after.proportional - before.proportional) / 1e6,
                huge_mb=after.huge / 1e6,
            )
        )
        if watch:
            tally.slow = warm["slow"]

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

    def _prepared(self, files: CacheState) -> CacheState:
        """Read the build's files, or have the kernel forget them and the model's; what came of it."""
        if files == "neither":
            return files
        build = files_below([self.contestant.build_folder / "model"])
        if files == "warm":
            return read_files(build)
        drop_files(files_below([self._course.model_folder]))
        return drop_files(build)

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
            "defaults": course.defaults,
        }  # fmt: skip
