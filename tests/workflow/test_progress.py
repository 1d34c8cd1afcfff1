"""What a run of the workflow tells of how far it is."""

import json
import os
import signal
import time
from subprocess import PIPE

import pytest

from mononn_bench.files import ROOT
from mononn_bench.workflow.config import read_config
from mononn_bench.workflow.plan import make_plan
from mononn_bench.workflow.progress import Progress, Step, recall, steps_to_make, whole_minutes

STEPS = {"Building a with b": Step(60.0, "Building a with b"), "Measuring a": Step(120.0, "Measuring a, 4 rounds")}
BUILD, MEASURE = "Job 4: Building a with b", "Job 5: Measuring a: all systems side by side; progress in {log}"


def test_minutes_left_follow_steps_and_pace(tmp_path):
    progress = Progress(dict(STEPS), tmp_path / "durations.json")
    assert progress.line(BUILD, 100.0) == "[1/2] Building a with b; about 3 min left"
    assert progress.line("Finished jobid: 4 (Rule: build)", 220.0) is None  # twice as long as expected
    said = progress.line(MEASURE.format(log=tmp_path / "log.txt"), 220.0)
    assert said == "[2/2] Measuring a; about 4 min left"
    assert progress.minutes_left(220.0 + 180.0) == 1
    assert progress.line("Finished jobid: 5 (Rule: measure)", 400.0) is None
    assert json.loads((tmp_path / "durations.json").read_text()) == {
        "Building a with b": 120.0,
        "Measuring a, 4 rounds": 180.0,
    }


def test_what_a_step_took_is_expected_again(tmp_path):
    memory = tmp_path / "durations.json"
    assert recall(STEPS, memory) == STEPS
    memory.write_text('{"Measuring a, 4 rounds": 600.0, "Building a with c": 5.0}')
    assert whole_minutes(recall(STEPS, memory).values()) == 11
    memory.write_text("no JSON")
    assert recall(STEPS, memory) == STEPS


def test_rounds_come_from_the_log_of_the_measurement(tmp_path):
    log = tmp_path / "log.txt"
    progress = Progress(dict(STEPS), tmp_path / "durations.json")
    assert progress.round() is None
    progress.line(MEASURE.format(log=log), 0.0)
    assert progress.round() is None
    log.write_text("a: checking x\na: round 1 of 4: x, y\n")
    assert progress.round() == "        a: round 1 of 4: x, y"
    assert progress.round() is None
    progress.line("Finished jobid: 5 (Rule: measure)", 9.0)
    log.write_text("a: round 2 of 4: x, y\n")
    assert progress.round() is None


def test_noise_is_kept_back_and_errors_stand_as_they_are(tmp_path):
    progress = Progress(dict(STEPS), tmp_path / "durations.json")
    noise = ["Building DAG of jobs...", "", "[Fri Nov 20 14:21:49 2026]", "1 of 3 steps (33%) done", "localrule all:",
             "    jobid: 0", "total        3", "Select jobs to execute..."]  # fmt: skip
    assert [progress.line(text, 0.0) for text in noise] == [None] * len(noise)
    error = ["Error in rule build:", "    jobid: 4", "    log: x.txt", "", "Logfile x.txt:", "no space left"]
    assert [progress.line(text, 0.0) for text in error] == error
    assert progress.line(BUILD, 0.0).startswith("[1/2]")
    assert progress.line("    jobid: 0", 0.0) is None


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "suites/aa.yaml",
        "suites/ablation.yaml",
        "suites/bricks.yaml",
        "suites/start.yaml",
        "suites/lengths.yaml",
    ],
)
def test_every_step_of_a_shipped_configuration_is_expected(name, tmp_path):
    plan = make_plan({**read_config(ROOT / "workflows" / name), "cache": str(tmp_path), "results": str(tmp_path / "r")})
    steps = steps_to_make(plan)
    beside = [*plan.bricks, *plan.primitives, *plan.starts, *plan.lengths.records]
    assert sum(m.startswith("Measuring ") for m in steps) == len(plan.cases) + len(beside) > 0
    assert sum(" with " in m for m in steps) == (len(plan.builds) if plan.cases or plan.starts else 0)
    assert all(step.seconds > 0 for step in steps.values())
    for path in (plan.report[0], *beside, *(case.record for case in plan.cases.values())):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert not any(m.startswith("Measuring ") for m in steps_to_make(plan))


def _heeds_interrupts():
    """A shell's background job ignores SIGINT, and so would everything it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(finished):
    """In the checkout whose models are exported already; results of its own."""
    config, results = finished.folder / "interrupted.yaml", finished.folder / "interrupted"
    config.write_text(
        "models: {mlp-test: }\nsystems: [fake-ok]\nprofile: false\nresults: interrupted\n"
        "measuring: {rounds: 2, cycles: 1, block_seconds: 0.1}\nenvironments: {torch: driver}\n"
    )
    command = ("--configfile", config)
    driver = {"module": "mononn_bench.workflow.run"}
    running = finished.start(
        *command, **driver, stdout=PIPE, stderr=PIPE, start_new_session=True, preexec_fn=_heeds_interrupts
    )
    logs, before = finished.folder / ".cache" / "logs" / "measure", time.time()
    while running.poll() is None and time.time() < before + 300:
        fresh = [log for log in logs.glob("mlp-test-*.txt") if log.stat().st_mtime > before]
        if any("round 1" in log.read_text() for log in fresh):
            os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the whole process group
            break
        time.sleep(0.2)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130, output + errors
    assert "the same command goes on from here" in errors
    assert "Traceback" not in errors
    assert not list(results.glob("*/raw/*.json"))

    again = finished.run(*command, **driver)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Building mlp-test" not in again.stdout and "Measuring mlp-test" in again.stdout
    assert len(list(results.glob("*/raw/*.json"))) == 1
