"""The statistics of paired rounds (docs/measuring.md): ratios, intervals, verdicts, and what they could miss.

Everything here works on plain arrays of seconds; nothing knows records or files. Ratios are a rival's time over
ours, so over 1 means that ours is faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 0.95
TIE_LOW, TIE_HIGH = 0.97, 1.03
FEWEST_ROUNDS = 3

Verdict = Literal["faster", "slower", "tie", "unresolved"]


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval; `low`, `high` and `p_value` are None with fewer than three rounds."""

    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    deviation: float | None
    rounds: int


@dataclass(frozen=True)
class Rate:
    """`count` of `total` with an exact (Clopper-Pearson) interval."""

    count: int
    total: int
    low: float
    high: float


@dataclass(frozen=True)
class GeometricMean:
    """The mean ratio over `count` of `total` networks."""

    value: float
    count: int
    total: int


def round_values(ours: np.ndarray, rival: np.ndarray) -> np.ndarray:
    """Mean over cycles of log(rival / ours) for each round.

    `ours` and `rival` are float arrays of shape (rounds, cycles), in seconds, blocks of one cycle side by side; the
    result has shape (rounds,). A cycle with a block missing (NaN) is left out, a round without a cycle too.
    Raises ValueError on other shapes and on times that are not positive.
    """
    ours, rival = np.asarray(ours, dtype=np.float64), np.asarray(rival, dtype=np.float64)
    if ours.shape != rival.shape or ours.ndim != 2:
        raise ValueError(f"paired blocks must be two arrays (rounds, cycles), not {ours.shape} and {rival.shape}")
    if (ours <= 0).any() or (rival <= 0).any():
        raise ValueError("a block's time must be positive")
    logs = np.log(rival) - np.log(ours)
    whole = logs[~np.isnan(logs).all(axis=1)]
    return np.nanmean(whole, axis=1) if len(whole) else np.empty(0)


def estimate(values: np.ndarray, confidence: float = CONFIDENCE) -> Estimate:
    """The ratio and its Student t interval over rounds, from the logs of `round_values`, shape (rounds,).

    The p-value is two-sided, of the hypothesis that the ratio is 1. Raises ValueError without a round.
    """
    values = np.asarray(values, dtype=np.float64)
    count = len(values)
    if count == 0:
        raise ValueError("an estimate needs at least one round")
    mean = float(values.mean())
    if count < FEWEST_ROUNDS:
        return Estimate(math.exp(mean), None, None, None, None, count)
    deviation = float(values.std(ddof=1))
    error = deviation / math.sqrt(count)
    half = float(stats.t.ppf(0.5 + confidence / 2, count - 1)) * error
    if error > 0:
        p_value = float(2 * stats.t.sf(abs(mean) / error, count - 1))
    else:
        p_value = 1.0 if mean == 0 else 0.0
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half), p_value, deviation, count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of `p_values` (S. Holm, 1979), in the order given."""
    count = len(p_values)
    adjusted = [0.0] * count
    running = 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def verdicts(estimates: Sequence[Estimate], confidence: float = CONFIDENCE) -> list[Verdict | None]:
    """A verdict for each estimate of one table, None where there is no interval.

    Faster or slower: the hypothesis of equality falls after Holm's adjustment over the table, which is to say that
    the adjusted interval excludes 1. Tie: the whole printed interval lies in 0.97 to 1.03. Otherwise unresolved.
    """
    with_interval = [e.p_value for e in estimates if e.p_value is not None]
    adjusted = iter(holm(with_interval))
    return [None if e.p_value is None else _verdict(e, next(adjusted), 1 - confidence) for e in estimates]


def _verdict(e: Estimate, p_value: float, level: float) -> Verdict:
    if p_value < level:
        return "faster" if e.ratio > 1 else "slower"
    if e.low is not None and e.high is not None and e.low >= TIE_LOW and e.high <= TIE_HIGH:
        return "tie"
    return "unresolved"


def best_rival(values: Mapping[str, np.ndarray], confidence: float = CONFIDENCE) -> tuple[str, Estimate]:
    """The rival with the smallest ratio, and that ratio.

    `values` maps each rival to its `round_values`. The rival is chosen after measuring, so the interval is the one of
    the minimum over all of them: ends are the minima of the ends at a level divided by the number of rivals
    (Bonferroni). Raises ValueError without a rival.
    """
    if not values:
        raise ValueError("there is no rival to compare with")
    level = 1 - (1 - confidence) / len(values)
    each = {name: estimate(v, level) for name, v in values.items()}
    name = min(each, key=lambda n: (each[n].ratio, n))
    lows = [e.low for e in each.values() if e.low is not None]
    highs = [e.high for e in each.values() if e.high is not None]
    whole = len(lows) == len(each)
    best = each[name]
    low, high = (min(lows), min(highs)) if whole else (None, None)
    return name, Estimate(best.ratio, low, high, None, best.deviation, best.rounds)


def false_positive_rate(differences: int, comparisons: int, confidence: float = CONFIDENCE) -> Rate:
    """How often a system differed from itself, with the Clopper-Pearson interval of that rate.

    Raises ValueError where `differences` is not between 0 and `comparisons`, or nothing was compared.
    """
    if comparisons < 1 or not 0 <= differences <= comparisons:
        raise ValueError(f"{differences} differences in {comparisons} comparisons cannot be")
    interval = stats.binomtest(differences, comparisons).proportion_ci(confidence, method="exact")
    return Rate(differences, comparisons, float(interval.low), float(interval.high))


def smallest_detectable(deviations: Sequence[float], rounds: int, power: float = 0.8) -> float | None:
    """The ratio over 1 that a comparison of so many rounds finds with probability `power`, unadjusted.

    `deviations` are the standard deviations of the round values of a table's comparisons; their root mean square
    stands for all. The noncentral t distribution is solved for the shift. None with fewer than three rounds.
    """
    if rounds < FEWEST_ROUNDS or not deviations:
        return None
    freedom = rounds - 1
    critical = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))
    shift = optimize.brentq(lambda d: float(stats.nct.sf(critical, freedom, d)) - power, 0.1, 50.0)
    spread = math.sqrt(sum(d * d for d in deviations) / len(deviations))
    return math.exp(shift * spread / math.sqrt(rounds))


def geometric_mean(ratios: Mapping[str, Sequence[float]], networks: Sequence[str]) -> GeometricMean | None:
    """The geometric mean of one rival's ratios, one value a network.

    `ratios` maps a network to that rival's ratios on its cases (none where the rival has no speed); `networks` are
    all the networks of the headline, on each of which ours must be ok. None where the rival has no value at all.
    """
    logs = [float(np.mean(np.log(ratios[n]))) for n in networks if ratios.get(n)]
    return GeometricMean(math.exp(sum(logs) / len(logs)), len(logs), len(networks)) if logs else None
