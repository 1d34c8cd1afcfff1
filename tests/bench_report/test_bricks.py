"""Networks rebuilt from bricks, bounds and advice, from records with times that can be added up by hand."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from bench_report.bricks import LAYERS, MODEL, times

from mononn_bench.analysis.advice import advise, type_rates
from mononn_bench.analysis.bricks import accuracies, bound, brick_rows, rebuild
from mononn_bench.bricked import BrickedModel, BrickTime
from mononn_bench.codec import read_record, write_record
from mononn_bench.measure.environment import describe_machine
from mononn_bench.profiled import Primitives, Reading
from mononn_bench.report.bricks import accuracy_grid, advice_grid, bound_grid, brick_grids
from mononn_bench.report.figures.bricks import bricks_figure
from mononn_bench.report.figures.style import styled
from mononn_bench.report.names import report_files
from mononn_bench.report.write import write_report


def test_a_network_is_its_bricks_without_what_calls_cost_but_for_one() -> None:
    rows = {(row.system, row.length): row for row in rebuild([MODEL])}
    assert rows["mononn", 1].rebuilt_s == pytest.approx(10.5e-3)  # 2 x (4 + 1) + 0.5
    assert rows["mononn", 2].rebuilt_s == pytest.approx(10.1e-3)  # 2 x 4.8 + 0.5
    assert rows["rival", 1].rebuilt_s == pytest.approx(11e-3)  # 2 x (2 + 3) + 1
    assert rows["rival", 2].error == pytest.approx(11 / 14 - 1)
    assert (rows["rival", 2].bricks, rows["rival", 2].different) == (2, 1)


def test_accuracy_counts_models_and_different_bricks() -> None:
    other = replace(MODEL, model="other", systems=tuple(
        replace(s, times={**s.times, **times({"net": 20.0})}) for s in MODEL.systems))  # fmt: skip
    found = {(one.system, one.length): one for one in accuracies([MODEL, other])}
    ours = found["mononn", 2]
    assert (ours.models, ours.within_5, ours.within_10) == (2, 0.5, 0.5)
    assert (ours.smallest, ours.largest) == pytest.approx((10.1 / 20 - 1, 10.1 / 10.5 - 1))
    assert ours.saved == pytest.approx((10.5 + 20) / 5.3)  # one brick, measured once for both
    assert ours.wall_saved == pytest.approx(2.0)


def test_a_brick_without_a_time_is_no_zero() -> None:
    failed = {**MODEL.systems[1].times, "relu": BrickTime("failed", "ValueError: no Relu")}
    found = replace(MODEL, systems=(MODEL.systems[0], replace(MODEL.systems[1], times=failed)))
    row = next(row for row in rebuild([found]) if row.system == "rival")
    assert (row.rebuilt_s, row.error) == (None, None)
    assert row.reason == "2 bricks have no time; the first, Relu: ValueError: no Relu"
    assert row.reason in accuracy_grid([found]).notes[1]
    assert bound(found).sum_s == pytest.approx(6e-3)  # the other's Relu, 1, and this one's Conv, 2
    none = replace(MODEL, systems=(replace(MODEL.systems[0], times={}, reason="not installed"),))
    assert bound(none).missing == 4
    assert "4 layers have no time" in bound_grid([none]).notes[1]
    assert advise(none, "mononn") == []


def test_the_bound_takes_each_layer_by_the_fastest_and_the_longest_way() -> None:
    found = bound(MODEL)
    assert found.sum_s == pytest.approx(6e-3)
    assert found.path_s == pytest.approx(3e-3)
    assert found.roofline_s == pytest.approx(2 * (2e-3 + 1e-6))  # 2 MFLOP, and 1000 bytes, at 1e9 a second
    assert {one.brick.key: (one.best, one.count) for one in found.layers} == {
        "conv": ("rival", 2),
        "relu": ("mononn", 2),
    }
    assert found.layers_s == pytest.approx({"mononn": 10.5e-3, "rival": 11e-3})
    assert bound_grid([MODEL]).rows[0][-1] == "1.75"


def test_advice_says_what_would_be_gained() -> None:
    found = {one.kind: one for one in advise(MODEL, "mononn")}
    assert found["algorithm"].gain_s == pytest.approx(4e-3)  # 2 x (4 - 2)
    assert found["algorithm"].what == "as rival: 2.00 times as fast, 100% of the roofline"
    assert found["padding"].gain_s == pytest.approx(4e-3)  # 2 x (4 - 2)
    assert found["fusion"].gain_s == pytest.approx(1.6e-3)  # 2 x (4.8 - 4): a pair takes 4.8, its layers 5
    assert "framework" not in found  # the run takes no longer than its layers
    rival = {one.kind: one for one in advise(MODEL, "rival")}
    assert rival["framework"].gain_s == pytest.approx(3e-3)
    assert rival["algorithm"].where == "2 x Relu (b, 0.001 MB)"
    assert found["algorithm"].share == pytest.approx(4 / 10.5)


def test_types_that_machines_multiply_faster_are_advice_for_products() -> None:
    readings = (
        Reading("peak", "float32, mulps", 1, "op/s", (5e9,)),
        Reading("peak", "float32, fma", 1, "op/s", (10e9, 11e9, 10e9)),
        Reading("peak", "float32, fma", 2, "op/s", (20e9,)),
        Reading("peak", "int8, dot", 1, "op/s", (25e9,)),
        Reading("peak", "int8, half (AVX2, sums of 16 bits)", 1, "op/s", (40e9,)),
        Reading("peak", "int16, words", 1, "op/s", (15e9,)),
    )
    rates = type_rates(Primitives("now", describe_machine(), "here", (0, 1), readings, "r"))
    assert rates == {"int8": 2.5}
    found = {one.kind: one for one in advise(MODEL, "mononn", rates)}
    assert found["type"].gain_s == pytest.approx(2 * 4e-3 * 0.6)
    assert (found["type"].where, found["type"].what) == ("2 products and convolutions", "in int8: 2.50 times as fast")
    assert "type" not in {one.kind for one in advise(MODEL, "mononn")}
    ours = MODEL.systems[0]
    shorter = replace(MODEL, systems=(replace(ours, times={**ours.times, **times({"net": 5.25})}),))
    found = {one.kind: one for one in advise(shorter, "mononn", rates)}
    assert found["type"].gain_s == pytest.approx(4e-3 * 0.6)  # half the time of its layers


def test_pairs_that_are_fused_or_end_in_a_product_are_no_advice() -> None:
    ours = MODEL.systems[0]
    fused = replace(MODEL, systems=(replace(ours, times={**ours.times, **times({"conv+relu": 4.6})}),))
    assert "fusion" not in {one.kind for one in advise(fused, "mononn")}
    alone = replace(MODEL, layers=tuple(replace(one, reads=()) for one in LAYERS))
    assert "fusion" not in {one.kind for one in advise(alone, "mononn")}
    turned = tuple(replace(one, operator={"Conv": "Relu", "Relu": "Conv"}[one.operator]) for one in LAYERS)
    before, single, pairs = MODEL.cuts
    last = replace(MODEL, layers=turned, cuts=(before, replace(single, keys=("relu", "conv") * 2), pairs))
    assert "fusion" not in {one.kind for one in advise(last, "mononn")}


def test_bricks_alone_make_a_report(tmp_path: Path) -> None:
    write_record(MODEL, tmp_path / "bricks" / "net.json")
    assert read_record(BrickedModel, tmp_path / "bricks" / "net.json") == MODEL
    given = Primitives("now", describe_machine(), "here", (0, 1), (Reading("barrier", "a flag", 2, "s", (4e-8,)),), "r")
    write_record(given, tmp_path / "primitives.json")
    write_report([], tmp_path, tmp_path / "primitives.json")
    assert "40 ns" in (tmp_path / "tables" / "machine.md").read_text()
    page = (tmp_path / "report.html").read_text()
    titles = [grid.title for grid in brick_grids([MODEL])]
    assert len(titles) == 4
    assert all(title in page for title in titles)
    assert "Inference speed on here" in page
    assert 'id="figure-bricks"' in page
    assert all((tmp_path / name).exists() for name in report_files([], ["mononn", "rival"], bricks=True))
    assert "Every value" not in page and "0 cases" not in page
    assert "What here gives" in page
    text = (tmp_path / "tables" / "bricks.md").read_text()
    assert "| mononn | 1      | 1        | 100%       |" in text
    with (tmp_path / "tables" / "bricks.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(brick_rows([MODEL])) == 2 * (1 + 2 + 1)
    assert {row["count"] for row in rows if row["length"] == "2"} == {"2"}


def test_the_figure_counts_networks_within_an_error() -> None:
    rows = rebuild([MODEL, replace(MODEL, systems=())])
    with styled():
        figure = bricks_figure([*rows, replace(rows[0], error=0.2), replace(rows[0], error=None)])
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert list(panels) == ["mononn", "rival"]
    first = panels["mononn"].get_lines()[2]
    assert first.get_label() == "1 layer (2)"
    error = abs(rows[0].error or 0) * 100
    assert first.get_xydata().tolist() == [[0, 0], [error, 50], [20, 100], [50, 100]]
    nothing = bricks_figure([replace(row, error=None) for row in rows])
    assert all("could be rebuilt" in axes.texts[0].get_text() for axes in nothing.axes)


def test_advice_is_for_systems_with_times() -> None:
    assert not advice_grid([replace(MODEL, systems=MODEL.systems[1:])], "mononn").rows
