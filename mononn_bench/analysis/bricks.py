"""Times of networks rebuilt from those of their bricks, and the least that their layers take with any system.

Rebuilding is after DLBricks (bricks/cut.py). The bound is that of C. Li, A. Dakkak, J. Xiong, W. Hwu, "Benanza:
Automatic micro-Benchmark Generation to Compute 'Lower-bound' Latency and Inform Optimizations of Deep Learning Models
on GPUs", IPDPS 2020: each layer by the fastest implementation that was measured, one after the other or, where layers
do not need each other, along the longest way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from mononn_bench.bricked import EMPTY, LAYERS, WHOLE, Brick, BrickedModel, Cut, SystemBricks

VERY_NEAR, NEAR = 0.05, 0.10
"""Errors within which networks are counted."""


@dataclass(frozen=True)
class Rebuilt:
    """A model's time with one system as the sum of its bricks' of one length, beside its measured one, in seconds.

    `bricks` are all, `different` those that differ. `rebuilt_s` is None where a brick has no time, which `reason` says;
    `error` is rebuilt over measured, less 1.
    """

    model: str
    system: str
    length: int
    bricks: int
    different: int
    rebuilt_s: float | None
    whole_s: float | None
    error: float | None
    reason: str


@dataclass(frozen=True)
class Accuracy:
    """How near the models of one system come that could be rebuilt from bricks of one length: shares whose error is
    within 5 and 10 %, and the median, the smallest and the largest error.

    `saved` is how many times as long one run of every model takes as one of every different brick; `wall_saved` the
    same of all that measuring took, builds included.
    """

    system: str
    length: int
    models: int
    within_5: float
    within_10: float
    median_error: float
    smallest: float
    largest: float
    saved: float
    wall_saved: float


@dataclass(frozen=True)
class BrickRow:
    """A different brick of a cut with one system: how often it occurs, its arithmetic and bytes, seconds of one."""

    model: str
    length: int
    key: str
    operators: str
    first_layer: str
    count: int
    flops: int
    compulsory_bytes: int
    system: str
    status: str
    seconds: float | None


@dataclass(frozen=True)
class DifferentBrick:
    """A different brick of a model: the name of the first layer of the first of it, how often it occurs, what one takes
    with each system that has a time, in seconds without what a call costs, and the least that the ceilings allow; 0
    without them.
    """

    brick: Brick
    name: str
    operators: str
    count: int
    seconds: dict[str, float]
    roofline_s: float

    @property
    def best(self) -> str:
        """The system that is fastest."""
        return min(self.seconds, key=lambda system: self.seconds[system])


@dataclass(frozen=True)
class Bound:
    """The least of a model: the fastest of each layer one after the other (`sum_s`) and along the longest way
    (`path_s`), and each layer's roofline; `wholes` and `layers_s` are each system's whole model and its own layers one
    after the other, where all have a time. `missing` layers have no time with any system.
    """

    model: str
    layers: tuple[DifferentBrick, ...]
    sum_s: float
    path_s: float
    roofline_s: float
    wholes: dict[str, float]
    layers_s: dict[str, float]
    missing: int


def brick_s(system: SystemBricks, key: str) -> float | None:
    """The least of a brick's visits in seconds; None without one."""
    found = system.times.get(key)
    return min(found.seconds) if found and found.seconds else None


def own_s(system: SystemBricks, key: str) -> float | None:
    """The same without what a call costs, never below 0."""
    seconds = brick_s(system, key)
    return None if seconds is None else max(0.0, seconds - (brick_s(system, EMPTY) or 0.0))


def rebuild(models: Iterable[BrickedModel]) -> list[Rebuilt]:
    """Every model with every system at every length."""
    return [
        _rebuilt(model, system, cut)
        for model in models
        for system in model.systems
        for cut in model.cuts
        if cut.length != WHOLE
    ]


def _rebuilt(model: BrickedModel, system: SystemBricks, cut: Cut) -> Rebuilt:
    whole = brick_s(system, whole_key(model))
    known = [seconds for key in cut.keys if (seconds := own_s(system, key)) is not None]
    total = sum(known) + (brick_s(system, EMPTY) or 0.0) if len(known) == len(cut.keys) else None
    reason = system.reason or (_lack(model, system, cut) if total is None else "")
    error = total / whole - 1 if total is not None and whole else None
    return Rebuilt(
        model.model, system.system, cut.length, len(cut.keys), len(set(cut.keys)), total, whole, error, reason
    )  # fmt: skip


def _lack(model: BrickedModel, system: SystemBricks, cut: Cut) -> str:
    lacking = [(key, run) for key, run in cut.runs if own_s(system, key) is None]
    key, run = lacking[0]
    why = system.times[key].reason if key in system.times else "not measured"
    return f"{len(lacking)} bricks have no time; the first, {model.operators(run)}: {why}"


def whole_key(model: BrickedModel) -> str:
    """The key of a model as one brick."""
    return next(key for cut in model.cuts if cut.length == WHOLE for key in cut.keys)


def accuracies(models: Sequence[BrickedModel]) -> list[Accuracy]:
    """A row a system and length, over the models that could be rebuilt."""
    rows = [row for row in rebuild(models) if row.error is not None]
    groups = dict.fromkeys((row.system, row.length) for row in rows)
    return [_accuracy(models, [row for row in rows if (row.system, row.length) == group]) for group in groups]


def _accuracy(models: Sequence[BrickedModel], rows: Sequence[Rebuilt]) -> Accuracy:
    system, length = rows[0].system, rows[0].length
    errors = sorted(row.error for row in rows if row.error is not None)
    sizes = [abs(error) for error in errors]
    named = {row.model for row in rows}
    bricks: dict[str, tuple[float, float]] = {}
    wholes = [0.0, 0.0]
    for model in models:
        if model.model not in named:
            continue
        times = next(one for one in model.systems if one.system == system)
        keys = [key for cut in model.cuts if cut.length == length for key in cut.keys]
        bricks |= {key: (brick_s(times, key) or 0.0, times.times[key].wall_s) for key in keys}
        whole = whole_key(model)
        wholes[0] += brick_s(times, whole) or 0.0
        wholes[1] += times.times[whole].wall_s
    runs, walls = (sum(column) for column in zip(*bricks.values(), strict=True))
    return Accuracy(
        system, length, len(rows),
        within_5=sum(size <= VERY_NEAR for size in sizes) / len(sizes),
        within_10=sum(size <= NEAR for size in sizes) / len(sizes),
        median_error=median(errors), smallest=errors[0], largest=errors[-1],
        saved=wholes[0] / runs, wall_saved=wholes[1] / walls,
    )  # fmt: skip


def brick_rows(models: Iterable[BrickedModel]) -> list[BrickRow]:
    """Every different brick of every cut with every system, with the time of a call."""
    rows = []
    for model in models:
        for cut in model.cuts:
            for one in _different(model, cut):
                rows += [_row(model, cut.length, one, system) for system in model.systems]
    return rows


def _row(model: BrickedModel, length: int, one: DifferentBrick, system: SystemBricks) -> BrickRow:
    found = system.times.get(one.brick.key)
    return BrickRow(
        model.model, length, one.brick.key, one.operators, one.name, one.count, one.brick.flops,
        one.brick.compulsory_bytes, system.system, found.status if found else "unavailable",
        brick_s(system, one.brick.key),
    )  # fmt: skip


def bound(model: BrickedModel) -> Bound:
    """The least of a model by what was measured of its layers."""
    cut = next(cut for cut in model.cuts if cut.length == LAYERS)
    layers = {one.brick.key: one for one in _different(model, cut)}
    least = [min(layers[key].seconds.values(), default=0.0) for key in cut.keys]
    home = {layer: place for place, (_, run) in enumerate(cut.runs) for layer in run}
    reached: list[float] = []
    for place, (_, run) in enumerate(cut.runs):
        before = {home[read] for layer in run for read in model.layers[layer].reads} - {place}
        reached.append(least[place] + max((reached[one] for one in before), default=0.0))
    wholes = {s.system: seconds for s in model.systems if (seconds := brick_s(s, whole_key(model))) is not None}
    rebuilt = {row.system: row.rebuilt_s for row in rebuild([model]) if row.length == LAYERS}
    return Bound(
        model=model.model,
        layers=tuple(layers.values()),
        sum_s=sum(least),
        path_s=max(reached),
        roofline_s=sum(layers[key].roofline_s for key in cut.keys),
        wholes=wholes,
        layers_s={system: seconds for system, seconds in rebuilt.items() if seconds is not None},
        missing=sum(not layers[key].seconds for key in cut.keys),
    )


def _different(model: BrickedModel, cut: Cut) -> list[DifferentBrick]:
    """Each different brick of a cut, by where it first occurs."""
    counts, bricks = Counter(cut.keys), {brick.key: brick for brick in model.bricks}
    first = dict(reversed(cut.runs))
    ceilings = model.ceilings
    found = []
    for key in counts:
        brick, roofline = bricks[key], 0.0
        if ceilings:
            roofline = max(brick.flops / ceilings.flops_per_s, brick.compulsory_bytes / ceilings.cache_bytes_per_s)
        times = {one.system: seconds for one in model.systems if (seconds := own_s(one, key)) is not None}
        name = model.layers[first[key].start].name
        found.append(DifferentBrick(brick, name, model.operators(first[key]), counts[key], times, roofline))
    return found
