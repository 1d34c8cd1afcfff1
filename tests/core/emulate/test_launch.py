"""Launches: what they refuse, what a fault becomes, what is remembered between them, bank conflicts."""

# ruff: noqa: E501 -- tables: one kernel a line

import functools
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import mononn_core
from mononn_core.emulate import (
    BoundsError,
    ConvergenceError,
    CrashError,
    DeadlockError,
    PoisonError,
    RaceError,
    Watch,
    build,
)
from mononn_core.errors import OptionError, ToolchainError

HEAD = """
#include "mononn_ptx.cuh"
using namespace mn;
struct Call { float *out; float *other; uint64_t a, b; };
"""


FAULTS = [
        ("if (thread() == 3) out[128] = 1;", BoundsError, r"write of 4 bytes out of bounds by block 0 thread 3 .*: out\+512 \(it has 512"),
        ("*(float *)shared_memory() = out[-1];", BoundsError, r"out\+-4"),
        ("((float *)(shared_memory() + 8192))[0] = 1;", BoundsError, r"shared memory of block 0\+8192 \(it has 8192 bytes\)"),
        ("int table[4] = {1, 2, 3, 4}; out[thread()] = table[(int)out[thread()] + thread()];", BoundsError, r"index \d+ out of bounds of a local array"),
        ("out[0] = thread();", RaceError, r"race on out\+0: write of 4 bytes by block 0 thread \d+ .* not ordered after write by"),
        ("out[thread() / 2] += 1;", RaceError, "race on out"),
        ("out[thread()] = *(float *)shared_memory();", PoisonError, "nobody has written"),
        ("if (thread() < 32) sync_block();", ConvergenceError, "sync_block"),
        ("uint32_t *p = (uint32_t *)out; while (load_acquire(p) == 0) pause(9);", DeadlockError, r"load_acquire of out\+0, which stays 0"),
        ("while (((volatile float *)out)[0] == 0) pause(9);", DeadlockError, "pause"),
    ("while (((volatile float *)out)[0] == 0) {}", DeadlockError, "a load again and again"),
        ("if (thread() == 1) *(volatile int *)8 = 1;", BoundsError, "in no buffer"),
    ]  # fmt: skip
CRASHES = [
    ("if (thread() == 1) *(volatile int *)8 = 1;", "signal 11 in block 0 thread 1 at address 0x8"),
    ("volatile char big[100000]; big[thread()] = 1; out[0] = big[thread()];", "signal 11"),
]
BANK = "float *s = (float *)shared_memory(); int t = thread(); "
BANKS = [
    ("s[t] = 1;", 2, 0),
    ("s[t * 2] = 1;", 2, 2),
    ("s[t % 32 * 32 + t / 32] = 1;", 2, 62),
    ("s[t % 32 * 33 + t / 32] = 1;", 2, 0),
    ("if (t == 0) s[5] = 1; sync_block(); float x = s[5]; if (x < 0) s[0] = x;", 3, 0),
    ("((pair *)s)[t] = pair{1, 2};", 4, 0),
    ("((pair *)s)[t * 2] = pair{1, 2};", 4, 4),
    ("((quad *)s)[t] = quad{1, 2, 3, 4};", 8, 0),
    ("((quad *)s)[t * 2] = quad{1, 2, 3, 4};", 8, 8),
    ("((quad *)s)[t * 8] = quad{1, 2, 3, 4};", 8, 56),
    ("for (int i = 0; i < 3; ++i) if (t % 2) s[t * 2 + i] = 1;", 6, 6),
]
LDMATRIX = """
    uint32_t *s = (uint32_t *)shared_memory(), r[4]; int t = thread();
    for (int i = t; i < 2048; i += 64) s[i] = 0;
    sync_block();
    ldmatrix_x4(r, s + t % 32 * ROW);
    out[t] = (float)r[0];"""
OTHERS = [
    "MN_CONSTANT int table[4] = {5, 6, 7, 8}; out[thread()] = table[thread() % 4];",
    "out[thread()] = thread();",
    "volatile int i = 0; while (i < 1) i = -1;",
    "for (;;) { sync_block(); pause(1); }",
    "((uint16_t *)out)[thread()] = 1;",
    "((uint8_t *)out)[thread()] = 1;",
    "((uint16_t *)out)[thread() / 2] = 1;",
    "if (thread() == 0) ((uint8_t *)out)[1] = 1; if (thread() == 32) out[0] = 2;",
    "out[0] = thread(); float x = *(float *)shared_memory(); out[1 + thread()] = x;",
    "out[thread()] = 0;",
]
COPY = "cp_async_16(shared_memory() + thread() * 16, out + thread() / 8 * 4); cp_async_commit(); sync_block(); "
NARROW = "if (thread() == 0) ((uint16_t *)out)[WHERE] = 1; cp_async_wait<0>();"  # the first access of two bytes
BODIES = [*(f[0] for f in FAULTS), *(c[0] for c in CRASHES), *(BANK + b[0] for b in BANKS), *OTHERS]
BODIES += [COPY + NARROW.replace("WHERE", where) for where in ("255", "3")]
BODIES += [LDMATRIX.replace("ROW", str(row)) for row in (4, 20, 32, 8)]


def kernel(body, name="k", second=""):
    return (
        f'extern "C" __global__ void __launch_bounds__(64) {name}(const __grid_constant__ Call call{second}) '
        f"{{ float *out = call.out; {body} }}\n"
    )


@functools.cache
def built(sanitize):
    """All bodies of this file in one object: ``k_0``, ``k_1``, ..."""
    return build(HEAD + "".join(kernel(body, f"k_{i}") for i, body in enumerate(BODIES)), sanitize=sanitize)


def run(body, *, sanitize=True, **options):
    """Launches a body of BODIES on one block of 64 threads with a buffer of 128 floats; the buffer and the report."""
    out = np.zeros(128, np.float32)
    words = struct.pack("<4Q", out.ctypes.data, 0, 0, 0)
    options = {"blocks": 1, "threads": 64, "shared_bytes": 8192, **options}
    watched = [Watch(out.ctypes.data, out.nbytes, "out")]
    return out, built(sanitize).launch(f"k_{BODIES.index(body)}", words, watch=watched, **options)


def declared(text):
    """Functions, types and macros of a primitives header."""
    inside = text[text.index("namespace mn {") : text.index("}  // namespace mn")]
    return {
        "functions": set(
            re.findall(r"^(?:template <[^>]*> )?MN_DEVICE [\w ]+?[ *&]+(\w+)(?:<\w+>)?\(", inside, re.MULTILINE)
        ),
        "types": set(re.findall(r"^struct (?:alignas\(\d+\) )?(\w+)", inside, re.MULTILINE)),
        "macros": set(re.findall(r"#define (MN_\w+)", text)),
    }


def test_both_headers_declare_the_same():
    root = Path(mononn_core.__file__).parent
    real = declared((root / "vocabulary" / "mononn_ptx.cuh").read_text())
    ours = declared((root / "emulate" / "include" / "mononn_ptx.cuh").read_text())
    assert len(real["functions"]) > 30 and {"cp_async_16", "mma_tf32", "sync_some", "to_tf32"} <= real["functions"]
    assert real["functions"] == ours["functions"] and real["types"] == ours["types"]
    assert real["macros"] - {"MN_BULK_COPIES"} == {name for name in ours["macros"] if not name.startswith("MN_EMU")}


def test_a_second_parameter_is_the_iteration():
    out = np.zeros(64, np.float32)
    words = struct.pack("<4Q", out.ctypes.data, 0, 0, 0)
    emulated = build(HEAD + kernel("out[thread()] = iteration;", second=", uint32_t iteration"))
    emulated.launch("k", words, 1, 64, watch=[(out.ctypes.data, out.nbytes, "out")], iteration=7)
    assert (out == 7).all()


def test_a_constant_table_may_be_read():
    out, _ = run("MN_CONSTANT int table[4] = {5, 6, 7, 8}; out[thread()] = table[thread() % 4];")
    assert out[:4].tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(("body", "error", "says"), FAULTS)
def test_a_fault_is_named(body, error, says):
    with pytest.raises(error, match=says):
        run(body)


@pytest.mark.parametrize(("body", "says"), CRASHES)
def test_a_crash_is_an_error_and_no_more(body, says):
    with pytest.raises(CrashError, match=says):
        run(body, sanitize=False)
    out, _ = run("out[thread()] = thread();", sanitize=False)
    assert out[63] == 63


def test_a_loop_without_end_is_stopped():
    with pytest.raises(CrashError, match="out of time"):
        run("volatile int i = 0; while (i < 1) i = -1;", milliseconds=50)
    with pytest.raises(CrashError, match="out of time"):
        run("for (;;) { sync_block(); pause(1); }", milliseconds=50)


def test_a_race_over_parts_of_a_word_is_seen_and_over_neighbours_is_not():
    run("((uint16_t *)out)[thread()] = 1;")
    run("((uint8_t *)out)[thread()] = 1;")
    with pytest.raises(RaceError):
        run("((uint16_t *)out)[thread() / 2] = 1;")
    with pytest.raises(RaceError):
        run("if (thread() == 0) ((uint8_t *)out)[1] = 1; if (thread() == 32) out[0] = 2;")


def test_what_a_launch_wrote_the_next_may_read_until_a_reset():
    out = np.zeros(128, np.float32)
    call = struct.pack("<4Q", out.ctypes.data, 0, 0, 0)
    source = HEAD + kernel("if (call.a == 0) out[thread()] = 1; else out[64 + thread()] = out[63 - thread()];")
    emulated = build(source)
    watch = [Watch(out.ctypes.data, out.nbytes, "out", unwritten=True)]
    read = call[:16] + struct.pack("<2Q", 1, 0)
    with pytest.raises(PoisonError):
        emulated.launch("k", read, 1, 64, watch=watch)
    emulated.reset()
    emulated.launch("k", call, 1, 64, watch=watch)
    emulated.launch("k", read, 1, 64, watch=watch)  # and no race with the first launch, of another shape
    emulated.launch("k", read, 1, 64, watch=watch, schedule="reversed")
    emulated.reset()
    with pytest.raises(PoisonError):
        emulated.launch("k", read, 1, 64, watch=watch)


def test_findings_can_be_looked_at_instead_of_raised():
    _, report = run("out[0] = thread(); float x = *(float *)shared_memory(); out[1 + thread()] = x;", check=False)
    assert {f.kind for f in report.found} == {"race", "poison"}
    assert {f.error for f in report.found} == {RaceError, PoisonError}
    with pytest.raises(report.found[0].error, match="findings; next"):
        report.check()


@pytest.mark.parametrize(("access", "passes", "extra"), BANKS)
def test_bank_conflicts(access, passes, extra):
    _, report = run(BANK + access, banks=True)
    assert (report.counters["shared_accesses"], report.counters["shared_conflicts"]) == (passes, extra)
    assert sum(use.extra for use in report.banks) == extra


def test_bank_conflicts_of_ldmatrix():
    for row, conflicts in ((4, 0), (20, 0), (32, 56), (8, 8)):
        _, report = run(LDMATRIX.replace("ROW", str(row)))
        assert report.counters["ldmatrix_passes"] == 8
        assert report.counters["ldmatrix_conflicts"] == conflicts, row


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threads": 48}, "whole warps"),
        ({"threads": 2048}, "at most 1024"),
        ({"blocks": 0}, "1 to 1024 blocks"),
        ({"schedule": "fair"}, "no schedule"),
        ({"schedule": "random:x"}, "no schedule"),
        ({"copies": "never"}, "not known"),
        ({"relaxed": ("fence",)}, "not known"),
    ],
)
def test_arguments_that_make_no_sense(options, says):
    with pytest.raises(OptionError, match=says):
        run("out[thread()] = 0;", **options)


def test_wrong_kernels_and_sources():
    emulated = build(HEAD + kernel("out[thread()] = 0;"))
    with pytest.raises(OptionError, match="no kernel 'other'; it has k"):
        emulated.launch("other", b"", 1, 32)
    with pytest.raises(OptionError, match="struct of 32 bytes, not 8"):
        emulated.launch("k", bytes(8), 1, 32)
    with pytest.raises(ToolchainError, match="nonsense"):
        build(HEAD + "nonsense")


def test_headers_can_be_replaced():
    source = HEAD + '#include "n.cuh"\n' + kernel("out[thread()] = number();")
    for value in (3, 4):
        emulated = build(source, headers={"n.cuh": f"inline float number() {{ return {value}; }}"})
        out = np.zeros(64, np.float32)
        call = struct.pack("<4Q", out.ctypes.data, 0, 0, 0)
        emulated.launch("k", call, 1, 64, watch=[(out.ctypes.data, out.nbytes, "out")])
        assert (out == value).all()


def test_a_finer_shadow_of_what_is_copied_is_no_write():
    _, report = run(COPY + NARROW.replace("WHERE", "255"))
    assert report.found == ()
    with pytest.raises(RaceError, match="was written while a copy of it"):
        run(COPY + NARROW.replace("WHERE", "3"))
