"""The processor's and the kernel's counters through perf_event_open, by Linux's own `perf stat`."""

from __future__ import annotations

import csv
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mononn_bench.profiled import EventCount

TOOL = "perf"
ANSWER_S, WATCH_S = 10.0, 0.05
"""Seconds in which it has to answer, and to end, and how often is looked whether it has ended instead of an answer."""
EVENTS = (
    "task-clock", "cycles", "instructions", "branch-misses", "L1-dcache-load-misses", "cache-misses",
    "dTLB-load-misses", "page-faults", "context-switches", "cpu-migrations",
)  # fmt: skip


@dataclass(frozen=True)
class Gate:
    """The two named pipes by which a watched process has its runs counted and nothing else."""

    control: Path
    answer: Path

    def make(self) -> None:
        """Make the pipes."""
        os.mkfifo(self.control)
        os.mkfifo(self.answer)

    def __enter__(self) -> None:
        """Have counting begin, and wait until it has."""
        self.say("enable")

    def __exit__(self, *_: object) -> None:
        """Have it end, and wait until it has."""
        self.say("disable")

    def say(self, word: str, listens: Callable[[], bool] = lambda: True) -> bool:
        """Whether a word is answered in time, as long as somebody `listens`."""
        control, answer = (os.open(path, os.O_RDWR) for path in (self.control, self.answer))  # which waits for nobody
        try:
            os.write(control, f"{word}\n".encode())
            until = time.monotonic() + ANSWER_S
            while listens() and time.monotonic() < until:
                if select.select([answer], [], [], WATCH_S)[0]:
                    os.read(answer, 1 << 10)
                    return True
            return False
        finally:
            os.close(control)
            os.close(answer)


class Counting:
    """`perf stat` beside a running process: it counts what all threads of that one do while the gate is open.

    Attributes:
        pipes: the gate's, for the process; none where nothing is counted, and
        reason: why.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        """Attach to the process `pid`; pipes and counts lie in `folder`."""
        self.pipes: list[str] = []
        self.reason = f"{TOOL} not found"
        self._perf: subprocess.Popen[bytes] | None = None
        self._output = folder / "counts.csv"
        if not (perf := shutil.which(TOOL)):
            return
        gate = Gate(folder / "control", folder / "answer")
        gate.make()
        command = [perf, "stat", "--field-separator=,", f"--output={self._output}", f"--event={','.join(EVENTS)}"]
        command += ["--delay=-1", f"--control=fifo:{gate.control},{gate.answer}", f"--pid={pid}"]
        none, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
        self._perf = made = subprocess.Popen(command, stdin=none, stdout=pipe, stderr=same)
        if gate.say("disable", lambda: made.poll() is None):
            self.pipes, self.reason = [str(gate.control), str(gate.answer)], ""
        else:
            said = self._end(signal.SIGKILL).strip().splitlines()
            self.reason = f"{TOOL} failed: {said[-1][:200] if said else 'no message'}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)

    def counts(self, runs: int) -> tuple[EventCount, ...]:
        """Of one of so many runs, what was counted until now; it counts no more. None, and a reason, where it was not
        counted, or perf wrote nothing.
        """
        self._end(signal.SIGINT)
        if not self.reason and not self._output.exists():
            self.reason = f"{TOOL} wrote no counts"
        return () if self.reason else read(self._output.read_text(), runs)

    def _end(self, number: int) -> str:
        """End it, if it runs, by force where it takes too long; what it has said."""
        if self._perf is None:
            return ""
        self._perf.send_signal(number)
        try:
            said, _ = self._perf.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            self._perf.kill()
            said, _ = self._perf.communicate()
        self._perf = None
        return said.decode(errors="replace")


def read(table: str, runs: int) -> tuple[EventCount, ...]:
    """The counts of one of so many runs, from what `perf stat` wrote; those that the machine does not show have none.

    A count is scaled up by `perf` where counters took turns because the processor has too few. Times are in ms there.
    """
    rows = csv.reader(line for line in table.splitlines() if line and not line.startswith("#"))
    return tuple(
        EventCount(name.partition(":")[0], None if count.startswith("<") else float(count) / runs)
        for count, _unit, name, *_ in rows
    )
