"""The virtual machine: runs a Program in NumPy under an adversarial schedule, refusing what the grammar forbids.

Workers advance one step at a time in a seeded random order at uneven rates. They honour only what
:mod:`mononn_core.program.ir` guarantees: unowned tasks are dealt to random workers in random order, owners of a
group go to random workers, barriers join, counters count. A task computes in one step and its stores land in a later
one. A value that nobody has written (or that something else has overwritten), an access outside the declared box, a
store to an element twice and a deadlock raise VerifyError; an index taken from the inputs that is out of range raises
InputError.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from mononn_core.errors import VerifyError
from mononn_core.program.execute import Access, RunningTask, resolve_box
from mononn_core.program.expr import evaluate_index
from mononn_core.program.ir import Barrier, Operand, Phase, Prefetch, Program
from mononn_core.program.memory import CONSTANT, NOBODY, Memory

Array = np.ndarray[Any, Any]
Point = dict[str, int]


def run(
    program: Program,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    workers: int = 2,
    seed: int = 0,
) -> dict[str, Array]:
    """Execute ``program`` and return its outputs by buffer id.

    ``inputs`` and ``weights`` map buffer ids to logical arrays of the buffers' shapes and dtypes. Any ``workers`` >= 1
    and any ``seed`` must give the same outputs.
    """
    machine = Machine(program, Memory(program, {**inputs, **weights}, workers), workers, seed)
    machine.run()
    return {b.id: machine.output(b.id) for b in program.buffers if b.space == "output"}


@dataclass
class Worker:
    """Progress of one worker: a position in the trace, its tasks there, and the task it is in the middle of."""

    number: int
    position: int = 0
    queue: list[Point] | None = None
    running: RunningTask | None = None
    slots: dict[tuple[int, str], str] = field(default_factory=dict)
    """(trace position, role) -> local buffer that holds the prefetched operand of the first task there."""


class Machine:
    """Workers that walk the trace of a Program; see the module's docstring."""

    def __init__(self, program: Program, memory: Memory, workers: int, seed: int) -> None:
        self.program, self.memory = program, memory
        self.trace = list(program.trace())
        self.random = random.Random(seed)
        self.workers = [Worker(n) for n in range(workers)]
        self.counters = {c.id: np.zeros(c.shape, dtype=np.int64) for c in program.counters}
        self.owners: dict[tuple[str, int], int] = {}
        self.dealt: dict[int, list[list[Point]]] = {}
        self.serial = 0

    def run(self) -> None:
        """Advance random workers until all are done."""
        rates = [1.0] * len(self.workers)
        steps = 0
        while ready := [w for w in self.workers if self._ready(w)]:
            if steps % 40 == 0:
                rates = [self.random.random() ** 4 + 0.001 for _ in self.workers]
            steps += 1
            self._step(self.random.choices(ready, [rates[w.number] for w in ready])[0])
        stuck = [w for w in self.workers if w.position < len(self.trace)]
        if stuck:
            raise VerifyError("deadlock: " + "; ".join(self._why(w) for w in stuck))

    def output(self, name: str) -> Array:
        """An output's elements; raises VerifyError when one was never written."""
        view = self.memory.view(name, 0)
        offsets = view.offsets(tuple(np.ix_(*(np.arange(n) for n in view.buffer.shape))))
        if (view.holder[offsets] == NOBODY).any():
            raise VerifyError(f"output {name!r} has elements that nobody wrote")
        return view.data[offsets]

    def _item(self, worker: Worker) -> tuple[Phase | Barrier, dict[str, int]]:
        return self.trace[worker.position]

    def _ready(self, worker: Worker) -> bool:
        """Whether the worker can make a step."""
        if worker.position == len(self.trace):
            return False
        item, loop = self._item(worker)
        if isinstance(item, Barrier):
            return all(w.position >= worker.position for w in self.workers)
        if worker.queue is None or not worker.queue or worker.running is not None:
            return True
        return all(self._passed(item, w, worker.queue[0] | loop) for w in range(len(item.waits)))

    def _passed(self, phase: Phase, number: int, values: Point) -> bool:
        wait = phase.waits[number]
        index = tuple(evaluate_index(i, values) for i in wait.index)
        return bool(self.counters[wait.counter][index] >= evaluate_index(wait.at_least, values))

    def _why(self, worker: Worker) -> str:
        item, _ = self._item(worker)
        what = f"barrier {item.id}" if isinstance(item, Barrier) else f"a counter in phase {item.id!r}"
        return f"worker {worker.number} waits at {what} (trace position {worker.position})"

    def _step(self, worker: Worker) -> None:
        item, loop = self._item(worker)
        if isinstance(item, Barrier):
            worker.position += 1
        elif worker.queue is None:
            worker.queue = list(self._deal(worker.position)[worker.number])
            for prefetch in item.prefetches:
                self._prefetch(worker, prefetch)
        elif worker.running is not None:
            self._finish(worker, item, loop)
        elif worker.queue:
            self._begin(worker, item, loop)
        else:
            worker.queue, worker.position = None, worker.position + 1

    def _begin(self, worker: Worker, phase: Phase, loop: Point) -> None:
        assert worker.queue
        values = worker.queue[0] | loop
        self.serial += 1
        accesses = {o.role: self._access(phase, o, values, loop, worker) for o in phase.task.operands}
        worker.running = RunningTask(phase, worker.position, self.serial, values, accesses, self.memory)
        worker.running.compute()

    def _finish(self, worker: Worker, phase: Phase, loop: Point) -> None:
        assert worker.queue
        assert worker.running
        worker.running.commit()
        for role in [r for p, r in worker.slots if p == worker.position]:
            self.memory.view(worker.slots.pop((worker.position, role)), worker.number).stamp[...] = NOBODY
        values = worker.queue.pop(0) | loop
        for signal in phase.signals:
            self.counters[signal.counter][tuple(evaluate_index(i, values) for i in signal.index)] += signal.add
        worker.running = None

    def _access(self, phase: Phase, operand: Operand, values: Point, loop: Point, worker: Worker) -> Access:
        name = self.program.resolve(operand.buffer, loop)
        box = resolve_box(operand.box, values)
        for d, ((low, high), extent) in enumerate(zip(box, self.memory.buffers[name].shape, strict=True)):
            if low < 0 or high > extent:
                raise VerifyError(
                    f"phase {phase.id!r}: the box of operand {operand.role!r} is [{low}, {high}) in dimension {d} "
                    f"of buffer {name!r}, whose extent is {extent}"
                )
        slot = worker.slots.get((worker.position, operand.role))
        copy = None if slot is None else self.memory.view(slot, worker.number)
        return Access(operand, self.memory.view(name, worker.number), box, copy)

    def _deal(self, position: int) -> list[list[Point]]:
        """Tasks of every worker at ``position``, each list in the order that worker takes them."""
        if position not in self.dealt:
            phase, loop = self.trace[position]
            assert isinstance(phase, Phase)
            hands: list[list[Point]] = [[] for _ in self.workers]
            for numbers in product(*(range(a.extent) for a in phase.domain)):
                point = dict(zip((a.var for a in phase.domain), numbers, strict=True))
                hands[self._worker_of(phase, point | loop)].append(point)
            for hand in hands:
                self.random.shuffle(hand)
            self.dealt[position] = hands
        return self.dealt[position]

    def _worker_of(self, phase: Phase, values: Point) -> int:
        assign = phase.assign
        if assign.owner is None:
            return self.random.randrange(len(self.workers))
        owner = evaluate_index(assign.owner, values)
        if not 0 <= owner < assign.owners:
            raise VerifyError(f"phase {phase.id!r} gives a task to owner {owner} of {assign.owners}")
        return self.owners.setdefault((assign.group, owner), self.random.randrange(len(self.workers)))

    def _prefetch(self, worker: Worker, prefetch: Prefetch) -> None:
        """Fetch the operand of the worker's first task in the next execution of the named phase, if there is one."""
        ahead = range(worker.position, len(self.trace))
        target = next((p for p in ahead if getattr(self.trace[p][0], "id", None) == prefetch.phase), None)
        if not prefetch.into or target is None or not (queue := self._deal(target)[worker.number]):
            return
        phase, loop = self.trace[target]
        assert isinstance(phase, Phase)
        operand = next(o for o in phase.task.operands if o.role == prefetch.role)
        source = self._access(phase, operand, queue[0] | loop, loop, worker)
        if source.view.buffer.space not in CONSTANT:
            raise VerifyError(f"phase {phase.id!r} prefetches {source.view.buffer.id!r}, which is not constant")
        slot = self.memory.view(prefetch.into, worker.number)
        index = tuple(np.ix_(*(np.arange(low, high) for low, high in source.box)))
        into = tuple(np.ix_(*(np.arange(high - low) for low, high in source.box)))
        offsets = slot.offsets(into)
        self.memory.write(slot, offsets, source.view.data[source.view.offsets(index)], NOBODY, f"phase {phase.id!r}")
        slot.stamp[offsets] = -2 - target
        worker.slots[target, prefetch.role] = prefetch.into
