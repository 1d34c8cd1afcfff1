"""The GPU suite's plan, its two lanes, the processes of its steps, and how a call goes on where another ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from mononn_bench.codec import read_record
from mononn_bench.gpu_suite import __main__ as command
from mononn_bench.gpu_suite import compare, contenders, ours, plan, runner, table
from mononn_bench.gpu_suite import steps as steps_module
from mononn_bench.gpu_suite.case import Case
from mononn_bench.gpu_suite.plan import Step
from mononn_bench.gpu_suite.prepare import prepare
from mononn_bench.gpu_suite.records import StepRecord, SuiteRecord
from mononn_bench.measure.environment import describe_machine
from mononn_bench.measure.process import Limits, WorkerFailedError
from mononn_core import compiler
from mononn_core.runtime import cuda_toolchain


def suite() -> SuiteRecord:
    return SuiteRecord("2026-01-01", "python -m mononn_bench.gpu_suite", "abc", describe_machine(), {}, True, ())


class FakeSteps:
    """Stands in for RunningStep: a step is there for a few looks, and its outcome is as the test says.

    `lasts` maps names to looks, one without; `ends` to what a name's first run becomes: a status, or an exception.
    """

    def __init__(self, lasts=(), ends=()):
        self.lasts, self.ends = dict(lasts), dict(ends)
        self.ran, self.now, self.together, self.closed = [], [], [], []

    def __call__(self, step, seconds, emulate, out, work, cores):
        fake, looks = self, [self.lasts.get(step.name, 1)]
        self.ran.append(step.name)
        self.now.append(step.name)
        self.together.append(sorted(self.now))

        class Running:
            beside: ClassVar = set()

            def __init__(self):
                self.step, self.beside = step, set()

            def ended(self):
                looks[0] -= 1
                return looks[0] <= 0

            def end(self):
                fake.closed.append(step.name)

            def record(self):
                fake.now.remove(step.name)
                end = fake.ends.pop(step.name, "ok")
                if isinstance(end, BaseException):
                    raise end
                result = {"cores": list(cores)}
                return StepRecord(step.name, end, "", emulate, "now", 1.0, result, tuple(sorted(self.beside)))

        return Running()


@pytest.fixture
def fake(monkeypatch):
    def use(**about):
        steps = FakeSteps(**about)
        monkeypatch.setattr(runner, "RunningStep", steps)
        monkeypatch.setattr(runner, "POLL_S", 0.0)
        return steps

    return use


@pytest.mark.parametrize("killed", ["a", "b", "c", "models:m"])
def test_a_suite_that_is_killed_goes_on_where_it_was(killed, tmp_path, fake):
    """At whatever step: what has an outcome is not run again, what was cut short, left out or is gone from disk is."""
    steps = [Step(name, "machine", {}, 10) for name in "ab"]
    steps += [Step("models:m", "models", {}, 10, lane="host"), Step("c", "machine", {}, 10, needs=("models:m",))]
    ends = {"a": "timeout", killed: KeyboardInterrupt()}
    steps_run = fake(ends=ends)
    arguments = (tmp_path, tmp_path, None, lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        runner.run_plan(steps, suite(), *arguments)
    first = list(steps_run.ran)
    answer = runner._answer_path(tmp_path, "models:m")
    answer.parent.mkdir(parents=True)
    answer.write_text("{}")
    kept = runner.finished(tmp_path / "records.json", suite(), tmp_path) if killed != "a" else ()
    done = runner.run_plan(steps, replace(suite(), steps=kept), *arguments)
    assert sorted(step.name for step in done.steps) == ["a", "b", "c", "models:m"]
    assert all(step.status == "ok" for step in done.steps)
    again = steps_run.ran[len(first) :]
    assert set(again) >= {killed, "a"} and not {step.name for step in kept} & set(again)
    records = tmp_path / "records.json"
    for other in ({"sources": "other code"}, {"gpus": ("another GPU",)}, {"rehearsal": False}):
        assert not runner.finished(records, replace(suite(), **other), tmp_path)
    gone = runner.finished(records, suite(), tmp_path / "another machine")
    assert {step.name for step in gone} == {"a", "b", "c"}, "what made files is made again where they are not"


def test_code_is_compiled_beside_what_is_measured(tmp_path, fake):
    """A lane runs one step at a time and skips one that waits for the other lane; records say what ran beside."""
    steps = [
        Step("machine", "machine", {}, 10),
        Step("right", "correctness", {}, 10, needs=("build",)),
        Step("ceilings", "ceilings", {}, 10),
        Step("models", "models", {}, 10, lane="host"),
        Step("build", "build", {}, 10, needs=("models",), lane="host"),
    ]
    ran = fake(lasts={"machine": 2, "ceilings": 6, "models": 3, "build": 5})
    done = runner.run_plan(steps, suite(), tmp_path, tmp_path, None, lambda text: None)
    assert ran.ran == ["machine", "models", "ceilings", "build", "right"]
    assert all(len(names) <= 2 for names in ran.together)
    beside = {step.name: step.beside for step in done.steps}
    assert beside == {
        "machine": ("models",), "models": ("ceilings", "machine"), "ceilings": ("build", "models"),
        "build": ("ceilings",), "right": (),
    }  # fmt: skip
    lanes = runner.lane_cores([0, 1, 2, 3])
    assert not set(lanes["gpu"]) & set(lanes["host"]) and runner.lane_cores([5]) == {"gpu": [5], "host": [5]}
    of = {step.name: step.result["cores"] for step in done.steps}
    assert of["machine"] != of["models"] or len(os.sched_getaffinity(0)) == 1


def test_the_most_important_comes_first():
    steps = plan.plan(Path("work"), False, ("mononn", "mononn-graph", "torch-graph", "torch-inductor", "xla"))
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    assert names[:4] == ["machine", "preflight", "conformance", "ceilings"]
    measured = [step.name for _, _, step in plan.timetable(steps) if step.lane == "gpu"]
    assert [name for name in measured if not name.startswith("sanitize:")][4:9] == [
        "correct:early", "correct:bert-base", "trace:bert-base-b1-fp16:once", "trace:bert-base-b1-fp16:graph",
        "compare:bert-base-b1-fp16",
    ]  # fmt: skip
    assert next(s for s in steps if s.name == "compare:bert-base-b1-fp16").arguments["contenders"] == list(plan.LEADERS)
    kinds = [step.kind for step in steps]
    assert kinds.index("compare") < kinds.index("sanitizer") < kinds.index("ncu")
    assert {f"compare:bert-base-b{b}-fp16" for b in (1, 8, 16, 32)} <= set(measured)
    for step in steps:
        missing = set(step.needs) - set(names)
        assert not missing, f"{step.name} waits for {missing}, which is no step"
        assert step.kind in steps_module.STEPS
    rehearsed = plan.plan(Path("work"), True, ("mononn",))
    assert {step.kind for step in rehearsed} == set(kinds)
    assert not {need for step in rehearsed for need in step.needs} - {step.name for step in rehearsed}
    assert all(step.arguments["case"]["target"] == "cpu" for step in rehearsed if "case" in step.arguments)


@pytest.mark.parametrize("emulate", [True, False])
def test_every_case_is_built_before_it_is_used(emulate):
    """What a step measures or checks was compiled by a step that it waits for, directly or not."""
    steps = plan.plan(Path("work"), emulate, ("mononn", "mononn-graph", "xla"))
    by_name = {step.name: step for step in steps}

    def before(step):
        return {step.name}.union(*(before(by_name[need]) for need in step.needs))

    checked = 0
    for step in steps:
        made = [b for name in before(step) if by_name[name].kind == "build" for b in by_name[name].arguments["builds"]]
        wanted = [[step.arguments["case"], step.arguments["launch"]]] if "launch" in step.arguments else []
        wanted += step.arguments["builds"] if step.kind == "correctness" else []
        for name, launch in (("mononn", "once"), ("mononn-graph", "graph")):
            if step.kind == "compare" and name in step.arguments["contenders"] and not emulate:
                wanted.append([step.arguments["case"], launch])
        assert all(one in made for one in wanted), step.name
        checked += len(wanted)
    assert checked > 20


def test_the_plan_of_the_half_hour_is_printed(capsys, tmp_path):
    assert command.main(["--plan", "--minutes", "30", "--work", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    marks = [number for number, line in enumerate(lines) if line.startswith("----")]
    assert [lines[number].split()[1] for number in marks] == ["10", "20", "30"]
    first = "\n".join(lines[: marks[0]])
    for name in ("preflight", "conformance", "correct:bert-base", "trace:bert-base-b1-fp16:once"):
        assert f"s  {name}: " in first, "the first call has it"
    assert "compare:bert-base-b1-fp16" in "\n".join(lines[: marks[1]])
    begins = [int(line.split(":")[0]) * 60 + int(line.split(":")[1][:2]) for line in lines[1:] if line[0] == " "]
    assert begins == sorted(begins)


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


def run_step(step: Step, seconds: float, work: Path) -> StepRecord:
    running = runner.RunningStep(step, seconds, True, work, work)
    while not running.ended():
        time.sleep(0.02)
    return running.record()


def test_a_step_that_hangs_or_breaks_is_a_row(tmp_path):
    hung = run_step(Step("hung", "ceilings", {}, 0.05), 0.05, tmp_path)
    assert (hung.status, hung.rehearsal) == ("timeout", True)
    broken = run_step(Step("broken:x", "trace", {"case": {}}, 60), 60, tmp_path)
    assert broken.status == "failed"
    assert broken.reason.startswith("TypeError: ")


def test_a_process_that_does_not_leave_costs_no_more_than_a_moment(tmp_path, monkeypatch):
    """A kernel that hangs also hangs whoever would end its context."""
    monkeypatch.setattr(runner, "LEAVING_S", 0.1)
    monkeypatch.setattr(runner.sys, "executable", "/bin/true")
    for status, limit, expected in (("ok", 60.0, "ok"), ("under way", 0.5, "timeout")):
        running = runner.RunningStep(Step(status, "machine", {}, limit), limit, True, tmp_path, tmp_path)
        running._process.wait()
        running._process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        running._answer.write_text(json.dumps({"status": status, "reason": "", "result": {}}))
        started = time.monotonic()
        while not running.ended():
            time.sleep(0.02)
        assert running.record().status == expected
        assert time.monotonic() - started < 10.0
        assert running._process.returncode == -9


def test_code_is_compiled_for_a_gpu_that_is_not_here(tmp_path, monkeypatch):
    pytest.importorskip("nvidia")
    for name, value in runner.step_variables(tmp_path).items():
        monkeypatch.setenv(name, value)  # as prepare does for its own process
    case = Case(str(tmp_path), "mlp-test", 1, "fp16", "cuda")
    launches = ["once", "graph", f"once:{ours.variants()[-1]}"]
    said: list[str] = []
    prepare([plan._build("x", [(case, launch) for launch in launches], 1.0)], "H100", tmp_path, said.append)
    assert len(said) == 3 and not [line for line in said if "failed" in line]
    assert not case.build_folder("mononn").exists(), "machine code only: weights are large, and soon packed"
    monkeypatch.setenv("MONONN_CACHE", "")
    monkeypatch.setattr(cuda_toolchain, "find_compiler", lambda: pytest.fail("no compiler is looked for"))
    for launch in launches:
        stages = ours._lower(contenders.fp32_model(case), "cuda", "fp16", launch, "H100")
        (cubin,) = compiler.build(stages).manifest["cubins"].values()
        assert cubin["command"].startswith("brought along")


def test_packages_and_code_that_were_brought_along_are_found(tmp_path, monkeypatch):
    """A package of work/site in a step's process, in what it starts, and in a contender's; a cubin whoever made it."""
    (tmp_path / "site" / "brought_along").mkdir(parents=True)
    (tmp_path / "site" / "brought_along" / "__init__.py").write_text("VALUE = 7\n")
    variables = runner.step_variables(tmp_path)
    program = "import brought_along, os; print(brought_along.VALUE, os.environ['MONONN_CUBINS'])"
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["7", str(tmp_path / "cubins")]
    with compare.start_worker(tmp_path, tmp_path / "scratch") as worker:
        (tmp_path / "site" / "torch").mkdir()
        (tmp_path / "site" / "torch" / "__init__.py").write_text("raise ImportError('brought along, and broken')\n")
        case = Case(str(tmp_path), "mlp-test", 2, "fp32", "cpu")
        with pytest.raises(WorkerFailedError, match="brought along, and broken"):
            worker.ask("open", Limits(60.0, 4000), contender="torch-eager", case=case.to_json())
    pytest.importorskip("nvidia")
    wanted = {"arch": "sm_80", "source": 'extern "C" __global__ void f(float *p) { p[0] = 1.0f; }'}
    monkeypatch.setenv("MONONN_CACHE", variables["MONONN_CACHE"])
    made = cuda_toolchain.compile_cubin(wanted["source"], {}, wanted["arch"], compiler="nvrtc")
    monkeypatch.setenv("MONONN_CACHE", "")
    monkeypatch.setenv("MONONN_CUBINS", variables["MONONN_CUBINS"])
    monkeypatch.setattr(cuda_toolchain, "find_compiler", lambda: pytest.fail("no compiler is looked for"))
    found = cuda_toolchain.compile_cubin(wanted["source"], {}, wanted["arch"])
    assert found.code == made.code and "brought along" in found.command


@pytest.mark.parametrize("raises", [False, True])
def test_a_step_leaves_without_unwinding(tmp_path, raises):
    """What an interpreter does at its end, and what goes out of scope with a step, may wait for the GPU for ever."""
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    body = {"kind": "stuck", "arguments": {}, "seconds": 9, "emulate": True, "parent": os.getpid(), "cores": []}
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


def test_records_are_written_after_each_step_and_what_has_no_time_is_left_out(tmp_path, monkeypatch, fake):
    clock, seen = [0.0], []
    steps_run = fake()

    def run(step, *arguments):
        path = tmp_path / "records.json"
        seen.append(json.loads(path.read_text())["steps"] if path.exists() else [])
        clock[0] += 50
        return steps_run(step, *arguments)

    monkeypatch.setattr(runner, "RunningStep", run)
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock[0])
    steps = [Step(name, "machine", {}, 10) for name in "abc"]
    done = runner.run_plan(steps, suite(), tmp_path, tmp_path, 1.6, lambda text: None)
    assert [(s.name, s.status) for s in done.steps] == [("a", "ok"), ("b", "ok"), ("c", "left out")]
    assert [len(steps) for steps in seen] == [0, 1]
    assert read_record(SuiteRecord, tmp_path / "records.json") == done


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
