"""Orders that are balanced, files in and out of the page cache, and what a start leaves in a record."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mononn_bench.errors import UnknownNameError
from mononn_bench.measure import runner
from mononn_bench.measure.filecache import drop_files, files_below, read_files, resident_share
from mononn_bench.measure.order import balanced_orders, williams_square
from mononn_bench.measure.process import Limits, Worker, worker_variables
from mononn_bench.systems import REAL, get_system
from mononn_bench.systems.base import HUGE_PAGES
from tests.bench.conftest import QUICK, Measure


def neighbours(orders: list[tuple[str, ...]]) -> Counter[tuple[str, str]]:
    return Counter(pair for order in orders for pair in pairwise(order))


@pytest.mark.parametrize("count", range(2, 12))
def test_in_a_square_each_follows_each_other_and_has_each_place_equally_often(count: int) -> None:
    square = williams_square(count)
    pairs = Counter(pair for row in square for pair in pairwise(row))
    places = Counter(place for row in square for place in enumerate(row))
    assert len(pairs) == count * (count - 1) and len(set(pairs.values())) == 1
    assert len(places) == count * count and len(set(places.values())) == 1


@given(st.integers(2, 11), st.integers(1, 40), st.integers(0, 2**32))
def test_parts_of_squares_are_nearly_balanced(systems: int, count: int, seed: int) -> None:
    items = [f"system-{i}" for i in range(systems)]
    orders = balanced_orders(items, count, str(seed))
    assert len(orders) == count and all(sorted(order) == sorted(items) for order in orders)
    found, size = neighbours(orders), len(williams_square(systems))
    most, least = max(found.values()), min(found.get((a, b), 0) for a in items for b in items if a != b)
    assert most - least <= (-(-count // size) - count // size) * (1 if systems % 2 == 0 else 2)


@pytest.mark.slow
def test_runs_and_cases_have_orders_of_their_own(measure: Measure) -> None:
    settings = replace(QUICK, cycles=6, order_seed=1)
    orders = [
        [cycle.order for cycle in measure(["fake-ok", "fake-ok"], one).rounds[0].cycles]
        for one in (settings, settings, replace(settings, order_seed=2), replace(settings, seed=1))
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2] and orders[0] != orders[3]
    assert len(set(neighbours(orders[0]).values())) == 1


def test_files_are_dropped_from_the_page_cache_and_read_into_it(tmp_path: Path) -> None:
    path = tmp_path / "below" / "weights.bin"
    path.parent.mkdir()
    path.write_bytes(os.urandom(1 << 20))
    (tmp_path / "empty").touch()
    files = files_below([tmp_path])
    assert files == [path]
    if drop_files(files) == "neither":
        pytest.skip("this file system keeps its files in memory")
    assert resident_share(files) == 0
    assert read_files(files) == "warm"
    assert resident_share(files) == 1


def test_files_that_cannot_be_dropped_do_not_count_as_cold(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "drop_files", lambda files: "neither")
    (row,) = measure(["fake-ok"], replace(QUICK, starts=2)).systems
    assert [start.files for start in row.starts].count("warm") == 2
    assert {start.files for start in row.starts} == {"warm", "neither"}


def test_every_system_starts_as_often_with_warm_and_with_cold_files(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "drop_files", lambda files: "cold")
    record = measure(["fake-ok", "fake-ok"], replace(QUICK, rounds=2, starts=3))
    for row in record.systems:
        kinds = Counter(start.files for start in row.starts)
        assert kinds == {"warm": 3, "cold": 3, "neither": 1}
        assert row.load_ms == np.median([start.load_ms for start in row.starts if start.files == "warm"])
        assert all(start.peak_mb > 0 and start.first_run_ms > 0 for start in row.starts)


def test_memory_is_the_kernels_own_peak(tmp_path: Path) -> None:
    with Worker("fake-ok", Path(sys.executable), cores=[0], scratch=tmp_path) as worker:
        worker.ask("probe", Limits(20, 1000))
        before = worker.memory()
        worker.forget_peak()
        assert before.resident <= worker.memory().peak < before.resident * 1.2
        assert 0 < before.proportional <= before.resident
    assert worker.memory().peak == 0


def test_every_system_asks_for_huge_pages_unless_its_variant_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HUGE_PAGES.name, "of the user's shell")
    for system in REAL:
        assert worker_variables(system.name, tmp_path)[HUGE_PAGES.name] == HUGE_PAGES.value
        assert HUGE_PAGES.name not in worker_variables(f"{system.name}[pages=small]", tmp_path)
    assert worker_variables("torch-eager", tmp_path)["THP_MEM_ALLOC_ENABLE"] == "1"
    with pytest.raises(UnknownNameError):
        get_system("none[pages=small]")


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "MALLOC_ARENA_MAX", "XLA_FLAGS", "ONEDNN_MAX_CPU_ISA", "TORCHINDUCTOR_MAX_AUTOTUNE"]
)
def test_what_steers_a_library_in_the_users_shell_reaches_no_worker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (name, "HOME"):
        monkeypatch.setenv(variable, "of the user's shell")
    for system in ("fake-ok", *(system.name for system in REAL)):
        found = worker_variables(system, tmp_path)
        assert found.get(name) != found["HOME"] == "of the user's shell"
    assert name not in worker_variables("fake-ok", tmp_path)


def test_the_variables_of_a_system_stand_among_its_options(measure: Measure) -> None:
    (row,) = measure(["fake-ok"]).systems
    assert HUGE_PAGES in row.options
