"""The sentinel: fixed loops whose rates are the ceilings of a roofline and show drift (sentinel.c; NumPy without a
compiler).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mononn_bench.errors import MeasurementError
from mononn_bench.record import Ceilings, SentinelReading
from mononn_bench.systems.base import HUGE_PAGES

SOURCE = Path(__file__).with_name("sentinel.c")
LOOP_S = 0.06
CACHE_SHARE = 0.5
"""Of a core's second-level cache that the cache loop reads."""
MEMORY_FACTOR, MEMORY_MOST = 4, 1 << 30
"""The memory loop reads this many times the last-level cache, at most 1 GiB."""
DEFAULT_CACHE, DEFAULT_LAST_LEVEL = 1 << 20, 32 << 20
"""Assumed where the machine does not expose its caches."""


@dataclass(frozen=True)
class Sentinel:
    """A sentinel ready to run: `method` is `c` or `numpy`; `command` prints three rates."""

    method: str
    command: tuple[str, ...]
    cache_bytes_per_core: int
    last_level_cache_bytes: int

    def ceilings(self, readings: Sequence[SentinelReading]) -> Ceilings | None:
        """The best of some readings; None without any."""
        if not readings:
            return None
        return Ceilings(
            method=self.method,
            flops_per_s=max(r.flops_per_s for r in readings),
            cache_bytes_per_s=max(r.cache_bytes_per_s for r in readings),
            dram_bytes_per_s=max(r.dram_bytes_per_s for r in readings),
            cache_bytes_per_core=self.cache_bytes_per_core,
            last_level_cache_bytes=self.last_level_cache_bytes,
        )

    def read(self) -> SentinelReading:
        """Run the loops once, about 0.2 s. Raises MeasurementError where they fail."""
        variables = {**os.environ, HUGE_PAGES.name: HUGE_PAGES.value}
        done = subprocess.run(
            self.command, capture_output=True, text=True, timeout=60, check=False, env=variables
        )  # fmt: skip
        if done.returncode != 0:
            raise MeasurementError(f"The sentinel failed ({done.stderr.strip() or done.returncode}): run it by hand.")
        flops, cache, memory = map(float, done.stdout.split())
        return SentinelReading(flops, cache, memory)


def make_sentinel(folder: Path, cores: Sequence[int], caches_kib: Mapping[str, int]) -> Sentinel:
    """Compile the loops into `folder` for `cores` and caches as `describe_machine` has them; without a compiler NumPy's
    loops stand in (a lower bound).
    """
    cache = caches_kib.get("L2", 0) * 1024 or DEFAULT_CACHE
    last_level = max(caches_kib.values(), default=0) * 1024 or DEFAULT_LAST_LEVEL
    sizes = [str(LOOP_S), str(int(cache * CACHE_SHARE)), str(min(MEMORY_FACTOR * last_level, MEMORY_MOST))]
    arguments = [*sizes, *map(str, cores)]
    program = folder / "sentinel"
    for compiler in compilers():
        command = [*compiler, "-O3", "-march=native", "-pthread", "-o", str(program), str(SOURCE)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return Sentinel("c", (str(program), *arguments), cache, last_level)
    return Sentinel("numpy", (sys.executable, str(Path(__file__)), *arguments), cache, last_level)


def compilers() -> list[list[str]]:
    """Commands of the C compilers there are: that of CC, the system's, and the ziglang package's."""
    named = os.environ.get("CC")
    found = [shlex.split(named)] if named else []
    found += [[path] for path in map(shutil.which, ("cc", "gcc", "clang")) if path]
    return found + ([[sys.executable, "-m", "ziglang", "cc"]] if find_spec("ziglang") else [])


def _numpy_rates(seconds: float, cache_bytes: int, memory_bytes: int, cores: int) -> tuple[float, float, float]:
    """NumPy's matrix product, and copies on one core times `cores`: lower bounds of what the C loops find."""
    a = np.ones((768, 768), np.float32)
    product = _rate(lambda: a @ a, 2.0 * 768**3, seconds)
    small, large = np.ones(cache_bytes // 8, np.float32), np.ones(memory_bytes // 8, np.float32)
    near = _rate(lambda: np.copyto(small, 1.0), float(small.nbytes), seconds) * cores
    return product, near, _rate(lambda: large.sum(), float(large.nbytes), seconds)


def _rate(call: object, amount: float, seconds: float) -> float:
    assert callable(call)
    call()
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        call()
        count += 1
    return amount * count / elapsed


def main(arguments: Sequence[str]) -> None:
    """Print the three rates of NumPy's loops; the same arguments as sentinel.c."""
    seconds, cache, memory, *cores = arguments
    os.sched_setaffinity(0, {int(core) for core in cores})
    print("{:.6e} {:.6e} {:.6e}".format(*_numpy_rates(float(seconds), int(cache), int(memory), len(cores))))


if __name__ == "__main__":
    main(sys.argv[1:])
