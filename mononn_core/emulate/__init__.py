"""Runs generated CUDA C++ on the host, one fiber a CUDA thread, and looks for what only some GPUs would show.

    from mononn_core.emulate import Watch, build

    emulated = build(source)                        # sanitize=False: faster, finds less
    emulated.reset()                                # before each inference: nothing has been written yet
    report = emulated.launch("mononn_run", call_words, blocks=8, threads=256, shared_bytes=49152,
                             schedule="random:1", watch=[Watch(address, bytes, "arena", unwritten=True), ...])

The source is compiled as it is, by the host compiler; only "mononn_ptx.cuh" is another file of the same names. The
compiler's thread sanitizer instruments every load and store; the runtime (runtime/*.hpp) takes its place. A launch
raises a subclass of :class:`EmulationError`, or with ``check=False`` reports all that it found:

- races, by vector clocks: only barriers, sync_warp, fences with atomics, and releases with acquires order anything;
- reads of what nobody wrote; accesses to the destination of a cp.async that nobody has waited for (its bytes arrive
  when it is waited for), and writes to its source;
- addresses out of bounds, misaligned, or in read-only buffers; indices beyond a local array;
- lanes that do not come to a warp or block primitive together; threads that wait for ever, and for what;
- crashes, stack overflows, and loops without end.

It counts bank conflicts by line (``banks=True``). What fragments hold stands in fragments.py, from the PTX ISA's
figures; conformance.py compares all primitives with what hardware answered. Sums of mma run over k upwards, each
rounded to nearest: hardware's order is its own. Not seen: races over memory of one's own thread's stack that is handed
to others; with g++, accesses inside copies that it turns into calls of memcpy. x86_64 and aarch64 (the latter compiles
and has not been run).
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
