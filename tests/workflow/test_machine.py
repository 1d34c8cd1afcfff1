"""The machine that measures: a plan that states it asks none, and no other machine adds to its results."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from mononn_bench.cli import main
from mononn_bench.codec import read_record, write_record
from mononn_bench.record import BuildRecord
from mononn_bench.systems.cuda import Gpu
from mononn_bench.workflow import machine
from mononn_bench.workflow.machine import OtherMachineError, note_machine, require_builds, require_machine
from mononn_bench.workflow.plan import make_plan
from mononn_bench.workflow.run import settled_options

CONFIG = {"models": {"mlp-test": None}, "systems": ["mononn", "onnxruntime"]}
STATED = {**CONFIG, "machine": "lab-1", "threads": 2, "targets": ["cpu", "cuda"]}
GPU = Gpu("NVIDIA A10", "570.86.15", "8.6", 23028)


def everything(plan):
    """All that Snakemake takes from a plan."""
    cases = [(case.record, case.inputs, case.options) for case in plan.cases.values()]
    builds = [(build.record, build.options) for build in plan.builds.values()]
    return plan.report, plan.timelines, plan.machine_record, cases, builds


def test_a_plan_that_states_its_machine_asks_none(monkeypatch):
    before = everything(make_plan(STATED))

    def asked(*_):
        raise AssertionError("the machine that parses was asked")

    for name in ("os.sched_getaffinity", "find_gpus", "machine_name", "describe_machine"):
        monkeypatch.setattr(f"mononn_bench.workflow.machine.{name}", asked)
    assert everything(make_plan(STATED)) == before
    for key in ("machine", "threads", "targets"):
        with pytest.raises(AssertionError, match="was asked"):
            make_plan({**STATED, key: "auto"})


def test_whoever_reads_the_configuration_again_has_the_same_plan():
    plan = make_plan(CONFIG)
    said = dict(option.split("=") for option in settled_options(plan))
    again = {**CONFIG, **said, "threads": int(said["threads"]), "targets": said["targets"].strip("[]").split(",")}
    assert everything(make_plan({**again})) == everything(plan)


def test_what_another_machine_would_have_to_answer_is_not_asked_of_this_one():
    machine.require_settled(STATED, local=False)
    machine.require_settled(CONFIG, local=True)
    with pytest.raises(OtherMachineError, match=r"leaves threads, targets .* mononn-bench machine"):
        machine.require_settled({**CONFIG, "machine": "lab-1"}, local=False)


def test_a_name_made_elsewhere_is_refused_and_a_chosen_one_taken(tmp_path, monkeypatch):
    for name in (machine.name_here(1, ["cpu"]), machine.name_here(9, ["cuda"]), "lab-1"):
        assert note_machine(name, tmp_path / f"{name}.json").machine.name == name
    with pytest.raises(OtherMachineError, match=r"This machine is .*-1c-.*, and the plan is for intel-xeon-1c-123456"):
        note_machine("intel-xeon-1c-123456", tmp_path / "no.json")
    without = machine.name_here(1, ["cuda"])
    monkeypatch.setattr(machine, "find_gpus", lambda: (GPU,))
    with pytest.raises(OtherMachineError, match="nvidia-a10"):
        note_machine(without, tmp_path / "no.json")
    assert not (tmp_path / "no.json").exists()


def test_results_and_builds_stay_on_their_machine(tmp_path, monkeypatch):
    path = tmp_path / "machine.json"
    record = note_machine("lab-1", path)
    assert require_machine(path, 1, "cuda").machine.name == "lab-1"
    monkeypatch.setattr(machine, "find_gpus", lambda: (GPU,))
    require_machine(path, 1, "cpu")
    with pytest.raises(OtherMachineError, match="no GPU, and this is NVIDIA A10, driver 570"):
        require_machine(path, 1, "cuda")
    with pytest.raises(OtherMachineError, match="9999 cores"):
        require_machine(path, 9999, "cpu")
    write_record(replace(record, machine=replace(record.machine, flags=("avx",))), path)
    with pytest.raises(OtherMachineError, match="name this machine differently in"):
        require_machine(path, 1, "cpu")


@pytest.mark.slow
def test_a_build_says_where_it_was_made(finished):
    (path,) = finished.folder.glob(".cache/builds/*/mlp-test/onnxruntime-*/build.json")
    build = read_record(BuildRecord, path)
    require_builds([(path.parent, build), (path.parent, replace(build, processor=""))], {"threads": build.threads})
    with pytest.raises(OtherMachineError, match=r"built on another, .* delete that folder"):
        require_builds([(path.parent, replace(build, processor="another"))], {})


def test_the_rules_command_fails_where_the_plan_is_for_another_machine(tmp_path, capsys):
    plan = make_plan({**CONFIG, "machine": "intel-xeon-1c-123456", "threads": 1, "targets": ["cpu"]})
    command = ["machine", "--name", plan.machine, "--output", str(tmp_path / "machine.json")]
    assert main(command) == 2
    assert "the plan is for intel-xeon-1c-123456" in capsys.readouterr().err
    assert not (tmp_path / "machine.json").exists()


def test_snakemakes_own_linter_finds_nothing_but_that_it_knows_no_virtual_environments(checkout):
    result = checkout.run("--configfile", "workflows/config.test.yaml", "--lint")
    found = re.findall(r"^    \* (.*)$", result.stdout + result.stderr, re.MULTILINE)
    assert set(found) == {"Specify a conda environment or container for each rule.:"}
    assert len(found) == 15, "one a rule that runs something"


SLEEPS = """
import threading
from mononn_bench.workflow.machine import sleep_while_jobs_run
rule all:
    input: "1", "2", "3"
rule one:
    output: "{n}"
    resources: machine=1000
    shell: "sleep 0.2; touch {output}"
onstart:
    call(workflow)
onsuccess:
    print("timers", sum(isinstance(t, threading.Timer) for t in threading.enumerate()))
"""


@pytest.mark.parametrize("call", ["sleep_while_jobs_run", "str"])
def test_the_scheduler_has_no_timers_while_jobs_run(tmp_path, call):
    (tmp_path / "Snakefile").write_text(SLEEPS.replace("call(", f"{call}("))
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--resources", "machine=1000"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ("timers 0" in said.stdout) == (call != "str"), said.stdout + said.stderr
