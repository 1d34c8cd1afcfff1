"""Products of elements narrower than float, case by case: C++ sources at every level, operands and references."""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mononn_core.machine import X86_64_V2, Machine, from_flags
from mononn_core.runtime.cpu import Library
from mononn_core.runtime.toolchain import compile_shared
from tests.core.test_codegen_conv import Case


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
TIERS = [pytest.param(n, marks=[pytest.mark.slow] * (n in ("avx2 avxvnni", "sse"))) for n in LEVELS]
"""Levels to test on; the code of those in the slow tier has other levels' loops."""
KINDS = {
    "int8": ("uint8_t", "int8_t", "int32_t"),
    "words": ("int16_t", "int8_t", "int32_t"),
    "bf16": ("mn::bf16", "mn::bf16", "float"),
}
PRODUCT_KINDS = {**KINDS, "parts": KINDS["int8"]}
GROUP = {"int8": 4, "words": 2, "bf16": 2, "parts": 4}


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
JOINED = [label for label, case in CONVOLUTIONS.items() if case.lda == case.c and case.dilation[1] == 1]
DEPTHWISE = {
    "depthwise": Case(c=40, lda=64, rows=3, width=14, n=0),
    "strided": Case(c=20, lda=32, rows=5, width=7, n=0, stride=(2, 2)),
    "5x5": Case(c=16, lda=32, rows=4, width=20, n=0, kernel=(5, 5)),
    "5x5 strided": Case(c=16, lda=32, rows=3, width=9, n=0, kernel=(5, 5), stride=(2, 2)),
    "dilated": Case(c=16, lda=32, rows=3, width=9, n=0, kernel=(3, 2), dilation=(2, 2), stride=(1, 2)),
    "strided by a word": Case(c=16, lda=32, rows=3, width=9, n=0, kernel=(4, 1), stride=(4, 1)),
    "sequence": Case(c=20, lda=32, rows=1, width=21, n=0, kernel=(1, 9)),
    "groups of 2": Case(c=32, lda=32, rows=2, width=9, n=0, group=2, stride=(2, 2)),
    "groups of 4": Case(c=40, lda=64, rows=3, width=14, n=0, group=4),
    "groups of 8": Case(c=24, lda=48, rows=3, width=5, n=0, group=8, dilation=(2, 1)),
}

PROLOGUE = """
#include "mononn_dot.hpp"
#include "mononn_dot_depthwise.hpp"
#define EXPORT extern "C" __attribute__((visibility("default"))) void
"""
PRODUCT = """
EXPORT {name}(const {a} *a, long lda, const {b} *b, long k, long n, {sum} *out) {{
  const long groups = (k + {group} - 1) / {group};
  for (long p = 0; p < n; p += {panel}) {{
    auto element = [&](long y, long x, auto v) {{ mn::store<decltype(v)>(out + y * n + p + x, v); }};
    auto edge = [&](long y, long x, auto v) {{ mn::ragged(y, x, n - p, v, element); }};
    mn::dot<{m}, {panel}, {most}, {cheap}>(a, lda, {view}(b + p * groups * {group}), k, edge);
  }}
}}
"""
TILE = """
EXPORT {name}(const {a} *a, const {b} *b, {sum} *out) {{
  auto element = [&](long y, long x, auto v) {{ mn::store<decltype(v)>(out + y * {panel} + x, v); }};
  mn::dot<{m}, {panel}, {most}, {cheap}>(a, 784, {view}(b), 768, element);
}}
"""
CONVOLUTION = """
EXPORT {name}(const {a} *a, const {b} *b, {sum} *out) {{
  auto element = {pairs}([&](long y, long x, long n, auto v) {{
    mn::store<decltype(v)>(out + (y * {width} + x) * {n} + n, v);
  }});
  mn::dot_conv<mn::Windows<{geometry}>, {rows}, {n}, {most}, {cheap}, {joined}>(a, b, element);
}}
"""
LANEWISE = """
EXPORT {name}(const {a} *a, const {b} *b, {sum} *out) {{
  auto element = {pairs}([&](long y, long x, long n, auto v) {{
    for (int i = 0; i < mn::lanes<decltype(v)> && n + i < {c}; ++i) out[(y * {width} + x) * {c} + n + i] = v[i];
  }});
  mn::dot_depthwise<mn::Windows<{geometry}>, {rows}, {most}, {group}>(a, b, {lda}, element);
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
# Vectors, then two at a time: the nearest bytes, and what a table has for them.
BYTES = """
EXPORT bytes_{name}(const float *p, const void *table, {type} *out, long n) {{
  auto both = [&](auto tag, long x) {{
    using T = decltype(tag);
    mn::store_nearest<{more}, {type}>(out + x, mn::load<T>(p + x));
    mn::store_looked_up<{more}, {type}>(out + n + x, mn::load<T>(p + x), table);
  }};
  mn::each_lane(n, both);
  out += 2 * n;
  for (long x = 0; x < n; x += 2 * mn::W) both(mn::Lanes<2 * mn::W>::F(), x);
}}
"""
MORE = {"uint8": 125, "int8": -7}
TYPES = {"uint8": "uint8_t", "int8": "int8_t", "int32": "int32_t", "bf16": "mn::bf16", "f16": "mn::f16"}
DTYPES = {"uint8": np.uint8, "int8": np.int8, "int32": np.int32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


def identifier(prefix: str, label: str, kind: str) -> str:
    return f"{prefix}_{re.sub(r'[^a-z0-9]', '_', label)}_{kind}"


def _types(kind: str) -> dict[str, Any]:
    types = dict(zip(("a", "b", "sum"), PRODUCT_KINDS[kind], strict=True))
    return {**types, "group": GROUP[kind], "view": "mn::in_parts" if kind == "parts" else "",
            "pairs": "mn::in_pairs" if kind == "int8" else ""}  # fmt: skip


def product_source(name: str, case: Product, kind: str, lanes: int, text: str = PRODUCT) -> str:
    shape = {"m": case.m, "panel": case.vectors * lanes, "most": case.most, "cheap": str(case.cheap).lower()}
    return text.format(name=name, **shape, **_types(kind))


def convolution_source(name: str, case: Case, kind: str, most: int, joined: bool = False) -> str:
    numbers = (case.c, case.lda, case.input_shape[1], case.width, *case.kernel, *case.stride, *case.dilation)
    shape = {"rows": case.rows, "width": case.width, "n": case.n, "most": most, "cheap": str(case.cheap).lower()}
    shape["joined"] = str(joined).lower()
    return CONVOLUTION.format(name=name, geometry=", ".join(map(str, numbers)), **shape, **_types(kind))


def lanewise(level: Level, case: Case, kind: str) -> bool:
    """Whether groups of the case fill vectors of the level, and words of bf16; there is no such form of words."""
    whole = kind == "int8" or (kind == "bf16" and case.group % GROUP[kind] == 0)
    return whole and level.lanes >= 4 and (case.group == 1 or case.group < level.lanes)


def lanewise_source(name: str, case: Case, kind: str, level: Level) -> str:
    geometry = (case.c, case.lda, case.input_shape[1], case.width, *case.kernel, *case.stride, *case.dilation)
    sizes = {key: getattr(case, key) for key in ("rows", "group", "lda", "width", "c")}
    most = level.machine.vector_registers // 2 - 2
    return LANEWISE.format(name=name, geometry=", ".join(map(str, geometry)), most=most, **(_types(kind) | sizes))


def source(level: Level) -> str:
    parts = [PROLOGUE]
    for kind in PRODUCT_KINDS:
        for label, product in PRODUCTS.items():
            parts.append(product_source(identifier("product", label, kind), product, kind, level.lanes))
    for kind in KINDS:
        for label, case in DEPTHWISE.items():
            if lanewise(level, case, kind):
                parts.append(lanewise_source(identifier("lanewise", label, kind), case, kind, level))
        for label, case in CONVOLUTIONS.items():
            most = max(1, 14 * 2 * level.lanes // case.n // (1 if level.machine.vector_registers == 32 else 2))
            for how in ("conv", "joined")[: 1 + (label in JOINED)]:
                name = identifier(how, label, kind)
                parts.append(convolution_source(name, case, kind, min(most, 14), joined=how == "joined"))
    for name, c_type in TYPES.items():
        parts.append(ELEMENTS.format(name=name, type=c_type))
        parts += [] if name.endswith("f16") else [INTEGERS.format(name=name, type=c_type)]
    parts += [BYTES.format(name=name, type=TYPES[name], more=more) for name, more in MORE.items()]
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
    """Activations and weights of a kind, of bytes the whole range, and many of both ends of it."""
    random = np.random.default_rng(3)
    if kind == "bf16":
        a, b = (random.standard_normal(shape, dtype=np.float32) for shape in (a_shape, b_shape))
        return a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    ends = random.random(a_shape) < 0.3, random.random(b_shape) < 0.3
    a = np.where(ends[0], 255, random.integers(0, 256, a_shape)).astype(np.int16 if kind == "words" else np.uint8)
    b = np.where(ends[1], random.choice([-128, 127], b_shape), random.integers(-128, 128, b_shape)).astype(np.int8)
    return a, b


def check(out: np.ndarray, expected: np.ndarray, kind: str, terms: int) -> None:
    if kind == "bf16":
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=2e-6 * terms**0.5)
    else:
        np.testing.assert_array_equal(out, expected)
