"""The Program grammar, on one screen: the monolith as phases of tile tasks.

    Program(name, buffers, tables, counters, body)        body: Phase | Loop | Barrier, in program order
    Buffer(id, dtype, shape, layout, space, offset)       space: input | output | weight | arena | local
    Layout(dims, size)                                    a dim is (factor, stride)*, outermost factor first
    Table(id, columns, rows)                              rows: loop iteration -> buffer id per column
    Loop(var, count, body, table)                         rolled layers: one body, a table of buffers
    Phase(id, domain, assign, task, waits, signals, prefetches, origin, rounds)
    Axis(var, extent) · Assign(kind, group, owner, owners, order)
    Barrier(id)
    Counter(id, shape) · Signal(counter, index, add) · Wait(counter, index, at_least)
    Task(template, operands, params, results, body, prologue, mainloop, split, local)
    Operand(role, buffer, box, access, stable)            buffer: an id, or Slot(table, column) inside a Loop
    Box(offset, size, bound)                              in domain and loop variables: the declared footprint
    Mainloop(axis, step, stages, mechanism) · Prefetch(phase, role, into) · Split(axis, parts, scratch)
    Result(operand, axes, index, value, bounds)           an epilogue: what a template stores, from Acc and Loads
    Statement = For | Let | Reduce | Store                generated loops, for everything without a template

**Execution.** Every worker walks ``body`` in order. In a Phase it executes the tasks its Assign gives it. A Barrier
joins all workers. Who executes what:

* ``strided``: the tasks are dealt to the workers; nothing may be assumed about who runs which.
* ``owned``: the task belongs to owner ``owner`` (an Expr over the domain, 0 <= owner < owners) of ``group``; in all
  phases with the same group, tasks with the same owner run on the same worker, in phase order. Within a phase the
  tasks of one owner run one after the other in an unspecified order.

So legality never depends on how many workers there are. An access A happens before B when: a Barrier stands between
them; or both are owned by the same group and owner and A's phase is earlier; or B's task waits for counters that A's
task (or one that A happens before) signalled; or transitively. ``Wait.at_least`` must be the sum of all arrivals the
counter element receives from phases before that one in the epoch, so that passing it means all have happened.

**Boxes** are in logical elements of the buffer: ``offset[d] <= i < min(offset[d] + size[d], bound[d])``; one that
starts at its bound or beyond is empty. Indices of Loads, Stores and Results are the buffer's, not the box's. A task's
reads of shared memory precede its writes: what it reads back it keeps in worker-local memory (space local, one slice
of ``scratch_bytes`` a worker). ``Split.scratch`` is a shared buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Union

import numpy as np

from mononn_core.element import itemsize
from mononn_core.errors import Origin
from mononn_core.program.expr import Expr

SPACES = ("input", "output", "weight", "arena", "local")
ACCESSES = ("read", "write", "partial")
Factors = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Layout:
    """Where logical elements lie. Dim ``d`` with factors ((f0, s0), (f1, s1)) puts index i at
    ``(i // f1) * s0 + (i % f1) * s1`` elements (the product of a dim's factors may exceed its extent: padding);
    ``size`` is the extent in elements, padding included."""

    dims: tuple[Factors, ...]
    size: int

    @staticmethod
    def row_major(shape: tuple[int, ...], pad: int = 0) -> Layout:
        """Plain C order; ``pad`` elements are added to the stride of every row (the last dimension)."""
        strides: list[int] = []
        step = 1
        for position, extent in enumerate(reversed(shape)):
            strides.append(step)
            step *= extent + (pad if position == 0 and len(shape) > 1 else 0)
        dims = tuple(((extent, stride),) for extent, stride in zip(shape, reversed(strides), strict=True))
        return Layout(dims, max(step, 1))

    def offsets(self, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Element offset of every logical element; int64, of shape ``shape``."""
        total = np.zeros((), dtype=np.int64)
        for dim, extent in zip(self.dims, shape, strict=True):
            inner = np.zeros((), dtype=np.int64)
            for factor, stride in dim:
                inner = inner[..., None] + np.arange(factor, dtype=np.int64) * stride
            total = total[..., None] + inner.reshape(-1)[:extent]
        return total


@dataclass(frozen=True)
class Buffer:
    """Storage of one tensor. ``offset`` is in bytes from the start of its space (0 until memory is planned;
    inputs and outputs are separate allocations, their ``offset`` is their position in the argument list)."""

    id: str
    dtype: str
    shape: tuple[int, ...]
    layout: Layout
    space: str
    offset: int = 0
    align: int = 64

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes occupied, padding included."""
        return self.layout.size * self.itemsize


@dataclass(frozen=True)
class Table:
    """Buffers of a rolled loop: ``rows[iteration][column]`` is a buffer id. Buffers of one column have equal dtype,
    shape, layout and space."""

    id: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Slot:
    """A buffer chosen by the enclosing Loop's iteration."""

    table: str
    column: str


@dataclass(frozen=True)
class Box:
    """The declared footprint of an operand; see the module's docstring."""

    offset: tuple[Expr, ...]
    size: tuple[int, ...]
    bound: tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """A task's view of a buffer. ``role`` is the name that Loads and Stores use. ``stable``: nothing writes it during
    a run (weights), so it may be fetched before a wait. ``partial`` marks a split's partial result."""

    role: str
    buffer: str | Slot
    box: Box
    access: str = "read"
    stable: bool = False


@dataclass(frozen=True)
class Axis:
    var: str
    extent: int


@dataclass(frozen=True)
class Assign:
    """Which worker takes which task. ``order``: domain variables from the slowest to the fastest."""

    kind: str = "strided"
    group: str = ""
    owner: Expr | None = None
    owners: int = 0
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Counter:
    """An array of monotonic counters; within a run (an epoch) each starts at 0 and only grows."""

    id: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Signal:
    """After the task: release-add ``add`` to the counter element ``index`` (Exprs over domain and loop variables)."""

    counter: str
    index: tuple[Expr, ...]
    add: int = 1


@dataclass(frozen=True)
class Wait:
    """Before the task: acquire-poll until the counter element is at least ``at_least`` (an Expr: it may grow with
    the loop variable)."""

    counter: str
    index: tuple[Expr, ...]
    at_least: Expr


@dataclass(frozen=True)
class Mainloop:
    """A contraction's loop over ``axis`` in steps of ``step`` elements through ``stages`` local slots.
    mechanism: "none" (operands are read where they lie), "prefetch" (cache hints), "cp_async", "tma"."""

    axis: str
    step: int
    stages: int = 1
    mechanism: str = "none"


@dataclass(frozen=True)
class Prefetch:
    """Issued by every worker in this phase, before it waits for what follows: fetch operand ``role`` of the first task
    it will execute in the next execution of phase ``phase``. ``into``: a local buffer of the operand's box (the
    consumer reads it there), or "" where the worker may fetch ahead as it can. The operand must be stable."""

    phase: str
    role: str
    into: str = ""


@dataclass(frozen=True)
class Split:
    """The contraction is cut into ``parts`` along ``axis``; partial results lie in ``scratch``, part after part
    along its first dimension. Whoever reads them sums them in index order."""

    axis: str
    parts: int
    scratch: str | Slot


@dataclass(frozen=True)
class Result:
    """A template's epilogue: ``operand[index] = value`` for every output element of the tile. ``axes`` names the
    variables of the element's position inside the tile (counted from 0; ragged tiles stop at the box's bound);
    ``index`` and ``value`` are Exprs over them, the domain and loop variables, Loads of the task's operands, and Acc,
    the element as the template computed it. ``bounds`` (one an axis, or none) end a ragged tile that its operand does
    not, as a worker-local one: only elements with ``axis < bound`` are stored; None leaves it to the box."""

    operand: str
    axes: tuple[str, ...]
    index: tuple[Expr, ...]
    value: Expr
    bounds: tuple[Expr | None, ...] = ()


@dataclass(frozen=True)
class For:
    """A loop over [0, extent); kind: "serial", or "vector" (iterations are independent lanes)."""

    var: str
    extent: int
    body: tuple[Statement, ...]
    kind: str = "serial"
    bound: Expr | None = None
    """Iterate only while ``var < bound`` (ragged tiles); an index expression of the enclosing variables."""


@dataclass(frozen=True)
class Let:
    """Bind a scalar for the rest of the enclosing body."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Reduce:
    """``name = op over var in [0, extent) of value``, bound for the rest of the enclosing body; op: add, mul, max, min.
    The order is its printer's, the same in every run."""

    name: str
    op: str
    var: str
    extent: int
    value: Expr


@dataclass(frozen=True)
class Store:
    """``operand[index] = value`` (a write-once element)."""

    operand: str
    index: tuple[Expr, ...]
    value: Expr


Statement = Union[For, Let, Reduce, Store]  # noqa: UP007 (a forward reference inside the classes)


@dataclass(frozen=True)
class Task:
    """What one point of a phase's domain does: a hand-written ``template`` with epilogue ``results``, or template
    "nest" with a loop ``body``. A template is a file of :mod:`mononn_core.templates`: what its operands (matrices, by
    role) hold, which axes its results have, what it computes; ``params`` are a dataclass's there, by name and type.
    ``prologue``: expressions that it takes in its middle (an attention's score). ``body`` of a template: a nest that
    runs first and fills all of a worker-local operand (a left side that is gathered, cast or normalised on its way); it
    may store to shared memory as well. ``local``: worker-local buffers of the task; the last one is what the template
    itself works in, where it needs memory.
    """

    template: str
    operands: tuple[Operand, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    body: tuple[Statement, ...] = ()
    prologue: Mapping[str, Expr] = field(default_factory=dict)
    mainloop: Mainloop | None = None
    split: Split | None = None
    local: tuple[str, ...] = ()


@dataclass(frozen=True)
class Phase:
    """A parallel step: ``task`` for every point of ``domain``. In a loop, ``rounds`` holds the origin of each round."""

    id: str
    domain: tuple[Axis, ...]
    assign: Assign
    task: Task
    waits: tuple[Wait, ...] = ()
    signals: tuple[Signal, ...] = ()
    prefetches: tuple[Prefetch, ...] = ()
    origin: tuple[Origin, ...] = ()
    flops: int = 0
    rounds: tuple[tuple[Origin, ...], ...] = ()

    def name_in(self, loop: Mapping[str, int]) -> str:
        """What this execution is called, in manifests and traces."""
        return self.id + "".join(f"[{i}]" for i in loop.values())

    def origin_in(self, loop: Mapping[str, int]) -> tuple[Origin, ...]:
        """The origin in the round given by the loop variables."""
        return self.rounds[next(iter(loop.values()))] if loop and self.rounds else self.origin

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return prod(a.extent for a in self.domain)


@dataclass(frozen=True)
class Barrier:
    """All workers have finished everything before any starts anything after."""

    id: int


@dataclass(frozen=True)
class Loop:
    """``body`` for ``var`` in [0, count); Slots of ``table`` name the iteration's buffers. No nesting."""

    var: str
    count: int
    body: tuple[Phase | Barrier, ...]
    table: str


Item = Union[Phase, Barrier, Loop]  # noqa: UP007


@dataclass(frozen=True)
class Program:
    """The whole network: storage, synchronisation and phases. The arena and scratch are zero-initialised never: what
    nobody wrote may not be read."""

    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Item, ...]
    tables: tuple[Table, ...] = ()
    counters: tuple[Counter, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    arena_bytes: int = 0
    weight_bytes: int = 0
    scratch_bytes: int = 0

    def buffer(self, name: str) -> Buffer:
        return self.buffer_map[name]

    @cached_property
    def buffer_map(self) -> Mapping[str, Buffer]:
        return {b.id: b for b in self.buffers}

    def phases(self) -> Iterator[Phase]:
        """Every Phase as written (a rolled one once)."""
        for item in self.body:
            yield from (i for i in (item.body if isinstance(item, Loop) else (item,)) if isinstance(i, Phase))

    def trace(self) -> Iterator[tuple[Phase | Barrier, dict[str, int]]]:
        """Phases and barriers as executed, with the loop variable's value."""
        for item in self.body:
            if isinstance(item, Loop):
                for iteration in range(item.count):
                    for inner in item.body:
                        yield inner, {item.var: iteration}
            else:
                yield item, {}

    def resolve(self, buffer: str | Slot, loop: Mapping[str, int]) -> str:
        """The buffer id a slot names in the iteration given by the loop variables (a loop's table is its own)."""
        if isinstance(buffer, str):
            return buffer
        table = next(t for t in self.tables if t.id == buffer.table)
        (iteration,) = loop.values()
        return table.rows[iteration][table.columns.index(buffer.column)]
