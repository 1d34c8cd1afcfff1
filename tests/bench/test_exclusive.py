"""Whatever is timed is alone on the machine; builds that time nothing may run beside each other."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mononn_bench.measure.build import build_system
from mononn_bench.measure.exclusive import exclusive_machine
from mononn_bench.measure.process import Limits

Building = Callable[[str], tuple[threading.Thread, threading.Event, Path]]


@pytest.fixture
def building(linear_folder: Path, driver_environment: Path, tmp_path: Path) -> Building:
    """Start a build of a fake system: its thread, an event set once it waits, and its record's path."""

    def start(system: str) -> tuple[threading.Thread, threading.Event, Path]:
        waits, output = threading.Event(), tmp_path / system

        def say(text: str) -> None:
            assert text == "another measurement or build holds this machine; waiting for it to end"
            waits.set()

        thread = threading.Thread(
            target=build_system,
            args=(system,),
            kwargs={
                "environment": driver_environment, "model_folder": linear_folder, "output": output, "threads": 1,
                "precision": "fp32", "target": "cpu", "limits": Limits(20, 600), "say": say, "lock": tmp_path / "lock",
            },
        )  # fmt: skip
        thread.start()
        return thread, waits, output / "build.json"

    return start


@contextmanager
def _held(lock: Path, *, shared: bool) -> Iterator[None]:
    with exclusive_machine(pytest.fail, lock, shared=shared):
        yield


@pytest.mark.parametrize(("system", "shared"), [("fake-ok", False), ("fake-tuned", True), ("fake-tuned", False)])
def test_a_build_waits_for_what_may_not_run_beside_it(
    building: Building, tmp_path: Path, system: str, shared: bool
) -> None:
    """A measurement, which is never shared, or another build where this one times what it chooses from."""
    with _held(tmp_path / "lock", shared=shared):
        thread, waits, record = building(system)
        assert waits.wait(20), "the build did not wait"
        thread.join(0.5)
        assert thread.is_alive() and not record.exists()
    thread.join(20)
    assert record.exists()


def test_builds_that_time_nothing_run_beside_each_other(building: Building, tmp_path: Path) -> None:
    with _held(tmp_path / "lock", shared=True):
        thread, waits, record = building("fake-ok")
        thread.join(20)
        assert record.exists() and not waits.is_set()
