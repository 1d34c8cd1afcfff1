"""A contender's process: opens it, checks its answers, and runs blocks, warm and cold. See measure/worker.py."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mononn_bench.codec import to_plain
from mononn_bench.gpu_suite import ours
from mononn_bench.gpu_suite.case import SETS, UNSEEN, Case
from mononn_bench.gpu_suite.contenders import CONTENDERS, Contender, compile_ours, mono_path
from mononn_bench.measure import worker
from mononn_bench.measure.accuracy import When, failure_reason, worst_errors
from mononn_bench.measure.device_clock import DeviceClock
from mononn_bench.measure.environment import cache_sizes_kib
from mononn_bench.measure.eviction import Evictor
from mononn_bench.systems.base import Arrays, DeviceCall

FLUSH_BYTES = 512 << 20
"""Written between cold runs: several times the second-level cache of any GPU."""


WARM_UP_RUNS, WARM_UP_S = 2, 0.2
"""Untimed runs before a block: at least so many and, on a GPU, so long."""


class Server:
    """Holds one contender, its buffers and input sets."""

    def __init__(self, _: str) -> None:
        self._contender: Contender | None = None
        self._sets: list[Arrays] = []
        self._buffers: Arrays = {}
        self._flush: Callable[[], None] | None = None
        self._clock: DeviceClock | None = None

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

    def correct(self, case: dict[str, Any], launch: str) -> dict[str, Any]:
        """Our answers to every input set, and to the first once more, against the float64 reference; each check, and
        why one failed. No other call is needed before it.
        """
        made, checks = Case(**case), []
        mono = mono_path(made, launch)
        about = {} if mono.exists() else compile_ours(made, launch)
        with ours.load(mono) as session, np.load(made.reference) as stored:
            for index in [*range(SETS + UNSEEN), 0]:
                given = {i.name: stored[f"{index}/in/{i.name}"] for i in made.spec.inputs}
                checks += made.check(stored, index, session.run(given), "before")
            blocks = session.workers
        worst = max(worst_errors(checks).values())
        return {
            "checks": to_plain(checks), "wrong": failure_reason(checks), "worst": worst, "blocks": blocks,
            "build": about,
        }  # fmt: skip

    def block(self, runs: int, cold: bool, first: int) -> dict[str, Any]:
        """`runs` timed runs, input sets in turn from `first`; seconds by the host's clock and, where the contender has
        a stream, of as many again by the GPU's. Untimed ones come first, for as long as clocks take to settle. Cold:
        caches are flushed before each run."""
        contender = self._contender
        assert contender is not None
        if cold and self._flush is None:
            self._flush = make_flush(contender.on_gpu)
        flush = self._flush if cold else None
        host: list[float] = []
        gc.disable()
        begun, warm = time.perf_counter(), 0
        while warm < WARM_UP_RUNS or (contender.on_gpu and time.perf_counter() - begun < WARM_UP_S):
            self._fill((first + warm) % SETS)
            contender.run()
            warm += 1
        for number in range(runs):
            self._fill((first + number) % SETS)
            if flush:
                flush()
            started = time.perf_counter()
            contender.run()
            host.append(time.perf_counter() - started)
        gc.enable()
        return {"host_s": host, **self._on_device(contender.device_call(), runs, flush)}

    def _on_device(
        self, call: DeviceCall | None, runs: int, flush: Callable[[], None] | None
    ) -> dict[str, float | None]:
        if call is None:
            return {"device_s": None, "back_to_back_s": None}
        if self._clock is None:
            self._clock = DeviceClock(call.stream)
        return worker.device_seconds(self._clock, call, runs, flush)

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
