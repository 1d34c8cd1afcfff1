"""Systems that fail in every way are rows, and a run that is killed can be taken up again."""

import csv
import os
import signal
import time
from pathlib import Path

import pytest
import yaml

RECORDS = "results/*/suites/config/raw/*.json"
"""A configuration that is not the default writes under its file's name."""
SETTINGS = {"rounds": 1, "cycles": 1, "block_seconds": 0.01}


def write_config(checkout, **change):
    config = {
        "models": {"mlp-test": None},
        "systems": ["fake-ok"],
        "measuring": SETTINGS,
        "limits": {"build_seconds": 60, "answer_seconds": 5, "memory_mb": 600},
        "environments": {"torch": "driver"},
    }
    path = checkout.folder / "config.yaml"
    path.write_text(yaml.safe_dump({**config, **change}))
    return path


def processes_of(folder):
    """Process ids and command lines of what works in `folder`."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if str(folder) in words or str((process / "cwd").readlink()) == str(folder):
                found[int(process.name)] = words
        except OSError:
            continue
    return found


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@pytest.mark.slow
def test_every_way_to_fail_is_a_row_with_its_reason(checkout):
    expected = {
        "fake-ok": ("ok", ""),
        "fake-missing": ("unavailable", "not installed"),
        "fake-crash": ("failed", "SIGSEGV"),
        "fake-hang": ("timeout", "5 s"),
        "fake-memory": ("failed", "memory"),
        "fake-wrong": ("incorrect", "relative L2"),
    }
    result = checkout.run("--configfile", write_config(checkout, systems=list(expected)))
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = checkout.folder.glob("results/*/suites/config/tables/cells.csv")
    rows = {row["system"]: row for row in csv.DictReader(path.open())}
    assert list(rows) == list(expected)
    for system, (status, word) in expected.items():
        assert rows[system]["status"] == status, rows[system]
        assert word in rows[system]["reason"]
        assert (rows[system]["median_ms"] != "") == (status == "ok")


@pytest.mark.slow
def test_a_killed_run_leaves_no_orphan_and_is_taken_up_again(checkout):
    config = write_config(checkout, measuring={**SETTINGS, "rounds": 6})
    running = checkout.start("--configfile", config, stdout=-3, stderr=-3)
    logs = checkout.folder / ".cache" / "logs"
    assert wait_for(lambda: list(logs.glob("measure/*.txt")), 120), "the measurement never began"
    assert wait_for(lambda: len(processes_of(checkout.folder)) >= 3, 300)
    time.sleep(1)
    built = {p: p.stat().st_mtime_ns for p in checkout.folder.glob(".cache/builds/**/build.json")}
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert wait_for(lambda: not processes_of(checkout.folder), 10), processes_of(checkout.folder)
    assert not list(checkout.folder.glob(RECORDS))

    again = checkout.run("--configfile", config, module="mononn_bench.workflow.run")
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(list(checkout.folder.glob(RECORDS))) == 1
    assert {p: p.stat().st_mtime_ns for p in checkout.folder.glob(".cache/builds/**/build.json")} == built
