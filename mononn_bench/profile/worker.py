"""The profiled child: measure's worker with one request more, answered by the system's own profiler.

Like that worker it imports NumPy, the standard library, this package and its system's own library, nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mononn_bench.measure.worker import Server
from mononn_bench.measure.worker import serve as serve_requests
from mononn_bench.profile.profilers import PROFILERS, Subject

WARM_UPS = 3


class ProfileServer(Server):
    """Loads, binds and warms up inside the profiler, since most must be there before the session is."""

    def profile(self, scratch: str, **load: Any) -> dict[str, Any]:
        """Tool and spans of one run after WARM_UPS others; `load` holds the arguments of that request."""
        family = self._system.family
        if family not in PROFILERS:
            return {"tool": "", "spans": []}

        def ready() -> None:
            self.load(**load)
            for _ in range(WARM_UPS):
                self._system.run()

        tool, profiler = PROFILERS[family]
        subject = Subject(
            ready=ready,
            run=lambda: self._system.run(),
            buffers=lambda: self._buffers,
            build_folder=Path(load["build_folder"]),
            threads=load["threads"],
            scratch=Path(scratch),
        )
        spans = profiler(subject)
        first = min((span.start_ns for span in spans), default=0)
        return {"tool": tool, "spans": [{**asdict(s), "start_ns": s.start_ns - first} for s in spans]}

    def runs(self, count: int, **load: Any) -> dict[str, Any]:
        """Load and run so often, for a profiler that watches from outside."""
        self.load(**load)
        for _ in range(count):
            self._system.run()
        return {}


def serve(settings: Mapping[str, Any]) -> None:
    """See measure/worker.py. With `once`, the arguments of `runs`, it does that and ends, without a parent to ask."""
    if "once" in settings:
        os.sched_setaffinity(0, settings["cores"])
        ProfileServer(settings["system"]).runs(**settings["once"])
    else:
        serve_requests(settings, ProfileServer)
