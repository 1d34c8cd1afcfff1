"""One file that opens in Perfetto (Chrome's Trace Event format): a process for each system, its threads as tracks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from mononn_bench.profiled import Operator, Span


def timeline(systems: Mapping[str, Sequence[Span]]) -> str:
    """The runs of all systems side by side, each beginning at 0; `systems`: label to the spans of one run."""
    events: list[dict[str, Any]] = []
    for process, (label, spans) in enumerate(systems.items(), start=1):
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": label}})
        events.append({"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}})
        tracks = {track: number for number, track in enumerate(dict.fromkeys(span.track for span in spans))}
        for track, number in tracks.items():
            events.append({"ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": {"name": track}})
        for span in spans:
            when = {"ts": span.start_ns / 1e3, "dur": span.duration_ns / 1e3}
            place = {"ph": "X", "pid": process, "tid": tracks[span.track]}
            events.append({**place, "name": span.name, "cat": span.kind or "step", **when})
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":")) + "\n"


def operators(spans: Sequence[Span]) -> tuple[Operator, ...]:
    """Own time by kind, the hottest first: a span's duration without those of the spans inside it on its track."""
    own: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    open_spans: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda s: (s.start_ns, -s.duration_ns)):
        stack = open_spans[span.track]
        while stack and stack[-1].start_ns + stack[-1].duration_ns <= span.start_ns:
            stack.pop()
        if stack:
            own[stack[-1].kind] -= span.duration_ns
        stack.append(span)
        own[span.kind] += span.duration_ns
        counts[span.kind] += 1
    found = (Operator(kind, counts[kind], max(0.0, seconds) / 1e9) for kind, seconds in own.items())
    return tuple(sorted(found, key=lambda operator: (-operator.seconds, operator.kind)))
