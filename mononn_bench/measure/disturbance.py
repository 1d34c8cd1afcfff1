"""Who else used the machine while a block ran, read from the kernel around it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from mononn_bench.record import Disturbance, Settings


@dataclass(frozen=True)
class Snapshot:
    """CPU time in ns of every thread but the worker's and the parent's, and the worker's and machine's paging
    counters.
    """

    time_ns: int
    threads_ns: dict[str, int]
    major_faults: int
    swapped_pages: int


def take_snapshot(worker: int) -> Snapshot:
    """Read the counters; `worker` is the measured process. A thread that comes and goes in between is not seen."""
    threads = _thread_times({str(worker), str(os.getpid())})
    return Snapshot(time.monotonic_ns(), threads, _major_faults(worker), _swapped_pages())


def difference(before: Snapshot, after: Snapshot) -> Disturbance:
    """What happened between two snapshots."""
    elapsed = (after.time_ns - before.time_ns) / 1e9
    others = sum(t - before.threads_ns.get(thread, 0) for thread, t in after.threads_ns.items()) / 1e9
    return Disturbance(
        elapsed_s=elapsed,
        others_s=others,
        others_share=others / elapsed,
        major_faults=after.major_faults - before.major_faults,
        swapped_pages=after.swapped_pages - before.swapped_pages,
    )


def is_disturbed(disturbance: Disturbance, settings: Settings) -> bool:
    """Whether a block must be repeated; decided from this alone, never from its time."""
    busy = disturbance.others_share > settings.disturbed_share
    return busy or disturbance.major_faults > 0 or disturbance.swapped_pages > 0


def steal_and_total() -> tuple[int, int]:
    """Ticks stolen by the hypervisor, and all ticks, since boot (/proc/stat)."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[7], sum(fields)


def _thread_times(excluded: set[str]) -> dict[str, int]:
    times = {}
    for process in os.scandir("/proc"):
        if not process.name.isdigit() or process.name in excluded:
            continue
        try:
            for thread in os.scandir(f"{process.path}/task"):
                text = Path(thread.path, "schedstat").read_bytes()
                times[f"{process.name}/{thread.name}"] = int(text.split()[0])
        except OSError:
            continue
    return times


def _major_faults(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9])
    except OSError:
        return 0


def _swapped_pages() -> int:
    lines = Path("/proc/vmstat").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("pswpin ", "pswpout ")))
