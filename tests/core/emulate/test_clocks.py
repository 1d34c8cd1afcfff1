"""The race detector against plain vector clocks: random scripts of accesses, barriers, counters and fences."""

import functools
import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core.emulate import Watch, build

BLOCKS, THREADS, CELLS, COUNTERS, LENGTH = 2, 96, 3, 4, 24
NOTHING, READ, WRITE, BLOCK, WARP, SOME, SIGNAL, WAIT, FENCE = range(9)
ALL_RELAXED = ("atomic_add", "load_acquire", "store_release")

SOURCE = """
#include "mononn_ptx.cuh"
using namespace mn;
struct Call { uint32_t *cells, *counters, *order; const uint32_t *script; uint64_t length; };
extern "C" __global__ void play(const __grid_constant__ Call call) {
  uint64_t at = (block() * 96 + thread()) * call.length;
  const uint32_t *mine = call.script + at;
  for (uint64_t i = 0; i < call.length; ++i) {
    uint32_t what = mine[i] & 255, which = mine[i] >> 8 & 255, count = mine[i] >> 16;
    if (what == 1) (void)*(volatile uint32_t *)(call.cells + which);
    if (what == 2) *(volatile uint32_t *)(call.cells + which) = 1;
    if (what == 3) sync_block();
    if (what == 4) sync_warp();
    if (what == 5) sync_some(1, 64);
    if (what == 6) call.order[at + i] = atomic_add(call.counters + which, 1u);
    if (what == 7) while (load_acquire(call.counters + which) < count) pause(9);
    if (what == 8) fence_gpu();
  }
}
"""

THREAD = st.tuples(st.integers(0, BLOCKS - 1), st.sampled_from([0, 1, 5, 31, 32, 40, 64, 95]))
EVENT = st.one_of(
    st.tuples(st.sampled_from([READ, WRITE]), THREAD, st.integers(0, CELLS - 1)),
    st.tuples(st.just(BLOCK), st.integers(0, BLOCKS - 1)),
    st.tuples(st.just(WARP), st.integers(0, BLOCKS - 1), st.integers(0, 2)),
    st.tuples(st.just(SOME), st.integers(0, BLOCKS - 1)),
    st.tuples(st.sampled_from([SIGNAL, WAIT]), THREAD, st.integers(0, COUNTERS - 1)),
    st.tuples(st.just(FENCE), THREAD),
)


def members(event):
    """Threads that take part in an event, as (block, thread)."""
    what, where = event[:2]
    if what == BLOCK:
        return [(where, t) for t in range(THREADS)]
    if what == WARP:
        return [(where, event[2] * 32 + t) for t in range(32)]
    if what == SOME:
        return [(where, t) for t in range(64)]
    return [where]


def closed(events):
    """The script without signals of a counter after its first wait: a wait then knows how many there will be."""
    waited, kept = set(), []
    for event in events:
        if event[0] == SIGNAL and event[2] in waited:
            continue
        if event[0] == WAIT:
            waited.add(event[2])
        kept.append(event)
    return kept


def encode(events):
    """Every thread's own operations, uint32 [blocks, threads, length]."""
    script = np.zeros((BLOCKS, THREADS, LENGTH), np.uint32)
    for i, event in enumerate(events):
        which = event[2] if event[0] in (READ, WRITE, SIGNAL, WAIT) else 0
        count = sum(e[0] == SIGNAL and e[2] == which for e in events) if event[0] == WAIT else 0
        for block, thread in members(event):
            script[block, thread, i] = event[0] | which << 8 | count << 16
    return script


def executed(events, order):
    """The script with the signals of each counter in the order that a run took (a signal acquires those before it).

    order: what each signal found its counter at, uint32 [blocks, threads, length].
    """
    left, done = list(enumerate(events)), []
    signals = [0] * COUNTERS

    def ready(i, event):
        mine = set(members(event))
        if any(mine.intersection(members(other)) for j, other in left if j < i):
            return False
        if event[0] == WAIT:
            return not any(other[0] == SIGNAL and other[2] == event[2] for _, other in left)
        return event[0] != SIGNAL or order[(*event[1], i)] == signals[event[2]]

    while left:
        i, event = next(pair for pair in left if ready(*pair))
        left.remove((i, event))
        done.append(event)
        if event[0] == SIGNAL:
            signals[event[2]] += 1
    return done


def merge(into, other):
    for key, value in other.items():
        into[key] = max(into.get(key, 0), value)


def races(events, relaxed):
    """Whether two conflicting accesses are unordered, by one full vector clock a thread."""
    everybody = [(b, t) for b in range(BLOCKS) for t in range(THREADS)]
    clock = {one: {one: 1} for one in everybody}
    released = {one: {} for one in everybody}  # by the last fence
    pending = {one: {} for one in everybody}  # acquired by the next fence
    handed: dict[int, dict] = {}
    accesses: list[tuple] = []
    for event in events:
        what, group = event[0], members(event)
        me = group[0]
        if what in (READ, WRITE):
            cell = event[2]
            for other, time, wrote, its in accesses:
                conflict = its == cell and (wrote or what == WRITE) and other != me
                if conflict and clock[me].get(other, 0) < time:
                    return True
            accesses.append((me, clock[me][me], what == WRITE, cell))
        elif what in (BLOCK, WARP, SOME):
            joint: dict = {}
            for one in group:
                merge(joint, clock[one])
            for one in group:
                clock[one] = {**joint, one: joint[one] + 1}
        elif what == SIGNAL:
            merge(handed.setdefault(event[2], {}), released[me] if relaxed else clock[me])
            merge(pending[me] if relaxed else clock[me], handed[event[2]])
            clock[me][me] += 1
        elif what == WAIT:
            merge(pending[me] if relaxed else clock[me], handed.get(event[2], {}))
        else:
            merge(clock[me], pending[me])
            released[me] = dict(clock[me])
            clock[me][me] += 1
    return False


@functools.cache
def emulated():
    return build(SOURCE)


def found(events, relaxed, schedule):
    """Whether the emulator reports a race, and the order in which it ran the script."""
    script = encode(events)
    cells, counters = np.zeros(CELLS, np.uint32), np.zeros(COUNTERS, np.uint32)
    order = np.zeros_like(script)
    words = struct.pack("<5Q", *(a.ctypes.data for a in (cells, counters, order, script)), LENGTH)
    watch = [
        Watch(cells.ctypes.data, cells.nbytes, "cells"),
        Watch(counters.ctypes.data, counters.nbytes, "counters"),
        Watch(order.ctypes.data, order.nbytes, "order"),
        Watch(script.ctypes.data, script.nbytes, "script", read_only=True),
    ]
    options = {"schedule": schedule, "relaxed": ALL_RELAXED if relaxed else (), "check": False}
    report = emulated().launch("play", words, BLOCKS, THREADS, watch=watch, **options)
    kinds = {f.kind for f in report.found}
    assert kinds <= {"race"}, report.found[0].text
    return bool(kinds), executed(events, order)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENT, max_size=LENGTH), st.booleans(), st.sampled_from(["random:1", "random:2", "reversed"]))
def test_races_are_found_where_vector_clocks_find_them(events, relaxed, schedule):
    script = closed(events)
    answer, order = found(script, relaxed, schedule)
    assert answer == races(order, relaxed)


def test_a_signal_acquires_those_that_ran_before_it():
    """Not those before it in the script: the run decides whether the writer's or the reader's came first."""
    script = [(WRITE, (1, 0), 0), (SIGNAL, (0, 0), 1), (READ, (0, 0), 0), (SIGNAL, (1, 0), 1)]
    answers = set()
    for schedule in ("random:1", "random:2", "random:3", "reversed"):
        answer, order = found(script, False, schedule)
        assert answer == races(order, False)
        answers.add(answer)
    assert answers == {False, True}


def test_both_answers_occur():
    hand_over = [(WRITE, (0, 5), 0), (BLOCK, 0), (SIGNAL, (0, 0), 1), (WAIT, (1, 0), 1), (BLOCK, 1), (READ, (1, 95), 0)]
    assert not races(hand_over, False) and not found(hand_over, False, "random:1")[0]
    for missing in (1, 4):
        broken = hand_over[:missing] + hand_over[missing + 1 :]
        assert races(broken, False) and found(broken, False, "random:1")[0]
    assert races(hand_over, True) and found(hand_over, True, "random:1")[0]
    fenced = [*hand_over[:2], (FENCE, (0, 0)), *hand_over[2:4], (FENCE, (1, 0)), *hand_over[4:]]
    assert not races(fenced, True) and not found(fenced, True, "random:1")[0]
