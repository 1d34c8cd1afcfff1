"""Spans of several runs as the steps of one: what a system does, thing after thing, and what each takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from mononn_bench.profile.subject import Seen
from mononn_bench.profiled import WAIT, Span, Step

Key = tuple[str, int]
"""A step's name, and how many steps of that name came before it in its run."""


def steps_of(seen: Seen) -> tuple[Step, ...]:
    """In the order of the first run, means over the middle half of the runs by the time of all steps, so that they add
    up to a usual run; none where spans are not in order.

    A step is a span that lies in no other one of its track. Where tracks share their steps, as workers of one function
    do, it takes from the last end of what came before to its own last end.
    """
    if not seen.in_order:
        return ()
    kinds = {span.name: span.kind for run in seen.runs for span in run}
    times: dict[Key, list[float]] = defaultdict(list)
    for run in _middle([_times(run) for run in seen.runs]):
        for key, seconds in run.items():
            times[key].append(seconds)
    return tuple(
        Step(name, kinds[name], mean(found), tuple(seen.nodes.get(name, ()))) for (name, _), found in times.items()
    )


def _times(run: Sequence[Span]) -> dict[Key, float]:
    """Seconds of each step of a run."""
    count: Counter[str] = Counter()
    times: dict[Key, float] = {}
    for name, length in _lengths(list(outermost(span for span in run if span.kind != WAIT))):
        times[name, count[name]] = length / 1e9
        count[name] += 1
    return times


def _middle(runs: Sequence[Mapping[Key, float]]) -> Sequence[Mapping[Key, float]]:
    """The half of the runs whose times are next to the median, in their order."""
    aside = len(runs) // 4
    kept = sorted(range(len(runs)), key=lambda i: sum(runs[i].values()))[aside : len(runs) - aside]
    return [runs[i] for i in sorted(kept)]


def outermost(spans: Iterator[Span]) -> Iterator[Span]:
    """Those that lie in no other one of their track, by start."""
    ends: dict[str, int] = {}
    for span in sorted(spans, key=lambda s: (s.start_ns, -s.duration_ns)):
        end = span.start_ns + span.duration_ns
        if span.start_ns >= (reached := ends.get(span.track, span.start_ns)) or end > reached:
            ends[span.track] = end
            yield span


def _lengths(spans: Sequence[Span]) -> Iterator[tuple[str, int]]:
    """Name and nanoseconds of each step of a run, in order."""
    if len({span.track for span in spans}) < 2:
        yield from ((span.name, span.duration_ns) for span in spans)
        return
    last: dict[str, int] = {}
    for span in spans:
        last[span.name] = max(last.get(span.name, 0), span.start_ns + span.duration_ns)
    reached = min(span.start_ns for span in spans)
    for name, end in sorted(last.items(), key=lambda item: item[1]):
        yield name, end - reached
        reached = end
