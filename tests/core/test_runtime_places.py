"""Persistent workers have a processor each, and the caller never runs in one of their places. Nobody waits long for a
worker whose processor another process has."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mononn_core.runtime.session import Session
from tests.core import handmade

INPUTS = {"a": np.ones(64, np.float32), "k": np.array([1], np.int32)}


def workers() -> set[int]:
    """Numbers of this process's persistent workers: sessions of other tests may have some."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(task.name) for task in tasks if (task / "comm").read_text().strip() == "mononn-worker"}


def places(others: set[int]) -> list[set[int]]:
    """Processors allowed to each worker but ``others``."""
    return [os.sched_getaffinity(worker) for worker in workers() - others]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor has no places to choose from")
def test_the_caller_leaves_a_workers_place() -> None:
    allowed, others = os.sched_getaffinity(0), workers()
    with Session(handmade.artifact(), threads=2) as session:
        session.run(INPUTS)
        (place,) = places(others)
        assert len(place) == 1
        seen = set()
        for _ in range(10):  # the scheduler may still move the caller between the run and the look
            os.sched_setaffinity(0, place)  # the caller is put where the worker is ...
            os.sched_setaffinity(0, allowed)
            session.run(INPUTS)
            seen.add(int(Path("/proc/thread-self/stat").read_text().rsplit(")", 1)[1].split()[36]))
            assert os.sched_getaffinity(0) == allowed  # ... and its freedom is as before
        assert seen - place


def test_more_workers_than_processors_share_them() -> None:
    others = workers()
    with Session(handmade.artifact(), threads=len(os.sched_getaffinity(0)) + 1) as session:
        session.run(INPUTS)
        found = places(others)
        assert found and all(place == os.sched_getaffinity(0) for place in found)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor has no places to choose from")
def test_a_worker_that_gets_no_processor_delays_nobody() -> None:
    others, seconds = workers(), []
    with Session(handmade.artifact(), threads=2) as session:
        session.run(INPUTS)
        (worker,) = workers() - others
        (place,) = os.sched_getaffinity(worker)
        busy = f"import os\nos.sched_setaffinity(0, {{{place}}})\nprint(flush=True)\nwhile True: pass"
        with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as neighbour:
            assert neighbour.stdout
            neighbour.stdout.readline()
            try:
                os.sched_setscheduler(worker, os.SCHED_IDLE, os.sched_param(0))  # its neighbour has 300 times its share
                for k in range(60):
                    inputs = {**INPUTS, "k": np.array([k % 10], np.int32)}
                    started = time.perf_counter()
                    answers = session.run(inputs)
                    seconds.append(time.perf_counter() - started)
                    for name, expected in handmade.expected(INPUTS["a"], k % 10).items():
                        np.testing.assert_array_equal(answers[name], expected)
            finally:
                neighbour.kill()
    assert np.median(seconds) < 1e-3  # a time slice of the neighbour's is several
