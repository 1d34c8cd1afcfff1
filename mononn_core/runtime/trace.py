"""Trace: time stamps from inside the function, as a table of phases and as a Chrome/Perfetto file.

The function stamps three points per executed phase and worker (``abi.TRACE_POINTS``). The ceilings that a phase is
compared with are measured by :mod:`mononn_core.runtime.ceilings` where a compiler is at hand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mononn_core.errors import OptionError
from mononn_core.gpu import NAMED, Gpu
from mononn_core.machine import Machine
from mononn_core.program import abi
from mononn_core.runtime.base import BaseSession
from mononn_core.runtime.gpu_session import GpuSession

WARM_UP_SECONDS = 0.3
KIND_COLUMNS = ("kind", "phases", "us", "of time", "floor us", "of peak")
COLUMNS = ("phase", "us", "floor us", "of peak", "wait us", "imbalance", "tasks", "barrier", "origin")


@dataclass(frozen=True)
class PhaseTime:
    """One executed phase, medians over the traced runs; times in seconds.

    Attributes:
        id, origin, tasks, barrier: from the manifest. kind: the root operator, and what type it multiplies.
        seconds: from the last worker's end of the phase before to the last worker's end of this one, so that all
            phases' seconds add up to the run's.
        floor: the least time the ceilings allow: operations at full peak or bytes at full bandwidth, whichever is more.
        wait: mean over workers between their begin and their first task: barrier or counter.
        imbalance: the slowest worker's time in tasks over the mean, minus one.
    """

    id: str
    kind: str
    origin: str
    tasks: int
    barrier: bool
    seconds: float
    floor: float
    wait: float
    imbalance: float

    @property
    def share_of_peak(self) -> float:
        """``floor / seconds``: 1 where the phase runs at the ceiling."""
        return self.floor / self.seconds if self.seconds > 0 else 0.0


def record(session: BaseSession, inputs: Mapping[str, Any], runs: int = 20) -> np.ndarray:
    """Time stamps of ``runs`` runs after a warm-up.

    Returns:
        uint64 of shape (runs, workers, executed phases, 3): nanoseconds, not before the first begin of its run.

    Raises:
        InputError: the inputs do not fit.
        OptionError: runs is not positive, or the artifact was compiled without executed phases.
    """
    if runs < 1:
        raise OptionError(f"{runs} runs leave nothing to trace; give a positive number")
    phases = len(session.info["phases"])
    if not phases:
        raise OptionError("this network executes no phase; there is nothing to trace")
    buffer = np.zeros((session.workers, phases, len(abi.TRACE_POINTS)), np.uint64)
    binding = session.bind(inputs, trace=buffer)
    stamps = np.zeros((runs, *buffer.shape), np.uint64)
    until = time.perf_counter() + WARM_UP_SECONDS
    binding.run()
    while time.perf_counter() < until:  # the scheduler spreads new threads over the cores only after a while
        binding.run()
    for run in range(runs):
        binding.run()
        stamps[run] = buffer - buffer[:, 0, 0].min()
    return stamps


def table(stamps: np.ndarray, manifest: Mapping[str, Any], machine: Machine | Gpu) -> list[PhaseTime]:
    """Times of every executed phase, in order.

    Args:
        stamps: from :func:`record`.
        manifest: ``session.info``.
        machine: whose peak and bandwidth are the ceilings.
    """
    precision = manifest.get("precision", "fp32")
    times = stamps.astype(np.float64) * 1e-9
    workers = stamps.shape[1]
    begin, ready, end = (times[..., point] for point in range(3))
    last = end.max(axis=1)  # (runs, phases)
    spans = np.diff(last, axis=1, prepend=0.0)
    tasks = end - ready
    mean = tasks.mean(axis=1)
    imbalance = np.divide(tasks.max(axis=1), mean, out=np.ones_like(mean), where=mean > 0) - 1
    result = []
    for index, phase in enumerate(manifest["phases"]):
        result.append(
            PhaseTime(
                id=phase["id"],
                kind=kind_of(phase),
                origin=phase.get("origin", ""),
                tasks=phase["tasks"],
                barrier=bool(phase["barrier"]),
                seconds=float(np.median(spans[:, index])),
                floor=floor_seconds(phase, machine, workers, precision),
                wait=float(np.median((ready - begin).mean(axis=1)[:, index])),
                imbalance=float(np.median(imbalance[:, index])),
            )
        )
    return result


def kind_of(phase: Mapping[str, Any]) -> str:
    """Of a manifest's phase "012_matmul[3]": "matmul", with the type it multiplies where that is said."""
    name = phase["id"].partition("[")[0].partition("_")[2] or phase["id"]
    return f"{name} {phase['multiplies']}" if phase.get("multiplies") else name


def trace_report(session: BaseSession, inputs: Mapping[str, Any], runs: int = 20) -> tuple[list[Any], str]:
    """Where the time of a run goes: :func:`to_json`'s rows, with the stated rates of this machine or of the GPU that
    the network was scheduled for as ceilings, and :func:`chrome_trace`'s text."""
    stamps, manifest = record(session, inputs, runs), session.info
    machine = stated_machine(manifest) if isinstance(session, GpuSession) else Machine.probe()
    return to_json(table(stamps, manifest, machine)), chrome_trace(stamps, manifest)


def stated_machine(manifest: Mapping[str, Any]) -> Gpu:
    """The GPU that an artifact was scheduled for."""
    return NAMED.get(manifest["machine"]["name"]) or Gpu.for_arch(manifest["machine"]["arch"])


def floor_seconds(work: Mapping[str, Any], machine: Machine | Gpu, workers: int, precision: str = "fp32") -> float:
    """The least time for {flops, bytes} on ``workers`` cores (on a GPU: on all of it, where fp32 takes three tf32
    products) at the machine's peak and bandwidth."""
    if isinstance(machine, Gpu):
        rate = machine.tf32_flops / 3 if precision == "fp32" else machine.tensor_flops
        return float(max(work["flops"] / rate, work["bytes"] / machine.bandwidth))
    peak = machine.peak(work.get("multiplies", ""))
    return max(work["flops"] / (peak * workers), work["bytes"] / machine.bandwidth)


def format_table(phases: Sequence[PhaseTime]) -> str:
    """The tables for people: one line a phase, then the total; one line a kind of phase."""
    total, floor = sum(p.seconds for p in phases), sum(p.floor for p in phases)
    rows: list[tuple[str, ...]] = [COLUMNS]
    for p in phases:
        share, imbalance = f"{p.share_of_peak:.0%}", f"{p.imbalance:.0%}"
        times = (f"{p.seconds * 1e6:.1f}", f"{p.floor * 1e6:.1f}", share, f"{p.wait * 1e6:.1f}", imbalance)
        rows.append((p.id, *times, str(p.tasks), "yes" if p.barrier else "", p.origin))
    waits = f"{sum(p.wait for p in phases) * 1e6:.1f}"
    share = f"{floor / total:.0%}" if total else ""
    barriers = str(sum(p.barrier for p in phases))
    rows.append(("total", f"{total * 1e6:.1f}", f"{floor * 1e6:.1f}", share, waits, "", "", barriers, ""))
    return "\n".join([*_aligned(rows), "", *_aligned(_kinds(phases))])


def _kinds(phases: Sequence[PhaseTime]) -> list[tuple[str, ...]]:
    """The second table: the longest kind first."""
    found: dict[str, list[PhaseTime]] = {}
    for p in phases:
        found.setdefault(p.kind, []).append(p)
    total = sum(p.seconds for p in phases) or 1.0
    times = {kind: (sum(p.seconds for p in some), sum(p.floor for p in some)) for kind, some in found.items()}
    rows: list[tuple[str, ...]] = [KIND_COLUMNS]
    for kind, (seconds, floor) in sorted(times.items(), key=lambda item: -item[1][0]):
        share = f"{floor / seconds:.0%}" if seconds else ""
        spent = (f"{seconds * 1e6:.1f}", f"{seconds / total:.1%}", f"{floor * 1e6:.1f}", share)
        rows.append((kind, str(len(found[kind])), *spent))
    return rows


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table; its first and last columns are words where they hold some."""
    last = len(rows[0]) - 1
    widths = [max(len(row[column]) for row in rows) for column in range(last + 1)]
    words = {0, *([last] if rows[0][last] == COLUMNS[-1] else [])}
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def to_json(phases: Sequence[PhaseTime]) -> list[dict[str, Any]]:
    """The table for scripts: times in seconds."""
    return [{**asdict(p), "share_of_peak": p.share_of_peak} for p in phases]


def chrome_trace(stamps: np.ndarray, manifest: Mapping[str, Any]) -> str:
    """JSON in the Trace Event format of the median run; opens in Perfetto and chrome://tracing. One track a worker.

    Args:
        stamps: from :func:`record`.
        manifest: ``session.info``.
    """
    totals = stamps[..., 2].max(axis=(1, 2))
    run = stamps[int(np.argsort(totals, kind="stable")[len(totals) // 2])]
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": manifest["name"]}}]
    for worker in range(run.shape[0]):
        name = {"name": f"worker {worker}"}
        events.append({"ph": "M", "pid": 1, "tid": worker, "name": "thread_name", "args": name})
        for index, phase in enumerate(manifest["phases"]):
            begin, ready, end = (int(stamp) for stamp in run[worker, index])
            common = {"ph": "X", "pid": 1, "tid": worker}
            if ready > begin:
                span = {"ts": begin / 1000, "dur": (ready - begin) / 1000}
                events.append({**common, "name": "wait", "cat": "wait", **span, "args": {"before": phase["id"]}})
            details = {key: phase[key] for key in ("origin", "flops", "bytes", "tasks") if key in phase}
            span = {"ts": ready / 1000, "dur": (end - ready) / 1000}
            events.append({**common, "name": phase["id"], "cat": "phase", **span, "args": details})
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":")) + "\n"
