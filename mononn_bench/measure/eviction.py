"""Empties the caches before a timed run: every core of the process reads more memory than its caches hold."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

FACTOR = 4
"""Bytes each core reads, in last-level caches; a network whose weights and arena are as large has no warm caches."""


class Evictor:
    """One thread a core, all of which read the same `cache_bytes` x FACTOR bytes; they sleep between calls."""

    def __init__(self, cache_bytes: int) -> None:
        self._memory = np.ones(cache_bytes * FACTOR // 8, np.float64)
        cores = sorted(os.sched_getaffinity(0))
        self._readers = [ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, {c})) for c in cores]

    def __call__(self) -> None:
        """Read on every core at once; returns when all have."""
        wait([reader.submit(self._memory.sum) for reader in self._readers])
