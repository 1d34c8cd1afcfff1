"""What one task computes, on the virtual machine: templates, epilogues and nests in NumPy.

A task first computes everything and keeps its stores to shared memory pending; the machine commits them in a later
step, so that other workers' steps come in between. Stores to worker-local memory land at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mononn_core.element import accumulator
from mononn_core.errors import VerifyError
from mononn_core.program import template
from mononn_core.program.expr import Expr, Load, evaluate_index, walk
from mononn_core.program.ir import Box, For, Let, Operand, Phase, Reduce, Result, Statement, Store
from mononn_core.program.memory import PRIVATE, Memory, View
from mononn_core.program.scalar import Frame, evaluate

Array = np.ndarray[Any, Any]
GRID_LIMIT = 1 << 22
"""Most iterations that are evaluated together; larger nests run their outermost loop one iteration at a time."""


def resolve_box(box: Box, values: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """[low, high) of every dimension under an assignment of the domain and loop variables; empty beyond the bound."""
    lows = [evaluate_index(o, values) for o in box.offset]
    return tuple((min(low, b), min(low + n, b)) for low, n, b in zip(lows, box.size, box.bound, strict=True))


def matrix(value: Array) -> Array:
    """A box's elements as a matrix: leading unit dimensions are dropped until two are left."""
    while value.ndim > 2:
        unit = next((d for d, n in enumerate(value.shape) if n == 1), None)
        if unit is None:
            raise VerifyError(f"a template's operand has a box of shape {value.shape}, which is not a matrix")
        value = value.reshape(value.shape[:unit] + value.shape[unit + 1 :])
    return value


@dataclass
class Access:
    """An operand of a running task: where its box lies, and its prefetched copy if there is one."""

    operand: Operand
    view: View
    box: tuple[tuple[int, int], ...]
    slot: View | None = None


@dataclass
class Pending:
    """A store that has not landed yet."""

    view: View
    offsets: Array
    values: Array


@dataclass
class RunningTask:
    """One task between its begin and its commit."""

    phase: Phase
    position: int
    serial: int
    values: Mapping[str, int]
    accesses: dict[str, Access]
    memory: Memory
    pending: list[Pending] = field(default_factory=list)

    @property
    def where(self) -> str:
        """Phase, point and origin, for messages."""
        point = ", ".join(f"{a.var}={self.values[a.var]}" for a in self.phase.domain)
        origin = f" from {self.phase.origin[0]}" if self.phase.origin else ""
        return f"phase {self.phase.id!r} ({point}){origin}"

    def compute(self) -> None:
        """Run the task's nest, and its template after it."""
        with np.errstate(all="ignore"):
            task = self.phase.task
            _run_body(self, task.body, Frame.of(self.values))
            if task.results:
                found = template.get(task.template)
                computed = found.compute(task, self)
                self.epilogue(task.results, computed.reshape(found.parts(task), *computed.shape[-found.axes :]))

    def commit(self) -> None:
        """Let the pending stores land."""
        for store in self.pending:
            self.memory.write(store.view, store.offsets, store.values, self.position, self.where)
        self.pending.clear()

    def read_box(self, role: str) -> Array:
        """The whole box of an operand, as an array of the box's shape."""
        access = self.accesses[role]
        return self._fetch(access, tuple(np.ix_(*(np.arange(low, high) for low, high in access.box))), None)

    def matrix(self, role: str) -> Array:
        """The whole box of an operand as a matrix, of a type that sums are kept in."""
        value = matrix(self.read_box(role))
        return value.astype(accumulator(value.dtype.name), copy=False)

    def corner(self, role: str) -> tuple[int, ...]:
        """Where the box of an operand starts in its buffer."""
        return tuple(low for low, _ in self.accesses[role].box)

    def index(self, e: Expr) -> int:
        """The value of an expression of the task's place in its domain."""
        return evaluate_index(e, self.values)

    def prologue(self, name: str, scores: Array) -> Array:
        """The task's prologue ``name`` for every element of ``scores``, what the template has so far."""
        task = self.phase.task
        if name not in task.prologue:
            return scores
        frame = Frame.of(self.values)
        for axis, extent in zip(template.get(task.template).prologues[name], scores.shape, strict=True):
            frame = frame.loop(axis, extent)
        frame.accumulator = scores[None]
        return frame.full(evaluate(task.prologue[name], frame, self.load))

    def _stamp(self, view: View) -> int:
        return self.serial if view.buffer.space == PRIVATE else self.position

    def _fetch(self, access: Access, index: tuple[Array, ...], mask: Array | None) -> Array:
        view, position = access.view, self._stamp(access.view)
        if access.slot is not None:
            view, position = access.slot, -2 - self.position
            index = tuple(i - low for i, (low, _) in zip(index, access.box, strict=True))
        return self.memory.read(view, view.offsets(index), mask, position, self.where)

    def load(self, e: Load, index: tuple[Array, ...], mask: Array | None) -> Array:
        """The reader that expressions of this task use; checks the access against the declared box."""
        access = self._access(e.operand, "read")
        shape = np.broadcast_shapes(*(i.shape for i in index), () if mask is None else mask.shape)
        index = tuple(np.broadcast_to(i, shape) for i in index)
        mask = None if mask is None else np.broadcast_to(mask, shape)
        self._inside(access, index, mask)
        if mask is not None:
            index = tuple(np.where(mask, i, low) for i, (low, _) in zip(index, access.box, strict=True))
            if not mask.any():
                return np.zeros(shape, dtype=e.dtype)
        return self._fetch(access, index, mask)

    def _access(self, role: str, access: str) -> Access:
        found = self.accesses.get(role)
        if found is None or (found.operand.access == "read") != (access == "read"):
            raise VerifyError(f"{self.where} has no operand {role!r} to {access}")
        return found

    def _inside(self, access: Access, index: tuple[Array, ...], mask: Array | None) -> None:
        for d, (i, (low, high)) in enumerate(zip(index, access.box, strict=True)):
            outside = (i < low) | (i >= high)
            if mask is not None:
                outside &= mask
            if outside.any():
                raise VerifyError(
                    f"{self.where} accesses index {int(i[outside][0])} in dimension {d} of {access.view.buffer.id!r} "
                    f"(operand {access.operand.role!r}), outside its box [{low}, {high})"
                )

    def store(self, role: str, index: tuple[Expr, ...], value: Expr, frame: Frame) -> None:
        """``role[index] = value`` in every iteration of ``frame``."""
        access = self._access(role, "write")
        where = tuple(np.broadcast_to(evaluate(i, frame, self.load), frame.extents) for i in index)
        mask = None if frame.mask is None else np.broadcast_to(frame.mask, frame.extents)
        self._inside(access, where, mask)
        values = frame.full(evaluate(value, frame, self.load))
        if mask is not None:
            where, values = tuple(i[mask] for i in where), values[mask]
        offsets = np.broadcast_to(access.view.offsets(where), values.shape).reshape(-1)
        if len(np.unique(offsets)) != len(offsets):
            raise VerifyError(f"{self.where} stores an element of {access.view.buffer.id!r} twice")
        store = Pending(access.view, offsets, values.reshape(-1).astype(access.view.data.dtype))
        if access.view.buffer.space == PRIVATE:
            self.memory.write(store.view, store.offsets, store.values, self.serial, self.where)
        else:
            self.pending.append(store)

    def epilogue(self, results: tuple[Result, ...], accumulators: Array) -> None:
        """Store a template's output tile, computed of ``accumulators`` [parts, tile]."""
        for result in results:
            frame = Frame.of(self.values)
            for axis, extent in zip(result.axes, accumulators.shape[1:], strict=True):
                frame = frame.loop(axis, extent)
            frame.accumulator = accumulators
            for axis, bound in zip(result.axes, result.bounds, strict=False):
                if bound is not None:
                    frame = frame.where(frame.full(frame.lookup(axis) < evaluate_index(bound, self.values)))
            self.store(result.operand, result.index, result.value, frame)


_REDUCERS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _run_body(task: RunningTask, body: tuple[Statement, ...], frame: Frame) -> None:
    for statement in body:
        match statement:
            case Let(name, value):
                frame.values[name] = frame.full(evaluate(value, frame, task.load))
            case Reduce(name, op, var, extent, value):
                inner = frame.loop(var, extent)
                terms = inner.full(evaluate(value, inner, task.load))
                frame.values[name] = _REDUCERS[op].reduce(terms, axis=-1, dtype=terms.dtype)
            case Store(operand, index, value):
                task.store(operand, index, value, frame)
            case For():
                _run_for(task, statement, frame)


def _run_for(task: RunningTask, loop: For, frame: Frame) -> None:
    extent, bound = loop.extent, None
    if loop.bound is not None:
        bound = evaluate(loop.bound, frame, task.load)
        if bound.size == 1:
            extent, bound = max(0, min(extent, int(bound.reshape(())))), None
    if extent == 0:
        return
    if not _independent(task, loop) or prod(frame.extents) * _volume(loop) > GRID_LIMIT:
        for i in range(extent):
            inner = frame.inner()
            inner.values[loop.var] = np.full((1,) * len(frame.extents), i, dtype=np.int64)
            _run_body(task, loop.body, inner if bound is None else inner.where(i < bound))
        return
    inner = frame.loop(loop.var, extent)
    if bound is not None:
        inner = inner.where(inner.lookup(loop.var) < bound[..., None])
    _run_body(task, loop.body, inner)


def _volume(loop: For) -> int:
    """Largest number of iterations that a statement inside runs."""
    inner = [_volume(s) if isinstance(s, For) else s.extent if isinstance(s, Reduce) else 1 for s in loop.body]
    return loop.extent * max(inner, default=1)


def _independent(task: RunningTask, loop: For) -> bool:
    """Whether no worker-local buffer is both stored and loaded inside: then iterations may run together."""
    stored, loaded = set[str](), set[str]()
    _touched(loop, stored, loaded)
    private = {r for r in stored if task.accesses[r].view.buffer.space == PRIVATE} if stored else set()
    ids = {task.accesses[r].view.buffer.id for r in private}
    return ids.isdisjoint(a.view.buffer.id for r, a in task.accesses.items() if r in loaded)


def _touched(statement: Statement, stored: set[str], loaded: set[str]) -> None:
    """Collect the operands that a statement stores and loads."""
    match statement:
        case For(body=body):
            for inner in body:
                _touched(inner, stored, loaded)
            return
        case Store(operand, index, value):
            stored.add(operand)
            parts: tuple[Expr, ...] = (*index, value)
        case Let(value=value) | Reduce(value=value):
            parts = (value,)
    loaded.update(n.operand for e in parts for n in walk(e) if isinstance(n, Load))
