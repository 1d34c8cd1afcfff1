"""Trace and ceilings: the arithmetic on made-up stamps, the files, and the real thing on the hand-made network."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mononn_core.errors import OptionError
from mononn_core.machine import Machine
from mononn_core.runtime import ceilings, trace
from mononn_core.runtime.gpu_session import on_one_clock
from mononn_core.runtime.session import Session
from tests.core import handmade

NEAR, FAR, MEMORY = 16e9, 8e9, 1e9
CACHES = {"l2_bytes": 1000, "l3_bytes": 4000, "l2_bandwidth": NEAR, "l3_bandwidth": FAR}
MACHINE = replace(Machine.named("avx2"), peak_flops_per_core=1e9, bandwidth=MEMORY, **CACHES)
# One run of two workers in two phases: (begin, ready, end) in nanoseconds.
STAMPS = np.array([[[[0, 0, 100], [110, 210, 300]], [[20, 20, 200], [200, 210, 310]]]], np.uint64)


def test_table_arithmetic():
    first, second = trace.table(STAMPS, handmade.manifest(), MACHINE)
    assert first.seconds == pytest.approx(200e-9)
    assert second.seconds == pytest.approx(110e-9), "phases add up to the run"
    assert (first.wait, second.wait) == (0, pytest.approx((100 + 10) / 2 * 1e-9))
    assert first.imbalance == pytest.approx(180 / 140 - 1)
    assert second.imbalance == pytest.approx(100 / 95 - 1)
    assert first.floor == pytest.approx(64 / 2e9), "its 768 bytes take less from both second-level caches"
    assert second.share_of_peak == pytest.approx(128 / 2e9 / 110e-9)
    assert (first.barrier, second.barrier, second.origin) == (False, True, "Add node 'reverse'")


@pytest.mark.parametrize(
    ("constants", "activations", "held", "seconds"),
    [
        (0, 2000, 0, 2000 / (2 * NEAR)),
        (0, 2001, 0, 2001 / (2 * FAR)),
        (0, 4001, 0, 4001 / MEMORY),
        (100, 1900, 2000, 2000 / (2 * NEAR)),
        (100, 0, 2001, 100 / (2 * FAR)),
        (100, 1900, 4001, 100 / MEMORY),
        (100, 3000, 9000, 3100 / (2 * FAR)),
    ],
)
def test_a_floor_counts_what_a_phase_moves_where_it_lies(constants, activations, held, seconds):
    phase = {"id": "1_nest", "flops": 0, "bytes": constants, "activation_bytes": activations, "multiplies": ""}
    manifest = {"phases": [phase], "weight_bytes": held, "arena_bytes": 0}
    assert trace.floor_seconds(manifest, MACHINE, 2) == [pytest.approx(max(seconds, constants / (2 * NEAR)))]


def test_constants_of_a_round_lie_where_the_round_before_left_them():
    phase = {"id": "1_step[7]", "flops": 0, "bytes": 1000, "activation_bytes": 0, "multiplies": ""}
    rounds = [{**phase, "moved_since": 1500}, {**phase, "moved_since": 2500}]
    manifest = {"phases": [phase, *rounds], "weight_bytes": 9000, "arena_bytes": 0}
    kept = 2000 / 2500
    seconds = (1000 / MEMORY, 1000 / (2 * NEAR), 1000 * kept / (2 * NEAR) + 1000 * (1 - kept) / (2 * FAR))
    assert trace.floor_seconds(manifest, MACHINE, 2) == [pytest.approx(s) for s in seconds]


def test_medians_are_over_runs():
    slow = STAMPS * np.uint64(1000)
    times = trace.table(np.concatenate([STAMPS, STAMPS, slow]), handmade.manifest(), MACHINE)
    assert [p.seconds for p in times] == [pytest.approx(200e-9), pytest.approx(110e-9)]


def test_the_rounds_of_a_long_loop_are_one_line():
    step = trace.table(STAMPS, handmade.manifest(), MACHINE)[0]
    many, few = (
        [replace(step, id=f"{name}[{i}]", seconds=1e-6) for i in range(n)] for name, n in (("a", 40), ("b", 2))
    )
    lines = trace.format_table([*few, *many, step]).splitlines()
    assert [line.split()[:2] for line in lines[1:6]] == [
        ["b[0]", "1.0"],
        ["b[1]", "1.0"],
        ["a[0..39]", "40.0"],
        [step.id, f"{step.seconds * 1e6:.1f}"],
        ["total", "42.2"],
    ]


def test_table_text_and_json():
    phases = trace.table(STAMPS, handmade.manifest(), MACHINE)
    lines = trace.format_table(phases).splitlines()
    assert len(lines) == 8
    assert "  ".join(lines[0].split()) == "phase  us  floor  us  of  peak  wait  us  imbalance  tasks  barrier  origin"
    assert lines[2].split()[:2] == ["reverse", "0.1"]
    assert lines[3].split()[:2] == ["total", "0.3"]
    assert lines[5].split() == ["kind", "phases", "us", "of", "time", "floor", "us", "of", "peak"]
    assert lines[6].split() == ["scale", "1", "0.2", "64.5%", "0.0", "16%"]
    assert lines[7].split()[:4] == ["reverse", "1", "0.1", "35.5%"]
    assert [row["id"] for row in json.loads(json.dumps(trace.to_json(phases)))] == ["scale", "reverse"]


def test_slow_phases_alone_the_longest_first():
    quick, slow, short = (
        trace.PhaseTime(name, name, "", 1, False, seconds, floor, 0.0, 0.0)
        for name, seconds, floor in (("quick", 100e-6, 50e-6), ("slow", 50e-6, 24e-6), ("short", 1e-6, 0.0))
    )
    slower = replace(slow, id="slower", seconds=60e-6)
    assert trace.below([quick, slow, slower, short], 0.5) == [slower, slow]
    lines = trace.format_below([quick, slow, slower, short], 0.5).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["phase", "slower", "slow"]
    assert lines[3] == "2 of 4 phases under 50% of their ceilings that take over 1% each: 52.1% of the run"


def test_what_the_cost_model_expected_stands_beside_what_was_measured():
    times = (("near", 100e-6, 80e-6), ("far", 100e-6, 60e-6), ("border", 10e-6, 0.0))
    phases = [trace.PhaseTime(n, n, "", 1, False, seconds, 0.0, 0.0, 0.0, modelled) for n, seconds, modelled in times]
    lines = trace.format_model(phases).splitlines()
    assert [line.split()[:4] for line in lines[1:3]] == [
        ["near", "100.0", "80.0", "0.80"],
        ["far", "100.0", "60.0", "0.60"],
    ]
    assert lines[3] == "1 of 2 phases (50%, 50% of their time) within 25%; modelled together 0.70 of measured"


def test_phases_of_a_kind_are_added_up_and_held_against_their_types_peak():
    whole = {"id": "1_matmul[2]", "multiplies": "uint8", "flops": 800, "bytes": 0, "tasks": 2, "barrier": False}
    manifest = {"phases": [whole, {**whole, "id": "2_matmul"}], "weight_bytes": 0, "arena_bytes": 0}
    machine = replace(MACHINE, features=MACHINE.features | {"avxvnni"})
    phases = trace.table(STAMPS, manifest, machine)
    assert [p.kind for p in phases] == ["matmul uint8"] * 2
    assert phases[0].floor == pytest.approx(800 / (2 * 4e9)), "four products an instruction"
    measured = replace(machine, product_peaks=(("uint8", 2e9),))
    assert trace.table(STAMPS, manifest, measured)[0].floor == pytest.approx(800 / (2 * 2e9))
    assert trace.table(STAMPS, manifest, MACHINE)[0].floor == pytest.approx(800 / (2 * 1e9)), "as fast as float32"
    assert trace.format_table(phases).splitlines()[-1].split()[:3] == ["matmul", "uint8", "2"]


def test_chrome_trace_has_one_track_a_worker():
    text = trace.chrome_trace(STAMPS, handmade.manifest())
    events = json.loads(text)["traceEvents"]
    assert {e["tid"] for e in events if e["name"] == "thread_name"} == {0, 1}
    spans = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert (1, "scale", 0.02, 0.18) in spans
    assert (0, "wait", 0.11, 0.1) in spans
    assert text == trace.chrome_trace(STAMPS, handmade.manifest())


@pytest.mark.parametrize("threads", [1, 2])
def test_record_is_ordered_in_time(threads):
    with Session(handmade.artifact(), threads) as session:
        inputs = {"a": np.ones(64, np.float32), "k": np.ones(1, np.int32)}
        stamps = trace.record(session, inputs, runs=5)
        assert stamps.shape == (5, threads, 2, 3)
        assert (np.diff(stamps.reshape(5, threads, 6).astype(np.int64)) >= 0).all()
        ready, ends = stamps[:, :, 1, 1].astype(np.int64), stamps[:, :, 0, 2].astype(np.int64)
        assert (ready.min(axis=1) >= ends.max(axis=1)).all(), "nobody passes the barrier before all have ended"
        with pytest.raises(OptionError, match="0 runs leave nothing"):
            trace.record(session, inputs, runs=0)


def test_cycles_are_put_on_the_coarse_common_clock():
    """A clock that ticks once a microsecond, blocks on multiprocessors whose cycles begin anywhere, two on one of them:
    times come out to a few dozen nanoseconds."""
    random = np.random.default_rng(3)
    blocks, phases = 12, 40
    owners = np.arange(blocks) % 11
    steps = random.uniform(200, 2000, (blocks, phases * 3))
    exact = 5e9 + np.cumsum(steps, axis=1).reshape(blocks, phases, 3)
    start = random.integers(0, 1 << 62, 11, dtype=np.uint64)[owners][:, None, None]
    cycles = start + np.rint((exact - 5e9) * 1.755).astype(np.uint64)
    shared = (exact // 1024 * 1024).astype(np.uint64)
    raw = np.stack([shared, cycles, np.broadcast_to(owners[:, None, None], exact.shape).astype(np.uint64)], axis=-1)
    found = on_one_clock(raw).astype(np.float64)
    error = (found - found.min()) - (exact - exact.min())
    assert np.abs(error - error.mean()).max() < 120
    assert np.abs((shared - shared.min()) - (exact - exact.min())).max() > 800, "what the coarse clock alone would give"
    assert (on_one_clock(raw[:1, :1]) > 0).all()
    same = raw.copy()
    same[..., 1] = 7
    assert on_one_clock(same).shape == exact.shape, "a clock that stands still is no division by zero"


def test_nothing_to_trace():
    with Session(handmade.artifact(phases=[])) as session, pytest.raises(OptionError, match="executes no phase"):
        trace.record(session, {"a": np.ones(64, np.float32), "k": np.ones(1, np.int32)})


def test_ceilings_are_plausible_and_applied():
    roofs = ceilings.measure(1)
    assert 1e9 < roofs.flops < 1e12
    assert 1e8 < roofs.memory_bandwidth < 1e12
    assert all(roofs.flops / 8 < rate < 64 * roofs.flops for _, rate in roofs.products)
    if Machine.probe().product("uint8") is None:  # two instructions multiply, for four terms
        assert dict(roofs.products)["uint8"] < 3 * roofs.flops
    assert roofs.applied_to(Machine.probe()).peak("uint8") == dict(roofs.products)["uint8"]
    assert roofs.memory_bandwidth < 2 * roofs.cache_bandwidth
    assert roofs.memory_bandwidth / 2 < roofs.l3_bandwidth < 2 * roofs.cache_bandwidth
    machine = roofs.applied_to(replace(Machine.probe(), l2_bytes=1000, l3_bytes=4000))
    assert machine.bandwidth_within(1000, 1) == roofs.cache_bandwidth
    assert machine.bandwidth_within(4000, 1) == roofs.l3_bandwidth
    assert machine.bandwidth_within(4001, 1) == roofs.memory_bandwidth
    assert machine.peak_flops_per_core == roofs.flops


def test_ceilings_need_a_sane_number_of_threads():
    with pytest.raises(OptionError, match="ceilings of 0 threads"):
        ceilings.measure(0)


@pytest.mark.parametrize("waiting", [0.0, 5e-3])
def test_a_ceiling_is_found_whatever_a_run_waits(waiting: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a core, where others keep them busy: a run of few repetitions would show that alone."""
    order = np.array([0, 1, 0])
    monkeypatch.setattr(ceilings, "_seconds", lambda _: waiting + 1e-6 * float(order[1]))
    monkeypatch.setattr(ceilings, "SECONDS_PER_KIND", 0.0)
    assert 0.6e6 < ceilings._repetitions_per_second(None, order) <= 1e6  # type: ignore[arg-type]
