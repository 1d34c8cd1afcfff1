"""What a run takes on an NVIDIA GPU, without what it takes to launch it.

Between two events stands also the time the host needs to enqueue what lies between them. So the stream is held up first
by a kernel that waits, until everything is enqueued; and many runs are enqueued back to back, where what they take is
the larger of both. Calls are those of the CUDA Driver API; the waiting kernel is PTX, which every driver compiles.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

Enqueue = Callable[[], object]

WAITING = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry hold(.param .u64 nanoseconds)
{
  .reg .u64 %r<5>;
  .reg .pred %p;
  ld.param.u64 %r1, [nanoseconds];
  mov.u64 %r2, %globaltimer;
again:
  mov.u64 %r3, %globaltimer;
  sub.u64 %r4, %r3, %r2;
  setp.lt.u64 %p, %r4, %r1;
  @%p bra again;
  ret;
}
"""
LEAST_S, MOST_S = 50e-6, 20e-3
"""How long the stream is held up: at least, which covers what enqueueing a graph takes, and at most."""
MARGIN = 2.0
"""Of the time that enqueueing took on the host."""


class DeviceClock:
    """Events on one stream, given as the driver's handle (an integer), and a kernel that holds it up.

    The CUDA context that the stream belongs to must be current. Raises RuntimeError where the driver refuses a call.
    """

    def __init__(self, stream: int, driver: Any = None) -> None:
        self._driver = driver or ctypes.CDLL("libcuda.so.1")
        self._stream = ctypes.c_void_p(stream)
        self._start, self._end = self._event(), self._event()
        module, self._hold = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), WAITING)
        self._call("cuModuleGetFunction", ctypes.byref(self._hold), module, b"hold")
        self._held_s = LEAST_S

    def once(self, enqueue: Enqueue) -> float | None:
        """Seconds of what `enqueue` puts on the stream, which is held up until it is all there; None where the host
        needs longer for that than the stream may be held up.
        """
        while self._held_s <= MOST_S:
            began = time.perf_counter()
            self._wait(self._held_s)
            self._record(self._start)
            enqueue()
            self._record(self._end)
            host_s = time.perf_counter() - began
            seconds = self._elapsed()
            if host_s < self._held_s:
                return seconds
            self._held_s = max(MARGIN * host_s, MARGIN * self._held_s)
        return None

    def back_to_back(self, enqueue: Enqueue, runs: int) -> float:
        """Seconds of one of so many runs that follow each other on the stream as fast as the host enqueues them."""
        self._record(self._start)
        for _ in range(runs):
            enqueue()
        self._record(self._end)
        return self._elapsed() / runs

    def _wait(self, seconds: float) -> None:
        nanoseconds = ctypes.c_uint64(round(seconds * 1e9))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(nanoseconds))
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        self._call("cuLaunchKernel", self._hold, one, one, one, one, one, one, none, self._stream, arguments, None)

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        return event

    def _record(self, event: ctypes.c_void_p) -> None:
        self._call("cuEventRecord", event, self._stream)

    def _elapsed(self) -> float:
        milliseconds = ctypes.c_float()
        self._call("cuEventSynchronize", self._end)
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), self._start, self._end)
        return milliseconds.value / 1e3

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            raise RuntimeError(f"the CUDA driver answered error {status} to {name}")
