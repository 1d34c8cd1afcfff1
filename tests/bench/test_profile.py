"""Profiles: each real profiler's spans on a small network, counters, Nsight's tables, and the timeline of them all."""

from __future__ import annotations

import json
import shutil
import stat
import sys
import time
from pathlib import Path

import onnx
import pytest

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.measure.runner import Course
from mononn_bench.models.folder import write_user_model
from mononn_bench.models.reference import write_reference
from mononn_bench.profile import counters, nsight
from mononn_bench.profile.case import profile_case
from mononn_bench.profile.outside import run
from mononn_bench.profile.profilers import chrome_spans, onnxruntime_spans
from mononn_bench.profile.timeline import operators, timeline
from mononn_bench.profiled import CaseProfile, EventCount, Operator, ProfileRecord, Span
from mononn_bench.report.explain import places, rivals
from tests.bench.conftest import QUICK, Contestants, linear_model

WIDTH = 512
TIMES = """Generating SQLite file x.sqlite from x.nsys-rep
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
20.0,"1,000",5,200.0,200.0,190,210,5.0,softmax<float>
80.0,4000,1,4000.0,4000.0,4000,4000,0.0,gemm_kernel
"""
COUNTERS = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","gemm_kernel","dram__bytes.sum","Kbyte","2"
"0","1","gemm_kernel","sm__warps_active.avg.pct_of_peak_sustained_active","%","50"
"1","1","softmax<float>","dram__bytes.sum","byte","1,500"
"2","1","softmax<float>","dram__bytes.sum","byte","500"
"""
COUNTS = """# started on Thu Jan  1 00:00:00 1970

200.5,msec,task-clock,200500000,100.00,1.9,CPUs utilized
<not supported>,,cycles:u,0,100.00,,
40000,,instructions:u,1000,62.50,,
<not counted>,,cache-misses,0,0.00,,
0,,page-faults,200500000,100.00,0.000,K/sec
"""


@pytest.fixture(scope="module")
def linear_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The linear model, wide enough for counters in whole microseconds."""
    folder = tmp_path_factory.mktemp("wide")
    onnx.save(linear_model(WIDTH), folder / "mine.onnx")
    write_user_model("linear", folder / "mine.onnx", {"x": (1, WIDTH)}, folder / "model")
    write_reference(folder / "model", seed=0)
    return folder / "model"


def profiled(
    contestants: Contestants, systems: list[str], folder: Path
) -> tuple[CaseProfile, dict[str, tuple[Span, ...]]]:
    model, made = contestants(systems)
    course = Course(model, model / "reference.npz", "fp32", "cpu", QUICK, (0,), folder / "scratch")
    return profile_case(made, course, machine_name="here", command="again", say=lambda _: None, lock=folder / "lock")


def test_each_system_is_looked_into_by_its_own_profiler(contestants: Contestants, tmp_path: Path) -> None:
    systems = ["mononn", "onnxruntime", "openvino", "fake-ok", "fake-missing"]
    profile, spans = profiled(contestants, systems, tmp_path)
    rows = {(row.system, row.tool): (row.status, row.reason) for row in profile.profiles}
    assert rows["mononn", "mononn trace"] == rows["openvino", "OpenVINO PERF_COUNT"] == ("ok", "")
    assert rows["onnxruntime", "ONNX Runtime profiling"] == ("ok", "")
    assert rows["fake-ok", ""] == ("unavailable", "fake-ok has no profiler of its own here")
    assert rows["fake-missing", ""] == ("unavailable", "the library fake is not installed")
    assert list(spans) == systems[:3]
    named = {label: " ".join(f"{s.kind} {s.name}" for s in found).lower() for label, found in spans.items()}
    assert "matmul" in named["mononn"]
    assert "gemm" in named["onnxruntime"] or "matmul" in named["onnxruntime"]
    assert "fullyconnected" in named["openvino"]
    assert all(min(s.start_ns for s in found) == 0 for found in spans.values())
    assert not (tmp_path / "scratch").exists()
    _meet(profile, systems[:3])


def _meet(profile: CaseProfile, systems: list[str]) -> None:
    """Each system says what its steps compute, so that ours meets the others' product by product."""
    rows = {row.system: row for row in profile.profiles if row.steps}
    products = {node.name for node in profile.nodes if node.flops}
    assert products == {"xw"}
    for system in systems:
        row = rows[system]
        assert row.plain_s and row.profiled_s and row.runs >= 3
        assert 0 < sum(step.seconds for step in row.steps) < 3 * row.profiled_s
    assert rivals(profile) == systems[1:]
    for rival in systems[1:]:
        met = [r for r in places(profile, rival) if r.flops]
        assert sum(r.count for r in met) == len(products)
        assert all(r.ours.products and r.theirs.products for r in met)


def test_tools_that_are_missing_have_rows_that_say_so(
    contestants: Contestants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    profile, _ = profiled(contestants, ["fake-ok"], tmp_path)
    rows = {row.tool: (row.status, row.reason) for row in profile.profiles}
    assert rows["perf stat"] == ("unavailable", "perf not found")
    assert rows["Nsight Systems"] == ("unavailable", "nsys not found")


def _stand_in(folder: Path, script: str) -> None:
    (folder / "perf").write_text(f"#!{sys.executable}\n{script.replace('FOLDER', str(folder))}")
    (folder / "perf").chmod(stat.S_IRWXU)


PERF = """
import os, shutil, signal, sys
signal.signal(signal.SIGINT, HANDLER)  # whatever this process was told to do with it
given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
os.kill(int(given["pid"]), 0)
control, answer = given["control"].removeprefix("fifo:").split(",")
words = open("FOLDER/words", "a")
control, answer = (open(os.open(pipe, os.O_RDWR), mode) for pipe, mode in ((control, "r"), (answer, "w")))
try:
    while True:
        print(control.readline(), end="", file=words, flush=True)
        print("ack", file=answer, flush=True)
except KeyboardInterrupt:
    shutil.copy("FOLDER/counts.csv", given["output"])
"""
"""A stand-in that counts from one word to the next, as `perf stat` does, until it is interrupted."""


def _counted(contestants: Contestants, system: str, folder: Path) -> ProfileRecord:
    profile, _ = profiled(contestants, [system], folder)
    return next(row for row in profile.profiles if row.tool == "perf stat")


def test_counters_are_those_of_runs_alone(
    contestants: Contestants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counts.csv").write_text(COUNTS)
    _stand_in(tmp_path, PERF.replace("HANDLER", "signal.default_int_handler"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for system, turns in (("fake-ok", 1), ("onnxruntime", 2)):
        (tmp_path / "words").unlink(missing_ok=True)
        row = _counted(contestants, system, tmp_path)
        assert row.status == "ok", row.reason
        assert 2 * turns <= row.runs <= 20 * turns
        assert row.counters == counters.read(COUNTS, row.runs)
        assert (tmp_path / "words").read_text().split() == ["disable", *["enable", "disable"] * turns]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import sys; sys.exit('Error:\\nAccess is limited')", "perf failed: Access is limited"),
        (PERF.replace("HANDLER", "signal.SIG_IGN"), "perf wrote no counts"),
    ],
    ids=["not allowed", "does not end"],
)
def test_events_that_are_not_counted_have_a_row_that_says_so(
    contestants: Contestants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(counters, "ANSWER_S", 2.0)
    _stand_in(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    row = _counted(contestants, "fake-ok", tmp_path)
    assert (row.status, row.reason, row.runs, row.counters) == ("unavailable", reason, 0, ())


@pytest.mark.skipif(shutil.which("perf") is None, reason="no perf here")
def test_linux_counts_what_our_runs_do(contestants: Contestants, tmp_path: Path) -> None:
    profile, _ = profiled(contestants, ["mononn"], tmp_path)
    row = next(row for row in profile.profiles if row.tool == "perf stat")
    assert row.status == "ok", row.reason
    found = {counter.name: counter.value for counter in row.counters}
    assert list(found) == list(counters.EVENTS)
    taken, plain_s = found["task-clock"], next(one.plain_s for one in profile.profiles if one.plain_s)
    assert taken is not None and 0 < taken < 100 * plain_s * 1e3, "runs alone: the process takes a hundred times that"


def test_a_table_of_counts_is_read_for_one_run() -> None:
    assert counters.read(COUNTS, 20) == (
        EventCount("task-clock", 10.025), EventCount("cycles", None), EventCount("instructions", 2000.0),
        EventCount("cache-misses", None), EventCount("page-faults", 0.0),
    )  # fmt: skip


def test_what_takes_too_long_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "slow").write_text(f"#!/bin/sh\n(sleep 2; touch {tmp_path}/late) &\nsleep 2; touch {tmp_path}/late\n")
    (tmp_path / "slow").chmod(stat.S_IRWXU)
    with pytest.raises(SystemUnavailableError, match=r"slow took more than 0\.2 s"):
        run([str(tmp_path / "slow")], seconds=0.2)
    time.sleep(2.2)
    assert not (tmp_path / "late").exists()


def test_nsight_watches_a_process_from_outside(
    contestants: Contestants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins that run what they are given, and print what the tools print."""
    skip = 'while [ "${1#-}" != "$1" ] || [ "$1" = profile ]; do shift; done; "$@"'
    tool = f'#!/bin/sh\ncase "$1" in stats|--import*) cat TABLE;; *) {skip};; esac\n'
    for name, table in (("nsys", TIMES), ("ncu", COUNTERS)):
        (tmp_path / f"{name}.csv").write_text(table)
        (tmp_path / name).write_text(tool.replace("TABLE", str(tmp_path / f"{name}.csv")))
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    profile, _ = profiled(contestants, ["fake-ok", "fake-wrong"], tmp_path)
    row = next(row for row in profile.profiles if row.tool == "Nsight Systems and Compute")
    assert (row.status, [k.name for k in row.kernels]) == ("ok", ["gemm_kernel", "softmax<float>"])


def test_nsight_tables_become_kernels() -> None:
    gemm, softmax = nsight.kernels(TIMES, COUNTERS)
    assert (gemm.launches, gemm.seconds, gemm.dram_bytes, gemm.occupancy) == (1, 4e-6, 2000.0, 0.5)
    assert (softmax.launches, softmax.seconds, softmax.dram_bytes, softmax.occupancy) == (5, 1e-6, 1000.0, None)
    assert [k.dram_bytes for k in nsight.kernels(TIMES, "")] == [None, None]
    assert nsight.kernels("no kernels were launched\n", "") == ()


def test_the_last_runs_of_onnxruntimes_profile_count() -> None:
    def node(name: str, start: int) -> dict[str, object]:
        return {"cat": "Node", "name": name, "ts": start, "dur": 5, "args": {"op_name": "Gemm"}}

    runs = [{"cat": "Session", "name": "model_run", "ts": at, "dur": 50} for at in (0, 100)]
    events = [node("a_kernel_time", 10), node("a_fence_before", 109), node("a_kernel_time", 110), *runs]
    second = [Span("a", "Gemm", "caller", 110_000, 5_000)]
    assert onnxruntime_spans(events, 1) == [second]
    assert onnxruntime_spans(events, 2) == [[Span("a", "Gemm", "caller", 10_000, 5_000)], second]


def test_spans_of_a_chrome_trace() -> None:
    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "pool"}},
        {"ph": "X", "name": "dot.1", "pid": 1, "tid": 2, "ts": 1.5, "dur": 2},
        {"ph": "X", "name": "$python", "pid": 1, "tid": 2, "ts": 1, "dur": 9},
    ]
    assert chrome_spans(events) == [Span("dot.1", "dot", "pool", 1500, 2000)]


def test_own_time_leaves_out_what_is_inside() -> None:
    spans = [
        Span("outer", "linear", "t", 0, 100), Span("inner", "copy", "t", 10, 30), Span("deep", "copy", "t", 15, 5),
        Span("next", "linear", "t", 100, 50), Span("other", "copy", "u", 0, 7),
    ]  # fmt: skip
    assert operators(spans) == (Operator("linear", 2, pytest.approx(120e-9)), Operator("copy", 3, pytest.approx(37e-9)))


def test_a_timeline_has_a_process_a_system_and_a_track_a_thread() -> None:
    text = timeline({"a": [Span("x", "k", "t0", 0, 10), Span("y", "", "t1", 5, 10)], "b": [Span("z", "k", "t0", 0, 1)]})
    events = json.loads(text)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "a", 2: "b"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {(1, 0): "t0", (1, 1): "t1", (2, 0): "t0"}
    spans = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [(1, 0, "x", 0, 0.01), (1, 1, "y", 0.005, 0.01), (2, 0, "z", 0, 0.001)]
