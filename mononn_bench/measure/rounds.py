"""One round: fresh workers, interleaved blocks in a balanced order, the sentinel among them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from mononn_bench.measure.disturbance import difference, is_disturbed, steal_and_total, take_snapshot
from mononn_bench.measure.filecache import CacheState
from mononn_bench.measure.order import balanced_orders
from mononn_bench.measure.process import WorkerFailedError
from mononn_bench.measure.runner import Contestant, Course, Runner, Tally
from mononn_bench.measure.sentinel import Sentinel
from mononn_bench.models.inputs import TIMED_SETS, UNSEEN_SETS
from mononn_bench.record import Block, Cycle, Round, SentinelReading, Settings

SENTINEL = "sentinel"
DRIFT_LIMIT, STEAL_LIMIT = 0.05, 0.01


@dataclass(frozen=True)
class Group:
    """Systems that are measured side by side in every round, and the order of their blocks in every cycle."""

    number: int
    contestants: tuple[Contestant, ...]
    orders: tuple[tuple[str, ...], ...]
    """One for each cycle of each round."""


def make_group(number: int, contestants: Sequence[Contestant], settings: Settings, case: str) -> Group:
    """A group with its balanced orders; `case` names the case, so that no two cases have the same ones."""
    items = [*(c.label for c in contestants), SENTINEL]
    count = settings.rounds * settings.cycles
    return Group(
        number,
        tuple(contestants),
        tuple(balanced_orders(items, count, f"{settings.seed}/{settings.order_seed}/{case}/{number}")),
    )


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
    group: Group,
    course: Course,
    tallies: Mapping[str, Tally],
    sentinel: Sentinel,
    checked: Mapping[str, Runner] | None = None,
) -> Round:
    """Measure one round of a group. A system that fails is noted in its tally and leaves; the others go on.

    Workers are fresh, unless `checked` holds stopped ones that have run only to be checked. Every other round begins
    with the builds' files dropped from the page cache.
    """
    settings = course.settings
    chance = random.Random(f"{settings.seed}/{settings.order_seed}/{index}/{group.number}")
    steal = steal_and_total()
    labels = tuple(c.label for c in group.contestants)
    with ExitStack() as stack:
        runners = dict(checked or {})
        if not runners:
            here = [c for c in group.contestants if tallies[c.label].failure is None]
            runners = imported(here, course, tallies, f"{index}.{group.number}", stack)
            for label in chance.sample(list(runners), len(runners)):
                guarded(runners, tallies, label, partial(_start, files="warm" if index % 2 else "cold"))
        orders = group.orders[index * settings.cycles : (index + 1) * settings.cycles]
        cycles = tuple(_cycle(i, order, runners, course, tallies, sentinel, chance) for i, order in enumerate(orders))
        for label in list(runners):
            guarded(runners, tallies, label, lambda r, t: _close(r, t, last=index == settings.rounds - 1))
    stolen, total = (after - before for after, before in zip(steal_and_total(), steal, strict=True))
    return _flagged(index, group.number, labels, cycles, stolen / max(1, total))


def complete_starts(contestants: Sequence[Contestant], course: Course, tallies: Mapping[str, Tally]) -> None:
    """Start each system again, alone and in random order, until it has `Settings.starts` with warm and with cold
    files.
    """
    chance = random.Random(f"{course.settings.seed}/{course.settings.order_seed}/starts")
    kinds: tuple[CacheState, ...] = ("cold", "warm")
    for attempt in range(course.settings.starts):
        for files in kinds:
            lacking = [
                c for c in contestants
                if not tallies[c.label].failure and tallies[c.label].lacks(files, course.settings.starts)
            ]  # fmt: skip
            with ExitStack() as stack:
                runners = imported(lacking, course, tallies, f"start.{attempt}.{files}", stack)
                for label in chance.sample(list(runners), len(runners)):
                    guarded(runners, tallies, label, partial(Runner.load, files=files))
                    if label in runners:
                        runners[label].close()


def imported(
    contestants: Sequence[Contestant], course: Course, tallies: Mapping[str, Tally], tag: str, stack: ExitStack
) -> dict[str, Runner]:
    """A fresh worker each, closed with `stack`: all import at once, what is timed comes after."""
    runners = {c.label: Runner(c, course, tag) for c in contestants}
    for runner in runners.values():
        stack.callback(runner.close)
    for label in list(runners):
        guarded(runners, tallies, label, lambda r, _: r.imported())
    return runners


def _cycle(
    index: int,
    order: tuple[str, ...],
    runners: dict[str, Runner],
    course: Course,
    tallies: Mapping[str, Tally],
    sentinel: Sentinel,
    chance: random.Random,
) -> Cycle:
    order = tuple(label for label in order if label in (*runners, SENTINEL))
    blocks: list[Block] = []
    reading: SentinelReading | None = None
    first = chance.randrange(TIMED_SETS)
    for label in order:
        if label == SENTINEL:
            reading = _undisturbed_reading(sentinel, course.settings)
        elif label in runners:
            guarded(runners, tallies, label, lambda r, _: blocks.extend(_awake_block(r, course.settings, first)))
    return Cycle(index, order, tuple(blocks), reading)


def _undisturbed_reading(sentinel: Sentinel, settings: Settings) -> SentinelReading:
    """A reading, repeated like a block while others disturb it."""
    for _ in range(settings.repeats + 1):
        before = take_snapshot(os.getpid())
        reading = sentinel.read()
        if not is_disturbed(difference(before, take_snapshot(os.getpid())), settings):
            return reading
    return replace(reading, undisturbed=False)


def _start(runner: Runner, tally: Tally, files: CacheState) -> None:
    runner.load(tally, files)
    runner.worker.stop()


def _awake_block(runner: Runner, settings: Settings, first: int) -> list[Block]:
    runner.worker.resume()
    blocks = measured_block(runner, settings, first)
    runner.worker.stop()
    return blocks


def _close(runner: Runner, tally: Tally, *, last: bool) -> None:
    """Unseen inputs in the process that was timed and, in the last round, what a call costs."""
    runner.worker.resume()
    runner.check(tally, range(TIMED_SETS, TIMED_SETS + UNSEEN_SETS), "after")
    if last:
        runner.identity(tally)
    runner.close()


def guarded(
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
