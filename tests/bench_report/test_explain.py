"""Explaining a ratio: spans become steps, steps name nodes, and two systems' steps meet in regions that share both."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from bench_report.profiles import CHAIN, HEAVY, OURS, THEIRS, a_profile, node
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, save

from mononn_bench.analysis.layers import kernels, kinds, layers
from mononn_bench.analysis.regions import alike, regions
from mononn_bench.profile.nodes import model_nodes, outputs_by_node, with_nodes
from mononn_bench.profile.profilers import _named_after
from mononn_bench.profile.steps import steps_of
from mononn_bench.profile.subject import Seen
from mononn_bench.profiled import CaseProfile, EventCount, Kernel, ModelNode, ProfileRecord, Span, Step
from mononn_bench.report.explain import (
    NotNamedError,
    explain_grid,
    fastest_rival,
    layer_grid,
    levels_grid,
    rivals,
)
from mononn_bench.report.layers import layer_grids
from mononn_bench.report.write import write_profiles


def test_a_step_on_one_track_takes_its_spans_and_what_lies_inside_is_none() -> None:
    first = [Span("a", "k", "t", 0, 10), Span("inside", "i", "t", 2, 5), Span("b", "m", "t", 12, 4)]
    again = [Span("a", "k", "t", 0, 20), Span("b", "m", "t", 20, 6), Span("b", "m", "t", 30, 9)]
    steps = steps_of(Seen([first, again, again], {"a": ("n1", "n2")}))
    assert [(s.name, s.kind, s.nodes) for s in steps] == [("a", "k", ("n1", "n2")), ("b", "m", ()), ("b", "m", ())]
    assert [s.seconds for s in steps] == pytest.approx([50e-9 / 3, 16e-9 / 3, 9e-9])


def test_a_step_that_workers_share_takes_from_the_last_end_to_the_last_end() -> None:
    run = [
        Span("p0", "k", "worker 0", 0, 10), Span("wait for p1", "wait", "worker 0", 10, 5),
        Span("p1", "k", "worker 0", 15, 5), Span("p0", "k", "worker 1", 0, 14), Span("p1", "k", "worker 1", 15, 9),
    ]  # fmt: skip
    assert [(s.name, s.seconds) for s in steps_of(Seen([run]))] == [
        ("p0", pytest.approx(14e-9)),
        ("p1", pytest.approx(10e-9)),
    ]


def test_threads_with_work_of_their_own_have_no_steps() -> None:
    assert steps_of(Seen([[Span("a", "k", "t", 0, 10)]], in_order=False)) == ()


def test_a_step_has_the_nodes_that_make_its_tensors_or_those_it_names() -> None:
    said, made = Step("x", "k", 1.0, ("Multiply_7", "relu1")), Step("SkipNorm_token_4", "k", 1.0, ("add1",))
    none, chance = Step("gemm_reshape_token_3", "k", 1.0), Step("matmul1", "k", 1.0)  # such as a function of TVM's
    found = with_nodes([said, made, none, chance], CHAIN, {"SkipNorm_token_4": ("norm1",)})
    assert [s.nodes for s in found] == [("relu1",), ("norm1",), (), ()]


@pytest.mark.parametrize(
    "name", ["relu1", "relu1_nchwc", "fused relu1", "relu1/MatMulAddFusion", "relu1_nchwc_token_12"]
)
def test_onnxruntimes_names_come_from_the_models(name: str) -> None:
    assert _named_after(name) == "relu1"


def test_the_nodes_of_a_model_have_arithmetic_and_bytes(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 5], [0.0] * 15)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 3]), ("y", [2, 5]))]
    made = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["r"], name="twice"),
        helper.make_node("Relu", ["r"], ["s"], name="twice"),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    save(helper.make_model(helper.make_graph(made, "g", values[:1], values[1:], [weight])), tmp_path / "m.onnx")
    assert model_nodes(tmp_path / "m.onnx") == (
        ModelNode("product", "MatMul", ("x",), ("h",), 60, 40, 60),
        ModelNode("r", "Relu", ("h",), ("r",), 0, 40, 0),
        ModelNode("s", "Relu", ("r",), ("s",), 0, 40, 0),
        ModelNode("y", "Relu", ("s",), ("y",), 0, 40, 0),
    )
    assert outputs_by_node(tmp_path / "m.onnx")["product"] == ("h",)
    assert outputs_by_node(tmp_path / "none.onnx") == {}


def test_regions_share_products_and_the_rest_lies_where_ours_computes_it() -> None:
    first, second = regions(CHAIN, OURS, THEIRS)
    assert [n.name for n in first.nodes] == ["matmul1", "add1", "relu1"]
    assert [s.name for s in (*first.theirs.products, *first.theirs.rest)] == ["a", "b"]
    assert [s.name for s in (*second.theirs.products, *second.theirs.rest)] == ["c", "reorder", "d"]
    assert (first.flops, first.ours.seconds, first.theirs.seconds) == (HEAVY, 1e-3, pytest.approx(2.5e-3))
    assert first.gained_s == pytest.approx(1.5e-3)
    assert second.gained_s == pytest.approx(-0.2e-3)
    # theirs stores the products' results and those of relu and norm; ours what each phase ends with
    assert (first.ours.stored, first.theirs.stored) == (1, 2)
    assert (second.ours.stored_bytes, second.theirs.stored_bytes) == (4000, 8000)


def test_a_step_of_theirs_that_spans_two_of_ours_joins_them() -> None:
    whole = [Step("all", "Fused", 5e-3, tuple(n.name for n in CHAIN))]
    (region,) = regions(CHAIN, OURS, whole)
    assert region.ours.steps == 2
    assert region.theirs.steps == 1


def test_a_phase_of_ours_without_products_stands_alone_where_theirs_has_it_inside() -> None:
    ours = (OURS[0], Step("p1", "matmul", 1e-3, ("matmul2",)), Step("p2", "norm", 0.3e-3, ("norm1",)))
    theirs = (Step("a", "MatMul", 2e-3, ("matmul1", "relu1")), Step("c", "MatMulNorm", 1e-3, ("matmul2", "norm1")))
    *_, last = regions(CHAIN, ours, theirs)
    assert [n.name for n in last.nodes] == ["norm1"]
    assert (last.ours.steps, last.theirs.steps) == (1, 0)


def test_layers_that_are_alike_are_one() -> None:
    nodes, ours = [], []
    for layer in range(4):
        before = f"relu{layer - 1}" if layer else "x"
        nodes += [node(f"matmul{layer}", before, HEAVY), node(f"relu{layer}", f"matmul{layer}")]
        ours.append(Step(f"p{layer}", "matmul", 1e-3, (f"matmul{layer}", f"relu{layer}")))
    theirs = [Step(n.name, n.op, 1e-3, (n.name,)) for n in nodes]
    (one,) = alike(regions(nodes, ours, theirs))
    assert (one.count, one.flops, one.ours.steps, one.theirs.steps) == (4, 4 * HEAVY, 4, 8)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[ModelNode], list[Step], list[Step]]:
    """A graph of up to twelve nodes, each reading one or two before it, and two systems that fuse runs of it and leave
    some nodes and steps without names."""
    count = draw(st.integers(1, 12))
    nodes = []
    for index in range(count):
        before = draw(st.lists(st.integers(0, index - 1), min_size=1, max_size=2)) if index else []
        inputs = " ".join(f"n{i}" for i in before) or "x"
        nodes.append(node(f"n{index}", inputs, draw(st.sampled_from((0, 0, HEAVY))), draw(st.sampled_from("ABC"))))
    systems = []
    for _ in range(2):
        cuts = [0, *sorted(draw(st.sets(st.integers(1, count - 1)))), count] if count > 1 else [0, 1]
        steps = []
        for begin, end in pairwise(cuts):
            told = tuple(n.name for n in nodes[begin:end] if draw(st.booleans()))
            steps.append(Step(f"s{begin}", "k", draw(st.integers(1, 9)) / 8, told))
        systems.append(steps)
    return nodes, systems[0], systems[1]


@given(partitions())
def test_every_step_and_node_lies_in_one_region(made: tuple[list[ModelNode], list[Step], list[Step]]) -> None:
    nodes, ours, theirs = made
    found = regions(nodes, ours, theirs)
    for side, steps in (("ours", ours), ("theirs", theirs)):
        sides = [getattr(region, side) for region in found]
        assert Counter(s.name for one in sides for s in (*one.products, *one.rest)) == Counter(s.name for s in steps)
        assert sum(one.seconds for one in sides) == sum(step.seconds for step in steps)
    placed = Counter(n.name for region in found for n in region.nodes)
    named = any(step.nodes for step in (*ours, *theirs))
    assert placed == Counter(n.name for n in nodes if named and n.name in placed)
    assert all(name in placed for step in (*ours, *theirs) for name in step.nodes)
    for one in nodes:  # a product's steps are in one region
        homes = {
            index
            for index, region in enumerate(found)
            for step in (*region.ours.products, *region.theirs.products)
            if one.flops and one.name in step.nodes
        }
        assert len(homes) <= 1
    together = alike(found)
    assert sum(region.count for region in together) == len(found)
    assert sum(region.flops for region in together) == sum(region.flops for region in found)


def test_a_page_of_reasons() -> None:
    grid = explain_grid(a_profile(), "openvino")
    assert "1.65 times as long" in grid.caption
    won, lost, total = grid.rows
    assert won[:4] == ("+1.500", "matmul1 (matmul, add, relu; 1 MFLOP)", "1.000", "2.500")
    assert won[4] == "products at 25% of peak against 12%; other steps 0 us against 500 us (AddRelu)"
    assert lost[:4] == ("-0.200", "matmul2 (matmul, norm; 1 MFLOP)", "1.000", "0.800")
    assert lost[4].startswith("products at 25% of peak against 50%; other steps 0 us against 300 us (Norm, Reorder)")
    assert total[:4] == ("+1.300", "all steps", "2.000", "3.300")
    assert grid.notes[0].startswith("mononn: mononn trace changes a run by +1.0%; the steps add up to 100.0% of")
    assert "+6.1%" in grid.notes[1]


def test_what_cannot_be_explained_says_why() -> None:
    profile = a_profile()
    assert rivals(profile) == ["openvino"]
    with pytest.raises(NotNamedError, match="net cannot be explained beside tvm: its profiler does not say"):
        explain_grid(profile, "tvm")
    second = ProfileRecord("tvm", "Nsight Systems", "unavailable", "nsys not found")
    with pytest.raises(NotNamedError, match="its profiler does not say"):
        explain_grid(a_profile(profiles=(*profile.profiles, second)), "tvm")
    with pytest.raises(NotNamedError, match="the library gone is not installed"):
        explain_grid(profile, "gone")
    assert rivals(a_profile(profiles=profile.profiles[1:])) == []


def test_steps_that_do_not_make_up_the_run_are_noted() -> None:
    slow = ProfileRecord("mononn", "mononn trace", "ok", "", runs=5, steps=OURS, plain_s=3e-3, profiled_s=3e-3)
    grid = explain_grid(a_profile(profiles=(slow, *a_profile().profiles[1:])), "openvino")
    assert grid.notes[0].endswith("66.7% of an unprofiled run, which is not within 3% of it.")


def test_levels_say_what_each_profiler_costs() -> None:
    grid = levels_grid({"net": a_profile()})
    assert [row[1:] for row in grid.rows] == [
        ("mononn", "mononn trace", "2", "2.02", "+1.0%", "2", "99.0%"),
        ("openvino", "PERF_COUNT", "3.3", "3.5", "+6.1%", "3.3", "94.3%"),
    ]


def test_a_place_inside_a_step_of_theirs_says_so() -> None:
    ours = (OURS[0], Step("p1", "matmul", 1e-3, ("matmul2",)), Step("p2", "norm", 0.3e-3, ("norm1",)))
    theirs = (Step("a", "MatMul", 2e-3, ("matmul1", "relu1")), Step("c", "MatMulNorm", 1e-3, ("matmul2", "norm1")))
    rows = tuple(
        ProfileRecord(label, "tool", "ok", "", runs=1, steps=steps)
        for label, steps in (("mononn", ours), ("b", theirs))
    )
    grid = explain_grid(a_profile(profiles=rows, ceilings=None), "b")
    reasons = {row[1].partition(" ")[0]: row[4] for row in grid.rows}
    assert reasons["norm1"] == "inside another step of b"
    assert reasons["matmul1"].startswith("products at 1 GFLOP/s against 0.5")


def test_every_step_is_a_layer_with_its_arithmetic_bytes_and_share_of_the_roofline() -> None:
    found = layers({"net": a_profile()})
    assert [(one.system, one.step) for one in found[:4]] == [
        ("mononn", "p0"), ("mononn", "p1"), ("openvino", "a"), ("openvino", "b"),
    ]  # fmt: skip
    first, second = found[:2]
    assert (first.nodes, first.operators) == ("matmul1 add1 relu1", "matmul add relu")
    assert (first.flops, first.moved_bytes) == (HEAVY, 4000)  # x is unknown here; relu1 goes to the next phase
    assert (second.flops, second.moved_bytes) == (HEAVY, 8000)
    assert first.roofline_share == pytest.approx(HEAVY / 4e9 / 1e-3)
    assert {one.step: one.roofline_share for one in found}["fused_add"] is None
    longest, *_ = (one for one in kinds(found) if one.system == "openvino")
    assert (longest.kind, longest.count, longest.flops) == ("MatMul", 2, 2 * HEAVY)
    assert longest.share == pytest.approx(2.5 / 3.3)


def test_a_node_of_several_steps_counts_once() -> None:
    halves = tuple(Step(name, "lstm", 1e-3, ("matmul1",)) for name in ("p0", "p1"))
    rows = (ProfileRecord("mononn", "mononn trace", "ok", "", steps=halves),)
    found = layers({"net": a_profile(profiles=rows, nodes=CHAIN[:1])})
    assert [one.flops for one in found] == [HEAVY // 2, HEAVY // 2]


def test_a_report_keeps_what_profiles_say(tmp_path: Path) -> None:
    write_profiles({"net": a_profile()}, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kinds.csv", "layers.csv", "levels.md", "net.beside.openvino.md", "net.layers.md",
    ]  # fmt: skip
    header, first, *_ = (tmp_path / "layers.csv").read_text().splitlines()
    assert header.startswith("case,system,index,step,kind,nodes,operators,seconds,flops,moved_bytes,roofline_share")
    assert first == "net,mononn,0,p0,matmul,matmul1 add1 relu1,matmul add relu,0.001,1000000,4000,0.25"
    assert "products at 25% of peak against 12%" in (tmp_path / "net.beside.openvino.md").read_text()
    write_profiles({}, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_layers_kinds_and_runs_as_tables() -> None:
    runs, hottest, by_kind = layer_grids("net", a_profile())
    assert [row[0] for row in runs.rows] == ["mononn", "openvino"], "tvm's steps have no profiled run"
    assert runs.rows[0][1:8] == ("2", "2", "0.02", "0.002", "0.012", "166.7", "1.0")
    assert runs.rows[0][-2:] == ("25%", "arithmetic")
    assert runs.rows[1][3] == "0.2", "of 3.5 ms profiled the steps take 3.3"
    first = hottest.rows[2]
    assert first[:8] == ("openvino", "0", "MatMul", "matmul", "2", "60.6%", "1", "0.004")
    assert hottest.rows[-1][:3] == ("tvm", "0", "fused") and hottest.rows[-1][-3:] == ("", "", "")
    matmul = next(row for row in by_kind.rows if row[:2] == ("openvino", "MatMul"))
    assert matmul[2:6] == ("2", "40.0%", "2.5", "75.8%")
    shares = [float(row[7].rstrip("%")) for row in by_kind.rows if row[0] == "openvino" and row[7]]
    assert sum(shares) == pytest.approx(100, abs=0.2)


def test_a_case_with_a_batch_is_named_so() -> None:
    profile = replace(a_profile(), batch=4)
    assert explain_grid(profile, rivals(profile)[0]).title.startswith(f"{profile.model}-b4: ")


def test_counters_are_those_of_one_run() -> None:
    shown = (
        EventCount("task-clock", 20.5),
        EventCount("cycles", 4e6),
        EventCount("instructions", 1e7),
        EventCount("x", None),
    )
    hidden = tuple(replace(counter, value=None) for counter in shown)
    rows = [ProfileRecord(name, "perf stat", "ok", "", counters=c) for name, c in (("a", shown), ("b", hidden))]
    (grid,) = layer_grids("net", a_profile(profiles=tuple(rows)))
    assert grid.header == ["system", "task-clock, ms", "cycles", "instructions", "x", "instructions a cycle"]
    assert grid.rows == [
        ("a", "20.5", "4,000,000", "10,000,000", "not exposed", "2.50"), ("b", *["not exposed"] * 5),
    ]  # fmt: skip


def test_gpu_kernels_have_their_share_and_rate(tmp_path: Path) -> None:
    hot, cold = Kernel("gemm", 4, 3e-3, 1.5e6, 0.5), Kernel("softmax", 1, 1e-3, None, None)
    found = a_profile(profiles=(ProfileRecord("mononn", "Nsight", "ok", "", kernels=(hot, cold), runs=5),))
    first, second = kernels({"net": found})
    assert (first.kernel, first.share, first.dram_bytes_per_s) == ("gemm", pytest.approx(0.75), pytest.approx(2e9))
    assert (second.share, second.dram_bytes_per_s) == (pytest.approx(0.25), None)
    assert [row[:5] for row in layer_grids("net", found)[0].rows] == [
        ("mononn", "gemm", "4", "3", "75.0%"), ("mononn", "softmax", "1", "1", "25.0%"),
    ]  # fmt: skip
    write_profiles({"net": found}, tmp_path)
    assert (tmp_path / "kernels.csv").read_text().splitlines()[1].startswith("net,mononn,gemm,4,0.003,0.75,")


def two_layers() -> CaseProfile:
    """Two layers that are alike, a product and an addition each, of ours a step each, the second a slower one."""
    chain = (
        node("matmul1", "x", HEAVY), node("add1", "matmul1"), node("matmul2", "add1", HEAVY), node("add2", "matmul2"),
        node("norm1", "add2"),
    )  # fmt: skip
    ours = [Step(f"p{n}", "matmul", t, (f"matmul{n + 1}", f"add{n + 1}")) for n, t in enumerate((1e-3, 3e-3))]
    ours.append(Step("p2", "norm", 0.1e-3, ("norm1",)))
    theirs = [Step(f"{k}{n}", k, t, (f"{k}{n}",)) for n in (1, 2) for k, t in (("matmul", 2e-3), ("add", 0.5e-3))]
    theirs.append(Step("norm", "norm", 0.2e-3, ("norm1",)))
    rows = (
        ProfileRecord("mononn", "trace", "ok", "", runs=5, steps=tuple(ours), plain_s=4e-3, profiled_s=4e-3),
        ProfileRecord("openvino", "PERF_COUNT", "ok", "", runs=5, steps=tuple(theirs), plain_s=5e-3, profiled_s=5e-3),
        ProfileRecord("slow", "trace", "ok", "", runs=5, steps=tuple(theirs), plain_s=6e-3, profiled_s=6e-3),
    )
    return a_profile(nodes=chain, profiles=rows)


def test_one_layer_of_those_that_are_alike_is_shown_step_by_step() -> None:
    grid = layer_grid(two_layers(), "openvino")
    assert grid is not None and grid.title == "net: one of 2 layers"
    (first, whole) = grid.rows
    assert first[:5] == ("matmul2 (matmul, add; 1 MFLOP)", "matmul 3000", "3000", "matmul 2000, add 500", "2500")
    assert "products at 8% of peak against 12%" in first[5]
    assert whole == ("the layer", "steps: 1", "3000", "steps: 2", "2500", "")
    assert layer_grid(a_profile(), "openvino") is None
    with pytest.raises(NotNamedError):
        layer_grid(two_layers(), "tvm")


def test_the_fastest_rival_is_of_those_that_can_be_explained() -> None:
    assert fastest_rival(two_layers()) == "openvino"
    slower = replace(two_layers(), profiles=two_layers().profiles[:1])
    assert fastest_rival(slower) == ""
