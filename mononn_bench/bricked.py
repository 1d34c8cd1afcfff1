"""Networks cut into bricks, and what each brick takes: records beside a comparison's own (record.py), under the same
rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mononn_bench.record import SCHEMA_VERSION, Ceilings, Status

WHOLE, LAYERS = 0, 1
"""The lengths of the cuts that leave a network whole, and that take each layer by itself."""
EMPTY = "empty"
"""The key of a model of one Identity node: what a call costs."""


@dataclass(frozen=True)
class Brick:
    """Consecutive layers of a network, as a model of their own.

    `key` tells apart what bricks compute: operators, attributes, element types and shapes count, weights do not.
    `reads` are the places in their cut of the bricks whose tensors it reads. `flops` and `compulsory_bytes` as in
    ModelRecord. `padded` is the key of the same product with channels rounded up, where they are odd and it is one.
    """

    key: str
    layers: tuple[str, ...]
    operators: tuple[str, ...]
    reads: tuple[int, ...]
    flops: int
    weight_bytes: int
    compulsory_bytes: int
    padded: str = ""


@dataclass(frozen=True)
class Cut:
    """A network as bricks of `length` layers, in order; `WHOLE` is one brick of all layers."""

    length: int
    bricks: tuple[Brick, ...]


@dataclass(frozen=True)
class BrickTime:
    """What one system takes for a brick: the median run of each visit, the caches as the run before left them.

    `wall_s` is what it took to find that out: build, loads and all runs.
    """

    status: Status
    reason: str
    seconds: tuple[float, ...] = ()
    wall_s: float = 0.0


@dataclass(frozen=True)
class SystemBricks:
    """A system's times of bricks on one machine, by key. `identity` stands for the adapter's sources (ours with the
    compiler's), the packages of its environment, the cores and the precision; `reason` says why there are no times.
    """

    system: str
    version: str
    identity: str
    machine: str
    times: Mapping[str, BrickTime]
    reason: str = ""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class BrickedModel:
    """The cuts of one model, and what systems take for their bricks."""

    created: str
    model: str
    model_digest: str
    precision: str
    machine: str
    cores: tuple[int, ...]
    ceilings: Ceilings | None
    cuts: tuple[Cut, ...]
    systems: tuple[SystemBricks, ...]
    command: str
    source_revision: str
    schema_version: int = SCHEMA_VERSION
