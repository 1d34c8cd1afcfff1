"""Products and convolutions of int8 and bfloat16 in the CPU vocabulary, and its loads and stores of narrow elements,
against NumPy at every instruction set that this machine has; their machine code."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mononn_core.machine import X86_64_V2, Machine, from_flags
from mononn_core.runtime.cpu import Library
from mononn_core.runtime.toolchain import compile_shared
from tests.core.test_codegen_assembly import inner_loops
from tests.core.test_codegen_conv import Case, reference


@dataclass(frozen=True)
class Level:
    """A machine, the flags of features beside it, and those features' names."""

    machine: Machine
    flags: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()

    @property
    def lanes(self) -> int:
        return self.machine.lanes("float32")

    def compile(self, source: str) -> bytes:
        flags = (f"-DMONONN_VECTOR_BYTES={self.machine.vector_bytes}", *self.flags)
        return compile_shared(source, machine=self.machine, extra_flags=flags).code

    def missing(self) -> list[str]:
        """What this machine lacks of it."""
        host = Machine.probe()
        if self.machine.arch not in (host.arch, "generic"):
            return [self.machine.arch]
        return sorted((self.machine.features | self.features) - host.features)


def _x86(name: str, *features: str) -> Level:
    return Level(Machine.named(name), tuple(f"-m{f}" for f in features), frozenset(features))


LEVELS = {
    "avx512 vnni bf16": _x86("avx512", "avx512vnni", "avx512bf16"),
    "avx512": _x86("avx512"),
    "avx2 avx512vnni": _x86("avx2", "avx512vl", "avx512vnni"),
    "avx2 avxvnni": _x86("avx2", "avxvnni"),
    "avx2": _x86("avx2"),
    "sse": Level(from_flags("x86_64", X86_64_V2)),
    "neon dotprod": Level(Machine.named("neon"), ("-mcpu=generic+dotprod",)),
    "neon": Level(Machine.named("neon")),
    "scalar": Level(Machine.named("scalar")),
}
KINDS = {"int8": ("uint8_t", "int8_t", "int32_t"), "bf16": ("mn::bf16", "mn::bf16", "float")}
GROUP = {"int8": 4, "bf16": 2}


@dataclass(frozen=True)
class Product:
    """``m`` rows in tiles of at most ``most``, times panels of so many vectors."""

    m: int
    vectors: int
    most: int
    cheap: bool = True


PRODUCTS = {
    "one tile": Product(14, 2, 14),
    "uneven": Product(13, 2, 4, cheap=False),
    "one row": Product(1, 1, 4),
    "three rows": Product(3, 1, 6, cheap=False),
    "wide": Product(5, 4, 5),
    "wider than tall": Product(2, 4, 2),
}
TERMS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 64, 99, 768, 1023, 1024, 1025, 3001)

CONVOLUTIONS = {
    "stem": Case(c=3, lda=3, rows=2, width=28, n=32, kernel=(7, 7), stride=(2, 2)),
    "3x3": Case(c=16, lda=20, rows=3, width=15, n=32),
    "3x3 dense": Case(c=5, lda=5, rows=2, width=9, n=32, cheap=False),
    "short rows": Case(c=8, lda=8, rows=7, width=7, n=32, cheap=False),
    "1x1 strided": Case(c=13, lda=32, rows=2, width=13, n=16, kernel=(1, 1), stride=(2, 2)),
    "dilated": Case(c=6, lda=9, rows=2, width=9, n=32, kernel=(2, 3), dilation=(2, 3), stride=(1, 2)),
    "one channel": Case(c=1, lda=4, rows=2, width=5, n=16),
}

PROLOGUE = """
#include "mononn_dot.hpp"
#define EXPORT extern "C" __attribute__((visibility("default"))) void
"""
PRODUCT = """
EXPORT {name}(const {a} *a, long lda, const {b} *b, long k, long n, {sum} *out) {{
  const long groups = (k + {group} - 1) / {group};
  for (long p = 0; p < n; p += {panel}) {{
    auto element = [&](long y, long x, auto v) {{ mn::store<decltype(v)>(out + y * n + p + x, v); }};
    auto edge = [&](long y, long x, auto v) {{ mn::ragged(y, x, n - p, v, element); }};
    mn::dot<{m}, {panel}, {most}, {cheap}>(a, lda, b + p * groups * {group}, k, edge);
  }}
}}
"""
TILE = """
EXPORT {name}(const {a} *a, const {b} *b, {sum} *out) {{
  auto element = [&](long y, long x, auto v) {{ mn::store<decltype(v)>(out + y * {panel} + x, v); }};
  mn::dot<{m}, {panel}, {most}, {cheap}>(a, 784, b, 768, element);
}}
"""
CONVOLUTION = """
EXPORT {name}(const {a} *a, const {b} *b, {sum} *out) {{
  auto element = [&](long y, long x, long n, auto v) {{
    mn::store<decltype(v)>(out + (y * {width} + x) * {n} + n, v);
  }};
  mn::dot_conv<mn::Windows<{geometry}>, {rows}, {n}, {most}, {cheap}>(a, b, element);
}}
"""
# Each reads p, writes rows of n floats; or reads rows of floats and writes.
ELEMENTS = """
EXPORT read_{name}(const {type} *p, float *out, long n) {{
  auto mirror = [&](long x) {{ return n - 1 - x; }};
  mn::each_lane(n, [&](auto tag, long x) {{
    using T = decltype(tag);
    mn::store<T>(out + x, mn::load<T>(p + x));
    mn::store<T>(out + n + x, mn::gather<T>(p + n - 1 - x, -1));
    mn::store<T>(out + 2 * n + x, mn::gather_at<T>(p, x, mirror));
    mn::store<T>(out + 3 * n + x, mn::load_between<T>(p + x, x, 3, n - 40));
    mn::store<T>(out + 4 * n + x, mn::gather_at<T>(p, x, 3, n - 40, mirror));
  }});
}}
EXPORT write_{name}(const float *p, {type} *out, long n) {{
  mn::each_lane(n, [&](auto tag, long x) {{
    using T = decltype(tag);
    mn::store<T>(out + x, mn::load<T>(p + x));
    mn::scatter<T>(out + n + (n - 1 - x), -1, mn::load<T>(p + x));
    mn::scatter_at(out + 2 * n, x, mn::load<T>(p + x), [&](long i) {{ return n - 1 - i; }});
  }});
}}
"""
INTEGERS = """
EXPORT integers_{name}(const {type} *p, int32_t *out, long n) {{
  mn::each_lane(n, [&](auto tag, long x) {{
    using I = mn::Int<decltype(tag)>;
    mn::store<I>(out + x, mn::load_int<I>(p + x));
  }});
}}
"""
TYPES = {"uint8": "uint8_t", "int8": "int8_t", "int32": "int32_t", "bf16": "mn::bf16"}
DTYPES = {"uint8": np.uint8, "int8": np.int8, "int32": np.int32, "bf16": ml_dtypes.bfloat16}


def identifier(prefix: str, label: str, kind: str) -> str:
    return f"{prefix}_{re.sub(r'[^a-z0-9]', '_', label)}_{kind}"


def _types(kind: str) -> dict[str, Any]:
    return {**dict(zip(("a", "b", "sum"), KINDS[kind], strict=True)), "group": GROUP[kind]}


def product_source(name: str, case: Product, kind: str, lanes: int, text: str = PRODUCT) -> str:
    shape = {"m": case.m, "panel": case.vectors * lanes, "most": case.most, "cheap": str(case.cheap).lower()}
    return text.format(name=name, **shape, **_types(kind))


def convolution_source(name: str, case: Case, kind: str, most: int) -> str:
    numbers = (case.c, case.lda, case.input_shape[1], case.width, *case.kernel, *case.stride, *case.dilation)
    shape = {"rows": case.rows, "width": case.width, "n": case.n, "most": most, "cheap": str(case.cheap).lower()}
    return CONVOLUTION.format(name=name, geometry=", ".join(map(str, numbers)), **shape, **_types(kind))


def source(level: Level) -> str:
    parts = [PROLOGUE]
    for kind in KINDS:
        for label, product in PRODUCTS.items():
            parts.append(product_source(identifier("product", label, kind), product, kind, level.lanes))
        for label, case in CONVOLUTIONS.items():
            most = max(1, 14 * 2 * level.lanes // case.n // (1 if level.machine.vector_registers == 32 else 2))
            parts.append(convolution_source(identifier("conv", label, kind), case, kind, min(most, 14)))
    for name, c_type in TYPES.items():
        parts.append(ELEMENTS.format(name=name, type=c_type))
        parts += [INTEGERS.format(name=name, type=c_type)] if name != "bf16" else []
    return "".join(parts)


@functools.cache
def _library(name: str) -> Library:
    return Library(LEVELS[name].compile(source(LEVELS[name])), "test library")


def functions(name: str) -> Any:
    """The functions of a level, or a skipped test."""
    if missing := LEVELS[name].missing():
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    return _library(name).functions


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def grouped(b: np.ndarray, kind: str) -> np.ndarray:
    """[..., K, N] as [..., groups, N, GROUP], zero past K."""
    group = GROUP[kind]
    rest = -b.shape[-2] % group
    b = np.pad(b, [(0, 0)] * (b.ndim - 2) + [(0, rest), (0, 0)])
    b = b.reshape(*b.shape[:-2], -1, group, b.shape[-1])
    return np.ascontiguousarray(np.swapaxes(b, -1, -2))


def panels(b: np.ndarray, kind: str, panel: int) -> np.ndarray:
    """[K, N] in panels of [groups][panel][GROUP]."""
    b = np.pad(b, ((0, 0), (0, -b.shape[1] % panel)))
    return grouped(np.stack(np.split(b, b.shape[1] // panel, axis=1)), kind)


def sides(kind: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Activations and weights of a kind, of int8 the whole range, and many of both ends of it."""
    random = np.random.default_rng(3)
    if kind == "bf16":
        a, b = (random.standard_normal(shape, dtype=np.float32) for shape in (a_shape, b_shape))
        return a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    ends = random.random(a_shape) < 0.3, random.random(b_shape) < 0.3
    a = np.where(ends[0], 255, random.integers(0, 256, a_shape)).astype(np.uint8)
    b = np.where(ends[1], random.choice([-128, 127], b_shape), random.integers(-128, 128, b_shape)).astype(np.int8)
    return a, b


def check(out: np.ndarray, expected: np.ndarray, kind: str, terms: int) -> None:
    if kind == "int8":
        np.testing.assert_array_equal(out, expected)
    else:
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=2e-6 * terms**0.5)


@pytest.mark.parametrize("label", PRODUCTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_product(level: str, kind: str, label: str) -> None:
    """What stands past a row's terms is 255 or NaN."""
    case = PRODUCTS[label]
    run = getattr(functions(level), identifier("product", label, kind))
    panel = case.vectors * LEVELS[level].lanes
    n = max(1, 3 * panel - panel // 2 - 1)
    for k in TERMS:
        a, b = sides(kind, (case.m, k), (k, n))
        padded = np.full((case.m, k + 3), 255 if kind == "int8" else np.nan, a.dtype)
        padded[:, :k] = a
        packed = panels(b, kind, panel)
        out = np.full((case.m, n), 77, np.int32 if kind == "int8" else np.float32)
        run(pointer(padded), ctypes.c_long(k + 3), pointer(packed), ctypes.c_long(k), ctypes.c_long(n), pointer(out))
        check(out, a.astype(float) @ b.astype(float), kind, k)


@pytest.mark.parametrize("weight", [-128, 127])
@pytest.mark.parametrize("level", LEVELS)
def test_extremes(level: str, weight: int) -> None:
    """Sums of products that are all the largest there are, which 16-bit sums could not hold."""
    case, k = PRODUCTS["one tile"], 1026
    run = getattr(functions(level), identifier("product", "one tile", "int8"))
    panel = case.vectors * LEVELS[level].lanes
    a, b = np.full((case.m, k + 2), 255, np.uint8), np.full((k, panel), weight, np.int8)
    packed, out = panels(b, "int8", panel), np.zeros((case.m, panel), np.int32)
    run(pointer(a), ctypes.c_long(k + 2), pointer(packed), ctypes.c_long(k), ctypes.c_long(panel), pointer(out))
    np.testing.assert_array_equal(out, k * 255 * weight)


@pytest.mark.parametrize("label", ["one tile", "one row"])
@pytest.mark.parametrize("level", LEVELS)
def test_long_sums(level: str, label: str) -> None:
    """One chain of float32 additions of so many terms would be off by 6e-5."""
    case, k = PRODUCTS[label], 1 << 16
    run = getattr(functions(level), identifier("product", label, "bf16"))
    panel = case.vectors * LEVELS[level].lanes
    a, b = (np.full(shape, 1 + 2**-7, ml_dtypes.bfloat16) for shape in ((case.m, k), (k, panel)))
    packed, out = panels(b, "bf16", panel), np.zeros((case.m, panel), np.float32)
    run(pointer(a), ctypes.c_long(k), pointer(packed), ctypes.c_long(k), ctypes.c_long(panel), pointer(out))
    np.testing.assert_allclose(out, k * (1 + 2**-7) ** 2, rtol=2e-6)


@pytest.mark.parametrize("label", CONVOLUTIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_convolution(level: str, kind: str, label: str) -> None:
    """What stands past the channels, and past the last pixel, is 255 or NaN."""
    case = CONVOLUTIONS[label]
    run = getattr(functions(level), identifier("conv", label, kind))
    pixels = (*case.input_shape, case.c)
    a, b = sides(kind, pixels, (*case.kernel, case.c, case.n))
    garbage = 255 if kind == "int8" else np.nan
    stored = np.full(int(np.prod(case.input_shape)) * case.lda + 3, garbage, a.dtype)
    stored[:-3].reshape(*case.input_shape, case.lda)[..., : case.c] = a
    packed = grouped(b, kind)
    out = np.full((case.rows, case.width, case.n), 77, np.int32 if kind == "int8" else np.float32)
    run(pointer(stored), pointer(packed), pointer(out))
    check(out, reference(case, a, b.astype(float)), kind, int(np.prod(case.kernel)) * case.c)


GUARDED = """
import ctypes, mmap, sys
library, name, m, k, size = ctypes.CDLL(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:])
mapping = mmap.mmap(-1, 1 << 16)
start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(start + (1 << 15)), ctypes.c_size_t(1 << 15), 0) == 0
a = start + (1 << 15) - m * k * size - int(3 * (size == 1))
b, out = ((ctypes.c_char * (1 << 16))() for _ in range(2))
getattr(library, name)(ctypes.c_void_p(a), ctypes.c_long(k), b, ctypes.c_long(k), ctypes.c_long(1), out)
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_end_of_memory(level: str, kind: str, tmp_path: Path) -> None:
    """Rows that end where memory does (of int8, three bytes earlier) are read without a fault."""
    functions(level)
    (tmp_path / "dot.so").write_bytes(LEVELS[level].compile(source(LEVELS[level])))
    for k in (1, 5, 29, 64, 99):
        name, size = identifier("product", "one tile", kind), 1 if kind == "int8" else 2
        words = [str(tmp_path / "dot.so"), name, str(PRODUCTS["one tile"].m), str(k), str(size)]
        assert subprocess.run([sys.executable, "-c", GUARDED, *words], check=False).returncode == 0


def every(name: str) -> np.ndarray:
    """All elements of a type, or many."""
    if name == "int32":
        return np.random.default_rng(1).integers(-(2**31), 2**31, 301).astype(np.int32)
    bits = 16 if name == "bf16" else 8
    return np.arange(1 << bits).astype(f"uint{bits}").view(DTYPES[name])


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_loads(level: str, name: str) -> None:
    values = every(name)
    n = len(values)
    out = np.full((5, n), 77, np.float32)
    getattr(functions(level), f"read_{name}")(pointer(values), pointer(out), ctypes.c_long(n))
    as_floats = values.astype(np.float32)
    if name == "bf16":  # bit by bit, NaNs as well
        as_floats = (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    inside = (np.arange(n) >= 3) & (np.arange(n) < n - 40)
    mirrored = as_floats[::-1]
    expected = [as_floats, mirrored, mirrored, as_floats, mirrored]
    for i, row in enumerate(expected):
        row = np.where(inside, row, np.float32(0)) if i >= 3 else row
        np.testing.assert_array_equal(out[i].view(np.uint32), row.view(np.uint32), str(i))


@pytest.mark.parametrize("name", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("level", LEVELS)
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
@pytest.mark.parametrize("level", LEVELS)
def test_stores_of_integers(level: str, name: str) -> None:
    values = every(name)
    if name == "int32":
        values >>= 8  # what a float holds
    for row in _write(level, name, values.astype(np.float32)):
        np.testing.assert_array_equal(row, values)


@pytest.mark.parametrize("level", LEVELS)
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


@pytest.mark.parametrize("level", ["neon", "neon dotprod", "avx2 avxvnni"])
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
    assert not [t for t in body if re.search(r"\((%rsp|%rbp)", t)], "a spill"
    others = [t for t in body if mnemonic not in t and "prefetch" not in t]
    sums = 2 * rows * 2 if mnemonic == "vpmaddwd" else 0  # it adds nothing up
    assert len(others) <= steps * (2 * beside + beside * rows + sums) + 4, others
