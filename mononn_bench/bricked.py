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
class Layer:
    """A node whose result depends on the network's inputs; `reads` are places of the layers whose results it reads."""

    name: str
    operator: str
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Brick:
    """Consecutive layers as a model of their own.

    `key` tells apart what bricks compute: operators, attributes, element types and shapes count, weights do not.
    `flops` and the bytes as in ModelRecord. `padded` is the key of the same product with channels rounded up, where
    they are odd and it is one.
    """

    key: str
    flops: int
    weight_bytes: int
    compulsory_bytes: int
    padded: str = ""


@dataclass(frozen=True)
class Cut:
    """A network as bricks of `length` layers, in order: their keys, and of each the place after its last layer. `WHOLE`
    is one brick of all layers.
    """

    length: int
    keys: tuple[str, ...]
    stops: tuple[int, ...]

    @property
    def runs(self) -> tuple[tuple[str, range], ...]:
        """Each brick's key and the places of its layers."""
        starts = (0, *self.stops)
        return tuple((key, range(start, stop)) for key, start, stop in zip(self.keys, starts, self.stops, strict=False))


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
    """One model's layers, its cuts, each different brick of them, and what systems take for these."""

    created: str
    model: str
    model_digest: str
    precision: str
    machine: str
    cores: tuple[int, ...]
    ceilings: Ceilings | None
    layers: tuple[Layer, ...]
    bricks: tuple[Brick, ...]
    cuts: tuple[Cut, ...]
    systems: tuple[SystemBricks, ...]
    command: str
    source_revision: str
    schema_version: int = SCHEMA_VERSION

    def cut(self, length: int) -> Cut | None:
        """The cut of that length, where there is one."""
        return next((cut for cut in self.cuts if cut.length == length), None)

    def operators(self, run: range) -> str:
        """The operators of some layers."""
        return "+".join(self.layers[place].operator for place in run)
