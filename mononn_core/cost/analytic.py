"""A first estimate of time from flops, bytes and barriers: enough to choose who owns what, never shown as measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import Protocol

from mononn_core.element import COMPUTE, LEFT, itemsize
from mononn_core.machine import LINE_BYTES, Machine
from mononn_core.program.ir import Operand, Phase
from mononn_core.program.template import NEST

# Estimates for one core of a server, set by hand, not fitted: choices between partitions hang on orders of magnitude.
SECONDS_PER_ELEMENT = 0.15e-9
"""Of an element that generated loops read or store."""
EXCHANGE_BYTES_PER_SECOND = 5e9
"""Rate at which a core gets lines that another core has just written."""
LINES_BEYOND = 12
"""Lines that prefetchers fetch past the end of what a worker has of a row, which another worker is about to write."""
TILES_REACH = 0.45
"""Share of the peak of tile registers while both operands come from the second-level cache (measured)."""
OVERLAP, HIDDEN = 3, 0.25
"""Norm of (arithmetic, fetching) that both together take: they overlap, but for bursts, and wholly where fetching takes
less than such a share of arithmetic (measured)."""
HAND_OFF_SECONDS = 1.0e-6
"""What a barrier costs beside its own latency: workers never arrive together."""


class Dealt(Protocol):
    """A way of dealing work: how many owners there are, and whether one of them does everything."""

    @property
    def kind(self) -> str: ...
    @property
    def owners(self) -> int: ...


@dataclass(frozen=True)
class Cost:
    """Cost model of one compilation. ``weight_bytes``: all constants of the network; they stream from memory once a
    run where they exceed the last-level cache. ``types``: of a packed constant's elements."""

    machine: Machine
    weight_bytes: int
    types: Callable[[str], str]

    @property
    def barrier_seconds(self) -> float:
        return self.machine.barrier_seconds + HAND_OFF_SECONDS

    def exchange_seconds(self, elements: int, dtype: str) -> float:
        """Seconds to fetch elements that another core wrote."""
        return itemsize(dtype) * elements / EXCHANGE_BYTES_PER_SECOND

    def phase_seconds(self, phase: Phase, dealt: Dealt, share: float, rate: float) -> float:
        """Seconds of the slowest worker when every owner is a worker of its own and one has ``share`` of the work;
        ``rate``: share of the peak that its template reaches."""
        workers = 1 if dealt.kind == "single" else dealt.owners
        compute = phase.flops * share / (self._peak(phase) * rate)
        if phase.task.template == NEST:
            loops = max(compute, self._elements(phase) * share * SECONDS_PER_ELEMENT)
            return loops + (self._shared_rows(phase) if dealt.kind == "columns" else 0.0)
        weights = sum(self._bytes(o) for o in phase.task.operands if o.role == "b")
        mine = weights if dealt.kind in ("rows", "single") else weights / workers
        if self.weight_bytes > self.machine.l3_bytes:
            stream = mine * workers / self.machine.bandwidth
        else:
            near = self.weight_bytes < self.machine.l2_bytes
            stream = mine / (self.machine.l2_bandwidth if near else self.machine.l3_bandwidth)
        if _is_tiled(phase):
            return compute + stream
        return compute if stream < HIDDEN * compute else (compute**OVERLAP + stream**OVERLAP) ** (1 / OVERLAP)

    def _elements(self, phase: Phase) -> float:
        return sum(prod(o.box.size) for o in phase.task.operands if not o.stable) * phase.tasks

    def _shared_rows(self, phase: Phase) -> float:
        """Seconds for the lines that go back and forth between workers that each write a part of every row."""
        written = [o.box.size for o in phase.task.operands if o.access == "write"]
        lines = (prod(rows) * min(LINES_BEYOND, ceil(itemsize(COMPUTE) * run / LINE_BYTES)) for *rows, run in written)
        return LINE_BYTES * sum(lines) / EXCHANGE_BYTES_PER_SECOND

    def _peak(self, phase: Phase) -> float:
        """What a rate is a share of: operations of one core, in tile registers where the phase has them."""
        if not _is_tiled(phase):
            return self.machine.peak_flops_per_core
        types = (self._type(o) for o in phase.task.operands if o.role == "b")
        return max(self.machine.peak(LEFT.get(dtype, dtype)) for dtype in types) * TILES_REACH

    def _bytes(self, operand: Operand) -> int:
        return itemsize(self._type(operand)) * prod(operand.box.bound)

    def _type(self, operand: Operand) -> str:
        return self.types(operand.buffer) if operand.stable and isinstance(operand.buffer, str) else COMPUTE


def _is_tiled(phase: Phase) -> bool:
    """Whether a phase multiplies by weights in tile registers. They are filled as fast as the near caches can; fetching
    from further away adds to that."""
    weights = any(o.role == "b" for o in phase.task.operands)
    return weights and bool(phase.task.params.get("tile_groups", 0))
