"""Ceilings: what this machine can do at most, measured in under a second by a small function on the same host runner.

Multiply-adds on registers alone, reads far beyond the last-level cache (memory), inside it and inside the cores'
second-level caches, and barriers: the roofs of S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual
performance model for multicore architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mononn_core.errors import OptionError
from mononn_core.machine import MULTIPLIED, TILE_ROWS, Machine
from mononn_core.program import abi
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.base import BaseBinding
from mononn_core.runtime.session import Session
from mononn_core.runtime.toolchain import HOST, compile_host, compile_shared

CHAINS = 12
TILES = 4
"""Sums of their own in vectors, and tiles of them, in a repetition."""
MOST_WORKERS = 256
SECONDS_PER_KIND = 0.2
SECONDS_PER_RUN = 1e-3
GROWS = 1.3
"""Times the rate of a shorter run: what a longer one shows where waiting is part of either."""
MULTIPLY_ADDS, READS, BARRIERS, PRODUCTS = range(4)


@dataclass(frozen=True)
class Ceilings:
    """Measured roofs.

    Attributes:
        threads: cores that worked together.
        flops: fp32 operations a second of all of them, a multiply-add counted as two.
        memory_bandwidth: bytes a second they read together from memory.
        cache_bandwidth: bytes a second they read together, each from its own second-level cache.
        l3_bandwidth: bytes a second they read together from the last-level cache.
        barrier_seconds: one barrier of them.
        products: (type, operations a second of all of them) of products of elements narrower than float32.
    """

    threads: int
    flops: float
    memory_bandwidth: float
    cache_bandwidth: float
    l3_bandwidth: float
    barrier_seconds: float
    products: tuple[tuple[str, float], ...] = ()

    def applied_to(self, machine: Machine) -> Machine:
        """``machine`` with these roofs."""
        return replace(
            machine,
            peak_flops_per_core=self.flops / self.threads,
            bandwidth=self.memory_bandwidth,
            l2_bandwidth=self.cache_bandwidth / self.threads,
            l3_bandwidth=self.l3_bandwidth / self.threads,
            barrier_seconds=self.barrier_seconds,
            product_peaks=tuple((dtype, rate / self.threads) for dtype, rate in self.products),
        )


def measure(threads: int) -> Ceilings:
    """Measures on ``threads`` cores; the best of many short runs each, about a second together.

    Raises:
        ToolchainError: no compiler.
        OptionError: more than 256 threads.
    """
    if not 1 <= threads <= MOST_WORKERS:
        raise OptionError(f"ceilings of {threads} threads cannot be measured; give 1 to {MOST_WORKERS}")
    machine = Machine.probe()
    lines = 64 * 8  # a step of the read loop
    cached = machine.l2_bytes // 2 // lines * lines
    shared = max(machine.l3_bytes // 2 // threads, machine.l2_bytes) // lines * lines
    streamed = max(4 * machine.l3_bytes, 64 << 20) // threads // lines * lines
    with Session(_artifact(machine, threads, threads * streamed)) as session:
        order = np.zeros(3, np.int64)
        binding = session.bind({"order": order})
        rates = {}
        for name, kind, size in (
            ("flops", MULTIPLY_ADDS, 0),
            ("memory", READS, streamed),
            ("cache", READS, cached),
            ("l3", READS, shared),
            ("barriers", BARRIERS, 0),
            *((dtype, PRODUCTS + number, 0) for number, dtype in enumerate(MULTIPLIED)),
        ):
            order[:] = kind, 1, size
            rates[name] = _repetitions_per_second(binding, order)
    a_chain = threads * CHAINS * 2
    each = {t: a_chain * machine.vector_bytes / 4 * terms for t, terms in MULTIPLIED.items()}
    each |= {t: threads * TILES * 2 * TILE_ROWS**2 * found.terms for t in MULTIPLIED if (found := machine.tiles(t))}
    return Ceilings(
        threads=threads,
        flops=rates["flops"] * a_chain * _vector_bytes(machine) / 4,
        memory_bandwidth=rates["memory"] * threads * streamed,
        cache_bandwidth=rates["cache"] * threads * cached,
        l3_bandwidth=rates["l3"] * threads * shared,
        barrier_seconds=1 / rates["barriers"],
        products=tuple((t, rates[t] * operations) for t, operations in each.items()),
    )


def _repetitions_per_second(binding: BaseBinding, order: np.ndarray) -> float:
    """The best of many short runs: a ceiling is what the cores can do while nobody else uses them. A run is made longer
    until one takes long enough, and its rate no longer grows with that: it may have taken long waiting for a core."""
    best, until = 0.0, time.perf_counter() + SECONDS_PER_KIND
    while True:
        seconds = _seconds(binding)
        before, best = best, max(best, float(order[1]) / seconds)
        if seconds < SECONDS_PER_RUN or best > GROWS * before:
            order[1] *= 2
        elif time.perf_counter() > until:
            return best


def _seconds(binding: BaseBinding) -> float:
    started = time.perf_counter()
    binding.run()
    return time.perf_counter() - started


def _vector_bytes(machine: Machine) -> int:
    return max(machine.vector_bytes, 16)


def _artifact(machine: Machine, threads: int, arena: int) -> Artifact:
    register = {"x86_64": "v" if machine.vector_bytes == 64 else "x", "aarch64": "w"}.get(machine.arch, "m")
    products = (found(dtype) for found in (machine.product, machine.tiles) for dtype in MULTIPLIED)
    features = frozenset[str]().union(*(p.needs for p in products if p)) - machine.level_features
    flags = [f"-DVECTOR_BYTES={_vector_bytes(machine)}", f'-DVECTOR_REGISTER="{register}"']
    flags += [f"-DMONONN_VECTOR_BYTES={machine.vector_bytes}", *(f"-m{feature}" for feature in sorted(features))]
    source = (HOST / "ceilings.cpp").read_text(encoding="utf-8")
    manifest: dict[str, Any] = {
        "name": "ceilings",
        "mononn_version": "",
        "abi_version": abi.ABI_VERSION,
        "machine": {"arch": machine.arch, "features": sorted(machine.level_features | features)},
        "inputs": [{"name": "order", "dtype": "int64", "shape": [3]}],
        "outputs": [{"name": "sums", "dtype": "float32", "shape": [MOST_WORKERS]}],
        "threads": threads,
        "arena_bytes": arena,
        "scratch_bytes": 0,
        "counters": 0,
        "weight_bytes": 0,
        "phases": [],
    }
    return Artifact(
        manifest, compile_shared(source, machine=machine, extra_flags=flags).code, compile_host(machine).code, b""
    )
