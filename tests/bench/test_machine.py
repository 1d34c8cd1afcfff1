"""What the machine gives: the program runs, its readings are plausible, and the cost model stands beside them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import mononn_core
from mononn_bench.cli import main
from mononn_bench.codec import read_record
from mononn_bench.errors import MeasurementError
from mononn_bench.measure import primitives
from mononn_bench.measure.environment import describe_machine
from mononn_bench.measure.primitives import read_primitives
from mononn_bench.profiled import Primitives, Reading, Stated
from mononn_bench.report.machine import constants_grid, primitives_grid

PLAUSIBLE = {"B/s": (1e8, 1e13), "op/s": (1e8, 1e14), "s": (1e-10, 1e-1)}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Primitives:
    """A few trials of everything on two cores: other tests run beside them."""
    lock = tmp_path_factory.mktemp("machine") / "lock"
    return read_primitives("here", sorted(os.sched_getaffinity(0))[:2], lambda _: None, trials=3, lock=lock)


def test_every_primitive_has_a_plausible_reading(here: Primitives) -> None:
    for one in here.readings:
        low, high = PLAUSIBLE[one.unit]
        assert all(low < value < high for value in one.values), one
    kinds = {one.what for one in here.readings}
    assert {"memory read", "memory write", "memory copy", "cache read", "load latency", "peak"} <= kinds
    assert {"system call", "clock", "thread", "page fault"} <= kinds
    if len(here.cores) > 1:
        assert {"barrier", "hand-off of a line", "wake-up from sleep"} <= kinds
        assert {one.workers for one in here.readings if one.what == "peak"} == {1, 2}


def test_nearer_caches_are_faster(here: Primitives) -> None:
    by_size = [min(one.values) for one in here.readings if one.what == "load latency"]
    assert by_size[0] < 0.5 * by_size[-1]


def test_wider_vectors_have_higher_peaks(here: Primitives, tmp_path: Path) -> None:
    """The compiler can neither drop nor hoist what a loop computes: a product a cycle and port is the most there is.
    A peak is the best of its trials: what else runs here only lowers one."""
    names, peaks = ("float32, mulps", "float32, vfmadd231ps ymm"), dict[str, float]()

    def found() -> list[float]:
        return [peak for name in names for variant, peak in peaks.items() if variant.startswith(name)]

    for attempt in range(3):  # a busy machine is asked again
        read = here if attempt == 0 else read_primitives("here", here.cores, print, trials=3, lock=tmp_path / "lock")
        for one in read.readings:
            if one.what == "peak" and one.workers == 1:
                peaks[one.variant] = max(peaks.get(one.variant, 0.0), *one.values)
        if len(found()) < 2 or found()[1] / found()[0] > 1.5:
            break
    else:
        pytest.fail(f"{found()} operations a second of narrow and of wide vectors")
    most = {v: 16 * 128 if "AMX" in v else 64 * 2 * 2 for v in peaks}  # a row of a tile, or two zmm of bytes, a cycle
    assert all(value < most[v] * 6e9 for v, value in peaks.items())  # at 6 GHz


def test_a_machine_is_called_what_its_results_lie_under(here: Primitives) -> None:
    assert describe_machine("x").name == "x"
    assert (here.name, here.machine.name) == ("here", "here")


def a_machine() -> Primitives:
    """Readings that stand for some of the cost model's numbers."""
    machine = replace(describe_machine(), caches_kib={"L1": 32, "L2": 1000, "L3": 32768})
    readings = (
        Reading("peak", "float32, mulps addps (SSE2)", 1, "op/s", (30e9,)),
        Reading("peak", "float32, vfmadd231ps ymm (AVX2)", 1, "op/s", (90e9, 91e9, 92e9)),
        Reading("peak", "int16, vpmaddwd vpaddd ymm (AVX2)", 1, "op/s", (182e9,)),
        Reading("cache read", "256 KiB", 1, "B/s", (80e9,)),
        Reading("barrier", "a flag a worker, spinning", 2, "s", (2e-7,)),
        Reading("exchange", "64 KiB read that another core has just written", 2, "B/s", (1e9,)),
    )
    return Primitives("now", machine, "there", (0, 1), readings, "a" * 40)


def test_readings_become_a_table_with_units() -> None:
    rows = primitives_grid(a_machine()).rows
    assert rows[1][3:] == ("91 Gop/s", "90 Gop/s", "92 Gop/s")
    assert [row[3] for row in rows[3:]] == ["80 GB/s", "200 ns", "1 GB/s"]


def test_the_cost_models_numbers_stand_beside_what_they_stand_for() -> None:
    constants = mononn_core.cost_constants()
    stated = tuple(Stated(one.name, one.value, one.unit, one.meaning) for one in constants)
    rows = {row[0]: row for row in constants_grid(replace(a_machine(), stated=stated)).rows}
    assert set(rows) == {constant.name for constant in constants}
    assert rows["machine.peak_flops_per_core"][3] == "91 Gop/s"
    assert rows["machine.l2_bandwidth"][3] == "80 GB/s"
    assert rows["cost.EXCHANGE_BYTES_PER_SECOND"][3:] == ("1 GB/s", "0.05")
    assert rows["machine.l3_bandwidth"][3:] == ("", "")
    if "winograd.RATE[words]" in rows:
        assert rows["winograd.RATE[words]"][3] == "2"


def test_the_command_keeps_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mononn_bench.commands.read_primitives", lambda *_: a_machine())
    assert main(["machine", "--measure", str(tmp_path / "machine.json")]) == 0
    found = read_record(Primitives, tmp_path / "machine.json")
    assert replace(found, stated=()) == a_machine()
    assert [one.name for one in found.stated] == [one.name for one in mononn_core.cost_constants()]
    said = capsys.readouterr().out
    assert "# What there gives" in said
    assert "# What the cost model takes" in said


def test_without_a_compiler_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "compilers", lambda: [])
    with pytest.raises(MeasurementError, match="needs a C compiler: install gcc"):
        read_primitives("", (0,), lambda _: None, lock=tmp_path / "lock")
    monkeypatch.setattr(primitives, "compilers", lambda: [["false"]])
    with pytest.raises(MeasurementError, match=r"false does not compile machine\.c"):
        read_primitives("", (0,), lambda _: None, lock=tmp_path / "lock")
