"""The GPU's own clock: what stands between its events, whatever launching costs. A fake driver keeps a time line."""

# ruff: noqa: N802 (the fake has the names of NVIDIA's interface)

from __future__ import annotations

import ctypes

import pytest

from mononn_bench.measure import device_clock
from mononn_bench.measure.device_clock import LEAST_S, MOST_S, DeviceClock
from mononn_bench.measure.worker import device_seconds
from mononn_bench.systems.base import DeviceCall

LAUNCH_S, RUN_S = 30e-6, 7e-6


class FakeDriver:
    """libcuda with one stream: the host's clock and the time at which the stream has done what was enqueued so far."""

    def __init__(self) -> None:
        self.host = self.stream = 0.0
        self.events: dict[int, float] = {}
        self.status = 0
        self.held: list[float] = []

    def enqueue(self, host_s: float, device_s: float) -> None:
        self.host += host_s
        self.stream = max(self.stream, self.host) + device_s

    def cuModuleLoadData(self, module, image):
        assert b".entry hold(" in image
        return self.status

    def cuModuleGetFunction(self, function, module, name):
        assert name == b"hold"
        return 0

    def cuEventCreate(self, event, flags):
        ctypes.cast(event, ctypes.POINTER(ctypes.c_void_p))[0] = len(self.events) + 1
        self.events[len(self.events) + 1] = 0.0
        return 0

    def cuLaunchKernel(self, function, *rest):
        assert rest[7].value == 7, "the stream"
        nanoseconds = ctypes.c_uint64.from_address(rest[8][0]).value
        self.held.append(nanoseconds / 1e9)
        self.enqueue(5e-6, nanoseconds / 1e9)
        return 0

    def cuEventRecord(self, event, stream):
        self.enqueue(1e-6, 0.0)
        self.events[event.value] = self.stream
        return 0

    def cuEventSynchronize(self, event):
        self.host = max(self.host, self.events[event.value])
        return 0

    def cuEventElapsedTime(self, milliseconds, start, end):
        milliseconds._obj.value = (self.events[end.value] - self.events[start.value]) * 1e3
        return 0


@pytest.fixture
def driver(monkeypatch) -> FakeDriver:
    driver = FakeDriver()
    monkeypatch.setattr(device_clock.time, "perf_counter", lambda: driver.host)
    return driver


@pytest.mark.parametrize("launch_s", [LAUNCH_S, 10 * LAUNCH_S])
def test_what_launching_costs_is_not_in_a_run(driver, launch_s):
    clock = DeviceClock(7, driver)
    for _ in range(3):
        assert clock.once(lambda: driver.enqueue(launch_s, RUN_S)) == pytest.approx(RUN_S)
    assert driver.held[0] == LEAST_S
    assert len(driver.held) == (3 if launch_s < LEAST_S else 4), "held up for longer where it was too short, once"


def test_a_host_that_takes_too_long_leaves_no_value(driver):
    clock = DeviceClock(7, driver)
    assert clock.once(lambda: driver.enqueue(2 * MOST_S, RUN_S)) is None
    assert max(driver.held) <= MOST_S


def test_runs_in_a_row_take_the_larger_of_both(driver):
    clock = DeviceClock(7, driver)
    assert clock.back_to_back(lambda: driver.enqueue(1e-6, RUN_S), 50) == pytest.approx(RUN_S, rel=0.05)
    assert clock.back_to_back(lambda: driver.enqueue(LAUNCH_S, RUN_S), 50) == pytest.approx(LAUNCH_S, rel=0.05)


def test_caches_are_flushed_before_each_run_and_then_none_are_in_a_row(driver):
    flushed: list[int] = []
    call = DeviceCall(7, lambda: driver.enqueue(1e-6, RUN_S))
    found = device_seconds(DeviceClock(7, driver), call, 4, lambda: flushed.append(1))
    assert (len(flushed), found["back_to_back_s"]) == (4, None)
    assert found["device_s"] == pytest.approx(RUN_S)
    assert device_seconds(DeviceClock(7, driver), call, 4)["back_to_back_s"] is not None


def test_a_driver_that_refuses_is_an_error_with_its_number(driver):
    driver.status = 222
    with pytest.raises(RuntimeError, match="error 222 to cuModuleLoadData"):
        DeviceClock(7, driver)
