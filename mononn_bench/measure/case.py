"""A case measured whole: every system checked, then rounds side by side, then one record."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Literal
from uuid import uuid4

from mononn_bench.codec import read_record
from mononn_bench.measure.accuracy import INT8, OWN_INT8, compare, failure_reason, limits_of, worst_errors
from mononn_bench.measure.environment import available_bytes, describe_machine
from mononn_bench.measure.eviction import FACTOR
from mononn_bench.measure.exclusive import LOCK, exclusive_machine
from mononn_bench.measure.process import WorkerFailedError
from mononn_bench.measure.rounds import complete_starts, guarded, imported, make_group, measured_block, run_round
from mononn_bench.measure.runner import Contestant, Course, Runner, Tally
from mononn_bench.measure.sentinel import Sentinel, make_sentinel
from mononn_bench.models.folder import package_versions
from mononn_bench.models.inputs import TIMED_SETS, UNSEEN_SETS
from mononn_bench.record import (
    AccuracyCheck,
    BuildRecord,
    CaseRecord,
    Cycle,
    ModelRecord,
    ReferenceRecord,
    Round,
    Status,
    SystemResult,
)
from mononn_bench.systems import OURS, get_system
from mononn_bench.systems.base import FP32

MEMORY_SHARE = 0.7
"""Where the systems' peaks sum to more than this share of the available memory, the case runs in pairs."""
COLD_SAMPLES = 20
State = Literal["warm", "cold", "as warm"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Verdict:
    """A status with its line of reason, and the checks it rests on."""

    status: Status
    reason: str
    checks: tuple[AccuracyCheck, ...] = ()


def measure_case(
    contestants: Sequence[Contestant], course: Course, *, machine_name: str, command: str, say: Say, lock: Path = LOCK
) -> CaseRecord:
    """Measure one model on all its systems, alone on this machine. What fails is a status in the record."""
    started = time.perf_counter()
    shutil.rmtree(course.scratch, ignore_errors=True)
    course.scratch.mkdir(parents=True)
    try:
        with exclusive_machine(say, lock):
            return _measure(contestants, course, machine_name, command, say, started)
    finally:
        shutil.rmtree(course.scratch, ignore_errors=True)


def _measure(
    contestants: Sequence[Contestant], course: Course, machine_name: str, command: str, say: Say, started: float
) -> CaseRecord:
    machine = describe_machine(machine_name)
    model = read_record(ModelRecord, course.model_folder / "model.json")
    reference = read_record(ReferenceRecord, course.reference.with_suffix(".json"))
    sentinel = make_sentinel(course.scratch, course.cores, machine.caches_kib)
    state, course = _tempered(contestants, course, model, sentinel.last_level_cache_bytes)
    tallies = {c.label: Tally() for c in contestants}
    available = available_bytes()
    with ExitStack() as stack:
        checked = _checked(contestants, course, tallies, available, model, stack, say)
        judged = judge(contestants, course, model, reference, tallies)
        running = [c for c in contestants if c.build.stands and judged[c.label].status in ("ok", "undertuned")]
        rounds, in_pairs = _rounds(running, checked, course, tallies, available, sentinel, model, say)
    judged = judge(contestants, course, model, reference, tallies)
    created = datetime.now(UTC)
    return CaseRecord(
        run_id=f"{created:%Y%m%dT%H%M%S}-{uuid4().hex[:8]}",
        created=created.isoformat(timespec="seconds"),
        model=model,
        precision=course.precision,
        target=course.target,
        machine=machine,
        cores=course.cores,
        settings=course.settings,
        pairs_mode=in_pairs,
        systems=tuple(_result(c, tallies[c.label], judged[c.label], defaults=course.defaults) for c in contestants),
        rounds=tuple(rounds),
        ceilings=sentinel.ceilings(
            [c.sentinel for r in rounds for c in r.cycles if c.sentinel and c.sentinel.undisturbed]
        ),
        reference=reference,
        command=command,
        source_revision=source_revision(),
        versions={"python": sys.version.split()[0], **package_versions(("mononn", "numpy", "onnx"))},
        wall_s=time.perf_counter() - started,
        state=state,
        view="defaults" if course.defaults else "experts",
    )


def _tempered(
    contestants: Sequence[Contestant], course: Course, model: ModelRecord, cache_bytes: int
) -> tuple[State, Course]:
    """Where cold runs are asked for: caches emptied before each, and blocks long enough for COLD_SAMPLES in all.

    That changes nothing for weights and arena (ours) that the caches would not hold anyway.
    """
    s = course.settings
    if not s.cold:
        return "warm", course
    arena = max((int(c.build.details.get("arena_bytes", 0)) for c in contestants if c.system == OURS), default=0)
    if model.weight_bytes + arena >= FACTOR * cache_bytes:
        return "as warm", course
    runs = max(s.block_runs, math.ceil(COLD_SAMPLES / (s.rounds * s.cycles)))
    return "cold", replace(course, settings=replace(s, block_runs=runs), cold_bytes=cache_bytes)


def _rounds(
    running: Sequence[Contestant],
    checked: dict[str, Runner],
    course: Course,
    tallies: Mapping[str, Tally],
    available: int,
    sentinel: Sentinel,
    model: ModelRecord,
    say: Say,
) -> tuple[list[Round], bool]:
    """All rounds, slow systems' first, and whether they were in pairs; then the starts that are still wanted.

    The workers that systems were `checked` in serve in the first round, where all are there and are measured side by
    side. `available`: bytes of memory before any was started.
    """
    slow = [c for c in running if tallies[c.label].slow]
    fast = [c for c in running if not tallies[c.label].slow]
    in_pairs = _needed_mb(fast, tallies) * 1e6 > MEMORY_SHARE * available
    reused = not in_pairs and all(c.label in checked for c in fast)
    first = {label: checked[label] for label in (c.label for c in fast)} if reused else {}
    for label in checked.keys() - first.keys():
        checked[label].close()
    case = f"{model.name}-{model.batch}"
    groups = [make_group(i, g, course.settings, case) for i, g in enumerate(_groups(fast, in_pairs))]
    rounds = [_slow_round(c, course, tallies[c.label], len(groups) + i) for i, c in enumerate(slow)]
    for index in range(course.settings.rounds):
        for group in groups:
            names = ", ".join(c.label for c in group.contestants)
            say(f"{model.name}: round {index + 1} of {course.settings.rounds}: {names}")
            rounds.append(run_round(index, group, course, tallies, sentinel, {} if index else first))
    say(f"{model.name}: loads and first runs")
    complete_starts(fast, course, tallies)
    return rounds, in_pairs


def _checked(
    contestants: Sequence[Contestant],
    course: Course,
    tallies: Mapping[str, Tally],
    available: int,
    model: ModelRecord,
    stack: ExitStack,
    say: Say,
) -> dict[str, Runner]:
    """Load each system while no other runs, follow its memory, and have it answer every timed input set.

    Their workers, stopped, by label, and closed with `stack`; none where all together need too much memory.
    """
    standing = [c for c in contestants if c.build.stands]
    chance = random.Random(f"{course.settings.seed}/{course.settings.order_seed}/{model.name}/checks")
    say(f"{model.name}: importing {', '.join(c.label for c in standing)}")
    runners = imported(standing, course, tallies, "checked", stack)

    def check(runner: Runner, tally: Tally) -> None:
        runner.load(tally, watch=True)
        runner.check(tally, range(TIMED_SETS), "before")
        runner.worker.stop()

    for label in chance.sample(list(runners), len(runners)):
        say(f"{model.name}: checking {label}")
        guarded(runners, tallies, label, check)
        too_much = _needed_mb(standing, tallies) * 1e6 > MEMORY_SHARE * available
        if label in runners and (tallies[label].slow or too_much):
            runners.pop(label).close()
    return runners


def _needed_mb(contestants: Sequence[Contestant], tallies: Mapping[str, Tally]) -> float:
    """What those of the systems that are not slow held at most, together."""
    return sum(start.peak_mb for c in contestants if not tallies[c.label].slow for start in tallies[c.label].starts)


def _slow_round(contestant: Contestant, course: Course, tally: Tally, group: int) -> Round:
    """Raw times of a slow system, by itself: no pairs, no warm-up beyond its first runs."""
    runner = Runner(contestant, course, "slow")
    blocks = []
    try:
        runner.imported()
        runner.load(tally, "warm")
        blocks = measured_block(runner, course.settings, 0, slow=True)
        runner.check(tally, range(TIMED_SETS, TIMED_SETS + UNSEEN_SETS), "after")
        runner.identity(tally)
    except WorkerFailedError as error:
        tally.failure = error
    finally:
        runner.close()
    cycles = (Cycle(0, (contestant.label,), tuple(blocks), None),)
    return Round(0, group, (contestant.label,), cycles, None, None, ("slow: raw times only",))


def _groups(contestants: Sequence[Contestant], in_pairs: bool) -> list[list[Contestant]]:
    """All at once, or ours (the first, where ours is not among them) with one rival and its variants at a time."""
    if not contestants:
        return []
    if not in_pairs or len(contestants) <= 2:
        return [list(contestants)]
    ours = next((c for c in contestants if c.system == OURS), contestants[0])
    families: dict[str, list[Contestant]] = {}
    for rival in contestants:
        if rival is not ours:
            families.setdefault(rival.system.partition("[")[0], []).append(rival)
    return [[ours, *rivals] for family in families.values() for rivals in _separated(family)]


def _separated(family: list[Contestant]) -> list[list[Contestant]]:
    """A system with its variants as one; a system that takes part more than once by itself each time."""
    if any("[" in contestant.system for contestant in family):
        return [family]
    return [[contestant] for contestant in family]


def judge(
    contestants: Sequence[Contestant],
    course: Course,
    model: ModelRecord,
    reference: ReferenceRecord,
    tallies: Mapping[str, Tally],
) -> dict[str, Verdict]:
    """Statuses so far. Limits need what ONNX Runtime (in int8 OpenVINO too) is off by, so all answers are compared
    together.

    A system that by its own choice computes in another precision than the case's says so in its build's details, and
    is judged by the rule of that; all are by that of 16 bits where the file's own weights are of 16 bits.
    """
    rules = {contestant.label: _rule(contestant.build, model) for contestant in contestants}
    rivals = {
        precision: _errors_of_judges(contestants, course, model, tallies, precision)
        for precision in set(rules.values())
    }
    judged: dict[str, Verdict] = {}
    for contestant in contestants:
        tally, build = tallies[contestant.label], contestant.build
        precision = rules[contestant.label]
        exact = reference.quantisation_errors if precision == OWN_INT8 else reference.fp32_errors
        limits = limits_of(precision, (tensor.name for tensor in model.outputs), rivals[precision], exact)
        checks = tuple(_compared(tally, course, model, limits, precision))
        wrong = failure_reason(checks)
        if not build.stands:
            judged[contestant.label] = Verdict(build.status, build.reason)
        elif tally.failure:
            judged[contestant.label] = Verdict(tally.failure.status, tally.failure.reason, checks)
        elif wrong:
            judged[contestant.label] = Verdict("incorrect", wrong, checks)
        else:
            judged[contestant.label] = Verdict(build.status, build.reason or build.details.get("note", ""), checks)
    return _disputed(contestants, reference, judged)


def _errors_of_judges(
    contestants: Sequence[Contestant],
    course: Course,
    model: ModelRecord,
    tallies: Mapping[str, Tally],
    precision: str,
) -> list[dict[str, float]]:
    """The largest error of each output of those who set the limits, against what `precision` is held against."""
    anything = {tensor.name: float("inf") for tensor in model.outputs}
    judges = ("onnxruntime", "openvino") if course.precision == INT8 else ("onnxruntime",)
    against = OWN_INT8 if precision == OWN_INT8 else "fp32"
    errors: dict[str, dict[str, float]] = {}
    for contestant in contestants:
        if contestant.system in judges and not errors.get(contestant.system):
            compared = _compared(tallies[contestant.label], course, model, anything, against)
            errors[contestant.system] = worst_errors(compared)
    return list(errors.values())


def _disputed(
    contestants: Sequence[Contestant], reference: ReferenceRecord, judged: dict[str, Verdict]
) -> dict[str, Verdict]:
    """Where independent systems answered and none agrees with the reference, the reference itself is in doubt. Those
    that quantise the model by themselves are held against another, of which they say nothing.
    """
    held = [c for c in contestants if _computes(c.build) != OWN_INT8]
    independent = [
        judged[c.label]
        for c in held
        if get_system(c.system).family not in (OURS, reference.family) and judged[c.label].checks
    ]
    if not independent or any(v.status != "incorrect" for v in independent):
        return judged
    reason = f"no independent system agrees with the reference ({reference.method})"
    doubted = {c.label for c in held if judged[c.label].status in ("ok", "incorrect")}
    return {
        label: replace(v, status="disputed", reason=reason) if label in doubted else v for label, v in judged.items()
    }


def _compared(
    tally: Tally, course: Course, model: ModelRecord, limits: Mapping[str, float], precision: str
) -> list[AccuracyCheck]:
    checks: list[AccuracyCheck] = []
    for path, sets, when in tally.answers:
        checks += compare(path, course.reference, model, sets, limits, when, precision)
    return checks


def _result(contestant: Contestant, tally: Tally, verdict: Verdict, *, defaults: bool) -> SystemResult:
    build = contestant.build
    warm = [start for start in tally.starts if start.files == "warm"]
    return SystemResult(
        label=contestant.label,
        system=contestant.system,
        status=verdict.status,
        reason=verdict.reason,
        version=build.version,
        versions=build.versions,
        options=(*build.options, *get_system(contestant.system).process_variables(defaults=defaults)),
        tuning=build.tuning,
        build_s=build.build_s,
        artifact_mb=build.artifact_mb,
        load_ms=median(start.load_ms for start in warm) if warm else None,
        first_run_ms=median(start.first_run_ms for start in warm) if warm else None,
        peak_mb=median(start.peak_mb for start in tally.starts) if tally.starts else None,
        identity_us=median(tally.identity_us) if tally.identity_us else None,
        slow=tally.slow or (build.status == "undertuned" and not build.stands),
        accuracy=verdict.checks,
        algorithm=str(build.details.get("algorithm", "")),
        starts=tuple(tally.starts),
        computes=_computes(build),
    )


def _computes(build: BuildRecord) -> str:
    """The precision a system computes in: the case's, or its own choice."""
    return str(build.details.get("precision", build.precision))


def _rule(build: BuildRecord, model: ModelRecord) -> str:
    """The precision by whose rule answers are judged."""
    computes = _computes(build)
    return model.stored or computes if computes == FP32 else computes


def source_revision() -> str:
    """The git commit of this checkout, with a plus sign where tracked files differ from it; `unknown` without git."""
    root = Path(__file__).resolve().parents[2]
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=root, capture_output=True, check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + ("+" if changed.returncode else "")
