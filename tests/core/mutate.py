"""Programs made wrong on purpose: named mutations, each with the reason why its result is wrong.

A mutation yields every site where it applies. Some are wrong by the grammar itself; those marked ``ask`` may be
neutral at a site (a barrier that orders nothing), so the oracle is asked, and sites it finds harmless are dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

from mononn_core.program.expr import Const, Expr, substitute, variables
from mononn_core.program.ir import (
    Barrier,
    Box,
    Buffer,
    Item,
    Loop,
    Operand,
    Phase,
    Program,
    Task,
)
from tests.core.oracle import Oracle

Sites = Iterator[tuple[str, Program]]


@dataclass(frozen=True)
class Mutation:
    """A way to break a Program. ``why``: the reason that the result is wrong."""

    name: str
    why: str
    sites: Callable[[Program], Sites]
    ask: bool


@dataclass(frozen=True)
class Mutant:
    """One broken Program."""

    name: str
    site: str
    program: Program


MUTATIONS: dict[str, Mutation] = {}


def mutation(why: str, ask: bool = False) -> Callable[[Callable[[Program], Sites]], Callable[[Program], Sites]]:
    """Register a function that yields (site, broken Program)."""

    def register(sites: Callable[[Program], Sites]) -> Callable[[Program], Sites]:
        assert sites.__name__ not in MUTATIONS
        MUTATIONS[sites.__name__] = Mutation(sites.__name__, why, sites, ask)
        return sites

    return register


def mutants(program: Program, oracle: Oracle, each: int = 1 << 30) -> Iterator[Mutant]:
    """Every mutant of ``program`` that is known to be wrong, at most ``each`` per mutation, spread over its sites."""
    for m in MUTATIONS.values():
        sites = list(m.sites(program))
        random.Random(len(sites)).shuffle(sites)
        wrong = (Mutant(m.name, *s) for s in sites if not m.ask or oracle.wrong(s[1]))
        yield from islice(wrong, each)


# -- editing ---------------------------------------------------------------------------


def bodies(program: Program) -> Iterator[tuple[tuple[Item, ...], Callable[[tuple[Any, ...]], Program]]]:
    """The Program's body and every loop's, each with the function that puts another in its place."""
    yield program.body, lambda new: replace(program, body=new)
    for n, item in enumerate(program.body):
        if isinstance(item, Loop):
            yield (
                item.body,
                lambda new, n=n, item=item: replace(
                    program, body=(*program.body[:n], replace(item, body=new), *program.body[n + 1 :])
                ),
            )


def phases(program: Program) -> Iterator[tuple[Phase, Callable[[Phase], Program]]]:
    """Every phase with the function that puts another in its place."""
    for body, put in bodies(program):
        for n, item in enumerate(body):
            if isinstance(item, Phase):
                yield item, lambda new, n=n, body=body, put=put: put((*body[:n], new, *body[n + 1 :]))


def tasks(program: Program) -> Iterator[tuple[Phase, Callable[[Task], Program]]]:
    """Every phase with the function that gives it another task."""
    for phase, put in phases(program):
        yield phase, lambda new, phase=phase, put=put: put(replace(phase, task=new))


def operands(program: Program) -> Iterator[tuple[str, Phase, Operand, Callable[[Operand], Program]]]:
    """(site, phase, operand, function that puts another operand in its place)."""
    for phase, put in tasks(program):
        for n, operand in enumerate(phase.task.operands):

            def change(new: Operand, phase: Phase = phase, n: int = n, put: Any = put) -> Program:
                old = phase.task.operands
                return put(replace(phase.task, operands=(*old[:n], new, *old[n + 1 :])))

            yield f"{phase.id}.{operand.role}", phase, operand, change


def with_buffer(program: Program, new: Buffer) -> Program:
    """The Program with the buffer of the same id replaced."""
    return replace(program, buffers=tuple(new if b.id == new.id else b for b in program.buffers))


def buffer_of(program: Program, operand: Operand) -> Buffer:
    """The operand's buffer, in the first iteration of its loop."""
    if isinstance(operand.buffer, str):
        return program.buffer(operand.buffer)
    return program.buffer(program.resolve(operand.buffer, {"": 0}))


def with_dim(box: Box, d: int, offset: Expr | None = None, size: int | None = None, bound: int | None = None) -> Box:
    """The box with one dimension changed."""
    parts = (list(box.offset), list(box.size), list(box.bound))
    for part, value in zip(parts, (offset, size, bound), strict=True):
        if value is not None:
            part[d] = value  # type: ignore[call-overload]
    return Box(tuple(parts[0]), tuple(parts[1]), tuple(parts[2]))


# -- order ---------------------------------------------------------------------------


@mutation("tasks that the barrier ordered race", ask=True)
def barrier_dropped(program: Program) -> Sites:
    for body, put in bodies(program):
        for n, item in enumerate(body):
            if isinstance(item, Barrier):
                yield f"barrier {item.id}", put((*body[:n], *body[n + 1 :]))


@mutation("a phase that depends on the other side of the barrier races, or reads what nobody has written", ask=True)
def phase_moved_across_barrier(program: Program) -> Sites:
    for body, put in bodies(program):
        for n in range(len(body) - 1):
            first, second = body[n : n + 2]
            if isinstance(first, Barrier) != isinstance(second, Barrier):
                yield f"items {n}, {n + 1}", put((*body[:n], second, first, *body[n + 2 :]))


@mutation("a phase that reads what the next one makes reads it before it is written", ask=True)
def phases_swapped(program: Program) -> Sites:
    for body, put in bodies(program):
        here = [n for n, item in enumerate(body) if isinstance(item, Phase)]
        for a, b in pairwise(here):
            changed = list(body)
            changed[a], changed[b] = body[b], body[a]
            yield f"items {a}, {b}", put(tuple(changed))


@mutation("what the phase makes is never made", ask=True)
def phase_dropped(program: Program) -> Sites:
    for body, put in bodies(program):
        for n, item in enumerate(body):
            if isinstance(item, Phase):
                yield item.id, put((*body[:n], *body[n + 1 :]))


@mutation("two executions of the same tasks race on what they write, or one name stands for two phases")
def phase_doubled(program: Program) -> Sites:
    for body, put in bodies(program):
        for n, item in enumerate(body):
            if isinstance(item, Phase):
                yield item.id, put((*body[:n], item, *body[n:]))


# -- owners ---------------------------------------------------------------------------


def _owned(program: Program) -> Iterator[tuple[Phase, Callable[..., Program]]]:
    for phase, put in phases(program):
        if phase.assign.owner is not None:

            def change(phase: Phase = phase, put: Any = put, **fields: Any) -> Program:
                return put(replace(phase, assign=replace(phase.assign, **fields)))

            yield phase, change


@mutation("an owner beyond the last one, since the largest owner occurs", ask=False)
def owner_out_of_range(program: Program) -> Sites:
    for phase, change in _owned(program):
        owner = phase.assign.owner
        yield f"{phase.id} + owners", change(owner=owner + phase.assign.owners)  # type: ignore[operator]
        yield f"{phase.id} - owners", change(owner=owner - phase.assign.owners)  # type: ignore[operator]


@mutation("rows change hands between phases that no barrier orders", ask=True)
def owner_permuted(program: Program) -> Sites:
    for phase, change in _owned(program):
        if phase.assign.owners > 1:
            last = phase.assign.owners - 1
            yield f"{phase.id} reversed", change(owner=last - phase.assign.owner)  # type: ignore[operator]
            yield f"{phase.id} constant", change(owner=Const(0))
            rotated = (phase.assign.owner + 1) % phase.assign.owners  # type: ignore[operator]
            yield f"{phase.id} rotated", change(owner=rotated)


@mutation("phases of one group disagree in the number of owners")
def owners_changed(program: Program) -> Sites:
    groups = [p.assign.group for p in program.phases() if p.assign.owner is not None]
    for phase, change in _owned(program):
        if groups.count(phase.assign.group) > 1:
            yield phase.id, change(owners=phase.assign.owners + 1)


@mutation("another group's owners are other workers", ask=True)
def group_renamed(program: Program) -> Sites:
    for phase, change in _owned(program):
        yield phase.id, change(group=phase.assign.group + "'")


@mutation("dealt tasks may run on any worker", ask=True)
def owner_forgotten(program: Program) -> Sites:
    for phase, change in _owned(program):
        yield phase.id, change(kind="strided", group="", owner=None, owners=0)


@mutation("an owned phase without an owner, or a dealt one with")
def half_owned(program: Program) -> Sites:
    for phase, put in phases(program):
        if phase.assign.owner is None:
            yield phase.id, put(replace(phase, assign=replace(phase.assign, owner=Const(0), owners=1, group="g")))
        else:
            yield phase.id, put(replace(phase, assign=replace(phase.assign, owner=None)))


# -- counters ---------------------------------------------------------------------------


def _waits(program: Program) -> Iterator[tuple[str, Phase, int, Callable[..., Program]]]:
    for phase, put in phases(program):
        for n, wait in enumerate(phase.waits):

            def change(new: Any, phase: Phase = phase, n: int = n, put: Any = put) -> Program:
                return put(replace(phase, waits=(*phase.waits[:n], *new, *phase.waits[n + 1 :])))

            yield f"{phase.id} waits for {wait.counter}", phase, n, change


@mutation("the threshold is not the sum of the arrivals; where the last adds 1, the wait passes before it")
def wait_one_short(program: Program) -> Sites:
    for site, phase, n, change in _waits(program):
        wait = phase.waits[n]
        yield site, change((replace(wait, at_least=wait.at_least - 1),))


@mutation("the wait never passes")
def wait_one_too_many(program: Program) -> Sites:
    for site, phase, n, change in _waits(program):
        wait = phase.waits[n]
        yield site, change((replace(wait, at_least=wait.at_least + 1),))


@mutation("nothing orders the reads after the writes", ask=True)
def wait_dropped(program: Program) -> Sites:
    for site, _, _, change in _waits(program):
        yield site, change(())


@mutation("the wait is for other producers' elements", ask=True)
def wait_on_other_element(program: Program) -> Sites:
    for site, phase, n, change in _waits(program):
        wait = phase.waits[n]
        shape = next(c.shape for c in program.counters if c.id == wait.counter)
        if shape and shape[0] > 1:
            rotated = ((wait.index[0] + 1) % shape[0], *wait.index[1:])
            yield site, change((replace(wait, index=rotated),))


@mutation("the element does not exist")
def counter_index_out_of_range(program: Program) -> Sites:
    for site, phase, n, change in _waits(program):
        wait = phase.waits[n]
        shape = next(c.shape for c in program.counters if c.id == wait.counter)
        if shape:
            yield site, change((replace(wait, index=(wait.index[0] + shape[0], *wait.index[1:])),))


@mutation("a phase waits for arrivals that never come")
def signal_dropped(program: Program) -> Sites:
    waited = {w.counter for p in program.phases() for w in p.waits}
    for phase, put in phases(program):
        for n, signal in enumerate(phase.signals):
            used = any(w.counter == signal.counter for p in _after(program, phase) for w in p.waits)
            if signal.counter in waited and used:
                yield phase.id, put(replace(phase, signals=(*phase.signals[:n], *phase.signals[n + 1 :])))


@mutation("more or fewer arrivals than the wait counts")
def signal_changed(program: Program) -> Sites:
    for phase, put in phases(program):
        for n, signal in enumerate(phase.signals):
            if any(w.counter == signal.counter for p in _after(program, phase) for w in p.waits):
                more = replace(signal, add=signal.add + 1)
                yield phase.id, put(replace(phase, signals=(*phase.signals[:n], more, *phase.signals[n + 1 :])))


def _after(program: Program, phase: Phase) -> list[Phase]:
    """Phases that execute after some execution of ``phase``."""
    trace = [item for item, _ in program.trace()]
    first = next(n for n, item in enumerate(trace) if item is phase)
    return [item for item in trace[first + 1 :] if isinstance(item, Phase)]


@mutation("in a later iteration the wait passes with an earlier iteration's arrivals")
def wait_does_not_grow(program: Program) -> Sites:
    loops = {p.id: item for item in program.body if isinstance(item, Loop) for p in item.body if isinstance(p, Phase)}
    for site, phase, n, change in _waits(program):
        loop, wait = loops.get(phase.id), phase.waits[n]
        if loop is not None and loop.count > 1 and loop.var in variables(wait.at_least):
            first = replace(wait, at_least=substitute(wait.at_least, {loop.var: Const(0)}))
            yield site, change((first,))
