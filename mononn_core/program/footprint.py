"""What the tasks of one phase execution touch, exactly: boxes read, elements stored, owners, counters.

Everything is computed for all tasks at once: an index expression becomes an array over [tasks, loop iterations...].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from mononn_core.errors import VerifyError
from mononn_core.program.expr import INDEX, Const, Expr, Load, Op, Var, op, substitute, variables
from mononn_core.program.ir import (
    Buffer,
    For,
    Let,
    Operand,
    Phase,
    Program,
    Reduce,
    Statement,
    Store,
)
from mononn_core.program.memory import CONSTANT, PRIVATE, dim_tables
from mononn_core.program.proof import abstract, guarded_loads, provable
from mononn_core.program.rules import refuse
from mononn_core.program.scalar import Array, Frame, evaluate
from mononn_core.program.simplify import linear
from mononn_core.program.template import Elements, get

CHUNK = 1 << 22
"""Stored elements that are enumerated together."""


@dataclass(frozen=True)
class Runs:
    """Elements of a buffer whose offsets are from each of ``starts`` to before the one of ``ends`` beside it."""

    starts: Array
    ends: Array

    def moved(self, elements: int) -> Runs:
        """So many elements further on."""
        return Runs(self.starts + elements, self.ends + elements)


@dataclass(frozen=True)
class Reads:
    """Tasks that read one box of a buffer. ``runs``: its elements; ``tasks``: numbers of the tasks."""

    operand: Operand
    runs: Runs
    tasks: Array


@dataclass(frozen=True)
class Writes:
    """All elements of one buffer that the phase stores, and the number of the task that stores each run."""

    operand: Operand
    runs: Runs
    tasks: Array


@dataclass(frozen=True)
class CounterUse:
    """A wait or signal of every task: counter, flattened element, and threshold or addend, per task."""

    counter: str
    elements: Array
    amounts: Array


@dataclass(frozen=True)
class Footprint:
    """One phase execution. ``owners``: per task, or None when tasks are dealt."""

    phase: Phase
    tasks: int
    owners: Array | None
    reads: tuple[Reads, ...]
    writes: tuple[Writes, ...]
    waits: tuple[CounterUse, ...]
    signals: tuple[CounterUse, ...]


@dataclass(frozen=True)
class Place:
    """A statement inside a nest: the loops around it and what names are bound to."""

    loops: tuple[For | Reduce, ...]
    guards: tuple[Expr, ...]
    lets: Mapping[str, Expr]


class Site:
    """A phase in one iteration of its loop, ready for questions about its tasks."""

    def __init__(self, program: Program, phase: Phase, loop: Mapping[str, int]) -> None:
        self.program, self.phase, self.loop = program, phase, loop
        extents = tuple(a.extent for a in phase.domain)
        self.tasks = prod(extents)
        grid = np.indices(extents, dtype=np.int64).reshape(len(extents), self.tasks)
        values = {a.var: grid[d] for d, a in enumerate(phase.domain)}
        self.frame = Frame((self.tasks,), values | {n: np.asarray(i, np.int64) for n, i in loop.items()})
        self.ranges: dict[str, tuple[float, float]] = {a.var: (0, a.extent - 1) for a in phase.domain}
        self.ranges |= {n: (i, i) for n, i in loop.items()}
        self.operands = {o.role: o for o in phase.task.operands}
        written = {o.buffer for o in phase.task.operands if o.access == "write"}
        self.changing = {o.role for o in phase.task.operands if o.buffer in written}
        self.boxes = {o.role: self._box(o) for o in phase.task.operands}

    def refuse(self, rule: str, text: str) -> VerifyError:
        return refuse(rule, text, self.phase)

    def no_loads(self, load: Load, index: tuple[Array, ...], mask: Array | None) -> Array:
        """The reader of expressions that may depend on nothing but variables."""
        text = f"an index, bound or owner depends on data, loaded from operand {load.operand!r}"
        raise self.refuse("accesses are known beforehand", text)

    def buffer(self, operand: Operand) -> Buffer:
        """The operand's buffer in this iteration."""
        return self.program.buffer(self.program.resolve(operand.buffer, self.loop))

    def per_task(self, e: Expr) -> Array:
        """Value of an index expression for every task; int64[tasks]."""
        return np.broadcast_to(evaluate(e, self.frame, self.no_loads), (self.tasks,))

    def _box(self, operand: Operand) -> tuple[Array, Array]:
        """Lowest and one past the highest index of every task's box; int64[tasks, rank] each. Checks the bounds. A box
        that starts at its bound or beyond is empty: a task without work at the end of a ragged domain."""
        box, buffer = operand.box, self.buffer(operand)
        low = np.array([self.per_task(o) for o in box.offset], np.int64).reshape(len(box.offset), self.tasks).T
        bound = np.array(box.bound, np.int64)
        low, high = np.minimum(low, bound), np.minimum(low + np.array(box.size, np.int64), bound)
        if (low < 0).any() or (high > np.array(buffer.shape, np.int64)).any():
            raise self.refuse("boxes stay in bounds", f"a box of operand {operand.role!r} leaves buffer {buffer.id!r}")
        return low, high

    def loads_stay(self, rounds: int) -> bool:
        """Whether every Load stays inside its operand's box in each of the loop's ``rounds``: then this need not be
        asked round by round."""
        here = self.ranges
        self.ranges = here | dict.fromkeys(self.loop, (0, rounds - 1))
        try:
            self._check_loads()
        except VerifyError:
            return False
        finally:
            self.ranges = here
        return True

    def footprint(self, loads_stay: bool = False) -> Footprint:
        """Everything the phase's tasks touch; raises VerifyError for an access outside its box. ``loads_stay``: it is
        known that those of Loads are not."""
        if not loads_stay:
            self._check_loads()
        assign = self.phase.assign
        reads = [r for o in self.phase.task.operands if o.access == "read" for r in self._reads(o)]
        return Footprint(
            self.phase,
            self.tasks,
            None if assign.owner is None else self.per_task(assign.owner),
            tuple(reads),
            tuple(self._writes()),
            tuple(self._counter(w.counter, w.index, w.at_least) for w in self.phase.waits),
            tuple(self._counter(s.counter, s.index, Const(s.add)) for s in self.phase.signals),
        )

    def _counter(self, name: str, index: tuple[Expr, ...], amount: Expr) -> CounterUse:
        shape = next(c.shape for c in self.program.counters if c.id == name)
        flat = np.zeros(self.tasks, np.int64)
        for e, extent in zip(index, shape, strict=True):
            i = self.per_task(e)
            if (i < 0).any() or (i >= extent).any():
                raise self.refuse("counters exist", f"an index of counter {name!r} leaves its shape {shape}")
            flat = flat * extent + i
        return CounterUse(name, flat, self.per_task(amount))

    def _reads(self, operand: Operand) -> Iterator[Reads]:
        """Tasks grouped by equal boxes, for buffers in shared memory that is written during a run."""
        buffer = self.buffer(operand)
        if buffer.space in CONSTANT or buffer.space == PRIVATE:
            return
        low, high = self.boxes[operand.role]
        rank = low.shape[1]
        key = np.concatenate([low, high, np.zeros((self.tasks, 1), np.int64)], axis=1)
        both, group = np.unique(key, axis=0, return_inverse=True)
        tables = dim_tables(buffer.layout, buffer.shape)
        for number, row in enumerate(both):
            if (row[:rank] >= row[rank : 2 * rank]).any():
                continue
            runs = runs_of([tables[d][row[d] : row[rank + d]] for d in range(rank)])
            yield Reads(operand, runs, np.flatnonzero(group.reshape(-1) == number))

    def _writes(self) -> Iterator[Writes]:
        """All stores, one entry a buffer in shared memory; refuses an element stored twice in the phase."""
        found: dict[str, list[tuple[Operand, Array, Array, Array]]] = {}
        for place, store in self.stores():
            operand = self.operands[store.operand]
            buffer = self.buffer(operand)
            parts = list(self._stored(place, store, operand, buffer))
            if buffer.space != PRIVATE and any(part[0].size for part in parts):
                found.setdefault(buffer.id, []).extend((operand, *part) for part in parts)
        for name, pieces in found.items():
            starts, ends, tasks = (np.concatenate([p[i] for p in pieces]) for i in (1, 2, 3))
            order = np.argsort(starts, kind="stable")
            starts, ends, tasks = starts[order], ends[order], tasks[order]
            if (twice := np.flatnonzero(starts[1:] < ends[:-1])).size:
                first = int(twice[0])
                who = "a task writes twice" if tasks[first] == tasks[first + 1] else "two tasks of the phase write"
                raise self.refuse("unordered tasks never write one element", f"{who} an element of buffer {name!r}")
            yield Writes(pieces[0][0], *joined(starts, ends, tasks))

    def _stored(
        self, place: Place, store: Store, operand: Operand, buffer: Buffer
    ) -> Iterator[tuple[Array, Array, Array]]:
        """(first offset, end, task) of all runs of elements that a Store statement writes, in chunks of tasks."""
        index = [substitute(e, place.lets) for e in store.index]
        tables = dim_tables(buffer.layout, buffer.shape)
        along = next((d for d in reversed(range(len(tables))) if (np.diff(tables[d]) == 1).all()), -1)
        run = next((loop for loop in reversed(place.loops) if _follow(loop, along, index, place.guards)), None)
        loops = tuple(loop for loop in place.loops if loop is not run)
        ends = [g for g in place.guards if run is not None and run.var in variables(g)]
        step = max(1, CHUNK // prod(loop.extent for loop in loops))
        low, high = self.boxes[operand.role]
        edge = (-1,) + (1,) * len(loops)
        for first in range(0, self.tasks, step):
            tasks = slice(first, min(first + step, self.tasks))
            frame = self._grid(replace(place, loops=loops), tasks, run)
            count = np.asarray(1 if run is None else run.extent)
            for end in ends:
                assert isinstance(end, Op)
                count = np.minimum(count, evaluate(end.args[1] - end.args[0], frame, self.no_loads))
            mask = None if frame.mask is None else np.broadcast_to(frame.mask, frame.extents)
            total = np.zeros((), np.int64)
            for d, e in enumerate(index):
                i = evaluate(e, frame, self.no_loads)
                last = i + (count - 1) if d == along else i
                outside = (i < low[tasks, d].reshape(edge)) | (last >= high[tasks, d].reshape(edge))
                if (outside if mask is None else outside & mask).any():
                    text = f"a store to operand {operand.role!r} (buffer {buffer.id!r}) leaves its box in dimension {d}"
                    raise self.refuse("accesses stay in the declared box", text)
                total = total + tables[d][i if mask is None else np.where(mask, i, 0)]
            numbers = np.arange(tasks.start, tasks.stop).reshape(edge)
            all_of = (np.broadcast_to(a, frame.extents) for a in (total, total + count, numbers))
            runs, numbers = joined(*(a.reshape(-1) if mask is None else a[mask] for a in all_of))
            yield runs.starts, runs.ends, numbers

    def _grid(self, place: Place, tasks: slice, first: For | Reduce | None) -> Frame:
        """The iterations of a statement for some of the tasks; of the loop ``first`` that one alone."""
        values = {n: a if a.ndim == 0 else a[tasks] for n, a in self.frame.values.items()}
        values |= {first.var: np.zeros((), np.int64)} if first is not None else {}
        frame = Frame((tasks.stop - tasks.start,), values)
        for loop in place.loops:
            frame = frame.loop(loop.var, loop.extent)
        for guard in place.guards:
            frame = frame.where(np.broadcast_to(evaluate(guard, frame, self.no_loads).astype(bool), frame.extents))
        return frame

    def stores(self) -> Iterator[tuple[Place, Store]]:
        """Every store of the task with its surroundings; a template's results count as stores over its tile."""
        for place, statement in self.statements():
            if isinstance(statement, Store):
                yield place, statement

    def statements(self) -> Iterator[tuple[Place, Let | Reduce | Store]]:
        """Every statement of the task with its surroundings (a Reduce's own variable is not among its loops)."""
        task = self.phase.task
        yield from _walk(task.body, Place((), (), {}))
        template = get(task.template)
        for name, e in task.prologue.items():
            axes = template.prologues[name]
            yield _place(axes, template.elements(task, axes, name)), Let("prologue", e)
        for result in task.results:
            place = _place(result.axes, template.elements(task, result.axes))
            ends = [(a, b) for a, b in zip(result.axes, result.bounds, strict=False) if b is not None]
            guards = tuple(op("lt", Var(axis), bound) for axis, bound in ends)
            yield replace(place, guards=(*place.guards, *guards)), Store(result.operand, result.index, result.value)

    def _check_loads(self) -> None:
        """Every Load stays inside its operand's box, for all tasks and iterations in which it is evaluated."""
        for place, statement in self.statements():
            inner: tuple[For | Reduce, ...] = (statement,) if isinstance(statement, Reduce) else ()
            index = statement.index if isinstance(statement, Store) else ()
            for e in (*index, statement.value, *place.guards):
                for load, guards in guarded_loads(substitute(e, place.lets)):
                    self._check_load(load.operand, load.index, (*place.loops, *inner), (*place.guards, *guards))

    def _check_load(
        self, role: str, index: tuple[Expr, ...], loops: tuple[For | Reduce, ...], guards: tuple[Expr, ...]
    ) -> None:
        operand = self.operands[role]
        ranges = self.ranges | {loop.var: (0, loop.extent - 1) for loop in loops}
        guards = tuple(abstract(g, ranges, self.changing) for g in guards)
        box = operand.box
        for d, e in enumerate(index):
            e = abstract(e, ranges, self.changing)
            goals = (
                op("ge", e, box.offset[d]),
                op("lt", e, box.offset[d] + box.size[d]),
                op("lt", e, Const(box.bound[d])),
            )
            if not all(provable(goal, ranges, guards) for goal in goals):
                raise self.refuse(
                    "accesses stay in the declared box",
                    f"a load from operand {role!r} (buffer {self.buffer(operand).id!r}) may leave its box in "
                    f"dimension {d}",
                )


def _follow(loop: For | Reduce, along: int, index: Sequence[Expr], guards: Sequence[Expr]) -> bool:
    """Whether the iterations of a loop in which the guards hold are the first ones, and the ``index`` of each is that
    of the one before, but one further in dimension ``along``."""
    var = Var(loop.var)
    steps = [index[along]]
    for guard in guards:
        if loop.var in variables(guard):
            if not (isinstance(guard, Op) and guard.name == "lt") or loop.var in variables(guard.args[1]):
                return False
            steps.append(guard.args[0])
    for terms, _ in map(linear, steps):
        if terms.get(var) != 1 or any(loop.var in variables(atom) for atom in terms if atom != var):
            return False
    return along >= 0 and not any(loop.var in variables(e) for d, e in enumerate(index) if d != along)


def joined(starts: Array, ends: Array, tasks: Array) -> tuple[Runs, Array]:
    """Runs, with those in one that follow one another and are of one task."""
    apart = (starts[1:] != ends[:-1]) | (tasks[1:] != tasks[:-1])
    first, last = np.append(True, apart)[: starts.size], np.append(apart, True)[: starts.size]
    return Runs(starts[first], ends[last]), tasks[first]


def union(parts: Sequence[Runs]) -> Runs:
    """The elements of any of several runs."""
    starts, ends = (np.concatenate(both) for both in ([p.starts for p in parts], [p.ends for p in parts]))
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    apart = starts[1:] > ends[:-1]
    return Runs(starts[np.append(True, apart)[: starts.size]], ends[np.append(apart, True)[: starts.size]])


def runs_of(tables: Sequence[Array]) -> Runs:
    """The elements whose offset is a sum of one entry of each of ``tables``."""
    *outer, last = [np.zeros(1, np.int64), *tables]
    first = sum(np.ix_(*outer), np.zeros((), np.int64)).reshape(-1, 1)
    if not (first.size and last.size):
        return Runs(last[:0], last[:0])
    gaps = np.flatnonzero(last[1:] != last[:-1] + 1)
    starts = (first + last[np.append(0, gaps + 1)]).reshape(-1)
    ends = (first + last[np.append(gaps, -1)] + 1).reshape(-1)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    apart = starts[1:] != ends[:-1]
    return Runs(starts[np.append(True, apart)], ends[np.append(apart, True)])


def _place(axes: tuple[str, ...], elements: Elements) -> Place:
    """The loops over a template's tile."""
    loops = tuple(For(axis, extent, ()) for axis, extent in zip(axes, elements.extents, strict=True))
    return Place(loops, elements.conditions, {})


def _walk(body: tuple[Statement, ...], place: Place) -> Iterator[tuple[Place, Let | Reduce | Store]]:
    """Statements of a nest in order. Indices and conditions are followed through a Let; other values are opaque."""
    lets = dict(place.lets)
    here = Place(place.loops, place.guards, lets)
    for statement in body:
        if isinstance(statement, For):
            guards = here.guards
            if statement.bound is not None:
                guards = (*guards, op("lt", Var(statement.var), substitute(statement.bound, lets)))
            yield from _walk(statement.body, Place((*here.loops, statement), guards, dict(lets)))
            continue
        yield Place(here.loops, here.guards, dict(lets)), statement
        if isinstance(statement, Let) and statement.value.dtype in (INDEX, "bool"):
            lets[statement.name] = substitute(statement.value, lets)
