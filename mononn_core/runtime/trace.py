"""Trace: time stamps from inside the function, as a table of phases and as a Chrome/Perfetto file.

The function stamps three points per executed phase and worker (``abi.TRACE_POINTS``). The ceilings that a phase is
compared with are measured by :mod:`mononn_core.runtime.ceilings` where a compiler is at hand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mononn_core.errors import OptionError
from mononn_core.gpu import NAMED, Gpu
from mononn_core.machine import Machine
from mononn_core.program import abi
from mononn_core.runtime.base import BaseSession
from mononn_core.runtime.gpu_session import GpuSession

WARM_UP_SECONDS = 0.3
OF_INTEREST = 0.01
"""Share of a run from which on a slow phase is worth a line of its own."""
MOST_ROUNDS = 32
"""Rounds of a loop that have a line each."""
KIND_COLUMNS = ("kind", "phases", "us", "of time", "floor us", "of peak")
MODEL_COLUMNS = ("phase", "us", "model us", "model / us", "origin")
WITHIN = 0.25
"""Share of a time that a model may be off."""
COLUMNS = ("phase", "us", "floor us", "of peak", "wait us", "imbalance", "tasks", "barrier", "origin")


@dataclass(frozen=True)
class PhaseTime:
    """One executed phase, medians over the traced runs; times in seconds.

    Attributes:
        id, origin, tasks, barrier: from the manifest. kind: the root operator, and what type it multiplies.
        seconds: from the last worker's end of the phase before to the last worker's end of this one, so that all
            phases' seconds add up to the run's.
        floor: the least time the ceilings allow, as :func:`floor_seconds` has it.
        wait: mean over workers between their begin and their first task: barrier or counter.
        imbalance: the slowest worker's time in tasks over the mean, minus one.
        modelled: seconds that the compiler's cost model expected, 0 where it has none.
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
    modelled: float = 0.0

    @property
    def share_of_peak(self) -> float:
        """``floor / seconds``: 1 where the phase runs at the ceiling."""
        return self.floor / self.seconds if self.seconds > 0 else 0.0


def record(session: BaseSession, inputs: Mapping[str, Any], runs: int = 20) -> np.ndarray:
    """Time stamps of ``runs`` runs after a warm-up.

    Returns:
        uint64 of shape (runs, workers, executed phases, 3): nanoseconds, not before the first begin of its run. A
        worker whose share another one does begins the next phase when that share ends, though it may wait already.

    Raises:
        InputError: the inputs do not fit.
        OptionError: runs is not positive, or the artifact was compiled without executed phases.
    """
    if runs < 1:
        raise OptionError(f"{runs} runs leave nothing to trace; give a positive number")
    phases = len(session.choose(inputs).phases)
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
    begins, ends = stamps[:, :, 1:, 0], stamps[:, :, :-1, 2]
    np.maximum(begins, ends, out=begins)
    return stamps


def table(stamps: np.ndarray, manifest: Mapping[str, Any], machine: Machine | Gpu) -> list[PhaseTime]:
    """Times of every executed phase, in order.

    Args:
        stamps: from :func:`record`.
        manifest: of the specialisation that ran.
        machine: whose peak and bandwidth are the ceilings.
    """
    floors = floor_seconds(manifest, machine, stamps.shape[1])
    times = stamps.astype(np.float64) * 1e-9
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
                floor=floors[index],
                wait=float(np.median((ready - begin).mean(axis=1)[:, index])),
                imbalance=float(np.median(imbalance[:, index])),
                modelled=phase.get("modelled_seconds", 0.0),
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
    manifest = session.artifact.specialisations[session.choose(inputs).index]
    stamps = record(session, inputs, runs)
    machine = stated_machine(manifest) if isinstance(session, GpuSession) else Machine.probe()
    return to_json(table(stamps, manifest, machine)), chrome_trace(stamps, manifest)


def stated_machine(manifest: Mapping[str, Any]) -> Gpu:
    """The GPU that an artifact was scheduled for."""
    return NAMED.get(manifest["machine"]["name"]) or Gpu.for_arch(manifest["machine"]["arch"])


def floor_seconds(manifest: Mapping[str, Any], machine: Machine | Gpu, workers: int) -> list[float]:
    """The least time of each phase on ``workers`` cores, or on all of a GPU (where fp32 takes three tf32 products): the
    largest of its operations at the peak, the constants that it reads at the rate of the caches that hold all of the
    network's memory, and these with what it reads and stores of activations at the rate of those that hold what the
    phase touches. Of what was moved since a round of its loop read the constants last the near caches keep a part."""
    phases = manifest["phases"]
    if isinstance(machine, Gpu):
        whole = manifest.get("precision", "fp32") == "fp32"
        rate = machine.tf32_flops / 3 if whole else machine.tensor_flops
        return [max(p["flops"] / rate, p["bytes"] / machine.bandwidth) for p in phases]
    memory, floors = manifest["weight_bytes"] + manifest["arena_bytes"], []
    for p in phases:
        since, touched = p.get("moved_since", memory), p["bytes"] + p.get("activation_bytes", 0)
        within = machine.bandwidth_again if since < memory else machine.bandwidth_within
        arithmetic = p["flops"] / (machine.peak(p.get("multiplies", "")) * workers)
        moved = (p["bytes"] / within(min(since, memory), workers), touched / within(touched, workers))
        floors.append(max(arithmetic, *moved))
    return floors


def below(phases: Sequence[PhaseTime], share: float) -> list[PhaseTime]:
    """The phases that reach less than ``share`` of their ceilings and take over 1 % of the run, the longest first."""
    total = sum(p.seconds for p in phases)
    found = (p for p in phases if p.share_of_peak < share and p.seconds > OF_INTEREST * total)
    return sorted(found, key=lambda p: -p.seconds)


def format_table(phases: Sequence[PhaseTime]) -> str:
    """The tables for people: one line a phase (all rounds of a long loop are one), then the total; one line a kind of
    phase."""
    total, floor = sum(p.seconds for p in phases), sum(p.floor for p in phases)
    rows = [COLUMNS, *map(_row, _together(phases))]
    waits = f"{sum(p.wait for p in phases) * 1e6:.1f}"
    share = f"{floor / total:.0%}" if total else ""
    barriers = str(sum(p.barrier for p in phases))
    rows.append(("total", f"{total * 1e6:.1f}", f"{floor * 1e6:.1f}", share, waits, "", "", barriers, ""))
    return "\n".join([*_aligned(rows), "", *_aligned(_kinds(phases))])


def _together(phases: Sequence[PhaseTime]) -> list[PhaseTime]:
    """``phases`` with those of loops of more than so many rounds, the steps of a recurrence, as one each."""
    rounds: dict[str, list[PhaseTime]] = {}
    for p in phases:
        rounds.setdefault(_name(p), []).append(p)
    many = {name: _whole(some) for name, some in rounds.items() if len(some) > MOST_ROUNDS}
    return [many.get(_name(p), p) for p in phases if _name(p) not in many or p is rounds[_name(p)][0]]


def _name(p: PhaseTime) -> str:
    """Of all rounds."""
    return p.id.partition("[")[0]


def _whole(rounds: list[PhaseTime]) -> PhaseTime:
    return replace(
        rounds[0],
        id=f"{_name(rounds[0])}[0..{len(rounds) - 1}]",
        tasks=sum(p.tasks for p in rounds),
        seconds=sum(p.seconds for p in rounds),
        floor=sum(p.floor for p in rounds),
        wait=sum(p.wait for p in rounds),
        imbalance=sum(p.imbalance for p in rounds) / len(rounds),
        modelled=sum(p.modelled for p in rounds),
    )


def format_below(phases: Sequence[PhaseTime], share: float) -> str:
    """The lines of :func:`below` for people, then what they take of the run together."""
    slow, total = below(phases, share), sum(p.seconds for p in phases)
    taken = sum(p.seconds for p in slow) / total if total else 0.0
    said = f"{len(slow)} of {len(phases)} phases under {share:.0%} of their ceilings that take over {OF_INTEREST:.0%}"
    return "\n".join([*_aligned([COLUMNS, *map(_row, slow)]), f"{said} each: {taken:.1%} of the run"])


def format_model(phases: Sequence[PhaseTime]) -> str:
    """What the cost model expected beside what was measured, for people: a line a phase, then how many it meets."""
    known = [p for p in phases if p.modelled and p.seconds]
    rows: list[tuple[str, ...]] = [MODEL_COLUMNS]
    for p in _together(known):
        times = (f"{p.seconds * 1e6:.1f}", f"{p.modelled * 1e6:.1f}", f"{p.modelled / p.seconds:.2f}")
        rows.append((p.id, *times, p.origin))
    met = [p for p in known if abs(p.modelled / p.seconds - 1) <= WITHIN]
    total, shares = sum(p.seconds for p in known) or 1.0, len(met) / max(len(known), 1)
    taken, all_of_it = sum(p.seconds for p in met) / total, sum(p.modelled for p in known) / total
    said = f"{len(met)} of {len(known)} phases ({shares:.0%}, {taken:.0%} of their time) within {WITHIN:.0%}"
    return "\n".join([*_aligned(rows), f"{said}; modelled together {all_of_it:.2f} of measured"])


def _row(p: PhaseTime) -> tuple[str, ...]:
    times = (f"{p.seconds * 1e6:.1f}", f"{p.floor * 1e6:.1f}", f"{p.share_of_peak:.0%}", f"{p.wait * 1e6:.1f}")
    return (p.id, *times, f"{p.imbalance:.0%}", str(p.tasks), "yes" if p.barrier else "", p.origin)


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
    """JSON in the Trace Event format of the median run; opens in Perfetto and chrome://tracing. A track for each
    worker's shares, whoever took them.

    Args:
        stamps: from :func:`record`.
        manifest: of the specialisation that ran.
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
