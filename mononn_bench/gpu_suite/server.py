"""A contender's process: opens it, checks its answers, and runs blocks, warm and cold. See measure/worker.py."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mononn_bench.codec import to_plain
from mononn_bench.gpu_suite.case import SETS, UNSEEN, Case
from mononn_bench.gpu_suite.contenders import CONTENDERS, Contender
from mononn_bench.measure import worker
from mononn_bench.measure.accuracy import When, failure_reason
from mononn_bench.measure.environment import cache_sizes_kib
from mononn_bench.measure.eviction import Evictor
from mononn_bench.systems.base import Arrays

FLUSH_BYTES = 512 << 20
"""Written between cold runs: several times the second-level cache of any GPU."""


class Server:
    """Holds one contender, its buffers and input sets."""

    def __init__(self, _: str) -> None:
        self._contender: Contender | None = None
        self._sets: list[Arrays] = []
        self._buffers: Arrays = {}
        self._flush: Callable[[], None] | None = None

    def open(self, contender: str, case: dict[str, Any]) -> dict[str, Any]:
        """Import, build, load, bind, first run; seconds of each, versions, and what the contender says."""
        made = Case(**case)
        clock = [time.perf_counter()]

        def lap() -> float:
            clock.append(time.perf_counter())
            return clock[-1] - clock[-2]

        self._contender = CONTENDERS[contender](made)
        versions = self._contender.probe()
        seconds = {"import_s": lap()}
        about = self._contender.prepare()
        seconds["prepare_s"] = lap()
        with np.load(made.reference) as stored:
            self._sets = [{i.name: stored[f"{n}/in/{i.name}"] for i in made.spec.inputs} for n in range(SETS + UNSEEN)]
        self._buffers = {name: worker.aligned_copy(array) for name, array in self._sets[0].items()}
        self._contender.bind(self._buffers)
        seconds["bind_s"] = lap()
        self._fill(0)
        self._contender.run()
        seconds["first_run_s"] = lap()
        gc.collect()
        gc.freeze()
        return {"versions": versions, "about": about, **seconds}

    def check(self, case: dict[str, Any], when: When) -> dict[str, Any]:
        """Every check of the timed input sets before, or of the unseen ones after timing, and why one failed."""
        made, checks = Case(**case), []
        assert self._contender is not None
        with np.load(made.reference) as stored:
            for index in range(SETS) if when == "before" else range(SETS, SETS + UNSEEN):
                self._fill(index)
                self._contender.run()
                checks += made.check(stored, index, self._contender.outputs(), when)
        return {"checks": to_plain(checks), "wrong": failure_reason(checks)}

    def block(self, runs: int, cold: bool, first: int) -> dict[str, Any]:
        """`runs` timed runs, input sets in turn from `first`, after two untimed ones; seconds by the host's clock, and
        by CUDA events where the contender has them. Cold: caches are flushed before each run."""
        assert self._contender is not None
        if cold and self._flush is None:
            self._flush = make_flush(self._contender.on_gpu)
        host, device = [], []
        gc.disable()
        for number in range(-2, runs):
            self._fill((first + number) % SETS)
            if cold and self._flush is not None:
                self._flush()
            started = time.perf_counter()
            self._contender.run()
            seconds = time.perf_counter() - started
            if number >= 0:
                host.append(seconds)
                device.append(self._contender.device_seconds())
        gc.enable()
        return {"host_s": host, "device_s": [d for d in device if d is not None]}

    def _fill(self, index: int) -> None:
        assert self._contender is not None
        for name, buffer in self._buffers.items():
            np.copyto(buffer, self._sets[index][name])
        self._contender.upload()


def make_flush(on_gpu: bool) -> Callable[[], None]:
    """A call that leaves nothing of the contender's in the GPU's second-level cache (or in the CPU's caches)."""
    if not on_gpu:
        return Evictor(max(cache_sizes_kib().values(), default=1024) * 1024)
    driver = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    _succeed(driver.cuInit(0))
    _succeed(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    _succeed(driver.cuCtxSetCurrent(context))
    _succeed(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(FLUSH_BYTES)))

    def flush() -> None:
        _succeed(driver.cuMemsetD32_v2(address, ctypes.c_uint(0), ctypes.c_size_t(FLUSH_BYTES // 4)))
        _succeed(driver.cuCtxSynchronize())

    return flush


def _succeed(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver answered error {status}")


def serve(settings: Mapping[str, Any]) -> None:
    """What measure/process.py starts."""
    worker.serve(settings, make=Server)  # type: ignore[arg-type]
