"""The GPU suite: its networks, its steps' processes, its records and table, and a small rehearsal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mononn_bench.codec import from_plain, read_record
from mononn_bench.errors import SystemUnavailableError
from mononn_bench.gpu_suite import __main__ as command
from mononn_bench.gpu_suite import compare, device, runner, table, tools
from mononn_bench.gpu_suite.case import SEED, SETS, Case, make_models
from mononn_bench.gpu_suite.plan import Step, plan
from mononn_bench.gpu_suite.records import StepRecord, SuiteRecord
from mononn_bench.gpu_suite.server import Server
from mononn_bench.measure.environment import describe_machine
from mononn_bench.models.zoo import get_model
from mononn_bench.record import AccuracyCheck

NAMES = ("mlp-test", "bert-test", "vit-test", "t5-test", "resnet-test")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("gpu-suite")
    for name in NAMES:
        make_models([Case(str(work), name, 2, precision, "cpu") for precision in ("fp32", "fp16", "bf16")], "cpu")
    return work


@pytest.mark.parametrize("killed", ["a", "b", "c"])
def test_a_suite_that_is_killed_goes_on_where_it_was(killed, tmp_path, monkeypatch):
    """At whatever step: what has an outcome is not run again, what was cut short or left out is."""
    ran: list[str] = []

    def run(step, seconds, emulate, out, work):
        ran.append(step.name)
        if step.name == killed and ran.count(killed) == 1:
            raise KeyboardInterrupt
        cut = step.name == "a" and len(ran) == 1
        return StepRecord(step.name, "timeout" if cut else "ok", "", emulate, "now", 1.0, {"run": len(ran)})

    monkeypatch.setattr(runner, "run_step", run)
    steps = [Step(name, "machine", {}, 10) for name in "abc"]
    arguments = (tmp_path, tmp_path, None, lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        runner.run_plan(steps, suite(), *arguments)
    again = replace(suite(), steps=runner.finished(tmp_path / "records.json", suite()))
    done = runner.run_plan(steps, again, *arguments)
    assert sorted(step.name for step in done.steps) == ["a", "b", "c"]
    assert all(step.status == "ok" for step in done.steps)
    assert ran.count("c") == (2 if killed == "c" else 1)
    assert ran.count("b") == (2 if killed == "b" else 1)
    assert ran.count("a") == 2, "killed in it, or its time was up"
    for other in ({"sources": "other code"}, {"gpus": ("another GPU",)}, {"rehearsal": False}):
        assert not runner.finished(tmp_path / "records.json", replace(suite(), **other))


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


def test_the_most_important_comes_first():
    steps = plan(Path("work"), False, ("mononn", "xla"))
    names = [step.name for step in steps]
    assert names[:3] == ["machine", "ceilings", "conformance"]
    assert len(set(names)) == len(names)
    kinds = [step.kind for step in steps]
    assert kinds.index("correctness") < kinds.index("sanitizer") < kinds.index("compare") < kinds.index("trace")
    compared = [name for name in names if name.startswith("compare:")]
    assert compared[:4] == [f"compare:{m}-b1-fp16" for m in ("bert-base", "vit-base", "t5-small", "resnet50")]
    assert {f"compare:bert-base-b{b}-fp16" for b in (1, 8, 16, 32)} <= set(compared)
    rehearsed = plan(Path("work"), True, ("mononn",))
    assert {step.kind for step in rehearsed} == set(kinds)
    assert all(step.arguments["case"]["target"] == "cpu" for step in rehearsed if "case" in step.arguments)


@pytest.mark.parametrize(
    ("code", "answer", "log", "expected"),
    [
        (0, {"status": "ok", "reason": "", "result": {"a": 1}}, "", ("ok", "", {"a": 1})),
        (None, {"status": "under way", "reason": "", "result": {}}, "", ("timeout", "not done within 9 s", {})),
        (None, {"status": "ok", "reason": "", "result": {"a": 3}}, "", ("ok", "", {"a": 3})),
        (-11, None, "one\ntwo\n", ("failed", "ended by SIGSEGV: two", {})),
        (-9, {"status": "under way", "reason": "", "result": {"a": 2}}, "", ("failed", "ended by SIGKILL", {"a": 2})),
        (1, None, "Traceback\nBad", ("failed", "exited with status 1: Bad", {})),
        (0, {"status": "unavailable", "reason": "no GPU", "result": {}}, "", ("unavailable", "no GPU", {})),
    ],
)  # fmt: skip
def test_however_a_step_ends_it_is_a_row(code, answer, log, expected):
    assert runner.judge(code, answer, log, 9.0) == expected


def test_a_step_that_hangs_or_breaks_is_a_row(tmp_path):
    hung = runner.run_step(Step("hung", "ceilings", {}, 0.05), 0.05, True, tmp_path, tmp_path)
    assert (hung.status, hung.rehearsal) == ("timeout", True)
    broken = runner.run_step(Step("broken:x", "correctness", {"case": {}}, 60), 60, True, tmp_path, tmp_path)
    assert broken.status == "failed"
    assert broken.reason.startswith("TypeError: ")


def test_a_process_that_does_not_leave_costs_no_more_than_a_moment(tmp_path, monkeypatch):
    """A kernel that hangs also hangs whoever would end its context."""
    monkeypatch.setattr(runner, "LOOK_S", 0.05)
    monkeypatch.setattr(runner, "LEAVING_S", 0.1)
    for status, limit, expected in (("ok", 60.0, 10.0), ("under way", 0.5, 10.0)):
        answer = tmp_path / f"{status}.json"
        answer.write_text(json.dumps({"status": status, "reason": "", "result": {}}))
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        started = time.monotonic()
        try:
            assert runner._ended(process, answer, limit) is None
        finally:
            runner._end_group(process)
        assert time.monotonic() - started < expected


@pytest.mark.parametrize("raises", [False, True])
def test_a_step_leaves_without_unwinding(tmp_path, raises):
    """What an interpreter does at its end, and what goes out of scope with a step, may wait for the GPU for ever."""
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    body = {"kind": "stuck", "arguments": {}, "seconds": 9, "emulate": True, "parent": os.getpid()}
    request.write_text(json.dumps({**body, "out": "", "work": "", "answer": str(answer)}))
    program = f"""
import atexit, time
from mononn_bench.gpu_suite import child
class Held:
    def __del__(self): time.sleep(60)
def stuck(context, arguments):
    held = Held()
    context.tell({{"found": 1}})
    if {raises}: raise ValueError("the kernel did not end")
    atexit.register(time.sleep, 60)
    atexit.held = held
    return {{"found": 2}}
child.STEPS = {{"stuck": stuck}}
child.main({str(request)!r})
"""
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True, capture_output=True)
    told = json.loads(answer.read_text())
    assert told["result"] == {"found": 1 if raises else 2}
    assert told["status"] == ("failed" if raises else "ok")


def suite() -> SuiteRecord:
    return SuiteRecord("2026-01-01", "python -m mononn_bench.gpu_suite", "abc", describe_machine(), {}, True, ())


def test_records_are_written_after_each_step_and_what_has_no_time_is_left_out(tmp_path, monkeypatch):
    clock, seen = [0.0], []

    def run(step, seconds, emulate, out, work):
        seen.append(json.loads((out / "records.json").read_text())["steps"] if seen or step.name == "b" else [])
        clock[0] += 50
        return StepRecord(step.name, "ok", "", emulate, "now", 50.0, {"x": 1})

    monkeypatch.setattr(runner, "run_step", run)
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock[0])
    steps = [Step(name, "machine", {}, 10) for name in "abc"]
    done = runner.run_plan(steps, suite(), tmp_path, tmp_path, 1.6, lambda text: None)
    assert [(s.name, s.status) for s in done.steps] == [("a", "ok"), ("b", "ok"), ("c", "left out")]
    assert [len(steps) for steps in seen] == [0, 1]
    assert read_record(SuiteRecord, tmp_path / "records.json") == done


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
    result = compare.compare(case, names, tmp_path, 120.0, lambda r: told.append(r["rounds"]))
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
    (row,) = compare.compare(case, ["torch-eager"], tmp_path, 120.0, lambda _: None)["contenders"].values()
    assert row["status"] == "incorrect" and f"{turned} timing" in row["reason"]
    assert "warm_host_us" not in row
    assert bool(row["warm"]) == (turned == "after")


def test_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_suite"])
    assert (
        command.main(["--out", str(tmp_path / "out"), "--emulate", "--only", "machine", "--work", str(tmp_path)]) == 0
    )
    shown = capsys.readouterr().out
    assert "[1/1] machine: ok" in shown and table.REHEARSAL in shown
    found = read_record(SuiteRecord, tmp_path / "out" / "records.json")
    assert found.rehearsal and found.steps[0].result["packages"]["numpy"] == np.__version__
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"records.json", "table.txt"}
