"""The processor's and the kernel's counters through perf_event_open, by Linux's own `perf stat`."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

from mononn_bench.profile.outside import require
from mononn_bench.profiled import EventCount

TOOL = "perf"
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
        self._say("enable")

    def __exit__(self, *_: object) -> None:
        """Have it end, and wait until it has."""
        self._say("disable")

    def _say(self, word: str) -> None:
        self.control.write_text(f"{word}\n")
        with self.answer.open() as answer:
            answer.readline()


def launcher(output: Path, gate: Gate) -> list[str]:
    """The command in front of a process whose counts `perf stat` shall write to `output`: of all its threads, while the
    gate is open.
    """
    command = [require(TOOL), "stat", "--field-separator=,", f"--output={output}", f"--event={','.join(EVENTS)}"]
    return [*command, "--delay=-1", f"--control=fifo:{gate.control},{gate.answer}", "--"]


def read(table: str, runs: int) -> tuple[EventCount, ...]:
    """The counts of one of so many runs, from what `perf stat` wrote; those that the machine does not show have none.

    A count is scaled up by `perf` where counters took turns because the processor has too few. Times are in ms there.
    """
    rows = csv.reader(line for line in table.splitlines() if line and not line.startswith("#"))
    return tuple(
        EventCount(name.partition(":")[0], None if count.startswith("<") else float(count) / runs)
        for count, _unit, name, *_ in rows
    )
