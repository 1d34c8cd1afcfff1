"""Products and convolutions of int8 and bfloat16 in the CPU vocabulary, and its loads and stores of narrow elements,
against NumPy at every instruction set that this machine has; their machine code."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.core.narrow import (
    CONVOLUTIONS,
    DEPTHWISE,
    DTYPES,
    GROUP,
    JOINED,
    KINDS,
    LEVELS,
    MORE,
    PRODUCT_KINDS,
    PRODUCTS,
    PROLOGUE,
    TERMS,
    TIERS,
    TILE,
    TYPES,
    Product,
    check,
    convolution_source,
    functions,
    grouped,
    identifier,
    lanewise,
    panels,
    pointer,
    product_source,
    sides,
    source,
)
from tests.core.test_codegen_assembly import inner_loops
from tests.core.test_codegen_conv import Case, reference

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("label", PRODUCTS)
@pytest.mark.parametrize("kind", PRODUCT_KINDS)
@pytest.mark.parametrize("level", TIERS)
def test_product(level: str, kind: str, label: str) -> None:
    """What stands past a row's terms is 255 or NaN."""
    case = PRODUCTS[label]
    run = getattr(functions(level), identifier("product", label, kind))
    panel = case.vectors * LEVELS[level].lanes
    n = max(1, 3 * panel - panel // 2 - 1)
    for k in TERMS:
        a, b = sides(kind, (case.m, k), (k, n))
        padded = np.full((case.m, k + 3), np.nan if kind == "bf16" else 255, a.dtype)
        padded[:, :k] = a
        packed = panels(b, kind, panel)
        out = np.full((case.m, n), 77, np.float32 if kind == "bf16" else np.int32)
        run(pointer(padded), ctypes.c_long(k + 3), pointer(packed), ctypes.c_long(k), ctypes.c_long(n), pointer(out))
        check(out, a.astype(float) @ b.astype(float), kind, k)


@pytest.mark.parametrize("weight", [-128, 127])
@pytest.mark.parametrize("kind", ["int8", "parts"])
@pytest.mark.parametrize("level", TIERS)
def test_extremes(level: str, kind: str, weight: int) -> None:
    """Sums of products that are all the largest there are, which 16-bit sums could not hold."""
    case, k = PRODUCTS["one tile"], 1026
    run = getattr(functions(level), identifier("product", "one tile", kind))
    panel = case.vectors * LEVELS[level].lanes
    a, b = np.full((case.m, k + 2), 255, np.uint8), np.full((k, panel), weight, np.int8)
    packed, out = panels(b, "int8", panel), np.zeros((case.m, panel), np.int32)
    run(pointer(a), ctypes.c_long(k + 2), pointer(packed), ctypes.c_long(k), ctypes.c_long(panel), pointer(out))
    np.testing.assert_array_equal(out, k * 255 * weight)


@pytest.mark.parametrize("label", ["one tile", "one row"])
@pytest.mark.parametrize("level", TIERS)
def test_long_sums(level: str, label: str) -> None:
    """One chain of float32 additions of so many terms would be off by 6e-5."""
    case, k = PRODUCTS[label], 1 << 16
    run = getattr(functions(level), identifier("product", label, "bf16"))
    panel = case.vectors * LEVELS[level].lanes
    a, b = (np.full(shape, 1 + 2**-7, ml_dtypes.bfloat16) for shape in ((case.m, k), (k, panel)))
    packed, out = panels(b, "bf16", panel), np.zeros((case.m, panel), np.float32)
    run(pointer(a), ctypes.c_long(k), pointer(packed), ctypes.c_long(k), ctypes.c_long(panel), pointer(out))
    np.testing.assert_allclose(out, k * (1 + 2**-7) ** 2, rtol=2e-6)


@pytest.mark.parametrize(
    ("how", "label"), [*(("conv", label) for label in CONVOLUTIONS), *(("joined", j) for j in JOINED)]
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", TIERS)
def test_convolution(level: str, kind: str, how: str, label: str) -> None:
    """What stands past the channels, and past the last pixel, is 255 or NaN. Joined: the taps of a kernel row."""
    case = CONVOLUTIONS[label]
    run = getattr(functions(level), identifier(how, label, kind))
    pixels = (*case.input_shape, case.c)
    a, b = sides(kind, pixels, (*case.kernel, case.c, case.n))
    garbage = np.nan if kind == "bf16" else 255
    stored = np.full(int(np.prod(case.input_shape)) * case.lda + 3, garbage, a.dtype)
    stored[:-3].reshape(*case.input_shape, case.lda)[..., : case.c] = a
    packed = grouped(b.reshape(case.kernel[0], -1, case.n) if how == "joined" else b, kind)
    out = np.full((case.rows, case.width, case.n), 77, np.float32 if kind == "bf16" else np.int32)
    run(pointer(stored), pointer(packed), pointer(out))
    check(out, reference(case, a, b.astype(float)), kind, int(np.prod(case.kernel)) * case.c)


def in_columns(case: Case, b: Array, word: int) -> Array:
    """Weights of groups of one channel, in words of kernel rows."""
    rows, columns = case.kernel
    words = np.zeros((-(-rows // word) * word, columns, case.lda), b.dtype)
    words[:rows, :, : case.c] = b[:, :, 0]
    return np.ascontiguousarray(words.reshape(-1, word, columns, case.lda).transpose(0, 2, 3, 1))


def beside(case: Case, b: Array, word: int) -> Array:
    """Weights of wider groups, in words of channels."""
    n, rows = np.arange(case.c), -(-case.group // word) * word
    words = np.zeros((*case.kernel, rows, case.lda), b.dtype)
    for c in range(case.group):
        words[:, :, n // case.group * case.group % word + c, n] = b[:, :, c]
    return np.ascontiguousarray(words.reshape(*case.kernel, rows // word, word, case.lda).swapaxes(-1, -2))


@pytest.mark.parametrize("label", DEPTHWISE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", TIERS)
def test_groups_side_by_side(level: str, kind: str, label: str) -> None:
    """Words of channels, or of kernel rows; what stands past the channels is 255 or NaN."""
    case, word = DEPTHWISE[label], GROUP[kind]
    if not lanewise(LEVELS[level], case, kind):
        pytest.skip("vectors or words of this level hold no whole group")
    run = getattr(functions(level), identifier("lanewise", label, kind))
    a, b = sides(kind, (*case.input_shape, case.lda), (*case.kernel, case.group, case.c))
    garbage = np.nan if kind == "bf16" else 255
    a[..., case.c :] = garbage
    packed = in_columns(case, b, word) if case.group == 1 else beside(case, b, word)
    stored = np.append(a.reshape(-1), np.full(64, garbage, a.dtype))
    out = np.full((case.rows, case.width, case.c), 77, np.float32 if kind == "bf16" else np.int32)
    run(pointer(stored), pointer(packed), pointer(out))
    check(out, reference(case, a, b.astype(float)), kind, int(np.prod(case.kernel)) * case.group)


GUARDED = """
import ctypes, mmap, sys
library, name, m, k, size = ctypes.CDLL(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:6])
mapping = mmap.mmap(-1, 1 << 16)
start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(start + (1 << 15)), ctypes.c_size_t(1 << 15), 0) == 0
a = start + (1 << 15) - m * k * size - int(sys.argv[6])
b, out = ((ctypes.c_char * (1 << 16))() for _ in range(2))
getattr(library, name)(ctypes.c_void_p(a), ctypes.c_long(k), b, ctypes.c_long(k), ctypes.c_long(1), out)
"""


@pytest.mark.parametrize("kind", PRODUCT_KINDS)
@pytest.mark.parametrize("level", TIERS)
def test_end_of_memory(level: str, kind: str, tmp_path: Path) -> None:
    """Rows that end where memory does (of bytes three, of words two bytes earlier) are read without a fault."""
    functions(level)
    (tmp_path / "dot.so").write_bytes(LEVELS[level].compile(source(LEVELS[level])))
    for k in (1, 5, 29, 64, 99):
        name, size = identifier("product", "one tile", kind), 4 // GROUP[kind]
        past = {"words": 2, "bf16": 0}.get(kind, 3)
        words = [str(tmp_path / "dot.so"), name, *map(str, (PRODUCTS["one tile"].m, k, size, past))]
        assert subprocess.run([sys.executable, "-c", GUARDED, *words], check=False).returncode == 0


def every(name: str) -> np.ndarray:
    """All elements of a type, or many."""
    if name == "int32":
        return np.random.default_rng(1).integers(-(2**31), 2**31, 301).astype(np.int32)
    bits = 16 if name.endswith("f16") else 8
    return np.arange(1 << bits).astype(f"uint{bits}").view(DTYPES[name])


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("level", TIERS)
def test_loads(level: str, name: str) -> None:
    values = every(name)
    n = len(values)
    out = np.full((5, n), 77, np.float32)
    getattr(functions(level), f"read_{name}")(pointer(values), pointer(out), ctypes.c_long(n))
    as_floats = values.astype(np.float32)
    if name == "f16":  # of a NaN nothing but that it is one
        out[np.isnan(out)] = as_floats[np.isnan(as_floats)] = np.nan
    if name == "bf16":  # bit by bit, NaNs as well
        as_floats = (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    inside = (np.arange(n) >= 3) & (np.arange(n) < n - 40)
    mirrored = as_floats[::-1]
    expected = [as_floats, mirrored, mirrored, as_floats, mirrored]
    for i, row in enumerate(expected):
        row = np.where(inside, row, np.float32(0)) if i >= 3 else row
        np.testing.assert_array_equal(out[i].view(np.uint32), row.view(np.uint32), str(i))


@pytest.mark.parametrize("name", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("level", TIERS)
def test_loads_of_integers(level: str, name: str) -> None:
    values = every(name)
    out = np.zeros(len(values), np.int32)
    getattr(functions(level), f"integers_{name}")(pointer(values), pointer(out), ctypes.c_long(len(values)))
    np.testing.assert_array_equal(out, values)


def _write(level: str, name: str, values: np.ndarray) -> np.ndarray:
    """The three rows that ``write_*`` stores, in the order of ``values``."""
    out = np.zeros((3, len(values)), DTYPES[name])
    getattr(functions(level), f"write_{name}")(pointer(values), pointer(out), ctypes.c_long(len(values)))
    out[1:] = out[1:, ::-1].copy()
    return out


@pytest.mark.parametrize("name", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("level", TIERS)
def test_stores_of_integers(level: str, name: str) -> None:
    values = every(name)
    if name == "int32":
        values >>= 8  # what a float holds
    for row in _write(level, name, values.astype(np.float32)):
        np.testing.assert_array_equal(row, values)


@pytest.mark.parametrize("level", TIERS)
def test_stores_of_f16(level: str) -> None:
    """Every binary16, what lies half way to the next and beside that, and random floats of its range and beyond."""
    exact = every("f16").astype(np.float32)
    exact = exact[~np.isnan(exact)]
    middle = ((exact[:-1].astype(float) + exact[1:]) / 2).astype(np.float32)
    random = np.random.default_rng(2).integers(0, 1 << 32, 4099, dtype=np.uint32).view(np.float32)
    ends = np.float32([65519.996, 65520, 65535, 65536, 2**-25, np.nextafter(np.float32(2**-25), np.float32(1)), 2**-26])
    values = np.concatenate(
        [exact, middle, np.nextafter(middle, exact[:-1]), np.nextafter(middle, exact[1:]), random, ends]
    )
    values = np.concatenate([values, -ends, np.random.default_rng(3).normal(0, 3e4, 4096).astype(np.float32)])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16)
    for row in _write(level, "f16", values):
        number = ~np.isnan(values)
        np.testing.assert_array_equal(row.view(np.uint16)[number], expected.view(np.uint16)[number])
        np.testing.assert_array_equal(np.isnan(row), np.isnan(values))


@pytest.mark.parametrize("level", TIERS)
def test_stores_of_bf16(level: str) -> None:
    """Every bfloat16, the ties between them, their neighbours, and random floats; NaNs whose upper half is infinity."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = np.concatenate([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    bits = np.concatenate([bits, np.random.default_rng(2).integers(0, 1 << 32, 4099, dtype=np.uint32)])
    values = bits.view(np.float32)
    denormal = (values != 0) & (np.abs(values) < np.finfo(np.float32).tiny)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16)
    ordinary = ~denormal & ~np.isnan(values)
    for row in _write(level, "bf16", values):
        np.testing.assert_array_equal(row.view(np.uint16)[ordinary], expected.view(np.uint16)[ordinary])
        np.testing.assert_array_equal(np.isnan(row), np.isnan(values))
        found = row.view(np.uint16)[denormal]  # rounded, or zero of the same sign
        zero = found == bits[denormal] >> 16 & 0x8000
        assert np.all(zero if "bf16" in level else found == expected.view(np.uint16)[denormal])


@pytest.mark.parametrize(
    "level", ["neon dotprod", *(pytest.param(n, marks=pytest.mark.slow) for n in ("neon", "avx2 avxvnni"))]
)
def test_other_machines(level: str) -> None:
    assert LEVELS[level].compile(source(LEVELS[level])).startswith(b"\x7fELF")


@pytest.mark.skipif(not shutil.which("objdump"), reason="objdump is not installed")
@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize(
    ("level", "kind", "mnemonic", "rows", "work"),
    [
        ("avx512 vnni bf16", "int8", "vpdpbusd", 14, (1, 1)),
        ("avx512 vnni bf16", "bf16", "vdpbf16ps", 14, (1, 1)),
        ("avx2 avxvnni", "int8", "vpdpbusd", 6, (1, 1)),
        ("avx512", "int8", "vpmaddwd", 11, (2, 4)),
        ("avx2", "int8", "vpmaddwd", 3, (2, 4)),
        ("avx512", "words", "vpmaddwd", 13, (1, 1)),
        ("avx2", "words", "vpmaddwd", 5, (1, 1)),
        ("avx512", "bf16", "vfmadd", 12, (2, 3)),
        ("avx2", "bf16", "vfmadd", 4, (2, 3)),
    ],
)
def test_inner_loop(
    level: str, kind: str, mnemonic: str, rows: int, work: tuple[int, int], convolution: bool, tmp_path: Path
) -> None:
    """Tiles of two vectors: ``work``, multiply-adds of a group in a vector, and instructions beside them that each
    row takes; no sum goes to the stack."""
    where, (products, beside) = LEVELS[level], work
    panel = 2 * where.lanes
    text = product_source("tile", Product(rows, 2, rows), kind, where.lanes, TILE)
    if convolution:
        text = convolution_source("tile", Case(c=64, lda=96, rows=2, width=rows, n=panel), kind, rows)
    (body,) = inner_loops(where.compile(PROLOGUE + text), tmp_path, mnemonic)
    multiply_adds = [t for t in body if mnemonic in t]
    assert all(("zmm" if where.machine.vector_bytes == 64 else "ymm") in t for t in multiply_adds)
    steps = len(multiply_adds) // (2 * rows * products)
    assert steps >= 2 and len(multiply_adds) == steps * 2 * rows * products
    spill = r"\(%rsp|-0x\w+\(%rbp|%[xyz]mm\d+,[^%]*\("  # %rbp is a register like others
    assert not [t for t in body if re.search(spill, t)]
    others = [t for t in body if mnemonic not in t and "prefetch" not in t]
    sums = 2 * rows * 2 if mnemonic == "vpmaddwd" else 0  # it adds nothing up
    assert len(others) <= steps * (2 * beside + beside * rows + sums) + 4 + convolution, (
        others
    )  # places, a count, a jump


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("level", TIERS)
def test_bytes_nearest_to_floats(level: str, name: str) -> None:
    """Ties, and all that is far below, one vector or two at a time; and what a table has for them."""
    ends, more = np.iinfo(name), MORE[name]
    random = np.random.default_rng(0)
    values = random.uniform(ends.min - more - 99, ends.max - more, 4096).astype(np.float32)
    values[::3] = np.round(values[::3]) - 0.5
    values[:6] = (-np.inf, -1e30, -3e9, -40000, ends.min - more, ends.max - more)
    table = random.permutation(256).astype(np.uint8)
    out = np.zeros((2, 2, values.size), name)
    run = getattr(functions(level), f"bytes_{name}")
    run(pointer(values), pointer(table), pointer(out), ctypes.c_long(values.size))
    wanted = np.clip(np.round(values.astype(float)) + more, ends.min, ends.max).astype(np.int16)
    np.testing.assert_array_equal(out[:, 0], np.broadcast_to(wanted, (2, values.size)))
    np.testing.assert_array_equal(out[:, 1].view(np.uint8), np.broadcast_to(table[wanted % 256], (2, values.size)))
