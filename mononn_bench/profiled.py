"""What profilers said, and what a machine gives: the records beside a comparison's own (mononn_bench/record.py), under
the same rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mononn_bench.record import SCHEMA_VERSION, Ceilings, Machine

WAIT = "wait"
"""The kind of a span in which a worker waits for others."""


@dataclass(frozen=True)
class Span:
    """An interval of one run on one of a system's threads, in nanoseconds from the run's first span."""

    name: str
    kind: str
    track: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Step:
    """What a system does as one thing after another: an operator of its optimised graph, or a phase of ours.

    `seconds` is the mean over the middle half of the profiled runs; of a phase it is the time from the last worker's
    end of the phase before to the last worker's end of this one. `nodes` are the ONNX nodes that it computes, as far as
    names tell.
    """

    name: str
    kind: str
    seconds: float
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelNode:
    """A node of the ONNX graph: what the direct algorithm computes, bytes of its outputs and of constants it reads."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    flops: int
    output_bytes: int
    constant_bytes: int


@dataclass(frozen=True)
class Operator:
    """What one kind of step took in the profiled run: how many there were, and their own time on all threads."""

    kind: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Kernel:
    """A GPU kernel: launches and device time in all profiled runs and the load before them, and what Nsight Compute
    counted, where it could.

    `dram_bytes` and `occupancy` (achieved, a fraction) are of one launch, the mean over launches.
    """

    name: str
    launches: int
    seconds: float
    dram_bytes: float | None
    occupancy: float | None


@dataclass(frozen=True)
class EventCount:
    """What the processor or the kernel counted in all threads of one run, the mean over runs; None where it does not
    show that. Of `task-clock` it is milliseconds.
    """

    name: str
    value: float | None


@dataclass(frozen=True)
class ProfileRecord:
    """What a profiler said of one cell, or why it said nothing. Profiled runs are slower than others: not for speed.

    `runs` is how many the steps, kernels or counters were seen in; the operators are those of one of them. `plain_s` is
    the median run before the profiler was switched on, in the same process, its events counted where that is possible;
    `profiled_s` is that with it.
    """

    system: str
    tool: str
    status: Literal["ok", "unavailable", "failed", "timeout"]
    reason: str
    operators: tuple[Operator, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    runs: int = 0
    steps: tuple[Step, ...] = ()
    plain_s: float | None = None
    profiled_s: float | None = None
    counters: tuple[EventCount, ...] = ()


@dataclass(frozen=True)
class CaseProfile:
    """All profiles of one case; a system has a row for each profiler that was tried on it."""

    created: str
    model: str
    batch: int
    model_digest: str
    machine: str
    cores: tuple[int, ...]
    profiles: tuple[ProfileRecord, ...]
    command: str
    source_revision: str
    nodes: tuple[ModelNode, ...] = ()
    ceilings: Ceilings | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def case(self) -> str:
        """The model's name, and its batch where that is not 1."""
        return self.model if self.batch == 1 else f"{self.model}-b{self.batch}"


@dataclass(frozen=True)
class Reading:
    """A primitive of the machine, in some trials: `what` and its `variant`, so many `workers` at once, and the unit:
    B/s, op/s (a multiply-add is two) or s.
    """

    what: str
    variant: str
    workers: int
    unit: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Stated:
    """A number that the compiler's cost model takes for something of a machine; unit as in Reading, or empty."""

    name: str
    value: float
    unit: str
    meaning: str


@dataclass(frozen=True)
class Primitives:
    """What a machine gives, as measured alone on it, and what the compiler takes for it. `name` is its folder under
    results/.
    """

    created: str
    machine: Machine
    name: str
    cores: tuple[int, ...]
    readings: tuple[Reading, ...]
    source_revision: str
    stated: tuple[Stated, ...] = ()
    schema_version: int = SCHEMA_VERSION
