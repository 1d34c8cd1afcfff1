"""How far a run is: its steps, what each should take, and what Snakemake's lines say of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mononn_bench.codec import write_text
from mononn_bench.models.zoo import get_model
from mononn_bench.workflow.parts import Case
from mononn_bench.workflow.plan import Plan

OURS = "mononn"
DURATIONS = "durations.json"
"""In the cache: what each step took when it was last made."""
ENVIRONMENT_S = {"torch": 120.0, "zentorch": 100.0}
BUILD_S = {"mononn": 20.0, "torch-inductor": 90.0, "zentorch": 90.0, "xla": 30.0, "tvm": 60.0}
USUAL_S = {"environment": 40.0, "export": 25.0, "reference": 20.0, "build": 6.0, "profile": 8.0, "report": 20.0}
USUAL_S |= {"quantise": 30.0, "quantised reference": 60.0, "bricks": 60.0, "primitives": 25.0, "start": 60.0}
USUAL_S |= {"encoder": 40.0, "lengths": 240.0}
LOAD_S, ALONE_S, SENTINEL_S, MACHINE_S = 3.0, 5.0, 0.3, 1.0
FULL_SIZE_RUN_S, RUNS_OF_A_BLOCK = 0.12, 5
PACE = (0.5, 3.0)

STARTED = re.compile(r"^Job (\d+): (.*)")
FINISHED = re.compile(r"^Finished jobid: (\d+)")
TOLD = (
    ": round ",
    ": checking ",
    " different bricks ",
    ": building ",
    " visits to ",
    " files, round ",
    " processes of ",
    ": memory of ",
)
"""What lines of a measurement's log say that is worth showing."""
PROGRESS = re.compile(r"progress in (\S+)$")
FAILED = re.compile(r"^(Error|Exception|Traceback|\w*Error\b|\w*Exception\b|Stale:|Another)")
NOISE = re.compile(
    r"^(\s*$|\[\w{3} \w{3} +\d|Using |Assuming |Building DAG|Provided |Rules claiming|Job stats|job +count|-+ +-+$"
    r"|\w+ +\d+$|Select jobs|Execute |\d+ of \d+ steps|Complete log|Elapsed time|localrule |Nothing to be done"
    r"|    (input|output|log|jobid|reason|resources|wildcards|threads): )"
)


@dataclass(frozen=True)
class Step:
    """A step that still has to be made: about how long it takes on two cores, and what that depends on."""

    seconds: float
    key: str


def steps_to_make(plan: Plan) -> dict[str, Step]:
    """The steps of a plan whose files are missing, by what Snakemake says when one starts."""
    steps: dict[str, Step] = {}

    def add(message: str, output: Path, seconds: float, how: str = "") -> None:
        if not output.exists():
            steps[message] = Step(seconds, f"{message}{how}")

    for name, environment in plan.environments.items():
        add(f"Building the environment of {name}", environment.stamp, ENVIRONMENT_S.get(name, USUAL_S["environment"]))
    whole = bool(plan.cases or plan.timelines or plan.starts)
    add("Describing the machine", plan.machine_record, MACHINE_S)
    for name, model in plan.models.items():
        if whole or plan.bricks:
            add(f"Exporting {name}", model.record, USUAL_S["export"])
        if whole:
            add(f"Computing the reference answers of {name}", model.reference, USUAL_S["reference"])
    for name, model in plan.quantised.items():
        add(f"Quantising {name}", model.record, USUAL_S["quantise"])
        if whole:
            add(f"Computing the reference answers of {name} in int8", model.reference, USUAL_S["quantised reference"])
    for (name, folder), build in plan.builds.items() if whole else ():
        seconds = BUILD_S.get(build.system.partition("[")[0], USUAL_S["build"])
        add(f"Building {name} with {folder}", build.record, seconds)
    for name, case in plan.cases.items():
        how = case.measuring
        settings = f", {len(case.builds)} systems, {how.rounds} x {how.cycles} x {how.block_seconds} s"
        add(f"Measuring {name}", case.record, measuring_seconds(case), settings)
    for path in plan.timelines:
        name = path.name.partition(".perfetto")[0]
        add(f"Profiling {name}", path, USUAL_S["profile"] * len(plan.config.systems))
    for path in plan.primitives:
        add("Measuring what the machine gives", path, USUAL_S["primitives"])
    for path in plan.bricks:
        message = f"Measuring the bricks of {path.stem}"
        add(message, path, USUAL_S["bricks"] * len(plan.config.systems))
    for path in plan.starts:
        add(f"Measuring the first answers of {path.stem}", path, USUAL_S["start"] * len(plan.config.systems))
    for path in plan.lengths.records:
        add(f"Exporting the encoder of {path.stem}", plan.lengths.encoder(path.stem) / "model.json", USUAL_S["encoder"])
        message = f"Measuring requests of many lengths to {path.stem}"
        add(message, path, USUAL_S["lengths"] * len(plan.config.systems))
    missing = [path for path in plan.report if not path.exists()]
    if missing or any(message.startswith("Measuring") for message in steps):
        message = "Writing tables, figures and the page"
        steps[message] = Step(USUAL_S["report"], message)
    return steps


def measuring_seconds(case: Case) -> float:
    """About how long a case is measured, from its rounds, cycles and blocks (docs/measuring.md)."""
    choice, how = case.model.choice, case.measuring
    systems = [build.system for build in case.builds]
    count = len(systems) + (OURS in systems)
    run = FULL_SIZE_RUN_S if choice.path is None and get_model(choice.name).full_size else 0.0
    block = max(how.block_seconds + 0.06, RUNS_OF_A_BLOCK * run)
    cycle = count * block + SENTINEL_S
    return count * ALONE_S + how.rounds * (count * LOAD_S + how.cycles * cycle)


@dataclass
class Progress:
    """Follows a run by Snakemake's lines; `steps` are those to make, by message.

    `remembered` is a file of what steps took before on this machine; it is kept up to date.
    """

    steps: dict[str, Step]
    remembered: Path
    _running: dict[str, tuple[str, float]] = field(default_factory=dict)
    _done: list[tuple[float, float]] = field(default_factory=list)
    _log: Path | None = None
    _said: str = ""
    _verbatim: bool = False

    def __post_init__(self) -> None:
        self.steps = recall(self.steps, self.remembered)

    def minutes_left(self, now: float) -> int:
        """Minutes until everything is made, at the pace of this run so far; at least 1."""
        took, expected = sum(t for t, _ in self._done), sum(e for _, e in self._done)
        pace = min(max(took / expected, PACE[0]), PACE[1]) if expected else 1.0
        running = {message: now - since for message, since in self._running.values()}
        left = sum(max(step.seconds * pace - running.get(message, 0.0), 0.0) for message, step in self.steps.items())
        return max(1, round(left / 60))

    def line(self, text: str, now: float) -> str | None:
        """What to print for a line of Snakemake's: a step with the time left, an error as it stands, or nothing."""
        started, finished = STARTED.match(text), FINISHED.match(text)
        if started:
            self._verbatim = False
            return self._start(started[1], started[2], now)
        if finished:
            self._verbatim = False
            self._finish(finished[1], now)
            return None
        self._verbatim = self._verbatim or FAILED.match(text) is not None
        return text if self._verbatim or not NOISE.match(text) else None

    def round(self) -> str | None:
        """What the log of the measurement under way has said since last asked."""
        if self._log is None or not self._log.is_file():
            return None
        lines = self._log.read_text(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if any(mark in line for mark in TOLD)), "")
        if not last or last == self._said:
            return None
        self._said = last
        return f"        {last}"

    def _start(self, job: str, message: str, now: float) -> str:
        log = PROGRESS.search(message)
        key = message.partition(":")[0]
        self._log = Path(log[1]) if log else None
        self._running[job] = (key, now)
        number, total = len(self._done) + len(self._running), len(self._done) + len(self.steps)
        return f"[{number}/{max(number, total)}] {key}; about {self.minutes_left(now)} min left"

    def _finish(self, job: str, now: float) -> None:
        key, since = self._running.pop(job, ("", now))
        step = self.steps.pop(key, None)
        if step is not None:
            self._done.append((now - since, step.seconds))
            memory = {**_memory(self.remembered), step.key: round(now - since, 1)}
            write_text(self.remembered, json.dumps(memory, indent=1))
        if key.startswith("Measuring"):
            self._log = None


def recall(steps: Mapping[str, Step], remembered: Path) -> dict[str, Step]:
    """The steps, each with the seconds it took before where the file of that name knows."""
    memory = _memory(remembered)
    return {message: replace(step, seconds=memory.get(step.key, step.seconds)) for message, step in steps.items()}


def _memory(remembered: Path) -> dict[str, float]:
    try:
        return dict(json.loads(remembered.read_text()))
    except (OSError, ValueError):
        return {}


def whole_minutes(steps: Iterable[Step]) -> int:
    """What steps take together, in whole minutes, at least 1."""
    return max(1, round(sum(step.seconds for step in steps) / 60))
