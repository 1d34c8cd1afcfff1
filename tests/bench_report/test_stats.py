"""The statistics against brute force, against their definitions, and against simulation."""

import itertools
import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats as scipy_stats

from mononn_bench.analysis import stats

seconds = st.floats(1e-6, 10.0)
shapes = st.tuples(st.integers(3, 8), st.integers(1, 5))


@st.composite
def paired(draw):
    shape = draw(shapes)
    return draw(arrays(float, shape, elements=seconds)), draw(arrays(float, shape, elements=seconds))


@given(paired())
def test_the_estimate_is_the_mean_over_rounds_of_the_median_over_cycles(pair):
    ours, rival = pair
    rounds = []
    for mine, theirs in zip(ours, rival, strict=True):
        rounds.append(median(math.log(t / m) for m, t in zip(mine, theirs, strict=True)))
    found = stats.estimate(stats.round_values(ours, rival))
    assert found.ratio == pytest.approx(math.exp(sum(rounds) / len(rounds)), rel=1e-9)
    if np.std(rounds) > 1e-9:
        expected = scipy_stats.ttest_1samp(rounds, 0.0)
        interval = expected.confidence_interval(0.95)
        assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
        assert math.log(found.low) == pytest.approx(interval.low, rel=1e-6, abs=1e-9)
        assert math.log(found.high) == pytest.approx(interval.high, rel=1e-6, abs=1e-9)


@given(paired())
def test_swapping_the_two_inverts_the_ratio_and_its_interval(pair):
    ours, rival = pair
    there, back = (stats.estimate(stats.round_values(a, b)) for a, b in ((ours, rival), (rival, ours)))
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)
    assert there.high * back.low == pytest.approx(1)


@given(paired(), st.data())
def test_drift_common_to_a_cycle_cancels(pair, data):
    ours, rival = pair
    drift = data.draw(arrays(float, ours.shape, elements=st.floats(0.1, 10)))
    plain, drifted = stats.round_values(ours, rival), stats.round_values(ours * drift, rival * drift)
    np.testing.assert_allclose(drifted, plain, rtol=1e-9, atol=1e-9)


def test_a_missing_block_leaves_its_cycle_out_and_an_empty_round_is_no_round():
    ours = np.array([[1.0, 1.0], [1.0, np.nan], [np.nan, np.nan]])
    rival = np.array([[2.0, 8.0], [2.0, 4.0], [1.0, 1.0]])
    np.testing.assert_allclose(stats.round_values(ours, rival), [math.log(4), math.log(2)])


@pytest.mark.parametrize("cycles", [3, 4, 5])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_no_single_block_sets_a_round(cycles, factor):
    rng = np.random.default_rng(cycles)
    ours, rival = (np.exp(rng.normal(0, 0.01, (200, cycles))) for _ in range(2))
    struck = ours.copy()
    struck[np.arange(200), rng.integers(0, cycles, 200)] *= factor
    moved = np.abs(stats.round_values(struck, rival) - stats.round_values(ours, rival))
    assert moved.max() < 0.05 < abs(math.log(factor)) / cycles


@pytest.mark.parametrize(("ours", "rival"), [([1.0], [1.0]), ([[1.0]], [[1.0, 2.0]]), ([[0.0]], [[1.0]])])
def test_blocks_that_cannot_be_paired_are_refused(ours, rival):
    with pytest.raises(ValueError, match=r"paired blocks|positive"):
        stats.round_values(np.array(ours), np.array(rival))


def test_fewer_than_three_rounds_have_no_interval_and_no_verdict():
    found = stats.estimate(np.array([0.5, 0.6]))
    assert (found.low, found.high, found.p_value) == (None, None, None)
    assert stats.verdicts([found]) == [None]


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p_values):
    indices = range(len(p_values))
    subsets = [s for size in indices for s in itertools.combinations(indices, size + 1)]
    closed = [
        max((min(1.0, len(s) * min(p_values[j] for j in s)) for s in subsets if i in s), default=0.0) for i in indices
    ]
    assert stats.holm(p_values) == pytest.approx(closed)


@pytest.mark.parametrize(
    ("logs", "verdict"),
    [
        ([0.50, 0.51, 0.49, 0.50], "faster"),
        ([-0.50, -0.51, -0.49, -0.50], "slower"),
        ([0.004, -0.005, 0.003, -0.002], "tie"),
        ([0.30, -0.20, 0.25, -0.10], "unresolved"),
        ([0.0, 0.0, 0.0, 0.0], "tie"),
    ],
)
def test_verdicts(logs, verdict):
    assert stats.verdicts([stats.estimate(np.array(logs))]) == [verdict]


def test_a_verdict_is_adjusted_over_the_table():
    doubtful = stats.estimate(np.array([0.10, 0.05, 0.12, 0.04]))
    assert 0.02 < doubtful.p_value < 0.05
    noise = [stats.estimate(np.array([0.3, -0.3, 0.2, -0.1])) for _ in range(3)]
    assert stats.verdicts([doubtful]) == ["faster"]
    assert stats.verdicts([doubtful, *noise])[0] == "unresolved"


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(7)
    covered = [
        found.low <= 1.3 <= found.high
        for found in (stats.estimate(rng.normal(math.log(1.3), 0.02, 4)) for _ in range(4000))
    ]
    assert 0.94 < np.mean(covered) < 0.96


def test_the_best_rival_is_the_minimum_and_its_interval_covers_the_minimum():
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(1500):
        rivals = {name: stats.estimate(rng.normal(math.log(1.2), 0.03, 4)) for name in "abc"}
        name, found = stats.best_rival(rivals)
        assert found.ratio == min(e.ratio for e in rivals.values()) == rivals[name].ratio
        hits += found.low <= 1.2 <= found.high
    assert hits / 1500 > 0.945


def test_no_rival_no_best_rival():
    with pytest.raises(ValueError, match="no rival"):
        stats.best_rival({})


@given(st.integers(1, 120), st.data())
def test_clopper_pearson_by_its_definition(total, data):
    count = data.draw(st.integers(0, total))
    rate = stats.false_positive_rate(count, total)
    if count > 0:
        assert scipy_stats.binom.sf(count - 1, total, rate.low) == pytest.approx(0.025, rel=1e-4)
    if count < total:
        assert scipy_stats.binom.cdf(count, total, rate.high) == pytest.approx(0.025, rel=1e-4)


@pytest.mark.parametrize("comparisons", [1, 24])
def test_smallest_detectable_difference_is_found_four_times_in_five_by_the_adjusted_test(comparisons):
    rng = np.random.default_rng(3)
    typical = replace(stats.estimate(rng.normal(0, 0.02, 6)), error=0.02 / math.sqrt(6))
    shift = math.log(stats.smallest_detectable([typical], comparisons))
    equal = [stats.estimate(rng.normal(0, 1, 6)) for _ in range(comparisons - 1)]
    equal = [replace(e, p_value=1.0) for e in equal]
    found = [stats.verdicts([stats.estimate(rng.normal(shift, 0.02, 6)), *equal])[0] for _ in range(3000)]
    assert 0.77 < np.mean([verdict == "faster" for verdict in found]) < 0.83
    assert stats.smallest_detectable([stats.estimate(np.array([0.1, 0.2]))]) is None


def test_one_run_pooled_is_that_run():
    values = np.array([0.10, 0.05, 0.12, 0.04])
    assert stats.pooled_estimate([values]) == stats.estimate(values)
    assert stats.pooled_estimate([values, np.empty(0)]) == stats.estimate(values)


def test_pooled_runs_by_hand():
    runs = [np.array([0.1, 0.3]), np.array([0.2, 0.6]), np.array([0.3, 0.9])]
    found = stats.pooled_estimate(runs)
    between, within = 0.04 / 3, (0.02 + 0.08 + 0.18) / 3 / 6  # of the means 0.2, 0.4, 0.6; of rounds about them
    freedom = (between + within) ** 2 / (between**2 / 2 + within**2 / 3)
    assert math.log(found.ratio) == pytest.approx(0.4)
    assert found.error == pytest.approx(math.sqrt(between + within))
    assert found.freedom == pytest.approx(freedom)
    half = scipy_stats.t.ppf(0.975, freedom) * found.error
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((0.4 - half, 0.4 + half))
    assert found.p_value == pytest.approx(2 * scipy_stats.t.sf(0.4 / found.error, freedom))
    assert found.rounds == 6


@pytest.mark.parametrize("run_spread", [0.0, 0.01, 0.03])
def test_pooled_intervals_cover_the_truth_whatever_the_runs_add(run_spread):
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(1500):
        runs = [rng.normal(0.1 + rng.normal(0, run_spread), 0.03, 8) for _ in range(3)]
        found = stats.pooled_estimate(runs)
        hits += found.low <= math.exp(0.1) <= found.high
    assert hits / 1500 > 0.92


def test_geometric_mean_takes_one_value_a_network_and_carries_every_error():
    bert = [exact(2.0, error=0.02), exact(8.0, error=0.02)]
    ratios = {"bert": bert, "mlp": [exact(1.0, error=0.03)], "vit": []}
    found = stats.geometric_mean(ratios, ["bert", "mlp", "vit"])
    assert (found.count, found.total) == (2, 3)
    assert found.value == pytest.approx(2.0)
    parts = [(0.02 / 4) ** 2, (0.02 / 4) ** 2, (0.03 / 2) ** 2]
    freedom = sum(parts) ** 2 / sum(p**2 / 7 for p in parts)
    half = scipy_stats.t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((math.log(2) - half, math.log(2) + half))
    assert stats.geometric_mean({}, ["bert"]) is None
    assert stats.geometric_mean({"mlp": [stats.estimate(np.array([0.1]))]}, ["mlp"]).low is None


def exact(ratio, error):
    return stats.Estimate(ratio, None, None, 0.5, error, 7, 8)


@pytest.mark.parametrize(("quantile", "least"), [(0.5, 6), (0.9, 36), (0.05, 72), (0.95, 72), (0.99, 368)])
def test_a_quantile_needs_samples_on_both_sides(quantile, least):
    def both_ends_exist(samples):
        counts = scipy_stats.binom(samples, quantile)
        return counts.pmf(0) <= 0.025 and counts.pmf(samples) <= 0.025

    assert stats.supports(quantile, least) and both_ends_exist(least)
    assert not stats.supports(quantile, least - 1) and not both_ends_exist(least - 1)
