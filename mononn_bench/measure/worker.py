"""The child: one system in one process. It reads requests, one JSON object a line, and answers each with one line.

It imports NumPy, the standard library, this package and its system's own library, nothing else of the suite's
environment. What a library prints goes to the log. `serve` is called by the bootstrap of process.py.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mononn_bench.codec import read_record, to_plain
from mononn_bench.errors import SystemUnavailableError
from mononn_bench.measure.device_clock import DeviceClock
from mononn_bench.measure.eviction import Evictor
from mononn_bench.record import ModelRecord
from mononn_bench.systems import get_system
from mononn_bench.systems.base import Arrays, DeviceCall, System, Task, require_defaults

PR_SET_PDEATHSIG = 1
KEPT_SAMPLES = 200
CACHE_LINE = 64


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies; exit at once if `parent` is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


class Server:
    """Holds one system and, once loaded, its buffers and input sets."""

    def __init__(self, system: str) -> None:
        self._system: System = get_system(system)()
        self._buffers: Arrays = {}
        self._sets: list[Arrays] = []
        self._evictor: Evictor | None = None
        self._clock: DeviceClock | None = None

    def probe(self) -> dict[str, Any]:
        """Import the library; versions."""
        return {"versions": self._system.probe()}

    def build(self, **task: Any) -> dict[str, Any]:
        """Build a model; seconds, options and what the adapter says."""
        made = task_of(**task)
        require_defaults(made, self._system)
        made.build_folder.mkdir(parents=True)
        started = time.perf_counter()
        built = self._system.build(made)
        seconds = time.perf_counter() - started
        options = [asdict(option) for option in self._system.options(made)]
        return {"build_s": seconds, "options": options, **to_plain(asdict(built))}

    def load(self, inputs: str, sets: int, **task: Any) -> dict[str, Any]:
        """Load a build and bind buffers; milliseconds of the load alone. `inputs` is an npz with `<set>/in/<name>`."""
        made = task_of(**task)
        self._system = type(self._system)()
        with np.load(inputs) as stored:
            self._sets = [{t.name: stored[f"{i}/in/{t.name}"] for t in made.model.inputs} for i in range(sets)]
        self._buffers = {name: aligned_copy(array) for name, array in self._sets[0].items()}
        started = time.perf_counter()
        self._system.load(made)
        seconds = time.perf_counter() - started
        self._system.bind(self._buffers)
        return {"load_ms": seconds * 1e3}

    def warm_up(self, slow_s: float) -> dict[str, Any]:
        """The first run, and the fastest of up to three more, which end when one takes no longer than `slow_s`."""
        first, fastest = self._timed(self._system.warm_up), float("inf")
        for _ in range(3):
            fastest = min(fastest, self._timed(self._system.run))
            if fastest <= slow_s:
                break
        gc.collect()
        gc.freeze()
        return {"first_run_ms": first * 1e3, "slow": fastest > slow_s}

    def check(self, sets: list[int], output: str) -> dict[str, Any]:
        """Run each set once and write `<set>/out/<name>` to the npz `output`."""
        answers = {}
        for index in sets:
            self._fill(index)
            self._system.run()
            answers.update({f"{index}/out/{name}": _kept(a) for name, a in self._system.outputs().items()})
        np.savez(output, **answers)  # type: ignore[arg-type]
        return {}

    def block(
        self,
        sets: int,
        first: int,
        warm_up_s: float,
        warm_up_runs: int,
        block_s: float,
        block_runs: int,
        cold_bytes: int = 0,
    ) -> dict[str, Any]:
        """Untimed runs, then timed ones, sets 0 to `sets` - 1 in turn beginning with `first`; at least so many and
        so long. `cold_bytes`: the last-level cache to empty before each timed run.
        """
        run, clock = self._system.run, time.perf_counter_ns
        if cold_bytes and self._evictor is None:
            self._evictor = Evictor(cold_bytes)
        gc.disable()
        begun, warm = clock(), 0
        while warm < warm_up_runs or clock() - begun < warm_up_s * 1e9:
            self._fill((first + warm) % sets)
            run()
            warm += 1
        samples: list[int] = []
        begun = clock()
        while len(samples) < block_runs or clock() - begun < block_s * 1e9:
            self._fill((first + len(samples)) % sets)
            if self._evictor:
                self._evictor()
            started = clock()
            run()
            samples.append(clock() - started)
        gc.enable()
        return {"warm_up_runs": warm, **self._on_device(len(samples)), **summarise(samples)}

    def _on_device(self, runs: int) -> dict[str, float | None]:
        """As many runs again by the GPU's own clock, at most KEPT_SAMPLES; nothing on a CPU."""
        call = self._system.device_call()
        if call is None:
            return {}
        if self._clock is None:
            self._clock = DeviceClock(call.stream)
        return device_seconds(self._clock, call, min(runs, KEPT_SAMPLES))

    @staticmethod
    def _timed(call: Callable[[], None]) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    def _fill(self, index: int) -> None:
        for name, buffer in self._buffers.items():
            np.copyto(buffer, self._sets[index][name])
        self._system.upload()


def device_seconds(
    clock: DeviceClock, call: DeviceCall, runs: int, flush: Callable[[], None] | None = None
) -> dict[str, float | None]:
    """Of so many runs: the median of one by itself, and what one takes of as many back to back; the latter not where
    caches are to be flushed before each.
    """
    single = []
    for _ in range(runs):
        if flush:
            flush()
        single.append(clock.once(call.enqueue))
    fine = [seconds for seconds in single if seconds is not None]
    together = None if flush else clock.back_to_back(call.enqueue, runs)
    return {"device_s": float(np.median(fine)) if fine else None, "back_to_back_s": together}


def aligned_copy(array: NDArray[Any]) -> NDArray[Any]:
    """A C-contiguous copy that begins on a cache line: systems that read such arrays in place then do."""
    room = np.empty(array.nbytes + CACHE_LINE, np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def _kept(answer: NDArray[Any]) -> NDArray[Any]:
    """A copy of an answer in a type that NumPy's files keep: bfloat16 and narrower become float32."""
    return np.array(answer, None if np.asarray(answer).dtype.isbuiltin == 1 else np.float32)


def summarise(samples: list[int]) -> dict[str, Any]:
    """Median and 90th percentile in seconds over all samples (ns), and up to KEPT_SAMPLES of them, evenly taken."""
    kept = np.unique(np.linspace(0, len(samples) - 1, min(KEPT_SAMPLES, len(samples))).astype(int))
    return {
        "runs": len(samples),
        "value_s": float(np.median(samples)) / 1e9,
        "p90_s": float(np.quantile(samples, 0.9)) / 1e9,
        "samples_ns": [samples[i] for i in kept],
    }


def task_of(
    model_folder: str,
    build_folder: str,
    threads: int,
    precision: str,
    target: str,
    defaults: bool = False,
    kept: str = "",
) -> Task:
    """What a request names by its folders."""
    model = read_record(ModelRecord, Path(model_folder) / "model.json")
    own, outliving = Path(build_folder), Path(kept) if kept else None
    return Task(model, Path(model_folder), own, threads, precision, target, defaults, outliving)


def _answer(server: Server, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"status": "ok", **getattr(server, request["call"])(**request["arguments"])}
    except SystemUnavailableError as error:
        return {"status": "unavailable", "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        line = " ".join(str(error).split())[:300]
        return {"status": "failed", "reason": f"{type(error).__name__}: {line}" if line else type(error).__name__}


def serve(settings: Mapping[str, Any], make: type[Server] = Server) -> None:
    """Answer requests until they end. `settings` is what process.py wrote: parent, cores, system, pipe descriptors."""
    die_with_parent(settings["parent"])
    os.sched_setaffinity(0, settings["cores"])
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with os.fdopen(settings["requests"]) as requests, os.fdopen(settings["replies"], "w", buffering=1) as replies:
        server = make(settings["system"])
        for line in requests:
            replies.write(json.dumps(_answer(server, json.loads(line))) + "\n")
