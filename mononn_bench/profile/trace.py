"""Our own compiler's profile: the time stamps that the compiled function leaves when it is handed a buffer for them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mononn_core as mononn
from mononn_bench.profile.subject import Seen, Subject
from mononn_bench.profiled import WAIT, Span

SPREADS_S = 0.2
"""After so long the scheduler has spread new threads over the cores."""


def profile_mononn(subject: Subject) -> Seen:
    """What each worker waited, and its phases, with the nodes that each phase computes."""
    subject.ready()
    session = mononn.load(str(subject.build_folder / "model.mono"), threads=subject.threads)
    phases = session.info["phases"]
    stamps = np.zeros((session.threads, len(phases), 3), np.uint64)
    binding = session.bind(subject.buffers(), trace=stamps)
    until = time.perf_counter() + SPREADS_S
    while time.perf_counter() < until:
        binding.run()
    kept = []
    for _ in range(subject.count):  # one after the other, as unprofiled runs are: workers fall asleep in between
        subject.timed(binding.run)
        kept.append(stamps.astype(np.int64))
    return Seen([_spans(run, phases) for run in kept], {_name(phase): tuple(phase["nodes"]) for phase in phases})


def _spans(stamps: NDArray[np.int64], phases: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Of stamps [worker, phase, (begin, ready, end)] in nanoseconds."""
    spans = []
    for worker, times in enumerate(stamps):
        track = f"worker {worker}"
        for phase, (begin, ready, end) in zip(phases, times.tolist(), strict=True):
            if ready > begin:
                spans.append(Span(f"wait for {phase['id']}", WAIT, track, begin, ready - begin))
            spans.append(Span(_name(phase), phase["template"], track, ready, end - ready))
    return spans


def _name(phase: Mapping[str, Any]) -> str:
    return f"{phase['id']} {phase['origin']}".strip()
