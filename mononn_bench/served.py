"""Requests of many lengths, and what systems take to answer them: records beside a comparison's own (record.py), under
the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mononn_bench.record import (
    SCHEMA_VERSION,
    AccuracyCheck,
    Ceilings,
    Disturbance,
    Machine,
    ModelRecord,
    Option,
    ReferenceRecord,
    SentinelReading,
    Status,
)

OPEN = 0
"""The size, in the shapes of a model's record, of an axis that is as long as a request."""


@dataclass(frozen=True)
class Distribution:
    """How often a request has which length: `counts` of lengths `first`, `first` + 1 and so on, in tokens.

    `source` says where the figures were published, and `meaning` what they count.
    """

    name: str
    meaning: str
    source: str
    licence: str
    first: int
    counts: tuple[int, ...]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class ServingSettings:
    """How requests are measured. In each round, of fresh processes, every contestant answers `cycles` blocks of
    `requests` requests; lengths that are padded to are multiples of `step`. `memory_requests` are answered by one more
    process of each contestant, for what it holds then. `seed` draws the requests, `order_seed` the order of blocks. A
    block begins with at least so many of its requests untimed (`warm_up_runs`), and for so long.
    """

    rounds: int = 4
    cycles: int = 4
    requests: int = 24
    step: int = 16
    memory_requests: int = 0
    seed: int = 0
    order_seed: int = 0
    warm_up_s: float = 0.05
    warm_up_runs: int = 2
    repeats: int = 3
    disturbed_share: float = 0.02
    threads: int = 1
    build_limit_s: float = 1800.0
    answer_limit_s: float = 120.0
    memory_limit_mb: int = 16384

    @property
    def timed(self) -> int:
        """Requests that each contestant answers in blocks."""
        return self.rounds * self.cycles * self.requests


@dataclass(frozen=True)
class RequestBlock:
    """The requests of one cycle, answered by one contestant one after the other: what each took. `accepted` and
    `undisturbed` as in Block.
    """

    contestant: str
    attempt: int
    accepted: bool
    undisturbed: bool
    samples_ns: tuple[int, ...]
    disturbance: Disturbance


@dataclass(frozen=True)
class RequestCycle:
    """One block of each contestant, in `order`, all of the same requests, from number `first` on."""

    index: int
    first: int
    order: tuple[str, ...]
    blocks: tuple[RequestBlock, ...]
    sentinel: SentinelReading | None


@dataclass(frozen=True)
class RequestRound:
    """Fresh processes. Before its cycles each contestant answers `warmed`, numbers of requests that have one of each
    length of the round: `first_ns` has what that took by contestant, each length being new to the process. `drift`,
    `steal` and `flags` as in Round.
    """

    index: int
    warmed: tuple[int, ...]
    first_ns: Mapping[str, tuple[int, ...]]
    cycles: tuple[RequestCycle, ...]
    drift: float | None
    steal: float | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class MemoryReading:
    """The proportional set size of a contestant's process above the one after import, after so many requests; of 0
    requests once the network is loaded.
    """

    requests: int
    proportional_mb: float


@dataclass(frozen=True)
class ServedSystem:
    """A contestant: a system in one of its forms (lengths/serving.py), `label` being unique. A status that is not ok
    has its reason. `load_ms` has one value a process; `memory` is in order of requests.
    """

    label: str
    system: str
    form: str
    status: Status
    reason: str
    version: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    options: tuple[Option, ...] = ()
    build_s: float | None = None
    artifact_mb: float | None = None
    load_ms: tuple[float, ...] = ()
    memory: tuple[MemoryReading, ...] = ()
    accuracy: tuple[AccuracyCheck, ...] = ()


@dataclass(frozen=True)
class ServedModel:
    """One network that answered requests of many lengths with several systems.

    `lengths` are those of all timed requests, in order; those of requests that memory was read after follow from the
    distribution and the seed. `grid` are the lengths that are padded to. `model` has OPEN where a shape is as long as a
    request; its arithmetic and bytes are those of the longest one.
    """

    created: str
    model: ModelRecord
    distribution: Distribution
    grid: tuple[int, ...]
    lengths: tuple[int, ...]
    settings: ServingSettings
    machine: Machine
    cores: tuple[int, ...]
    systems: tuple[ServedSystem, ...]
    rounds: tuple[RequestRound, ...]
    ceilings: Ceilings | None
    reference: ReferenceRecord
    command: str
    source_revision: str
    versions: Mapping[str, str]
    wall_s: float
    schema_version: int = SCHEMA_VERSION
