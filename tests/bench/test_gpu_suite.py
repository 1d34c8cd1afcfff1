"""The GPU suite: its networks, what its steps do, its records and table, and a small rehearsal."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mononn_bench.codec import from_plain, write_record
from mononn_bench.errors import SystemUnavailableError
from mononn_bench.gpu_suite import __main__ as suite_main
from mononn_bench.gpu_suite import compare, contenders, device, ours, table, tools
from mononn_bench.gpu_suite import steps as steps_module
from mononn_bench.gpu_suite.case import SEED, SETS, Case, make_models
from mononn_bench.gpu_suite.records import StepRecord, SuiteRecord
from mononn_bench.gpu_suite.server import Server
from mononn_bench.measure.environment import describe_machine
from mononn_bench.models.zoo import get_model
from mononn_bench.record import AccuracyCheck
from mononn_core.cost.cuda import ESTIMATED, work_of
from mononn_core.cost.fit import Observation
from mononn_core.program.ir import Barrier

NAMES = ("mlp-test", "bert-test", "vit-test", "t5-test", "resnet-test")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("gpu-suite")
    for name in NAMES:
        make_models([Case(str(work), name, 2, precision, "cpu") for precision in ("fp32", "fp16", "bf16")], "cpu")
    return work


@pytest.mark.parametrize("name", NAMES)
def test_networks_are_those_of_the_catalogue(name, work):
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("mononn_bench.models.modules")
    case = Case(str(work), name, 2, "fp32", "cpu")
    module = modules.build_module(get_model(name), seed=SEED).double()
    with np.load(case.reference) as stored, torch.no_grad():
        for index in range(2):
            given = (torch.from_numpy(stored[f"{index}/in/{i.name}"]) for i in case.spec.inputs)
            answers = module(*(t.double() if t.is_floating_point() else t for t in given))
            answers = answers if isinstance(answers, tuple) else (answers,)
            for output, answer in zip(case.spec.outputs, answers, strict=True):
                exact = stored[f"{index}/out/{output}"]
                assert exact.dtype == np.float64
                assert np.linalg.norm(answer.numpy() - exact) < 1e-6 * np.linalg.norm(exact)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", NAMES)
def test_onnx_files_compute_what_the_reference_says(name, precision, work):
    onnxruntime = pytest.importorskip("onnxruntime")
    case = Case(str(work), name, 2, precision, "cpu")
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(case.folder / "model.onnx"), settings)
    limit = {"fp32": 1e-5, "fp16": 1e-2}[precision]
    with np.load(case.reference) as stored:
        answers = session.run(None, {i.name: stored[f"1/in/{i.name}"] for i in case.spec.inputs})
        for output, answer in zip(case.spec.outputs, answers, strict=True):
            exact = stored[f"1/out/{output}"]
            assert answer.dtype == np.float32
            assert np.linalg.norm(answer - exact) < limit * np.linalg.norm(exact)


def test_half_precision_halves_the_weights(work):
    sizes = {p: (work / "models" / "bert-test" / f"{p}.bin").stat().st_size for p in ("fp32", "fp16", "bf16")}
    assert sizes["fp16"] == sizes["bf16"] < sizes["fp32"]


def test_models_that_stand_give_the_same_bytes(work):
    case = Case(str(work), "bert-test", 2, "fp16", "cpu")
    before = [(case.folder / name).read_bytes() for name in ("model.onnx", "fp16.bin", "model.json")]
    make_models([case], "cpu")
    assert [(case.folder / name).read_bytes() for name in ("model.onnx", "fp16.bin", "model.json")] == before


def suite() -> SuiteRecord:
    return SuiteRecord("2026-01-01", "python -m mononn_bench.gpu_suite", "abc", describe_machine(), {}, True, ())


def test_the_table_says_rehearsal_and_why_a_row_has_no_time():
    rows = {
        "mononn": {"status": "ok", "reason": "", **rates(100e-6)},
        "xla": {"status": "ok", "reason": "", **rates(150e-6)},
        "tvm": {"status": "unavailable", "reason": "TVM cannot be imported"},
    }
    compare.summarise(rows)
    assert rows["xla"]["warm_ratio"] == pytest.approx(1.5)
    step = StepRecord("compare:bert-base-b1-fp16", "ok", "", True, "now", 1.0, {"contenders": rows})
    failed = StepRecord("ncu:x", "unavailable", "ncu not found", True, "now", 1.0, {})
    text = table.table(SuiteRecord(**{**vars(suite()), "steps": (step, failed)}))
    assert text.startswith(table.REHEARSAL)
    assert "compare:bert-base-b1-fp16 (rehearsal)" in text
    assert "ncu:x: unavailable: ncu not found" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert lines["xla"].split()[1:] == ["150.0", "140.0", "145.0"]
    measured = table.table(SuiteRecord(**{**vars(suite()), "steps": (step,), "rehearsal": False}))
    assert "rehearsal" not in measured.lower()
    assert next(line for line in measured.splitlines() if "xla" in line).split()[1:5] == [
        "150.0",
        "140.0",
        "145.0",
        "1.50",
    ]
    assert lines["tvm"].endswith("unavailable: TVM cannot be imported")


def test_the_table_sums_up_traces_fits_and_variants():
    results = {
        "trace:a:once": {"seconds": 2e-4, "phases": [{}] * 72},
        "fit": {"estimated": {"error": 1.5}, "fitted": {"error": 1.1}},
        "variants:a": {"seconds": {"x": 3e-4, "y": 2e-4}, "fastest": "y"},
    }
    steps = tuple(StepRecord(name, "ok", "", False, "now", 1.0, result) for name, result in results.items())
    text = table.table(replace(suite(), steps=steps, rehearsal=False))
    assert "trace:a:once: 200.0 us in 72 phases" in text
    assert "fit: the cost model is typically 1.50x off a phase's time, 1.10x with fitted constants" in text
    assert "variants:a: y is the fastest with 200.0 us, before x 300.0" in text


def rates(seconds: float) -> dict[str, list[dict[str, float]]]:
    block = {"host_s": seconds, "device_s": seconds - 10e-6, "back_to_back_s": seconds - 5e-6, "runs": 3}
    return {"warm": [block] * 3, "cold": []}


def test_the_ceilings_lines_are_told_as_they_come(tmp_path):
    program = tmp_path / "ceilings"
    lines = [{"name": "device", "sms": 2}, {"name": "grid barrier", "blocks": 2, "unit": "s", "value": 1e-6}]
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{json.dumps(line)}'\n" for line in lines))
    program.chmod(0o755)
    told: list[int] = []
    assert device.run_program(program, lambda result: told.append(len(result["kernels"]))) == lines
    assert told == [1, 2]
    broken = {"name": "error", "call": "cudaMalloc", "status": "out of memory"}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(broken)}'\nexit 1\n")
    with pytest.raises(RuntimeError, match="out of memory"):
        device.run_program(program, lambda result: None)


def test_a_real_run_without_a_gpu_says_so(monkeypatch):
    monkeypatch.setattr(device, "find_gpus", tuple)
    with pytest.raises(SystemUnavailableError, match="rehearse with --emulate"):
        device.describe(emulate=False)


def test_counters_of_nsight_compute_are_read_by_launch():
    text = """==PROF== Connected
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","mononn_run(mononn_gpu_call)","gpu__time_duration.sum","ns","212,345"
"0","7","mononn_run(mononn_gpu_call)","dram__bytes.sum","Mbyte","171.5"
"1","7","mononn_run(mononn_gpu_call)","gpu__time_duration.sum","ns","n/a"
"""
    first, second = tools.read_counters(text)
    assert first["gpu__time_duration.sum"] == 212345 and first["dram__bytes.sum unit"] == "Mbyte"
    assert second == {"kernel": "mononn_run(mononn_gpu_call)"}
    assert tools.read_counters("no kernels were profiled") == []


@pytest.mark.parametrize("lists", [True, False])
def test_counters_that_this_gpu_has_not_are_left_out_and_named(lists, tmp_path, monkeypatch):
    """One name that ncu does not know would cost all counters."""
    missing = "sm__inst_executed_pipe_tensor.sum"
    known = [name.partition(".")[0] for name in tools.COUNTERS if name != missing]
    ncu = tmp_path / "ncu"
    header = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    row = '"0","7","mononn_run","gpu__time_duration.sum","ns","5"'
    lines = "".join(f"echo '{name}   Counter  unit  text'\n" for name in known) if lists else "exit 1\n"
    script = f"""#!/bin/sh
if [ "$1" = --query-metrics ]; then
{lines}exit 0
fi
case "$1" in *{missing}*) {"echo unknown; exit 1" if lists else ":"};; esac
echo '{header}'
echo '{row}'
"""
    ncu.write_text(script)
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = tools.nsight("mononn", Case(str(tmp_path), "mlp-test", 1, "fp16", "cuda"), tmp_path, 20.0)
    assert found["launches"] == 1 and found["unknown"] == ([missing] if lists else [])


def test_correctness_of_many_cases_in_one_process(work, tmp_path, monkeypatch):
    """A wrong answer, a broken file and a right one: each is a row, and none takes the next one with it."""
    cases = [Case(str(tmp_path), "mlp-test", 2, precision, "cpu") for precision in ("fp32", "fp16", "bf16")]
    make_models(cases, "cpu")
    change_reference(cases[0], lambda key, array: array * 1.5, "0/out/")
    broken = contenders.mono_path(cases[1], "once")
    broken.parent.mkdir(parents=True)
    broken.write_text("no artifact")
    other = Case(str(work), "mlp-test", 2, "bf16", "cpu")
    told: list[list[str]] = []
    context = steps_module.Context(tmp_path, tmp_path, True, 60.0, lambda rows: told.append(list(rows)))
    started = []
    start = compare.start_worker
    monkeypatch.setattr(compare, "start_worker", lambda *a: started.append(a) or start(*a))
    builds = [[case.to_json(), "once"] for case in (cases[0], cases[1], other)]
    with pytest.raises(
        steps_module.IncorrectError, match=r"2 of 3 cases, as mlp-test-b2-fp32:once: .*before timing"
    ) as error:
        steps_module.correctness(context, {"builds": builds})
    rows = error.value.result
    assert [row["status"] for row in rows.values()] == ["incorrect", "failed", "ok"]
    assert "mlp-test-b2-fp16" in told[1][1] and len(told) == 3
    assert rows["mlp-test-b2-bf16:once"]["worst"] > 0
    assert len(started) == 2, "one process until it breaks"
    with pytest.raises(RuntimeError, match="1 of 1 cases, as mlp-test-b2-fp16:once"):
        steps_module.correctness(context, {"builds": builds[1:2]})


def test_the_cost_model_is_fitted_to_what_was_traced(work, tmp_path):
    """The step reads the record's traces; times made with other constants give these back."""
    case = Case(str(work), "bert-test", 2, "fp16", "cpu")
    stages = ours._lower(contenders.fp32_model(case), "cuda-emulated", "fp16", "once")
    launch = stages.lowered.schedule
    true = replace(ESTIMATED, start_seconds=2e-6, hand_off_seconds=3e-6)
    rows, waits = [], False
    names = iter(phase["id"] for phase in stages.manifest["phases"])
    for item, loop in stages.program.trace():
        if isinstance(item, Barrier):
            waits = True
            continue
        work_ = work_of(stages.program, item, loop)
        one = Observation(item.id, work_, waits, stages.gpu, launch.threads, launch.blocks_per_sm, 1.0)
        rows.append({"id": next(names), "origin": item.id, "seconds": one.predicted(true)})
        waits = False
    step = StepRecord("trace:x", "ok", "", True, "now", 1.0, {"phases": rows})
    write_record(replace(suite(), steps=(step,)), tmp_path / "records.json")
    context = steps_module.Context(tmp_path, tmp_path, True, 60.0, lambda result: None)
    found = steps_module.fit(context, {"traced": [["trace:x", case.to_json(), "once"]]})
    assert found["estimated"]["error"] > 1.3 > 1.02 > found["fitted"]["error"] >= 1.0
    assert found["fitted"]["constants"]["hand_off_seconds"] == pytest.approx(3e-6, rel=0.1)
    assert found["phases"][0]["measured"] == rows[0]["seconds"]
    with pytest.raises(SystemUnavailableError, match="no trace"):
        steps_module.fit(context, {"traced": [["trace:y", case.to_json(), "once"]]})


def test_variants_say_which_is_the_fastest(tmp_path, monkeypatch):
    times = {"once:a": {"x": 2.0, "y": 3.0}, "once:b": {"x": 1.0, "y": 5.0}, "once:c": {"x": 4.0, "z": 0.5}}

    def traced(context, case, launch):
        return [{"origin": name, "seconds": s / 2} for name, s in times[launch].items() for _ in range(2)], ""

    monkeypatch.setattr(steps_module, "_traced", traced)
    context = steps_module.Context(tmp_path, tmp_path, True, 60.0, lambda result: None)
    case = Case(str(tmp_path), "mlp-test", 1, "fp16", "cpu").to_json()
    found = steps_module.variants(context, {"case": case, "launches": list(times)})
    assert found["fastest"] == "once:c" and found["seconds"] == {"once:a": 5.0, "once:b": 6.0, "once:c": 4.5}
    assert found["fastest_by_phase"] == {"x": "once:b", "y": "once:a", "z": "once:c"}
    names = ours.variants()
    assert len(set(names)) == len(names) == 3 * ours.RANKS


def test_traces_of_all_cases_are_one_file(tmp_path):
    archive = tmp_path / "traces.zip"
    for name in ("a.json", "b.json"):
        tools.keep_trace(archive, name, "{}")
    with zipfile.ZipFile(archive) as stream:
        assert stream.namelist() == ["a.json", "b.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["traces.zip"]


def test_a_rehearsed_comparison(work, tmp_path):
    """Contenders in processes of their own: one that runs, one that needs a GPU, one that is wrong."""
    case = Case(str(work), "mlp-test", 2, "fp32", "cpu")
    told: list[int] = []
    names = ["torch-eager", "torch-graph"]
    result = compare.compare(case, names, tmp_path, tmp_path, 120.0, lambda r: told.append(r["rounds"]))
    assert str(work) not in repr(result["case"]), "a record names no folder"
    eager, graph = (result["contenders"][name] for name in names)
    assert eager["status"] == "ok", eager["reason"]
    checks = [from_plain(AccuracyCheck, one) for one in eager["checks"]]
    seen = [(check.input_set, check.when) for check in checks]
    assert seen == [*((index, "before") for index in range(SETS)), (SETS, "after")]
    assert all(check.passed and check.limit == 1e-5 for check in checks)
    assert len(eager["warm"]) == len(eager["cold"]) == result["rounds"] == told[-1]
    assert eager["warm_host_us"] > 0 and eager["warm_device_us"] is None
    assert (graph["status"], graph["reason"]) == ("unavailable", "a CUDA graph needs a GPU")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_wrong_answer_does_not_pass(precision, work, tmp_path):
    case = Case(str(tmp_path), "mlp-test", 2, precision, "cpu")
    make_models([case], "cpu")
    server = Server("")
    server.open("torch-eager", case.to_json())
    right = server.check(case.to_json(), "before")
    assert not right["wrong"] and len(right["checks"]) == SETS
    assert all((check["top1_clear"] is None) == (precision == "fp32") for check in right["checks"])
    change_reference(case, lambda key, array: array + 0.5 * array.max() * (array == array.max()), f"{SETS}/out/")
    assert not server.check(case.to_json(), "before")["wrong"]
    assert ", after timing" in server.check(case.to_json(), "after")["wrong"]
    assert len(server.block(2, cold=True, first=1)["host_s"]) == 2


def change_reference(case, change, where):
    with np.load(case.reference) as stored:
        changed = {key: change(key, stored[key]) if where in key else stored[key] for key in stored.files}
    np.savez(case.reference, **changed)


def test_float32_is_judged_by_what_it_costs_another_implementation(work):
    case = Case(str(work), "resnet-test", 2, "fp32", "cpu")
    with np.load(case.reference) as stored:
        files = dict(stored)
    assert 1e-8 < files["fp32/logits"] < 1e-5
    assert case.limits(files) == {"logits": 1e-5}
    assert case.limits({**files, "fp32/logits": np.array(1.5e-5)}) == {"logits": pytest.approx(6e-5)}
    exact = files["0/out/logits"]
    assert [c.passed for c in case.check(files, 0, {"logits": exact * (1 + 5e-5)}, "before")] == [False]
    assert [c.passed for c in case.check(files, 0, {}, "before")] == [False]
    half = Case(str(work), "resnet-test", 2, "fp16", "cpu")
    assert [c.passed for c in half.check(files, 0, {"logits": exact * (1 + 5e-5)}, "before")] == [True]


@pytest.mark.parametrize("turned", ["before", "after"])
def test_wrong_answers_have_no_speed(turned, tmp_path):
    case = Case(str(tmp_path), "mlp-test", 2, "fp32", "cpu")
    make_models([case], "cpu")
    change_reference(case, lambda key, array: array * 1.01, "0/out/" if turned == "before" else f"{SETS}/out/")
    (row,) = compare.compare(case, ["torch-eager"], tmp_path, tmp_path, 120.0, lambda _: None)["contenders"].values()
    assert row["status"] == "incorrect" and f"{turned} timing" in row["reason"]
    assert "warm_host_us" not in row
    assert bool(row["warm"]) == (turned == "after")


def test_a_machine_without_git_has_no_revision(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert suite_main._revision() == "unknown"


def test_a_kernel_that_hangs_is_given_up_soon(monkeypatch, tmp_path):
    opened = SimpleNamespace(info={"target": "cuda"}, watchdog_seconds=20.0)
    monkeypatch.setattr("mononn_core.load", lambda path: opened)
    assert ours.load(tmp_path / "x.mono").watchdog_seconds == ours.WATCHDOG_S < 20.0
