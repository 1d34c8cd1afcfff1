"""Rewrites of a Program that change nothing: the verifier must accept every one, and the answers stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mononn_core.program.expr import Const, Load, substitute, transform
from mononn_core.program.ir import (
    Axis,
    Barrier,
    Box,
    Counter,
    For,
    Layout,
    Let,
    Loop,
    Operand,
    Phase,
    Prefetch,
    Program,
    Reduce,
    Result,
    Signal,
    Slot,
    Statement,
    Store,
    Task,
    Wait,
)
from tests.core.mutate import Sites, bodies, phases

REWRITES: dict[str, Callable[[Program], Sites]] = {}


def rewrite(sites: Callable[[Program], Sites]) -> Callable[[Program], Sites]:
    """Register a function that yields (site, equivalent Program)."""
    REWRITES[sites.__name__] = sites
    return sites


def rewrites(program: Program, each: int = 1 << 30) -> Iterator[tuple[str, Program]]:
    """Equivalents of ``program``, at most ``each`` per rewrite, spread over its sites."""
    for name, sites in REWRITES.items():
        found = list(sites(program))
        step = max(1, len(found) // each)
        yield from ((f"{name}: {site}", new) for site, new in found[::step][:each])


def map_phases(program: Program, change: Callable[[Phase], Phase]) -> Program:
    """Every phase changed, wherever it stands."""
    body = []
    for item in program.body:
        if isinstance(item, Loop):
            inner = tuple(change(i) if isinstance(i, Phase) else i for i in item.body)
            body.append(replace(item, body=inner))
        else:
            body.append(change(item) if isinstance(item, Phase) else item)
    return replace(program, body=tuple(body))


def map_operands(task: Task, change: Callable[[Operand], Operand]) -> Task:
    return replace(task, operands=tuple(change(o) for o in task.operands))


# -- names and order of things --------------------------------------------------------


@rewrite
def arena_buffers_renamed(program: Program) -> Sites:
    names = {b.id: f"buffer{n}" for n, b in enumerate(program.buffers) if b.space not in ("input", "output", "weight")}

    def change(o: Operand) -> Operand:
        return replace(o, buffer=names.get(o.buffer, o.buffer)) if isinstance(o.buffer, str) else o

    def phase(p: Phase) -> Phase:
        task = map_operands(p.task, change)
        split = task.split and replace(task.split, scratch=names.get(task.split.scratch, task.split.scratch))
        task = replace(task, split=split, local=tuple(names.get(n, n) for n in task.local))
        return replace(p, task=task, prefetches=tuple(replace(f, into=names.get(f.into, "")) for f in p.prefetches))

    renamed = map_phases(program, phase)
    tables = tuple(
        replace(t, rows=tuple(tuple(names.get(n, n) for n in row) for row in t.rows)) for t in program.tables
    )
    buffers = tuple(replace(b, id=names.get(b.id, b.id)) for b in program.buffers)
    yield "all", replace(renamed, buffers=buffers, tables=tables)


@rewrite
def phases_renamed(program: Program) -> Sites:
    def change(p: Phase) -> Phase:
        return replace(p, id="the " + p.id, prefetches=tuple(replace(f, phase="the " + f.phase) for f in p.prefetches))

    yield "all", map_phases(program, change)


@rewrite
def roles_renamed(program: Program) -> Sites:
    fixed = {"a", "b", "q", "k", "v"}

    def name(role: str) -> str:
        return role if role in fixed else role + "_"

    def load(e: Any) -> Any:
        return transform(e, lambda n: replace(n, operand=name(n.operand)) if isinstance(n, Load) else n)

    def body(s: Statement) -> Statement:
        match s:
            case For():
                return replace(s, body=tuple(body(i) for i in s.body))
            case Store():
                return replace(s, operand=name(s.operand), value=load(s.value))
            case Let() | Reduce():
                return replace(s, value=load(s.value))

    def result(r: Result) -> Result:
        return replace(r, operand=name(r.operand), value=load(r.value))

    def change(p: Phase) -> Phase:
        task = map_operands(p.task, lambda o: replace(o, role=name(o.role)))
        task = replace(
            task,
            results=tuple(result(r) for r in task.results),
            body=tuple(body(s) for s in task.body),
            prologue={k: load(e) for k, e in task.prologue.items()},
        )
        return replace(p, task=task, prefetches=tuple(replace(f, role=name(f.role)) for f in p.prefetches))

    yield "all", map_phases(program, change)


@rewrite
def groups_renamed(program: Program) -> Sites:
    def change(p: Phase) -> Phase:
        return replace(p, assign=replace(p.assign, group=p.assign.group and p.assign.group + " of rows"))

    yield "all", map_phases(program, change)


@rewrite
def barriers_renumbered(program: Program) -> Sites:
    result = program
    for n, (body, _) in enumerate(list(bodies(program))):
        new = tuple(replace(i, id=100 * n + 7 * i.id + 3) if isinstance(i, Barrier) else i for i in body)
        put = list(bodies(result))[n][1]
        result = put(new)
    yield "all", result


@rewrite
def buffers_reordered(program: Program) -> Sites:
    yield "reversed", replace(program, buffers=program.buffers[::-1])
    yield "by name", replace(program, buffers=tuple(sorted(program.buffers, key=lambda b: b.id)))


@rewrite
def operands_reordered(program: Program) -> Sites:
    for phase, put in phases(program):
        yield phase.id, put(replace(phase, task=replace(phase.task, operands=phase.task.operands[::-1])))


# -- who does what --------------------------------------------------------------------


@rewrite
def order_changed(program: Program) -> Sites:
    for phase, put in phases(program):
        order = tuple(a.var for a in phase.domain)[::-1]
        yield phase.id, put(replace(phase, assign=replace(phase.assign, order=order)))


@rewrite
def domain_transposed(program: Program) -> Sites:
    for phase, put in phases(program):
        if len(phase.domain) > 1:
            yield phase.id, put(replace(phase, domain=phase.domain[::-1]))


@rewrite
def domain_with_unit_axis(program: Program) -> Sites:
    for phase, put in phases(program):
        order = phase.assign.order and (*phase.assign.order, "unit")
        assign = replace(phase.assign, order=order)
        yield phase.id, put(replace(phase, domain=(*phase.domain, Axis("unit", 1)), assign=assign))


@rewrite
def fewer_owners_everywhere(program: Program) -> Sites:
    """Two neighbouring owners become one, in every phase of the group: more order, not less."""

    def change(p: Phase) -> Phase:
        a = p.assign
        if a.owner is None:
            return p
        return replace(p, assign=replace(a, owner=a.owner // 2, owners=(a.owners + 1) // 2))

    if any(p.assign.owner is not None for p in program.phases()):
        yield "all", map_phases(program, change)


# -- synchronisation ------------------------------------------------------------------


@rewrite
def barrier_added(program: Program) -> Sites:
    for body, put in bodies(program):
        for n in range(len(body) + 1):
            yield f"at {n} of {len(body)}", put((*body[:n], Barrier(999), *body[n:]))


@rewrite
def counter_added(program: Program) -> Sites:
    """A counter that every task of a phase signals and the next phase waits for, besides everything else."""
    for n in range(len(program.body) - 1):
        here = [i for i in program.body[n : n + 3] if isinstance(i, Phase)]
        if len(here) < 2 or program.body[n] is not here[0]:
            continue
        first = replace(here[0], signals=(*here[0].signals, Signal("extra", (Const(0),), 3)))
        second = replace(here[1], waits=(*here[1].waits, Wait("extra", (Const(0),), Const(3 * first.tasks))))
        body = tuple(first if i is here[0] else second if i is here[1] else i for i in program.body)
        yield f"after {first.id}", replace(program, body=body, counters=(*program.counters, Counter("extra", (1,))))


@rewrite
def counters_scaled(program: Program) -> Sites:
    def change(p: Phase) -> Phase:
        return replace(
            p,
            waits=tuple(replace(w, at_least=w.at_least * 5) for w in p.waits),
            signals=tuple(replace(s, add=s.add * 5) for s in p.signals),
        )

    if program.counters:
        yield "all", map_phases(program, change)


@rewrite
def prefetch_dropped(program: Program) -> Sites:
    for phase, put in phases(program):
        if phase.prefetches:
            yield phase.id, put(replace(phase, prefetches=()))
            hints = tuple(Prefetch(f.phase, f.role) for f in phase.prefetches)
            yield f"{phase.id} into the cache", put(replace(phase, prefetches=hints))


# -- memory ---------------------------------------------------------------------------


@rewrite
def buffer_moved_to_free_space(program: Program) -> Sites:
    for n, b in enumerate(program.buffers):
        if b.space == "arena":
            offset = -(-program.arena_bytes // b.align) * b.align
            buffers = (*program.buffers[:n], replace(b, offset=offset), *program.buffers[n + 1 :])
            yield b.id, replace(program, buffers=buffers, arena_bytes=offset + b.nbytes)


@rewrite
def arena_shifted(program: Program) -> Sites:
    buffers = tuple(replace(b, offset=b.offset + 4096) if b.space == "arena" else b for b in program.buffers)
    yield "by 4096", replace(program, buffers=buffers, arena_bytes=program.arena_bytes + 4096)


@rewrite
def outputs_padded(program: Program) -> Sites:
    """Rows of an arena matrix become longer by a pad, at a free place."""
    rows = {name for t in program.tables for row in t.rows for name in row}
    for n, b in enumerate(program.buffers):
        if b.space == "arena" and b.id not in rows and len(b.shape) > 1 and b.layout == Layout.row_major(b.shape):
            offset = -(-program.arena_bytes // b.align) * b.align
            padded = replace(b, layout=Layout.row_major(b.shape, pad=3), offset=offset)
            buffers = (*program.buffers[:n], padded, *program.buffers[n + 1 :])
            yield b.id, replace(program, buffers=buffers, arena_bytes=offset + padded.nbytes)


@rewrite
def boxes_cut_by_their_buffer(program: Program) -> Sites:
    """A box that takes a whole dimension may name a larger size: its bound cuts it."""
    for phase, put in phases(program):

        def larger(o: Operand) -> Operand:
            whole = [e == Const(0) and s == b for e, s, b in zip(o.box.offset, o.box.size, o.box.bound, strict=True)]
            size = tuple(s + 1 if w else s for s, w in zip(o.box.size, whole, strict=True))
            return replace(o, box=Box(o.box.offset, size, o.box.bound))

        if phase.task.template == "nest":
            yield phase.id, put(replace(phase, task=map_operands(phase.task, larger)))


# -- loops ----------------------------------------------------------------------------


def _iteration(program: Program, loop: Loop, i: int) -> tuple[Phase | Barrier, ...]:
    """The loop's body with the iteration written out; phases get the iteration's number in their names."""
    trace = [(p.id, n) for n in range(loop.count) for p in loop.body if isinstance(p, Phase)]

    def name(phase: str, here: tuple[str, int]) -> str:
        """The next execution of ``phase`` from ``here`` on, by its new name; "" if there is none."""
        if all(phase != p for p, _ in trace):
            return phase
        return next((f"{p}.{n}" for p, n in trace[trace.index(here) :] if p == phase), "")

    def operand(o: Operand) -> Operand:
        offset = tuple(substitute(e, {loop.var: Const(i)}) for e in o.box.offset)
        buffer = program.resolve(o.buffer, {loop.var: i}) if isinstance(o.buffer, Slot) else o.buffer
        return replace(o, buffer=buffer, box=replace(o.box, offset=offset))

    def phase(p: Phase) -> Phase:
        fetches = [replace(f, phase=name(f.phase, (p.id, i))) for f in p.prefetches]
        waits = tuple(replace(w, at_least=substitute(w.at_least, {loop.var: Const(i)})) for w in p.waits)
        return replace(
            p,
            id=f"{p.id}.{i}",
            task=map_operands(p.task, operand),
            waits=waits,
            prefetches=tuple(f for f in fetches if f.phase),
        )

    return tuple(phase(p) if isinstance(p, Phase) else p for p in loop.body)


@rewrite
def loop_unrolled(program: Program) -> Sites:
    for n, loop in enumerate(program.body):
        if isinstance(loop, Loop):
            first = {p.id: f"{p.id}.0" for p in loop.body if isinstance(p, Phase)}
            before = replace(program, body=program.body[:n])
            before = map_phases(
                before,
                lambda p, first=first: replace(
                    p, prefetches=tuple(replace(f, phase=first.get(f.phase, f.phase)) for f in p.prefetches)
                ),
            )
            flat = [item for i in range(loop.count) for item in _iteration(program, loop, i)]
            yield loop.var, replace(program, body=(*before.body, *flat, *program.body[n + 1 :]))


@rewrite
def phase_in_a_loop_of_one(program: Program) -> Sites:
    if any(isinstance(i, Loop) for i in program.body) or any(p.prefetches for p in program.phases()):
        return
    body = tuple(i for i in program.body if not isinstance(i, Loop))
    yield "whole", replace(program, body=(Loop("once", 1, body, ""),))
