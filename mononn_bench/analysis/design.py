"""How a round is summed up, and how many rounds of how many cycles: simulated on kept records (docs/measuring.md).

Everything is seeded: the same records give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from mononn_bench.analysis.blocks import paired_blocks
from mononn_bench.analysis.cells import OURS, Table, is_twin
from mononn_bench.analysis.stats import CONFIDENCE, Estimate, estimate, pooled_estimate
from mononn_bench.analysis.twins import twin_pairs
from mononn_bench.record import CaseRecord

Pair = tuple[np.ndarray, np.ndarray]
"""The logarithms of the blocks of ours and of a rival, each of shape (rounds, cycles)."""
SENTINEL_S = 0.25
"""What a reading of the sentinel takes; a record has its rates but not its time."""
HALVED = 0.7
"""A sentinel's reading under this share of the case's best was made at half speed."""
DRAWS = 1000
POWER = 0.8


def walsh_median(logs: np.ndarray) -> np.ndarray:
    """Hodges and Lehmann's estimate along the last axis: the median of the means of all pairs."""
    first, second = np.triu_indices(logs.shape[-1])
    return np.asarray(np.median((logs[..., first] + logs[..., second]) / 2, axis=-1))


Summed = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From the logarithms of both systems' blocks, cycles on the last axis, to the rounds' values."""
ESTIMATORS: dict[str, Summed] = {
    "mean of ratios": lambda ours, rival: np.mean(rival - ours, axis=-1),
    "median of ratios": lambda ours, rival: np.median(rival - ours, axis=-1),
    "Hodges-Lehmann of ratios": lambda ours, rival: walsh_median(rival - ours),
    "ratio of medians": lambda ours, rival: np.median(rival, axis=-1) - np.median(ours, axis=-1),
    "ratio of minima": lambda ours, rival: np.min(rival, axis=-1) - np.min(ours, axis=-1),
}
"""Ways from the cycles of a round to its value. The second one is used: it is `round_values`."""


@dataclass(frozen=True)
class Judged:
    """What one estimator makes of the kept records; all but counts as fractions.

    `alarms` of `comparisons` A/A comparisons differ; `spread` is the root mean square deviation of a round's value;
    `half_width` the median half-width of a run's intervals; `struck` what one block at half or double time moves a
    round's value by, at the median and in the worst twentieth of cases; `coverage` how often an A/A interval holds 1
    where each block may be halved.
    """

    name: str
    alarms: int
    comparisons: int
    spread: float
    half_width: float
    struck: tuple[float, float]
    coverage: float


@dataclass(frozen=True)
class Design:
    """So many rounds of so many cycles: minutes for all cases, the smallest difference that the hardest comparison of
    the table finds four times in five (a fraction), and how often an A/A comparison raises a false alarm.
    """

    rounds: int
    cycles: int
    minutes: float
    detectable: float
    alarms: float


@dataclass(frozen=True)
class Cost:
    """Seconds of one case: starting all its systems afresh, and one cycle of them."""

    start_s: float
    cycle_s: float

    def minutes(self, rounds: int, cycles: int) -> float:
        """What a case takes whose systems are started once a round and no more."""
        return rounds * (self.start_s + cycles * self.cycle_s) / 60


def rival_pairs(records: Sequence[CaseRecord]) -> list[Pair]:
    """Ours and each rival with a speed, a pair a case and rival."""
    found = []
    for record in records:
        rivals = [r.label for r in record.systems if r.status == "ok" and not r.slow and not is_twin(r.label)]
        found += [_logs(record, OURS, label) for label in rivals if label != OURS and OURS in rivals]
    return [pair for pair in found if len(pair[0])]


def same_pairs(records: Sequence[CaseRecord]) -> list[Pair]:
    """Every system and its twin."""
    labels = [[r.label for r in record.systems if r.status == "ok"] for record in records]
    pairs = [(r, *pair) for r, names in zip(records, labels, strict=True) for pair in twin_pairs(names)]
    return [_logs(*pair) for pair in pairs]


def _logs(record: CaseRecord, ours: str, rival: str) -> Pair:
    """Whole rounds only: a missing block leaves its round out."""
    blocks = paired_blocks(record, ours, rival)
    whole = ~np.isnan(blocks).any(axis=(0, 2))
    logs = np.log(blocks[:, whole])
    return logs[0], logs[1]


def halved_readings(records: Sequence[CaseRecord]) -> tuple[int, int]:
    """How many of the sentinel's readings were made at half speed, and how many there are."""
    halved = total = 0
    for record in records:
        rates = [c.sentinel.flops_per_s for r in record.rounds for c in r.cycles if c.sentinel]
        halved += sum(rate < HALVED * max(rates) for rate in rates)
        total += len(rates)
    return halved, total


def judge_estimators(rivals: Sequence[Pair], same: Sequence[Pair], halved: float) -> Iterator[Judged]:
    """Each of ESTIMATORS on the rivals' rounds and on A/A; `halved` is the chance of a block to run at half speed."""
    for name, summed in ESTIMATORS.items():
        rng = np.random.default_rng(0)
        values = [summed(*pair) for pair in rivals]
        widths = [math.log(e.high / e.low) / 2 for v in values if (e := estimate(v)).low and e.high]
        alarms = sum((e.p_value or 0) < 1 - CONFIDENCE for e in (estimate(summed(*pair)) for pair in same))
        struck = np.quantile(np.concatenate([_struck(summed, *pair) for pair in rivals]), (0.5, 0.95))
        yield Judged(
            name,
            alarms,
            len(same),
            float(np.sqrt(np.mean([v.var(ddof=1) for v in values]))),
            float(np.median(widths)),
            (float(struck[0]), float(struck[1])),
            _coverage(summed, same, halved, rng),
        )


def _struck(summed: Summed, ours: np.ndarray, rival: np.ndarray) -> np.ndarray:
    """What each block of ours moves its round's value by when it takes half or twice its time."""
    plain, moves = summed(ours, rival), []
    for cycle in range(ours.shape[1]):
        for shift in (-math.log(2), math.log(2)):
            other = ours.copy()
            other[:, cycle] += shift
            moves.append(np.abs(summed(other, rival) - plain))
    return np.concatenate(moves)


def _coverage(summed: Summed, same: Sequence[Pair], halved: float, rng: np.random.Generator) -> float:
    """How often the interval of an A/A comparison holds 1: blocks halved at random, the twins of each round swapped at
    random, which changes nothing between equals.
    """
    held = []
    for pair in same:
        swaps = DRAWS // 20, len(pair[0])
        struck = [logs + np.where(rng.random((swaps[0], *logs.shape)) < halved, math.log(2), 0) for logs in pair]
        held.append(~_differs(summed(*struck) * rng.choice((-1, 1), swaps), 1))
    return float(np.mean(held))


def _differs(values: np.ndarray, comparisons: int) -> np.ndarray:
    """Whether the t test of the rounds (last axis) finds a difference as the hardest of so many."""
    mean, error, critical = _test(values, comparisons)
    return np.asarray(np.abs(mean) > critical * error)


def _test(values: np.ndarray, comparisons: int) -> tuple[np.ndarray, np.ndarray, float]:
    rounds = values.shape[-1]
    error = values.std(axis=-1, ddof=1) / math.sqrt(rounds)
    return values.mean(axis=-1), error, float(stats.t.isf((1 - CONFIDENCE) / 2 / comparisons, rounds - 1))


def cost_of(record: CaseRecord) -> Cost:
    """From what a case took: its blocks, repeats too, and the sentinel are cycles; the rest is starting systems.

    Records from before starts were kept have one for the check of each system and one a round.
    """
    cycles = [cycle for one in record.rounds for cycle in one.cycles]
    timed = sum(b.disturbance.elapsed_s for cycle in cycles for b in cycle.blocks)
    timed += SENTINEL_S * sum(cycle.sentinel is not None for cycle in cycles)
    rounds = record.settings.rounds
    starts = max(len(row.starts) for row in record.systems) or rounds + 1
    return Cost((record.wall_s - timed) / starts, timed / (rounds * record.settings.cycles))


def judge_designs(
    sizes: Sequence[tuple[int, int]], rivals: Sequence[Pair], same: Sequence[Pair], costs: Sequence[Cost], table: int
) -> Iterator[Design]:
    """Rounds and cycles, `table` being how many comparisons Holm's adjustment is over.

    Rounds and cycles are drawn from what the records hold: rounds' medians, shrunk so that both levels keep their
    variance, plus what cycles differ by from them (A. C. Davison and D. V. Hinkley, Bootstrap Methods and their
    Application, 1997, section 3.8).
    """
    for rounds, cycles in sizes:
        rng = np.random.default_rng(0)
        drawn = np.concatenate([_redrawn(rival - ours, rounds, cycles, rng) for ours, rival in rivals])
        mean, error, critical = _test(drawn, table)
        needed = float(np.quantile(critical * error - mean, POWER))
        alone = np.concatenate([_redrawn(twin - ours, rounds, cycles, rng) for ours, twin in same])
        minutes = sum(cost.minutes(rounds, cycles) for cost in costs)
        yield Design(rounds, cycles, minutes, math.expm1(needed), float(_differs(alone, 1).mean()))


def _redrawn(ratios: np.ndarray, rounds: int, cycles: int, rng: np.random.Generator) -> np.ndarray:
    """Round values, shape (DRAWS, rounds), of a comparison without a difference that varies as `ratios` (logs) do."""
    kept = ratios.shape[1]
    medians = np.median(ratios, axis=1)
    residuals = (ratios - medians[:, None]).ravel() * math.sqrt(kept / (kept - 1))
    within = np.median(rng.choice(residuals, (DRAWS, kept)), axis=1).var()
    between = max(0.0, 1 - within / medians.var(ddof=1)) if medians.var() > 0 else 0.0
    effects = (medians - medians.mean()) * math.sqrt(between)
    values = rng.choice(effects, (DRAWS, rounds)) + np.median(rng.choice(residuals, (DRAWS, rounds, cycles)), axis=2)
    return np.asarray(values * rng.choice((-1, 1), (DRAWS, 1)))


POOLED: dict[str, Callable[[Sequence[np.ndarray]], Estimate]] = {
    "rounds as if of one run": lambda runs: estimate(np.concatenate(runs)),
    "means of runs alone": lambda runs: estimate(np.array([values.mean() for values in runs])),
    "both levels": pooled_estimate,
}
"""Ways from several runs to an interval. The last one is used."""


def pooled_ways(runs: int, rounds: int, added: float) -> dict[str, tuple[float, float]]:
    """For each of POOLED how often the interval holds the truth, and its median half-width, where the deviation between
    runs is `added` times that between rounds; half-widths are in deviations between rounds.
    """
    rng = np.random.default_rng(0)
    drawn = rng.normal(0, 1, (DRAWS, runs, rounds)) + rng.normal(0, 1, (DRAWS, runs, 1)) * added
    found = {}
    for name, pooled in POOLED.items():
        ends = [(math.log(e.low or 1), math.log(e.high or 1)) for e in map(pooled, drawn)]
        held = sum(low <= 0 <= high for low, high in ends)
        found[name] = held / DRAWS, float(np.median([(high - low) / 2 for low, high in ends]))
    return found


def run_ratios(runs: Sequence[Table]) -> list[float]:
    """How much the means of the runs vary over how much rounds within a run make them vary, for each comparison: about
    1 where runs add nothing.
    """
    found = []
    for key in runs[0].values:
        each = [run.values[key] for run in runs if key in run.values]
        within = float(np.mean([values.var(ddof=1) / len(values) for values in each]))
        if len(each) == len(runs) and within > 0:
            found.append(float(np.var([values.mean() for values in each], ddof=1)) / within)
    return found
