"""What a profiler is handed, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mononn_bench.profiled import Span
from mononn_bench.systems.base import Arrays


@dataclass(frozen=True)
class Subject:
    """A warm system about to be profiled. `ready` loads, binds and warms up again, for a profiler that must be there
    before; `run` is one inference, and `timed` keeps what another way of running it takes; `count` is how many the
    profiler should see.
    """

    ready: Callable[[], None]
    run: Callable[[], None]
    timed: Callable[[Callable[[], None]], None]
    buffers: Callable[[], Arrays]
    build_folder: Path
    threads: int
    scratch: Path
    count: int


@dataclass(frozen=True)
class Seen:
    """The spans of each profiled run.

    `nodes` are the ONNX nodes that the system says its steps compute, by a span's name. `in_order` is False where spans
    are of threads that work beside each other on different things, so that no step's time is the run's.
    """

    runs: Sequence[Sequence[Span]]
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    in_order: bool = True
