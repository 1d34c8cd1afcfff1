"""What profilers said: the records beside a comparison's own (mononn_bench/record.py), under the same rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mononn_bench.record import SCHEMA_VERSION


@dataclass(frozen=True)
class Span:
    """An interval of one run on one of a system's threads, in nanoseconds from the run's first span."""

    name: str
    kind: str
    track: str
    start_ns: int
    duration_ns: int


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
class ProfileRecord:
    """What a profiler said of one cell, or why it said nothing. Profiled runs are slower than others: not for speed.

    `runs` is how many the operators or kernels were seen in.
    """

    system: str
    tool: str
    status: Literal["ok", "unavailable", "failed", "timeout"]
    reason: str
    operators: tuple[Operator, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    runs: int = 0


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
    schema_version: int = SCHEMA_VERSION
