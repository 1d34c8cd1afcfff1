"""First answers: real systems as programs and by Python, what fails as rows, and the process that is watched."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mononn_bench import cli
from mononn_bench.by_hand import make_contestants
from mononn_bench.codec import read_record
from mononn_bench.errors import BadOptionError, SystemUnavailableError
from mononn_bench.measure.build import build_system
from mononn_bench.measure.process import Limits, WorkerFailedError
from mononn_bench.measure.runner import Course
from mononn_bench.record import ModelRecord
from mononn_bench.start import command
from mononn_bench.start.case import start_case
from mononn_bench.start.process import Command, Started, mapped_files
from mononn_bench.start.programs import make_programs
from mononn_bench.started import Starter, StartRecord, StartSettings
from mononn_bench.systems.base import Task
from tests.bench.conftest import QUICK, Contestants

FEW = StartSettings(warm=1, cold=1, processes=1)
ANSWERS = "import os,sys,time; t=time.monotonic_ns(); os.write(DESCRIPTOR, f'{t} {t}\\nwritten\\n'.encode()); "


def started(model: Path, systems: Sequence[str], environment: Path, folder: Path) -> dict[str, Starter]:
    """Build a model with each system for one core and start it; the rows by label."""
    builds = {name: folder / "builds" / name for name in systems}
    for name, output in builds.items():
        build_system(
            name, environment=environment, model_folder=model, output=output, threads=1, precision="fp32",
            target="cpu", limits=Limits(20, 2000), lock=folder / "lock",
        )  # fmt: skip
    contestants = make_contestants(systems, builds, dict.fromkeys(systems, environment))
    settings = replace(QUICK, answer_limit_s=20.0)
    course = Course(model, model / "reference.npz", "fp32", "cpu", settings, (0,), folder / "scratch")
    record = start_case(
        contestants,
        course,
        FEW,
        machine_name="here",
        command="again",
        say=lambda _: None,
        lock=folder / "lock",
    )
    assert not (folder / "scratch").exists()
    return {starter.label: starter for starter in record.starters}


@pytest.mark.slow
def test_programs_and_python_give_the_reference_s_answers(
    bert_folder: Path, driver_environment: Path, tmp_path: Path
) -> None:
    """Two inputs of int64: their order and types reach every library."""
    before = os.sched_getaffinity(0)
    rows = started(bert_folder, ["mononn", "onnxruntime", "openvino"], driver_environment, tmp_path)
    assert list(rows) == [
        "mononn native shared", "mononn native private", "mononn Python", "onnxruntime native", "onnxruntime Python",
        "openvino native", "openvino Python",
    ]  # fmt: skip
    for row in rows.values():
        assert (row.status, row.reason) == ("ok", ""), row.label
        assert row.checks and all(check.passed for check in row.checks)
        assert [one.round for one in row.starts] == [0, 0]
        assert row.starts[0].files == "warm" and row.starts[1].files != "warm"
        assert all(0 < one.stood_ms < one.answered_ms < 2e4 for one in row.starts)
        assert row.one_mb and row.own_mb and 0 < row.own_mb < row.one_mb
    native, by_python = rows["mononn native shared"], rows["mononn Python"]
    assert min(native.times("warm").values()) < min(by_python.times("warm").values())
    assert native.own_mb and (private := rows["mononn native private"].own_mb) and private > native.own_mb
    assert os.sched_getaffinity(0) == before


@pytest.mark.slow
def test_what_fails_is_a_row(linear_folder: Path, driver_environment: Path, tmp_path: Path) -> None:
    systems = ["onnxruntime", "fake-ok", "fake-missing", "fake-crash", "fake-wrong"]
    rows = started(linear_folder, systems, driver_environment, tmp_path)
    found = {label: (row.status, row.reason) for label, row in rows.items()}
    assert found["fake-missing"] == ("unavailable", "the library fake is not installed")
    assert found["fake-ok native"] == ("unavailable", "there is no native program for fake-ok here")
    assert found["fake-ok Python"] == found["onnxruntime native"] == ("ok", "")
    assert found["fake-crash Python"] == ("failed", "ended by SIGSEGV before its first answer")
    assert found["fake-wrong Python"][0] == "incorrect"
    assert not rows["fake-crash Python"].starts


def test_without_a_compiler_there_is_no_program(
    linear_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    model = read_record(ModelRecord, linear_folder / "model.json")
    task = Task(model, linear_folder, tmp_path, 1, "fp32", "cpu")
    with pytest.raises(SystemUnavailableError, match="no compiler no-such-compiler here to build"):
        make_programs("onnxruntime", task, tmp_path)


def process(code: str, folder: Path, limits: Limits) -> Started:
    line = [sys.executable, "-c", code]
    return Started(Command(line, 2, dict(os.environ), folder / "log", ()), limits)


def test_a_process_is_watched_until_it_has_answered(tmp_path: Path) -> None:
    with process(ANSWERS + "sys.stdin.read()", tmp_path, Limits(5.0, 2000)) as one:
        assert 0 < one.stood_ms == one.answered_ms
        assert one.memory()[0] > 1
        assert any(path.name.startswith("libc") for path in mapped_files(one.pid))
        pid = one.pid
    assert not Path(f"/proc/{pid}").exists()
    assert mapped_files(pid) == set()


@pytest.mark.parametrize(
    ("code", "limits", "status", "reason"),
    [
        ("import sys; sys.exit('no such\\nfile')", Limits(5.0, 2000), "failed", "exited with status 1: file"),
        ("import time; time.sleep(9)", Limits(0.3, 2000, 0.05), "timeout", "no first answer within 0.3 s"),
        ("x = bytearray(2 * 10**8); import time; time.sleep(9)", Limits(9.0, 100, 0.05), "failed",
         "held more than 100 MB of memory"),
        ("import os; os.kill(os.getpid(), 9)", Limits(5.0, 2000), "failed",
         "ended by SIGKILL before its first answer"),
        (ANSWERS.replace("\\nwritten", "") + "sys.exit(3)", Limits(5.0, 2000), "failed", "exited with status 3"),
    ],
)  # fmt: skip
def test_a_process_that_does_not_answer_says_why(
    code: str, limits: Limits, status: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkerFailedError) as raised:
        process(code, tmp_path, limits)
    assert (raised.value.status, raised.value.reason.removesuffix(": silent")) == (status, reason)


def test_first_answers_are_not_of_defaults(contestants: Contestants, tmp_path: Path) -> None:
    model, made = contestants(["fake-ok"])
    course = Course(model, model / "reference.npz", "fp32", "cpu", QUICK, (0,), tmp_path / "scratch", defaults=True)
    with pytest.raises(BadOptionError, match="every system's options set"):
        start_case(made, course, FEW, machine_name="", command="", say=print, lock=tmp_path / "lock")


def test_the_command_writes_a_record(
    contestants: Contestants, driver_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "start_case", partial(start_case, lock=tmp_path / "lock"))
    model, (one,) = contestants(["fake-ok"])
    line = [
        "start", f"--model-folder={model}", f"--build=fake-ok={one.build_folder}", "--warm=1", "--cold=0",
        f"--environment=fake-ok={driver_environment}", "--threads=1", "--processes=2",
        f"--output={tmp_path / 'record.json'}",
    ]  # fmt: skip
    assert cli.main(line) == 0
    record = read_record(StartRecord, tmp_path / "record.json")
    assert record.settings == StartSettings(1, 0, 2, 1)
    assert [row.status for row in record.starters] == ["unavailable", "ok"]
    assert record.starters[1].all_mb and record.starters[1].one_mb
    assert record.command == (
        "mononn-bench start --model linear --systems fake-ok --warm 1 --cold 0 --processes 2 --seed 0 --threads 1"
    )
    assert "From the start of a process" in capsys.readouterr().out
