"""What starting a process costs until its first answer: records beside a comparison's own (record.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mononn_bench.record import SCHEMA_VERSION, AccuracyCheck, Machine, Status

Host = Literal["native", "Python"]


@dataclass(frozen=True)
class FirstAnswer:
    """One process: milliseconds from just before it was started until its session stood, and until its first answer
    was there.

    `files`: whether what it reads of its build, its program and its libraries was in the page cache; neither where
    that could not be arranged. `undisturbed` is False where others used the machine in its last repeat too.
    """

    round: int
    files: Literal["warm", "cold", "neither"]
    stood_ms: float
    answered_ms: float
    undisturbed: bool


@dataclass(frozen=True)
class Starter:
    """One way of starting one system. Memory is of processes that have answered once and wait, in 10^6 bytes: `one_mb`
    the proportional set of one alone, `own_mb` what of it no file stands behind, `all_mb` the proportional sets of
    `processes` together, None where they were not started.
    """

    label: str
    system: str
    host: Host
    status: Status
    reason: str
    version: str
    how: str
    artifact_mb: float | None = None
    starts: tuple[FirstAnswer, ...] = ()
    one_mb: float | None = None
    own_mb: float | None = None
    all_mb: float | None = None
    checks: tuple[AccuracyCheck, ...] = ()

    def times(self, files: str) -> dict[int, float]:
        """Milliseconds until the answer with such files, by round."""
        return {one.round: one.answered_ms for one in self.starts if one.files == files}


@dataclass(frozen=True)
class StartSettings:
    """How many starts of each with warm and with cold files, and how many processes hold the network at once."""

    warm: int = 15
    cold: int = 5
    processes: int = 8
    threads: int = 1
    seed: int = 0


@dataclass(frozen=True)
class StartRecord:
    """One model in one precision, started by every system, side by side."""

    created: str
    model: str
    batch: int
    model_digest: str
    precision: str
    machine: Machine
    cores: tuple[int, ...]
    settings: StartSettings
    starters: tuple[Starter, ...]
    command: str
    source_revision: str
    versions: Mapping[str, str]
    wall_s: float
    schema_version: int = SCHEMA_VERSION
