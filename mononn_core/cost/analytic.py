"""A first estimate of time from flops, bytes and barriers: enough to choose who owns what, never shown as measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, prod
from typing import Protocol

from mononn_core.cost.operations import body_operations, expr_operations
from mononn_core.element import COMPUTE, LEFT, NARROW, itemsize
from mononn_core.machine import LINE_BYTES, Machine
from mononn_core.program.ir import Operand, Phase
from mononn_core.program.template import NEST

# Of one core, beside what a machine says of itself; rounded, and the same for every processor ("measured": on one).
LOOPS_REACH = 0.3
"""Share of the second-level cache's rate at which generated loops read and store elements (measured)."""
FLOPS_AN_OPERATION = 1.4
"""Multiplications and additions that a core could do in the time of an instruction of a vector's element (measured)."""
TASK_SECONDS = 50e-9
"""For a task to begin (measured)."""
EXCHANGE_BYTES_PER_SECOND = 20e9
"""Rate at which a core gets lines that another core has just written (half of what it reaches doing nothing else)."""
LINE_SECONDS = 13e-9
"""For a line to go to a core that writes into it what another core has written beside."""
TORN_SECONDS, HANDED_SECONDS = 7e-9, 1.5e-9
"""For a line that two workers write a part of each: one that holds several rows goes back and forth, that of a longer
row changes hands once (measured: less where two workers exchange lines fast, several times as much where slowly)."""
LINES_BEYOND = 12
"""Lines that prefetchers fetch past the end of what a worker has of a row, which another worker is about to write."""
TILES_REACH = 0.45
"""Share of the peak of tile registers while both operands come from the second-level cache (measured)."""
SLACK = 0.1
"""Of the time of arithmetic, what may be waited for without a delay: choices do not hang on less."""
HAND_OFF_SECONDS, IN_STEP_SECONDS = 1.0e-6, 0.5e-6
"""What a barrier costs beside its own latency, since workers never arrive together: between phases, and in each round
of a loop, where they have equal work (measured)."""


class Dealt(Protocol):
    """A way of dealing work: how many owners there are, and whether one of them does everything."""

    @property
    def kind(self) -> str: ...
    @property
    def owners(self) -> int: ...


@dataclass(frozen=True)
class Cost:
    """Cost model of one compilation. ``weight_bytes``: all constants of the network; they stream from memory once a
    run where they exceed the last-level cache. ``types``: of a packed constant's elements. ``narrow``: the floats that
    are multiplied, whatever weights are stored in."""

    machine: Machine
    weight_bytes: int
    types: Callable[[str], str]
    narrow: str = COMPUTE

    @property
    def barrier_seconds(self) -> float:
        return self.machine.barrier_seconds + HAND_OFF_SECONDS

    @property
    def round_seconds(self) -> float:
        """For a barrier in a loop."""
        return self.machine.barrier_seconds + IN_STEP_SECONDS

    def exchange_seconds(self, elements: int, dtype: str) -> float:
        """Seconds to fetch elements that another core wrote."""
        return itemsize(dtype) * elements / EXCHANGE_BYTES_PER_SECOND

    def torn_seconds(self, boxes: Iterable[tuple[int, int, int, int]], columns: int, dtype: str) -> float:
        """Seconds for the lines that two owners write where their ``boxes`` (rows from, to, columns from, to) of a
        matrix of so many columns meet within a row."""
        size, row = itemsize(dtype), itemsize(dtype) * columns
        cut = (b - a for a, b, _, end in boxes if end < columns and (size * end % LINE_BYTES or row % LINE_BYTES))
        return sum(cut) * (TORN_SECONDS * row / LINE_BYTES if row < LINE_BYTES else HANDED_SECONDS)

    def phase_seconds(
        self, phase: Phase, dealt: Dealt, share: float, rate: float, exposed: float, again: int = 0
    ) -> float:
        """Seconds of the slowest worker when every owner is a worker of its own and one has ``share`` of the work.

        Args:
            rate: share of the peak that its template reaches. exposed: share of the fetching of its weights that the
                template's arithmetic does not hide. again: bytes of weights that an owner reads in every round of the
                loop that the phase is in, each other time from the end; 0: it is in none.
        """
        workers, task = 1 if dealt.kind == "single" else dealt.owners, phase.task
        begun, operations = TASK_SECONDS * phase.tasks * share, body_operations(task.body) * phase.tasks * share
        if task.template == NEST:
            moved = itemsize(COMPUTE) * self._elements(phase) * share / (LOOPS_REACH * self.machine.l2_bandwidth)
            loops = max(self._seconds(operations), moved)
            return begun + loops + (self._shared_rows(phase) if dealt.kind == "columns" else 0.0)
        operations += self._result_operations(phase) * share
        compute = phase.flops * share / (self._peak(phase) * rate) + self._seconds(operations)
        weights = sum(self._bytes(o) for o in task.operands if o.role == "b")
        mine = weights if dealt.kind in ("rows", "single") else weights / workers
        if again:
            kept = min(1.0, self.machine.l2_bytes / again)
            stream = mine * (kept / self.machine.l2_bandwidth + (1 - kept) / self.machine.l3_bandwidth)
        elif self.weight_bytes > self.machine.l3_bytes:
            stream = mine * workers / self.machine.bandwidth
        else:
            near = self.weight_bytes < self.machine.l2_bytes
            stream = mine / (self.machine.l2_bandwidth if near else self.machine.l3_bandwidth)
        waited = begun + (1.0 if _is_tiled(phase) else exposed) * stream
        return max(compute + max(0.0, waited - SLACK * compute), stream)

    def _seconds(self, operations: float) -> float:
        """Of so many instructions, one lane each."""
        return operations * FLOPS_AN_OPERATION / self.machine.peak_flops_per_core

    def _result_operations(self, phase: Phase) -> float:
        """Instructions of the expressions that end a template's tasks."""
        written = [prod(o.box.size) for o in phase.task.operands if o.access == "write"]
        values = [r.value for r in phase.task.results]
        return expr_operations(*values) * max(written, default=0) * phase.tasks

    def _elements(self, phase: Phase) -> float:
        return sum(prod(o.box.size) for o in phase.task.operands if not o.stable) * phase.tasks

    def _shared_rows(self, phase: Phase) -> float:
        """Seconds for the lines that go back and forth between workers that each write a part of every row."""
        written = [o.box.size for o in phase.task.operands if o.access == "write"]
        lines = (prod(rows) * min(LINES_BEYOND, ceil(itemsize(COMPUTE) * run / LINE_BYTES)) for *rows, run in written)
        return LINE_SECONDS * sum(lines)

    def _peak(self, phase: Phase) -> float:
        """What a rate is a share of: operations of one core on weights of such a type, if there are any."""
        stored = (self._type(o) for o in phase.task.operands if o.role == "b")
        types = (self.narrow if dtype in NARROW else dtype for dtype in stored)
        peak = max((self.machine.peak(LEFT.get(dtype, dtype)) for dtype in types), default=self.machine.peak(COMPUTE))
        return peak * TILES_REACH if _is_tiled(phase) else peak

    def bytes_in(self, operand: Operand, boxes: Iterable[tuple[int, int, int, int]]) -> int:
        """Of elements in ``boxes`` (rows from, to, columns from, to)."""
        return itemsize(self._type(operand)) * sum((b - a) * (d - c) for a, b, c, d in boxes)

    def _bytes(self, operand: Operand) -> int:
        return itemsize(self._type(operand)) * prod(operand.box.bound)

    def _type(self, operand: Operand) -> str:
        return self.types(operand.buffer) if operand.stable and isinstance(operand.buffer, str) else COMPUTE


def _is_tiled(phase: Phase) -> bool:
    """Whether a phase multiplies by weights in tile registers. They are filled as fast as the near caches can; fetching
    from further away adds to that."""
    weights = any(o.role == "b" for o in phase.task.operands)
    return weights and bool(phase.task.params.get("tile_groups", 0))
