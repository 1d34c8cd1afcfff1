"""Persistent workers have a processor each, and the caller never runs in one of their places."""

from __future__ import annotations

import os
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
