"""Runs generated CUDA C++ on the host, one fiber a CUDA thread, and looks for what only some GPUs would show.

    from mononn_core.emulate import Watch, build

    emulated = build(source)                        # sanitize=False: faster, finds less
    report = emulated.launch("mononn_run", call_words, blocks=8, threads=256, shared_bytes=49152,
                             schedule="random:1", watch=[Watch(address, bytes, "arena", unwritten=True), ...])

The source is compiled as it is; only "mononn_ptx.cuh" is another file of the same names. A launch raises a subclass of
:class:`EmulationError` for a race, a deadlock, poison, a misaligned or stray access, divergence, a crash.
"""

from mononn_core.emulate.errors import (
    BoundsError,
    ConvergenceError,
    CrashError,
    DeadlockError,
    EmulationError,
    MisalignedError,
    PoisonError,
    RaceError,
)
from mononn_core.emulate.launch import Emulated, build
from mononn_core.emulate.report import Found, Report, Watch

__all__ = [
    "BoundsError",
    "ConvergenceError",
    "CrashError",
    "DeadlockError",
    "Emulated",
    "EmulationError",
    "Found",
    "MisalignedError",
    "PoisonError",
    "RaceError",
    "Report",
    "Watch",
    "build",
]
