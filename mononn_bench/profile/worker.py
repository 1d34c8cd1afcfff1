"""The profiled child: measure's worker with one request more, answered by the system's own profiler.

Like that worker it imports NumPy, the standard library, this package and its system's own library, nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from mononn_bench.measure.worker import Server
from mononn_bench.measure.worker import serve as serve_requests
from mononn_bench.profile.counters import Gate
from mononn_bench.profile.profilers import PROFILERS
from mononn_bench.profile.steps import steps_of
from mononn_bench.profile.subject import Seen, Subject

TURNS = 2
"""How often the levels are measured, one after the other."""
WARM_S, ENOUGH_S, FEWEST, MOST = 0.2, 0.4, 2, 20
"""Seconds of runs before those that count, and of those in one turn; of these at least and at most so many."""


class ProfileServer(Server):
    """Loads, binds and warms up inside the profilers that must be there before the session is."""

    def profile(self, scratch: str, gate: Sequence[str], **load: Any) -> dict[str, Any]:
        """Tool, steps and the spans of the last of some runs that has any: counters in whole microseconds can miss all
        steps of a small network. The levels take turns: the run as a whole, through the pipes of a gate (counters.py),
        if there is one, then its steps under the profiler, in a load of their own where it must be there before.
        `load` holds the arguments of that request.
        """
        tool, profiler = PROFILERS.get(self._system.family, ("", None))
        gated = Gate(*map(Path, gate)) if gate else nullcontext()
        plain, profiled, turns = list[float](), list[float](), list[Seen]()

        def ready() -> None:
            self.load(**load)
            self._some(WARM_S, most=None)

        def timed(run: Callable[[], None]) -> None:
            profiled.append(self._timed(run))

        for _ in range(TURNS):
            ready()
            with gated:
                found = self._some(ENOUGH_S, most=MOST)
            plain += found
            if profiler is None:
                return {"tool": tool, "counted": len(plain)}
            subject = Subject(
                ready=ready,
                run=lambda: timed(self._system.run),
                timed=timed,
                buffers=lambda: self._buffers,
                build_folder=Path(load["build_folder"]),
                threads=load["threads"],
                scratch=Path(scratch),
                count=len(found),
            )
            turns.append(profiler(subject))
        seen = replace(turns[-1], runs=[run for turn in turns for run in turn.runs])
        spans = next((run for run in reversed(seen.runs) if run), [])
        first = min((span.start_ns for span in spans), default=0)
        return {
            "tool": tool,
            "counted": len(plain),
            "spans": [{**asdict(s), "start_ns": s.start_ns - first} for s in spans],
            "runs": len(seen.runs),
            "steps": [asdict(step) for step in steps_of(seen)],
            "plain_s": median(plain),
            "profiled_s": median(profiled),
        }

    def _some(self, enough_s: float, most: int | None) -> list[float]:
        """Seconds of some runs, as many as make up `enough_s`, or at `most` so many."""
        found: list[float] = []
        until = time.perf_counter() + enough_s
        while len(found) < FEWEST or (time.perf_counter() < until and (most is None or len(found) < most)):
            found.append(self._timed(self._system.run))
        return found

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
