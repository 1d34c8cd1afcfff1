"""Our own compiler's profile: the time stamps that the compiled function leaves when it is handed a buffer for them."""

from __future__ import annotations

import numpy as np

import mononn_core as mononn
from mononn_bench.profile.subject import Subject
from mononn_bench.profiled import Span


def spans_of_a_run(subject: Subject) -> list[Span]:
    """What each worker waited, and its phases, in the last of three runs."""
    subject.ready()
    session = mononn.load(str(subject.build_folder / "model.mono"), threads=subject.threads)
    phases = session.info["phases"]
    stamps = np.zeros((session.threads, len(phases), 3), np.uint64)
    binding = session.bind(subject.buffers(), trace=stamps)
    for _ in range(3):
        binding.run()
    spans = []
    for worker, times in enumerate(stamps.astype(np.int64)):
        track = f"worker {worker}"
        for phase, (begin, ready, end) in zip(phases, times.tolist(), strict=True):
            if ready > begin:
                spans.append(Span(f"wait for {phase['id']}", "wait", track, begin, ready - begin))
            spans.append(Span(f"{phase['id']} {phase['origin']}".strip(), phase["template"], track, ready, end - ready))
    return spans
