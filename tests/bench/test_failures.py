"""Systems that fail, each in its own way, are rows with their status and reason; the others are measured."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mononn_bench import cli
from mononn_bench.codec import from_plain, to_plain
from mononn_bench.errors import DiskFullError
from mononn_bench.measure import case, process, runner
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError, group_members
from mononn_bench.record import CaseRecord
from tests.bench.conftest import QUICK, Measure


def test_each_failure_is_a_row_with_its_reason(measure: Measure) -> None:
    systems = [
        "fake-ok",
        "fake-crash",
        "fake-hang",
        "fake-memory",
        "fake-wrong",
        "fake-missing",
        "fake-nan",
        "fake-broken",
    ]
    record = measure(systems, replace(QUICK, answer_limit_s=5.0))
    rows = {row.label: (row.status, row.reason) for row in record.systems}
    assert list(rows) == systems
    assert rows["fake-ok"] == ("ok", "")
    assert rows["fake-crash"] == ("failed", "ended by SIGSEGV in warm_up")
    assert rows["fake-hang"] == ("timeout", "no answer to warm_up within 5 s")
    assert rows["fake-memory"] == ("failed", "held more than 600 MB of memory in load, and was ended")
    assert rows["fake-missing"] == ("unavailable", "the library fake is not installed")
    assert rows["fake-broken"] == ("failed", "ValueError: operator Softmax is not supported")
    assert rows["fake-wrong"][0] == rows["fake-nan"][0] == "incorrect"
    assert "off by relative L2 1.0e-03 (limit 1e-05), before timing" in rows["fake-wrong"][1]
    assert "not finite" in rows["fake-nan"][1]
    timed = {block.system for r in record.rounds for cycle in r.cycles for block in cycle.blocks}
    assert timed == {"fake-ok"}, "wrong answers have no speed"


def test_an_answer_that_turns_wrong_while_timed_is_caught_after(measure: Measure) -> None:
    record = measure(["fake-ok", "fake-late"], replace(QUICK, block_runs=20))
    late = record.systems[1]
    assert late.status == "incorrect"
    assert late.reason.endswith("after timing")
    assert record.systems[0].status == "ok"


@pytest.mark.slow
def test_a_slow_system_has_raw_times_only(measure: Measure) -> None:
    record = measure(["fake-ok", "fake-slow"], replace(QUICK, slow_s=0.2))
    slow = record.systems[1]
    assert (slow.status, slow.slow) == ("ok", True)
    together = [r for r in record.rounds if "fake-ok" in r.systems]
    assert all("fake-slow" not in r.systems for r in together)
    (alone,) = (r for r in record.rounds if r.systems == ("fake-slow",))
    (block,) = alone.cycles[0].blocks
    assert block.runs == 3
    assert block.value_s > 0.2


def test_where_no_independent_system_agrees_the_case_is_disputed(measure: Measure, linear_folder: Path) -> None:
    reference = linear_folder / "reference.json"
    kept = reference.read_text()
    reference.write_text(kept.replace('"family": "onnx"', '"family": "pytorch"'))
    try:
        record = measure(["fake-wrong"], QUICK)
    finally:
        reference.write_text(kept)
    assert record.systems[0].status == "disputed"
    assert "no independent system agrees" in record.systems[0].reason


def test_the_same_system_twice_and_the_record_survives_json(measure: Measure) -> None:
    record = measure(["fake-ok", "fake-ok"], replace(QUICK, starts=1))
    assert [row.label for row in record.systems] == ["fake-ok", "fake-ok@2"]
    assert all(row.status == "ok" for row in record.systems)
    assert len(record.rounds) == 1
    for cycle in record.rounds[0].cycles:
        assert sorted(cycle.order) == ["fake-ok", "fake-ok@2", "sentinel"]
        assert [block.accepted for block in cycle.blocks] == [True, True]
        assert all(block.runs >= 3 and len(block.samples_ns) <= 200 for block in cycle.blocks)
        assert cycle.sentinel and cycle.sentinel.flops_per_s > 1e8
    assert all(row.identity_us and row.load_ms and row.first_run_ms for row in record.systems)
    assert from_plain(CaseRecord, to_plain(record)) == record


def test_a_disturbed_block_is_repeated_and_kept(measure: Measure) -> None:
    """A limit of nothing at all makes every block disturbed."""
    record = measure(["fake-ok"], replace(QUICK, disturbed_share=-1.0, repeats=2, cycles=1))
    blocks = record.rounds[0].cycles[0].blocks
    assert [block.accepted for block in blocks] == [False, False, True]
    assert [block.attempt for block in blocks] == [0, 1, 2]
    assert not any(block.undisturbed for block in blocks)


def test_a_build_survives_a_crash_in_the_one_node_model(measure: Measure) -> None:
    record = measure(["fake-no-identity"], QUICK)
    (row,) = record.systems
    assert (row.status, row.identity_us) == ("ok", None)


def test_workers_that_were_checked_serve_in_the_first_round(measure: Measure) -> None:
    settings = replace(QUICK, rounds=2, cycles=1, starts=0)
    row = measure(["fake-ok"], settings).systems[0]
    assert [start.files for start in row.starts] == ["neither", "warm"]


def test_what_failed_in_one_round_is_not_started_in_the_next(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, block, started = runner.Runner.__init__, runner.Runner.block, list[tuple[str, str]]()

    def counted(self: runner.Runner, contestant: runner.Contestant, course: runner.Course, tag: str) -> None:
        started.append((contestant.label, tag))
        begin(self, contestant, course, tag)

    def failing(self: runner.Runner, first: int, **how: bool) -> dict[str, object]:
        if self.contestant.label == "fake-ok@2":
            raise WorkerFailedError("failed", "ended by SIGSEGV in block")
        return block(self, first, **how)

    monkeypatch.setattr(runner.Runner, "__init__", counted)
    monkeypatch.setattr(runner.Runner, "block", failing)
    record = measure(["fake-ok", "fake-ok"], replace(QUICK, rounds=3, cycles=1, starts=1))
    assert [tag for label, tag in started if label == "fake-ok@2"] == ["checked"]
    assert [tag for label, tag in started if label == "fake-ok"][:3] == ["checked", "1.0", "2.0"]
    assert [(row.status, row.reason) for row in record.systems] == [("ok", ""), ("failed", "ended by SIGSEGV in block")]
    assert {b.system for r in record.rounds for c in r.cycles for b in c.blocks} == {"fake-ok"}


def test_a_full_disk_stops_the_run_and_is_no_systems_failure(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(process.shutil, "disk_usage", lambda _: usage._replace(free=10_000_000))
    assert measure(["fake-ok"], QUICK).systems[0].status == "ok"
    with pytest.raises(DiskFullError, match="is full: free some of it"):
        measure(["fake-ok", "fake-crash"], QUICK)

    def write(_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "results/raw/x.json")

    monkeypatch.setattr(cli.commands, "systems", write)
    assert cli.main(["systems"]) == 1
    assert capsys.readouterr().err.startswith("The disk that holds results/raw/x.json is full")


def _worker(system: str, folder: Path) -> Worker:
    return Worker(system, Path(sys.executable), cores=[0], scratch=folder)


def test_a_worker_sees_only_its_package(tmp_path: Path) -> None:
    with _worker("fake-ok", tmp_path) as worker:
        assert worker.ask("probe", Limits(20, 1000))["versions"]["fake-ok"] == "1"
        with pytest.raises(WorkerFailedError, match="no_such_call"):
            worker.ask("no_such_call", Limits(20, 1000))


def test_a_stopped_worker_uses_no_processor_time(tmp_path: Path) -> None:
    with _worker("fake-ok", tmp_path) as worker:
        worker.ask("probe", Limits(20, 1000))
        worker.stop()
        time.sleep(0.05)
        state = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "T"
        worker.resume()
        assert worker.ask("probe", Limits(20, 1000))


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    """Also stopped ones, when the parent is killed and can clean nothing up."""
    program = (
        "import sys, time; from pathlib import Path; from mononn_bench.measure.process import Limits, Worker\n"
        f"w = Worker('fake-ok', Path(sys.executable), cores=[0], scratch=Path({str(tmp_path)!r}))\n"
        "w.ask('probe', Limits(20, 1000)); w.stop(); print(w.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert group_members(worker) == [worker]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while group_members(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group_members(worker) == []


def test_where_memory_is_short_the_case_runs_in_pairs(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "MEMORY_SHARE", 0.0)
    record = measure(["fake-ok", "fake-ok", "fake-ok"], replace(QUICK, rounds=2, cycles=1))
    assert record.pairs_mode
    groups = [(r.index, r.group, r.systems) for r in record.rounds]
    pairs = [("fake-ok", "fake-ok@2"), ("fake-ok", "fake-ok@3")]
    assert groups == [(i, g, pair) for i in range(2) for g, pair in enumerate(pairs)]
    assert all(row.status == "ok" for row in record.systems)
