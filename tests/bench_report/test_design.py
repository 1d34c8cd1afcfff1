"""The choice of estimator, rounds and cycles: simulated on records whose noise is known."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_report.records import a_case, same_system_runs

from mononn_bench.analysis import design, stats
from mononn_bench.cli import main
from mononn_bench.record import SentinelReading, Start, write_record
from mononn_bench.report.design import simulation
from mononn_bench.report.readme import with_simulation

ROOT = Path(__file__).resolve().parents[2]
TRIO = {"mononn": 1e-3, "onnxruntime": 2e-3, "openvino": 1.5e-3}


def noisy_pair(rounds, cycles, between, within, seed=0):
    rng = np.random.default_rng(seed)
    blocks = rng.normal(0, within / math.sqrt(2), (2, rounds, cycles))
    return blocks[0], blocks[1] + rng.normal(0, between, (rounds, 1))


def test_walsh_medians_by_brute_force():
    logs = np.random.default_rng(1).normal(size=(5, 4))
    for row, found in zip(logs, design.walsh_median(logs), strict=True):
        assert found == pytest.approx(np.median([(row[i] + row[j]) / 2 for i in range(4) for j in range(i, 4)]))


def test_the_estimator_in_use_is_one_of_those_judged():
    ours, rival = noisy_pair(6, 5, 0.1, 0.1)
    used = stats.round_values(np.exp(ours), np.exp(rival))
    np.testing.assert_allclose(design.ESTIMATORS["median of ratios"](ours, rival), used)


def test_what_one_block_moves():
    judged = {j.name: j for j in design.judge_estimators([noisy_pair(200, 4, 0.0, 0.01)], [noisy_pair(4, 4, 0, 1)], 0)}
    assert judged["mean of ratios"].struck == pytest.approx((math.log(2) / 4,) * 2)
    assert judged["median of ratios"].struck[1] < 0.02
    assert judged["ratio of minima"].struck[1] > 0.6
    assert judged["mean of ratios"].spread == pytest.approx(0.01 / 2, rel=0.1)


def test_halved_blocks_widen_the_mean_and_spare_the_median():
    rng = np.random.default_rng(2)
    rivals = []
    for ours, rival in (noisy_pair(8, 4, 0.005, 0.01, seed) for seed in range(40)):
        rivals.append((ours + np.where(rng.random(ours.shape) < 0.02, math.log(2), 0), rival))
    judged = {j.name: j for j in design.judge_estimators(rivals, [noisy_pair(4, 4, 0, 0.01)], 0.02)}
    assert judged["median of ratios"].spread < 0.5 * judged["mean of ratios"].spread
    assert judged["median of ratios"].coverage > 0.9


def test_false_alarms_are_counted_by_the_unadjusted_test():
    same = [(np.zeros((4, 3)), np.full((4, 3), shift) + np.arange(4)[:, None] * 0.01) for shift in (0.5, -0.015)]
    assert {(j.alarms, j.comparisons) for j in design.judge_estimators([noisy_pair(8, 3, 0, 1)], same, 0)} == {(1, 2)}


@pytest.mark.parametrize(("cycles", "variance_of_median"), [(1, 1.0), (3, 0.4487), (4, 0.2982), (5, 0.2868)])
def test_designs_are_as_good_as_theory_says(cycles, variance_of_median):
    pairs = [noisy_pair(400, 4, 0.01, 0.03, seed) for seed in range(20)]
    (found,) = design.judge_designs([(6, cycles)], pairs, [noisy_pair(400, 4, 0, 0.01)], [], 24)
    spread = math.sqrt(0.01**2 + variance_of_median * 0.03**2)
    e = stats.Estimate(1.0, None, None, None, spread / math.sqrt(6), 5, 6)
    assert math.log1p(found.detectable) == pytest.approx(math.log(stats.smallest_detectable([e], 24)), rel=0.05)
    assert found.alarms == pytest.approx(0.05, abs=0.02)


def test_what_a_case_costs_comes_from_its_record():
    record = a_case(
        "mlp", TRIO, rounds=5
    )  # 5 x 4 cycles of three blocks and a repeated one, 0.2 s each, and 60 s in all
    cost = design.cost_of(record)
    assert cost.cycle_s == pytest.approx(0.8)
    assert cost.start_s == pytest.approx((60 - 20 * 0.8) / 6)
    assert cost.minutes(5, 4) == pytest.approx((60 - cost.start_s) / 60), "a check apart costs a start, and is no more"
    five = tuple(replace(row, starts=(Start("warm", 1.0, 1.0, 1.0, 1.0, 0.0),) * 5) for row in record.systems)
    assert design.cost_of(replace(record, systems=five)).minutes(5, 4) == pytest.approx(1)


def test_readings_at_half_speed_are_counted_against_the_best_of_their_case():
    record = a_case("mlp", TRIO, rounds=2)
    rates = iter([1e11, 0.9e11, 0.5e11, 1e11, 1e11, 0.52e11, 0.75e11, 1e11])
    rounds = [
        replace(r, cycles=tuple(replace(c, sentinel=SentinelReading(next(rates), 1, 1)) for c in r.cycles))
        for r in record.rounds
    ]
    assert design.halved_readings([replace(record, rounds=tuple(rounds)), record]) == (2, 8)


def test_rounds_of_several_runs_are_not_those_of_one():
    alike, different = (design.pooled_ways(3, 8, added) for added in (0.0, 1.0))
    assert different["rounds as if of one run"][0] < 0.7 < 0.9 < different["both levels"][0]
    assert alike["rounds as if of one run"][1] < alike["both levels"][1] < alike["means of runs alone"][1]


def publish(reference, model="mlp"):
    for run in (1, 2):
        record = a_case(model, TRIO, seed=run)
        sentinel = SentinelReading(1e11, 1, 1)
        cycles = tuple(replace(c, sentinel=sentinel) for c in record.rounds[0].cycles)
        record = replace(record, rounds=(replace(record.rounds[0], cycles=cycles), *record.rounds[1:]))
        write_record(record, reference / "m" / f"run-{run}" / "raw" / "mlp.json")
    for i, record in enumerate(same_system_runs(model, 1e-3, 3)):
        write_record(record, reference / "m" / "suites" / "aa" / "raw" / f"{i}.json")


def test_the_command_prints_its_three_tables(tmp_path, capsys):
    publish(tmp_path)
    assert main(["simulate", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("####") == 3
    assert "0 of 8 readings of the sentinel" in printed and re.search(r"median of ratios +\| \d of 3 ", printed)
    assert "hardest of 2 comparisons" in printed


def test_nothing_to_simulate_is_said(tmp_path, capsys):
    assert main(["simulate", str(tmp_path)]) == 2
    assert "has no machine with published runs" in capsys.readouterr().err


def test_the_document_holds_what_the_command_prints():
    text = (ROOT / "docs" / "measuring.md").read_text()
    assert with_simulation(text, simulation(ROOT / "results" / "reference")) == text
