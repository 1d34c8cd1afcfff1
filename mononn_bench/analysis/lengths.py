"""How systems answer requests of many lengths: mean, 99th percentile, ratios to ours over rounds, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mononn_bench.analysis.stats import (
    Estimate,
    Verdict,
    best_rival,
    estimate,
    geometric_mean,
    round_values,
    supports,
    verdicts,
)
from mononn_bench.served import ServedModel, ServedSystem

OURS, TWIN = "mononn", "mononn@2"
NEEDED = ("onnxruntime", "openvino")
"""Without both of them there is no best rival."""
TAIL = 0.99
Times = NDArray[np.float64]


@dataclass(frozen=True)
class LengthRow:
    """A contestant on a network. Times are of all timed requests; ratios are its time over ours, paired in rounds. What
    there is no value for is None: nothing of a contestant that is not ok, a ratio without ours, `p99_ms` of too few
    requests, an interval of fewer than three rounds.

    `padded` is the share of computed tokens that are padding; `first` is by how much the first request of a length in a
    process takes longer than the same one later.
    """

    model: str
    contestant: str
    status: str
    reason: str
    requests: int
    mean_ms: float | None = None
    median_ms: float | None = None
    p99_ms: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict | None = None
    p99_ratio: float | None = None
    p99_low: float | None = None
    p99_high: float | None = None
    padded: float | None = None
    first: float | None = None
    loaded_mb: float | None = None
    served_mb: float | None = None
    memory_requests: int | None = None
    load_ms: float | None = None
    build_s: float | None = None
    artifact_mb: float | None = None


def block_times(model: ServedModel, label: str) -> Times:
    """Milliseconds [rounds, cycles, requests] of a contestant's accepted blocks; NaN where it has none."""
    settings = model.settings
    times = np.full((settings.rounds, settings.cycles, settings.requests), np.nan)
    for one in model.rounds:
        for cycle in one.cycles:
            for block in cycle.blocks:
                if block.contestant == label and block.accepted:
                    times[one.index, cycle.index] = np.asarray(block.samples_ns) / 1e6
    return times


def computed_lengths(model: ServedModel, form: str) -> Times:
    """The length that each timed request is computed at: its own, or the next one of the grid."""
    lengths = np.asarray(model.lengths, np.float64)
    return lengths if form == "dynamic" else np.asarray(model.grid, np.float64)[np.searchsorted(model.grid, lengths)]


def mean_estimate(ours: Times, rival: Times) -> Estimate:
    """The ratio of mean times, both [rounds, cycles, requests] of the same requests."""
    return estimate(round_values(ours.mean(axis=2), rival.mean(axis=2)))


def tail_estimate(ours: Times, rival: Times) -> Estimate:
    """The ratio of 99th percentiles, each taken over the requests of a round."""
    tails = [np.nanquantile(times.reshape(len(times), -1), TAIL, axis=1)[:, None] for times in (ours, rival)]
    return estimate(round_values(*tails))


def length_rows(models: Sequence[ServedModel]) -> list[LengthRow]:
    """A row a contestant on each network; verdicts are adjusted over all of them (Holm), ours against itself apart."""
    rows, compared = list[LengthRow](), list[tuple[int, Estimate]]()
    for model in models:
        ours = _standing(model, OURS)
        for system in model.systems:
            row = _row(model, system)
            if system.status == "ok" and ours is not None and system.label != OURS:
                times = block_times(model, system.label)
                mean, tail = mean_estimate(ours, times), tail_estimate(ours, times)
                row = replace(row, ratio=mean.ratio, low=mean.low, high=mean.high, p99_ratio=tail.ratio,
                              p99_low=tail.low, p99_high=tail.high)  # fmt: skip
                if system.label != TWIN:
                    compared.append((len(rows), mean))
            rows.append(row)
    for (place, _), verdict in zip(compared, verdicts([one for _, one in compared]), strict=True):
        rows[place] = replace(rows[place], verdict=verdict)
    return rows


def best_of(model: ServedModel) -> tuple[str, Estimate] | None:
    """The fastest rival in the form that suits it best, and our ratio to it; None without ours, or without ONNX Runtime
    or OpenVINO.
    """
    ours = _standing(model, OURS)
    rivals = [s for s in model.systems if s.status == "ok" and s.system != OURS]
    if ours is None or not {s.system for s in rivals}.issuperset(NEEDED):
        return None
    return best_rival({s.label: mean_estimate(ours, block_times(model, s.label)) for s in rivals})


def mean_of_best(models: Sequence[ServedModel]) -> float | None:
    """The geometric mean of our ratios to the best rival; None unless every network has one."""
    found = {model.model.name: [best[1]] for model in models if (best := best_of(model))}
    mean = geometric_mean(found, [model.model.name for model in models])
    return mean.value if mean and mean.count == mean.total else None


def _standing(model: ServedModel, label: str) -> Times | None:
    ok = any(system.label == label and system.status == "ok" for system in model.systems)
    return block_times(model, label) if ok and model.rounds else None


def _row(model: ServedModel, system: ServedSystem) -> LengthRow:
    row = LengthRow(
        model.model.name, system.label, system.status, system.reason, len(model.lengths), build_s=system.build_s,
        artifact_mb=system.artifact_mb, load_ms=float(np.median(system.load_ms)) if system.load_ms else None,
    )  # fmt: skip
    if system.status != "ok":
        return row
    if system.memory:
        loaded, served = system.memory[0], system.memory[-1]
        row = replace(row, loaded_mb=loaded.proportional_mb, served_mb=served.proportional_mb,
                      memory_requests=served.requests)  # fmt: skip
    times = block_times(model, system.label)
    known = times[~np.isnan(times)]
    if not known.size:
        return row
    computed = computed_lengths(model, system.form)
    return replace(
        row,
        mean_ms=float(known.mean()),
        median_ms=float(np.median(known)),
        p99_ms=float(np.quantile(known, TAIL)) if supports(TAIL, known.size) else None,
        padded=float(1 - sum(model.lengths) / computed.sum()),
        first=_first(model, system.label, times),
    )


def _first(model: ServedModel, label: str, times: Times) -> float | None:
    """What first requests took over what the same ones took in blocks, less one."""
    later = times.ravel()
    pairs = [(first / 1e6, later[number]) for one in model.rounds if label in one.first_ns
             for number, first in zip(one.warmed, one.first_ns[label], strict=True)]  # fmt: skip
    whole = [(first, then) for first, then in pairs if not np.isnan(then)]
    return sum(first for first, _ in whole) / sum(then for _, then in whole) - 1 if whole else None
