"""A network asked for requests of many lengths: every contestant built, checked, measured in rounds; one record."""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

from mononn_bench.codec import read_record
from mononn_bench.lengths.build import SERVER, BuiltForm, Entry, build_forms
from mononn_bench.lengths.distribution import draw_lengths, make_grid
from mononn_bench.lengths.export import AFTER, BEFORE, encoder_inputs
from mononn_bench.lengths.requests import make_requests
from mononn_bench.measure.accuracy import compare, failure_reason, rel_l2_limits, worst_errors
from mononn_bench.measure.case import source_revision
from mononn_bench.measure.disturbance import difference, is_disturbed, steal_and_total, take_snapshot
from mononn_bench.measure.environment import describe_machine
from mononn_bench.measure.exclusive import LOCK, exclusive_machine
from mononn_bench.measure.order import balanced_orders
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError
from mononn_bench.measure.rounds import DRIFT_LIMIT, SENTINEL, STEAL_LIMIT
from mononn_bench.measure.sentinel import Sentinel, make_sentinel
from mononn_bench.models.folder import RECORD, package_versions
from mononn_bench.record import AccuracyCheck, ModelRecord, ReferenceRecord, SentinelReading, Settings
from mononn_bench.served import (
    Distribution,
    MemoryReading,
    RequestBlock,
    RequestCycle,
    RequestRound,
    ServedModel,
    ServedSystem,
    ServingSettings,
)
from mononn_bench.systems import OURS, get_system

CHUNK = 200
"""Requests of one question to a worker while memory is looked at."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Course:
    """What is the same for every worker of a case."""

    model_folder: Path
    model: ModelRecord
    grid: tuple[int, ...]
    lengths: tuple[int, ...]
    settings: ServingSettings
    cores: tuple[int, ...]
    scratch: Path

    @property
    def limits(self) -> Limits:
        """Of an answer."""
        return Limits(self.settings.answer_limit_s, self.settings.memory_limit_mb, watch_s=1.0)

    @property
    def requests(self) -> Path:
        """The requests of all rounds, and those that memory is read after."""
        return self.scratch / "requests.npz"


@dataclass
class Tally:
    """What is found of one contestant; `failure` is set once and ends its part."""

    entry: Entry
    built: BuiltForm
    folder: Path
    failure: WorkerFailedError | None = None
    load_ms: list[float] = field(default_factory=list)
    memory: list[MemoryReading] = field(default_factory=list)
    answers: list[tuple[Path, tuple[int, ...], Literal["before", "after"]]] = field(default_factory=list)


def serve_case(
    model_folder: Path, entries: Sequence[Entry], distribution: Distribution, settings: ServingSettings, *,
    cores: tuple[int, ...], scratch: Path, builds: Path, machine_name: str, command: str, say: Say, lock: Path = LOCK,
) -> ServedModel:  # fmt: skip
    """Measure how contestants answer requests drawn from a distribution, alone on this machine. What fails is a status
    in the record; builds that stand in the folder `builds` are not made again.
    """
    started = time.perf_counter()
    model = read_record(ModelRecord, model_folder / RECORD)
    reference = read_record(ReferenceRecord, model_folder / "reference.json")
    lengths = draw_lengths(distribution, settings.timed + settings.memory_requests, settings.seed)
    grid = make_grid(distribution, settings.step)
    course = Course(model_folder, model, grid, tuple(lengths), settings, cores, scratch.absolute())
    machine = describe_machine(machine_name)
    shutil.rmtree(course.scratch, ignore_errors=True)
    course.scratch.mkdir(parents=True)
    try:
        make_requests(encoder_inputs(model.name), lengths, settings.seed).write(course.requests)
        with exclusive_machine(say, lock):
            sentinel = make_sentinel(course.scratch, cores, machine.caches_kib)
            built = build_forms(entries, model_folder, model, grid, settings, cores, builds, say)
            tallies = {one.label: Tally(one, *built[one.label]) for one in entries}
            for tally in tallies.values():
                tally.failure = tally.built.failure
            rounds = _rounds(course, tallies, sentinel, say)
            for tally in tallies.values():
                _read_memory(course, tally, say)
        systems = _judged(course, tallies, reference)
    finally:
        shutil.rmtree(course.scratch, ignore_errors=True)
    found = [cycle.sentinel for one in rounds for cycle in one.cycles if cycle.sentinel]
    return ServedModel(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model,
        distribution=distribution,
        grid=grid,
        lengths=tuple(lengths[: settings.timed]),
        settings=settings,
        machine=machine,
        cores=cores,
        systems=systems,
        rounds=tuple(rounds),
        ceilings=sentinel.ceilings([reading for reading in found if reading.undisturbed]),
        reference=reference,
        command=command,
        source_revision=source_revision(),
        versions={"python": sys.version.split()[0], **package_versions(("mononn", "numpy", "onnx"))},
        wall_s=time.perf_counter() - started,
    )


class Answerer:
    """A contestant's live worker."""

    def __init__(self, tally: Tally, course: Course, tag: str) -> None:
        self.tally, self._course = tally, course
        self._scratch = course.scratch / f"{tally.entry.slug}-{tag}"
        self.worker = Worker(
            tally.entry.system, tally.entry.python, cores=course.cores, scratch=self._scratch, server=SERVER
        )
        self.worker.send("probe")

    def load(self) -> None:
        """Load the network; what was asked for at the start is there by then."""
        course, entry = self._course, self.tally.entry
        loaded = self.worker.ask(
            "load_form", course.limits, form=entry.form, grid=list(course.grid), requests=str(course.requests),
            model_folder=str(course.model_folder.absolute()), build_folder=str(self.tally.folder / "model"),
            threads=len(course.cores),
        )  # fmt: skip
        self.tally.load_ms.append(loaded["load_ms"])

    def imported(self) -> None:
        """Wait until the library is there."""
        self.worker.receive("probe", self._course.limits)

    def answer(self, numbers: Sequence[int], warm_up_s: float = 0.0, warm_up_runs: int = 0) -> tuple[int, ...]:
        """What each of these requests took, in ns; untimed ones before as in the worker."""
        before = {"warm_up_s": warm_up_s, "warm_up_runs": warm_up_runs}
        return tuple(self.worker.ask("answer", self._course.limits, numbers=list(numbers), **before)["samples_ns"])

    def check(self, sets: range, when: Literal["before", "after"]) -> None:
        """Write the answers to compared requests for the parent to judge at the end."""
        path = self._course.scratch / f"{self.tally.entry.slug}-{when}.npz"
        reference = str(self._course.model_folder.absolute() / "reference.npz")
        self.worker.ask("check_answers", self._course.limits, reference=reference, sets=list(sets), output=str(path))
        self.tally.answers.append((path, tuple(sets), when))

    def close(self) -> None:
        """End the worker and remove what it left in its temporary folder."""
        self.worker.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)


Answerers = dict[str, Answerer]


def _rounds(course: Course, tallies: Mapping[str, Tally], sentinel: Sentinel, say: Say) -> list[RequestRound]:
    settings = course.settings
    seed = f"{settings.seed}/{settings.order_seed}/{course.model.name}"
    orders = balanced_orders([*tallies, SENTINEL], settings.rounds * settings.cycles, seed)
    rounds = []
    for index in range(settings.rounds):
        say(f"{course.model.name}: round {index + 1} of {settings.rounds}")
        chance = random.Random(f"{seed}/{index}")
        rounds.append(_round(index, orders[index * settings.cycles :], course, tallies, sentinel, chance))
    return rounds


def _round(
    index: int, orders: Sequence[tuple[str, ...]], course: Course, tallies: Mapping[str, Tally], sentinel: Sentinel,
    chance: random.Random,
) -> RequestRound:  # fmt: skip
    """Fresh workers, one request of each length first, then blocks in turns. Who fails is noted and leaves."""
    settings = course.settings
    steal = steal_and_total()
    first = index * settings.cycles * settings.requests
    warmed = _one_of_each(course.lengths, range(first, first + settings.cycles * settings.requests))
    first_ns: dict[str, tuple[int, ...]] = {}
    with ExitStack() as stack:
        live = _imported(course, [t for t in tallies.values() if not t.failure], f"round{index}", stack)
        for label in chance.sample(list(live), len(live)):
            _guarded(live, label, lambda one: first_ns.update({one.tally.entry.label: _ready(one, warmed, index == 0)}))
        cycles = []
        for cycle in range(settings.cycles):
            numbers = range(first + cycle * settings.requests, first + (cycle + 1) * settings.requests)
            cycles.append(_cycle(cycle, orders[cycle], numbers, live, settings, sentinel))
        for label in list(live) if index == settings.rounds - 1 else []:
            _guarded(live, label, _check_last)
    stolen, total = (after - before for after, before in zip(steal_and_total(), steal, strict=True))
    return _flagged(index, tuple(warmed), first_ns, tuple(cycles), stolen / max(1, total))


def _ready(one: Answerer, warmed: Sequence[int], checked: bool) -> tuple[int, ...]:
    """Load, answer one request of each length, in the first round also those that are compared; then rest."""
    one.load()
    found = one.answer(warmed)
    if checked:
        one.check(range(len(BEFORE)), "before")
    one.worker.stop()
    return found


def _check_last(one: Answerer) -> None:
    one.worker.resume()
    one.check(range(len(BEFORE), len(BEFORE) + len(AFTER)), "after")


def _cycle(
    index: int, order: tuple[str, ...], numbers: range, live: Answerers, settings: ServingSettings, sentinel: Sentinel
) -> RequestCycle:
    blocks: list[RequestBlock] = []
    reading: SentinelReading | None = None
    for label in order:
        if label == SENTINEL:
            reading = _reading(sentinel, settings)
        elif label in live:
            _guarded(live, label, lambda one: blocks.extend(_block(one, numbers, settings)))
    return RequestCycle(index, numbers.start, order, tuple(blocks), reading)


def _block(one: Answerer, numbers: range, settings: ServingSettings) -> list[RequestBlock]:
    """A block, repeated while others disturb it; the last one is accepted."""
    blocks: list[RequestBlock] = []
    one.worker.resume()
    for attempt in range(settings.repeats + 1):
        before = take_snapshot(one.worker.pid)
        samples = one.answer(numbers, settings.warm_up_s, settings.warm_up_runs)
        what_else = difference(before, take_snapshot(one.worker.pid))
        disturbed = is_disturbed(what_else, _rule(settings))
        accepted = not disturbed or attempt == settings.repeats
        blocks.append(RequestBlock(one.tally.entry.label, attempt, accepted, not disturbed, samples, what_else))
        if accepted:
            break
    one.worker.stop()
    return blocks


def _reading(sentinel: Sentinel, settings: ServingSettings) -> SentinelReading:
    """A reading, repeated like a block."""
    for _ in range(settings.repeats + 1):
        before = take_snapshot(os.getpid())
        reading = sentinel.read()
        if not is_disturbed(difference(before, take_snapshot(os.getpid())), _rule(settings)):
            return reading
    return replace(reading, undisturbed=False)


def _rule(settings: ServingSettings) -> Settings:
    """What `is_disturbed` asks."""
    return Settings(disturbed_share=settings.disturbed_share)


def _one_of_each(lengths: Sequence[int], numbers: range) -> list[int]:
    """The first request of each length among `numbers`."""
    return list({lengths[number]: number for number in reversed(numbers)}.values())[::-1]


def _imported(course: Course, tallies: Sequence[Tally], tag: str, stack: ExitStack) -> Answerers:
    """A fresh worker each, closed with `stack`."""
    live = {tally.entry.label: Answerer(tally, course, tag) for tally in tallies}
    for one in live.values():
        stack.callback(one.close)
    for label in list(live):
        _guarded(live, label, Answerer.imported)
    return live


def _guarded(live: Answerers, label: str, step: Callable[[Answerer], object]) -> None:
    """Take a step with one contestant; if it fails, note why and go on without it."""
    try:
        step(live[label])
    except WorkerFailedError as error:
        live[label].tally.failure = error
        live.pop(label).close()


def _flagged(
    index: int, warmed: tuple[int, ...], first_ns: Mapping[str, tuple[int, ...]], cycles: tuple[RequestCycle, ...],
    steal: float,
) -> RequestRound:  # fmt: skip
    rates = [cycle.sentinel.flops_per_s for cycle in cycles if cycle.sentinel]
    drift = (max(rates) - min(rates)) / median(rates) if rates else None
    flags = [f"the sentinel drifted by {drift:.0%}"] if drift is not None and drift > DRIFT_LIMIT else []
    flags += [f"the hypervisor took {steal:.1%} of the time"] if steal > STEAL_LIMIT else []
    return RequestRound(index, warmed, first_ns, cycles, drift, steal, tuple(flags))


def _read_memory(course: Course, tally: Tally, say: Say) -> None:
    """What one more process holds once loaded, and after 1, 10, 100, ... of the memory's requests; no twin's."""
    settings, entry = course.settings, tally.entry
    if tally.failure or entry.twin or not settings.memory_requests:
        return
    say(f"{course.model.name}: memory of {entry.label} over {settings.memory_requests} requests")
    with ExitStack() as stack:
        live = _imported(course, [tally], "memory", stack)
        _guarded(live, entry.label, lambda one: _answer_many(one, settings)) if live else None


def _answer_many(one: Answerer, settings: ServingSettings) -> None:
    base = one.worker.memory().proportional

    def note(requests: int) -> None:
        one.tally.memory.append(MemoryReading(requests, (one.worker.memory().proportional - base) / 1e6))

    one.load()
    note(0)
    done, stops = 0, _powers(settings.memory_requests)
    for stop in stops:
        while done < stop:
            count = min(CHUNK, stop - done)
            one.answer(range(settings.timed + done, settings.timed + done + count))
            done += count
        note(stop)


def _powers(most: int) -> list[int]:
    """1, 10, 100 and so on, and `most`."""
    return [*(10**i for i in range(len(str(most))) if 10**i < most), most]


def _judged(course: Course, tallies: Mapping[str, Tally], reference: ReferenceRecord) -> tuple[ServedSystem, ...]:
    """Every contestant's row; limits rest on what ONNX Runtime, unpadded, is off by."""
    names = [tensor.name for tensor in course.model.outputs]
    judge = next((t for t in tallies.values() if t.entry.system == "onnxruntime" and t.answers), None)
    anything = dict.fromkeys(names, float("inf"))
    errors = worst_errors(_compared(judge, course, anything)) if judge else {}
    limits = rel_l2_limits("fp32", names, errors, reference.fp32_errors)
    return disputed([_row(tally, _compared(tally, course, limits)) for tally in tallies.values()], reference)


def disputed(rows: Sequence[ServedSystem], reference: ReferenceRecord) -> tuple[ServedSystem, ...]:
    """The rows; where independent systems answered and none agrees with the reference, that is itself in doubt."""
    independent = [r for r in rows if get_system(r.system).family not in (OURS, reference.family) and r.accuracy]
    if not independent or any(row.status != "incorrect" for row in independent):
        return tuple(rows)
    reason = f"no independent system agrees with the reference ({reference.method})"
    return tuple(
        replace(row, status="disputed", reason=reason) if row.status in ("ok", "incorrect") else row for row in rows
    )


def _compared(tally: Tally, course: Course, limits: Mapping[str, float]) -> list[AccuracyCheck]:
    checks: list[AccuracyCheck] = []
    for path, sets, when in tally.answers:
        checks += compare(path, course.model_folder / "reference.npz", course.model, sets, limits, when)
    return checks


def _row(tally: Tally, checks: Sequence[AccuracyCheck]) -> ServedSystem:
    entry, built, wrong = tally.entry, tally.built, failure_reason(checks)
    status: dict[str, Any] = {"status": "ok", "reason": ""}
    if tally.failure:
        status = {"status": tally.failure.status, "reason": tally.failure.reason}
    elif wrong:
        status = {"status": "incorrect", "reason": wrong}
    variables = get_system(entry.system).process_variables()
    return ServedSystem(
        label=entry.label, system=entry.system, form=entry.form, **status, version=built.version,
        versions=built.versions, options=(*built.options, *variables), build_s=built.build_s,
        artifact_mb=built.artifact_mb, load_ms=tuple(tally.load_ms), memory=tuple(tally.memory), accuracy=tuple(checks),
    )  # fmt: skip
