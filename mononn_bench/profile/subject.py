"""What a profiler is handed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mononn_bench.systems.base import Arrays


@dataclass(frozen=True)
class Subject:
    """A system about to be profiled. `ready` loads, binds and warms up; `run` is one inference."""

    ready: Callable[[], None]
    run: Callable[[], None]
    buffers: Callable[[], Arrays]
    build_folder: Path
    threads: int
    scratch: Path
