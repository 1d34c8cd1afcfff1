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
    within 5 and 10 %, median of the errors and of their sizes, the smallest and the largest error.

    `saved` is how many times as long one run of every model takes as one of every different brick; `wall_saved` the
    same of all that measuring took, builds included.
    """

    system: str
    length: int
    models: int
    within_5: float
    within_10: float
    median_error: float
    median_size: float
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
class LayerTime:
    """A layer of a model: how often it occurs, what one takes with each system that has a time, in seconds without what
    a call costs, and the least that the ceilings allow; 0 without them.
    """

    brick: Brick
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
    layers: tuple[LayerTime, ...]
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
    parts = [own_s(system, brick.key) for brick in cut.bricks]
    known = [seconds for seconds in parts if seconds is not None]
    total = sum(known) + (brick_s(system, EMPTY) or 0.0) if len(known) == len(parts) else None
    lacking = [brick for brick, seconds in zip(cut.bricks, parts, strict=True) if seconds is None]
    reason = system.reason or (_lack(system, lacking) if lacking else "")
    error = total / whole - 1 if total is not None and whole else None
    return Rebuilt(
        model.model, system.system, cut.length, len(cut.bricks), len(different(cut)), total, whole, error, reason
    )


def _lack(system: SystemBricks, lacking: Sequence[Brick]) -> str:
    found = system.times.get(lacking[0].key)
    why = found.reason if found else "not measured"
    return f"{len(lacking)} bricks have no time; the first, {'+'.join(lacking[0].operators)}: {why}"


def different(cut: Cut) -> list[Brick]:
    """The first of each brick of a cut, in order."""
    found: dict[str, Brick] = {}
    for brick in cut.bricks:
        found.setdefault(brick.key, brick)
    return list(found.values())


def whole_key(model: BrickedModel) -> str:
    """The key of a model as one brick."""
    return next(cut for cut in model.cuts if cut.length == WHOLE).bricks[0].key


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
        keys = [brick.key for cut in model.cuts if cut.length == length for brick in cut.bricks]
        bricks |= {key: (brick_s(times, key) or 0.0, times.times[key].wall_s) for key in keys}
        whole = whole_key(model)
        wholes[0] += brick_s(times, whole) or 0.0
        wholes[1] += times.times[whole].wall_s
    runs, walls = (sum(column) for column in zip(*bricks.values(), strict=True))
    return Accuracy(
        system, length, len(rows),
        within_5=sum(size <= 0.05 for size in sizes) / len(sizes),
        within_10=sum(size <= 0.10 for size in sizes) / len(sizes),
        median_error=median(errors), median_size=median(sizes), smallest=errors[0], largest=errors[-1],
        saved=wholes[0] / runs, wall_saved=wholes[1] / walls,
    )  # fmt: skip


def brick_rows(models: Iterable[BrickedModel]) -> list[BrickRow]:
    """Every different brick of every cut with every system, with the time of a call."""
    rows = []
    for model in models:
        for cut in model.cuts:
            counts = Counter(brick.key for brick in cut.bricks)
            for brick in different(cut):
                rows += [_row(model, cut.length, brick, counts[brick.key], system) for system in model.systems]
    return rows


def _row(model: BrickedModel, length: int, brick: Brick, count: int, system: SystemBricks) -> BrickRow:
    found = system.times.get(brick.key)
    return BrickRow(
        model.model, length, brick.key, "+".join(brick.operators), brick.layers[0], count, brick.flops,
        brick.compulsory_bytes, system.system, found.status if found else "unavailable", brick_s(system, brick.key),
    )  # fmt: skip


def bound(model: BrickedModel) -> Bound:
    """The least of a model by what was measured of its layers."""
    cut = next(cut for cut in model.cuts if cut.length == LAYERS)
    counts = Counter(brick.key for brick in cut.bricks)
    layers = {brick.key: _layer(model, brick, counts[brick.key]) for brick in different(cut)}
    least = [min(layers[brick.key].seconds.values(), default=0.0) for brick in cut.bricks]
    reached: list[float] = []
    for brick, own in zip(cut.bricks, least, strict=True):
        reached.append(own + max((reached[place] for place in brick.reads), default=0.0))
    wholes = {s.system: seconds for s in model.systems if (seconds := brick_s(s, whole_key(model))) is not None}
    rebuilt = {row.system: row.rebuilt_s for row in rebuild([model]) if row.length == LAYERS}
    return Bound(
        model=model.model,
        layers=tuple(layers.values()),
        sum_s=sum(least),
        path_s=max(reached),
        roofline_s=sum(layers[brick.key].roofline_s for brick in cut.bricks),
        wholes=wholes,
        layers_s={system: seconds for system, seconds in rebuilt.items() if seconds is not None},
        missing=sum(not layers[brick.key].seconds for brick in cut.bricks),
    )


def _layer(model: BrickedModel, brick: Brick, count: int) -> LayerTime:
    roofline, ceilings = 0.0, model.ceilings
    if ceilings:
        roofline = max(brick.flops / ceilings.flops_per_s, brick.compulsory_bytes / ceilings.cache_bytes_per_s)
    found = {one.system: seconds for one in model.systems if (seconds := own_s(one, brick.key)) is not None}
    return LayerTime(brick, count, found, roofline)
