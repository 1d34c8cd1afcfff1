"""What a system could gain on a model, by what was measured of its layers: Benanza's advisors (analysis/bricks.py).

Each is a prediction: what the run would take less if the advice were followed and all else stayed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from mononn_bench.analysis.bricks import Bound, DifferentBrick, bound, brick_s, own_s, whole_key
from mononn_bench.bricked import LAYERS, BrickedModel, SystemBricks
from mononn_bench.profiled import Primitives

Kind = Literal["algorithm", "padding", "fusion", "framework", "type"]
FASTER, WORTH = 1.1, 0.002
"""How many times as fast an alternative must be, and the share of the run it must gain, to be worth a line."""
SAVED = 0.05
"""A pair that takes this share less than its layers is one that the system fuses."""
PAIR = 2
NARROW = ("bf16", "int8")
"""Types that networks are deployed in, as the machine's readings call them."""
PARTIAL = "sums of 16 bits"
"""What the variant of a reading says whose sums overflow after a few products, so that no product runs at its rate."""


@dataclass(frozen=True)
class Advice:
    """A piece of advice for a system on a model: `where`, `what` to do, the predicted seconds and share of a run."""

    model: str
    system: str
    kind: Kind
    where: str
    what: str
    gain_s: float
    share: float


def advise(model: BrickedModel, name: str, rates: Mapping[str, float] | None = None) -> list[Advice]:
    """All that is worth a line for a system on a model, the most first; nothing where the whole has no time. `rates` as
    `type_rates` has them.
    """
    system = next(one for one in model.systems if one.system == name)
    whole = brick_s(system, whole_key(model))
    if not whole:
        return []
    found = bound(model)
    lines = [*_algorithm(found, name), *_padding(found, system), *_fusion(model, system), *_framework(found, name)]
    lines += _types(found, name, rates or {})
    made = [Advice(model.model, name, kind, where, what, gain, gain / whole) for kind, where, what, gain in lines]
    return sorted((one for one in made if one.share >= WORTH), key=lambda one: -one.gain_s)


Line = tuple[Kind, str, str, float]


def _algorithm(found: Bound, name: str) -> Iterator[Line]:
    """Layers that another system computes faster."""
    for layer in found.layers:
        own = layer.seconds.get(name, 0.0)
        best = layer.seconds[layer.best] if own else 0.0
        if best * FASTER < own:
            share = layer.roofline_s / best if best else 0.0
            near = f", {share:.0%} of the roofline" if share else ""
            what = f"as {layer.best}: {own / best:.2f} times as fast{near}" if best else f"as {layer.best}, at no cost"
            yield "algorithm", _where(layer), what, layer.count * (own - best)


def _padding(found: Bound, system: SystemBricks) -> Iterator[Line]:
    """Products that are faster with more channels."""
    for layer in found.layers:
        own, wide = own_s(system, layer.brick.key), own_s(system, layer.brick.padded)
        if own and wide and wide * FASTER < own:
            yield (
                "padding",
                _where(layer),
                f"channels padded: {own / wide:.2f} times as fast",
                layer.count * (own - wide),
            )


def _fusion(model: BrickedModel, system: SystemBricks) -> Iterator[Line]:
    """Neighbours of which one needs the other and is no product, that take together what they take by themselves."""
    alone, pairs = model.cut(LAYERS), model.cut(PAIR)
    if alone is None or pairs is None:
        return
    home = {layer: key for key, run in alone.runs for layer in run if len(run) == 1}
    products = {brick.key for brick in model.bricks if brick.flops}
    gains: dict[str, list[float]] = defaultdict(list)
    for key, run in pairs.runs:
        parts = [home[layer] for layer in run if layer in home]
        if len(run) != PAIR or len(parts) != PAIR or parts[1] in products or run[0] not in model.layers[run[1]].reads:
            continue
        each, both = [own_s(system, part) or 0.0 for part in parts], own_s(system, key)
        if both and all(each) and both > (1 - SAVED) * sum(each):
            gains[model.operators(run)].append(both - max(each))
    for operators, found in gains.items():
        yield "fusion", f"{len(found)} x {operators}", "computed as one step", sum(found)


def _types(found: Bound, name: str, rates: Mapping[str, float]) -> Iterator[Line]:
    """Products in a narrower type, at the rate that the machine multiplies it; of a run that is shorter than its layers
    one after the other, so much less.
    """
    products = [layer for layer in found.layers if layer.brick.flops and name in layer.seconds]
    seconds = sum(layer.count * layer.seconds[name] for layer in products)
    seconds *= min(1.0, found.wholes[name] / found.layers_s.get(name, found.wholes[name]))
    for kind, rate in rates.items():
        where = f"{sum(layer.count for layer in products)} products and convolutions"
        yield "type", where, f"in {kind}: {rate:.2f} times as fast", seconds * (1 - 1 / rate)


def type_rates(found: Primitives) -> dict[str, float]:
    """How many times as fast as float32's a core's multiply-adds of narrower types are, of those that are faster."""
    peaks: dict[str, float] = {}
    for reading in found.readings:
        kind = reading.variant.split(",")[0].split()[0]
        if reading.what == "peak" and reading.workers == 1 and PARTIAL not in reading.variant:
            peaks[kind] = max(median(reading.values), peaks.get(kind, 0.0))
    whole = peaks.get("float32")
    return {kind: peak / whole for kind, peak in peaks.items() if whole and peak > whole and kind in NARROW}


def _framework(found: Bound, name: str) -> Iterator[Line]:
    """What the run takes beyond the system's own layers one after the other."""
    if name in found.layers_s:
        beyond = found.wholes[name] - found.layers_s[name]
        yield "framework", "between layers", "nothing but the layers", beyond


def _where(layer: DifferentBrick) -> str:
    brick, times = layer.brick, f"{layer.count} x " if layer.count > 1 else ""
    work = f", {brick.flops / 1e6:.3g} MFLOP" if brick.flops else f", {brick.compulsory_bytes / 1e6:.2g} MB"
    return f"{times}{layer.operators} ({layer.name}{work})"
