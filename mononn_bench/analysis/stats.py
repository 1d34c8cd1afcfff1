"""The statistics of paired rounds (docs/measuring.md): ratios, intervals, verdicts, and what they could miss.

Everything here works on plain arrays of seconds; nothing knows records or files. Ratios are a rival's time over
ours, so over 1 means that ours is faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 0.95
TIE_LOW, TIE_HIGH = 0.97, 1.03
FEWEST_ROUNDS = 3

Verdict = Literal["faster", "slower", "tie", "unresolved"]


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval. `error` is the standard error of its logarithm, with `freedom` degrees of freedom.

    All but the ratio and the count of rounds are None with fewer than three rounds.
    """

    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    error: float | None
    freedom: float | None
    rounds: int

    def ends(self, confidence: float) -> tuple[float, float] | None:
        """The interval at another level, None where there is none."""
        if self.error is None or self.freedom is None:
            return None
        half = float(stats.t.ppf(0.5 + confidence / 2, self.freedom)) * self.error
        return self.ratio * math.exp(-half), self.ratio * math.exp(half)


@dataclass(frozen=True)
class Rate:
    """`count` of `total` with an exact (Clopper-Pearson) interval."""

    count: int
    total: int
    low: float
    high: float


@dataclass(frozen=True)
class GeometricMean:
    """The mean ratio over `count` of `total` networks; no interval where one of its ratios has none."""

    value: float
    count: int
    total: int
    low: float | None = None
    high: float | None = None


def round_values(ours: np.ndarray, rival: np.ndarray) -> np.ndarray:
    """Median over cycles of log(rival / ours) for each round: of three cycles or more no single block decides.

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
    return np.nanmedian(whole, axis=1) if len(whole) else np.empty(0)


def estimate(values: np.ndarray, confidence: float = CONFIDENCE) -> Estimate:
    """The ratio and its Student t interval over rounds, from the logs of `round_values`, shape (rounds,).

    The p-value is two-sided, of the hypothesis that the ratio is 1. Raises ValueError without a round.
    """
    values = np.asarray(values, dtype=np.float64)
    count = len(values)
    if count == 0:
        raise ValueError("an estimate needs at least one round")
    if count < FEWEST_ROUNDS:
        return Estimate(math.exp(values.mean()), None, None, None, None, None, count)
    error = float(values.std(ddof=1)) / math.sqrt(count)
    return _with_error(float(values.mean()), error, count - 1, count, confidence)


def pooled_estimate(runs: Sequence[np.ndarray], confidence: float = CONFIDENCE) -> Estimate:
    """The ratio over several runs, each with the logs of its rounds: the mean of the runs' means.

    A run is a random effect. The square of the standard error is the variance of the runs' means over their number,
    plus that of rounds within runs over the number of rounds: each level counts in full, since three runs say too
    little to choose one. Degrees of freedom are Satterthwaite's (1946). One run alone has the interval of `estimate`.
    """
    runs = [np.asarray(values, dtype=np.float64) for values in runs if len(values)]
    if len(runs) < 2:
        return estimate(runs[0] if runs else np.empty(0), confidence)
    count, rounds = len(runs), sum(map(len, runs))
    means = [float(values.mean()) for values in runs]
    ratio = math.exp(sum(means) / count)
    inner = rounds - count
    if rounds < FEWEST_ROUNDS or inner == 0:
        return Estimate(ratio, None, None, None, None, None, rounds)
    variance = sum(float(((v - v.mean()) ** 2).sum()) for v in runs) / inner
    between = float(np.var(means, ddof=1)) / count
    within = variance * sum(1 / len(values) for values in runs) / count**2
    freedom = _satterthwaite([(between, count - 1), (within, inner)])
    return _with_error(math.log(ratio), math.sqrt(between + within), freedom, rounds, confidence)


def _satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances, each with its own; of the first where all are nothing."""
    total = sum(variance for variance, _ in parts)
    return total**2 / sum(v**2 / freedom for v, freedom in parts) if total > 0 else parts[0][1]


def _with_error(mean: float, error: float, freedom: float, rounds: int, confidence: float) -> Estimate:
    if error > 0:
        p_value = float(2 * stats.t.sf(abs(mean) / error, freedom))
    else:
        p_value = 1.0 if mean == 0 else 0.0
    half = float(stats.t.ppf(0.5 + confidence / 2, freedom)) * error
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half), p_value, error, freedom, rounds)


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


def best_rival(estimates: Mapping[str, Estimate], confidence: float = CONFIDENCE) -> tuple[str, Estimate]:
    """The rival with the smallest ratio, and that ratio.

    The rival is chosen after measuring, so the interval is the one of the minimum over all of them: ends are the
    minima of the ends at a level divided by the number of rivals (Bonferroni). Raises ValueError without a rival.
    """
    if not estimates:
        raise ValueError("there is no rival to compare with")
    name = min(estimates, key=lambda n: (estimates[n].ratio, n))
    each = [e.ends(1 - (1 - confidence) / len(estimates)) for e in estimates.values()]
    known = [ends for ends in each if ends is not None]
    whole = len(known) == len(each)
    low, high = (min(low for low, _ in known), min(high for _, high in known)) if whole else (None, None)
    return name, replace(estimates[name], low=low, high=high, p_value=None)


def false_positive_rate(differences: int, comparisons: int, confidence: float = CONFIDENCE) -> Rate:
    """How often a system differed from itself, with the Clopper-Pearson interval of that rate.

    Raises ValueError where `differences` is not between 0 and `comparisons`, or nothing was compared.
    """
    if comparisons < 1 or not 0 <= differences <= comparisons:
        raise ValueError(f"{differences} differences in {comparisons} comparisons cannot be")
    interval = stats.binomtest(differences, comparisons).proportion_ci(confidence, method="exact")
    return Rate(differences, comparisons, float(interval.low), float(interval.high))


def smallest_detectable(estimates: Sequence[Estimate], comparisons: int = 1, power: float = 0.8) -> float | None:
    """The ratio over 1 that a comparison finds with probability `power` where it is the hardest of so many.

    Holm's adjustment holds the smallest p-value of a table against the level divided by the number of comparisons, so
    that is what the hardest one must pass while none has passed before it; it passes sooner where others have. The
    noncentral t distribution is solved for the shift, at the root mean square of the estimates' errors and the median
    of their degrees of freedom. None where no estimate has an error.
    """
    known = [(e.error, e.freedom) for e in estimates if e.error is not None and e.freedom is not None]
    if not known:
        return None
    freedom = float(np.median([f for _, f in known]))
    critical = float(stats.t.isf((1 - CONFIDENCE) / 2 / max(1, comparisons), freedom))
    shift = optimize.brentq(lambda d: float(stats.nct.sf(critical, freedom, d)) - power, 0.1, 10 + 5 * critical)
    return math.exp(shift * math.sqrt(sum(error * error for error, _ in known) / len(known)))


def geometric_mean(estimates: Mapping[str, Sequence[Estimate]], networks: Sequence[str]) -> GeometricMean | None:
    """The geometric mean of one rival's ratios, one value a network.

    `estimates` maps a network to that rival's ratios on its cases (none where the rival has no speed); `networks` are
    all the networks of the headline, on each of which ours must be ok. The interval carries each ratio's error, cases
    being measured apart; it says nothing of other networks. None where the rival has no value at all.
    """
    found = [estimates[n] for n in networks if estimates.get(n)]
    if not found:
        return None
    mean = sum(sum(math.log(e.ratio) for e in cases) / len(cases) for cases in found) / len(found)
    parts = [
        ((e.error / len(cases) / len(found)) ** 2, e.freedom)
        for cases in found
        for e in cases
        if e.error is not None and e.freedom is not None
    ]
    plain = GeometricMean(math.exp(mean), len(found), len(networks))
    if len(parts) < sum(map(len, found)):
        return plain
    error = math.sqrt(sum(variance for variance, _ in parts))
    e = _with_error(mean, error, _satterthwaite(parts), 0, CONFIDENCE)
    return replace(plain, low=e.low, high=e.high)


def supports(quantile: float, samples: int) -> bool:
    """Whether so many samples bound a quantile on both sides at 95 %: the interval between two order statistics exists
    (W. J. Conover, Practical Nonparametric Statistics, 3.2). 36 samples for 90 %, 72 for 95 %, 368 for 99 %.
    """
    return max(quantile, 1 - quantile) ** samples <= (1 - CONFIDENCE) / 2
