"""What the GPU suite writes: one file, rewritten whole after each step, so that a run cut off keeps what it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mononn_bench.record import Machine

Status = Literal["ok", "unavailable", "failed", "incorrect", "timeout", "left out"]


@dataclass(frozen=True)
class StepRecord:
    """One step of the suite.

    `status` is "left out" where no time was left for it; each but "ok" has its line of reason. `rehearsal` marks what
    ran on a CPU or emulator: none of its times are a GPU's. `result` is what the step found (each step's module says
    what), also of a step that was ended early. `beside` names the steps that ran at the same time on other cores.
    """

    name: str
    status: Status
    reason: str
    rehearsal: bool
    started: str
    seconds: float
    result: Mapping[str, Any]
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteRecord:
    """A run of the suite, in one call or several. `sources` is a digest of the code that ran, `gpus` names
    what it ran on: of other code or another GPU no step is kept."""

    created: str
    command: str
    source_revision: str
    machine: Machine
    versions: Mapping[str, str]
    rehearsal: bool
    steps: tuple[StepRecord, ...]
    sources: str = ""
    gpus: tuple[str, ...] = ()
    schema_version: int = 1
