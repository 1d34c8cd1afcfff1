"""Products and convolutions in tile registers of the CPU vocabulary against NumPy: as they are where this machine has
them, and in plain C on any x86-64-v3."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import pytest

from mononn_core.element import together
from mononn_core.runtime.cpu import Library
from mononn_core.schedule.decisions import tile_step
from tests.core.narrow import (
    CONVOLUTIONS,
    GROUP,
    JOINED,
    Level,
    Product,
    check,
    convolution_source,
    grouped,
    identifier,
    panels,
    pointer,
    product_source,
    sides,
)
from tests.core.test_codegen_conv import Case, reference
from tests.core.tiles import IN_MEMORY, PLAIN, TILED

FEATURES = TILED.features - PLAIN.features
LEVELS = {
    "in registers": Level(PLAIN, tuple(f"-m{f}" for f in sorted(FEATURES)), FEATURES),
    "in memory": Level(IN_MEMORY, ("-Xclang", "-O1")),  # for its arithmetic: at -O3 the compiler takes twice as long
}
TIERS = ["in registers", pytest.param("in memory", marks=pytest.mark.slow)]  # networks in memory: test_bf16.py
LANES = 16
TYPES = {"int8": "uint8", "bf16": "bfloat16"}
PRODUCTS = {
    "whole tiles": Product(64, 2, 32),
    "two tiles that overlap": Product(19, 2, 32),
    "an owner's rows": Product(99, 2, 32),
    "one row": Product(1, 4, 32),
    "one tile": Product(13, 2, 32),
    "single tiles": Product(37, 2, 16),
    "wide": Product(33, 8, 32),
    "one vector": Product(40, 1, 32),
}
TERMS = (1, 2, 3, 4, 5, 7, 8, 31, 33, 64, 67, 80, 99, 147, 768, 1000, 1001, 3072)
MORE_CONVOLUTIONS = {
    "3x3 of whole tiles": Case(c=64, lda=64, rows=4, width=28, n=32),
    "1x1 flat": Case(c=96, lda=96, rows=3, width=14, n=32, kernel=(1, 1)),
    "one column": Case(c=40, lda=64, rows=37, width=1, n=32, kernel=(3, 1), stride=(2, 1), dilation=(2, 1)),
    "one row of one tile": Case(c=32, lda=32, rows=1, width=7, n=16),
}
CASES = {**CONVOLUTIONS, **MORE_CONVOLUTIONS}

PROLOGUE = """
#include "mononn_tiles.hpp"
#define EXPORT extern "C" __attribute__((visibility("default"))) void
EXPORT start(const mononn_call *call) { mn::TileRegisters tiles{call}; }
"""
PRODUCT = """
EXPORT {name}(const {a} *a, long lda, const {b} *b, long k, long n, {sum} *out) {{
  mn::Tiles tiles;
  const long groups = (k + {group} - 1) / {group};
  for (long p = 0; p < n; p += {panel}) {{
    auto element = [&](long y, long x, auto v) {{ mn::store<decltype(v)>(out + y * n + p + x, v); }};
    auto edge = [&](long y, long x, auto v) {{ mn::ragged(y, x, n - p, v, element); }};
    mn::tile_dot<{m}, {panel}, {most}, STEP>(tiles, a, lda, b + p * groups * {group}, k, edge);
  }}
}}
"""


def _step(terms: int, kind: str) -> int:
    return tile_step(terms, TYPES[kind], TILED)


def _run_of(case: Case, joined: bool) -> int:
    """Terms that lie side by side in a kernel row."""
    return case.c * case.kernel[1] if joined else case.c


def _one_run(label: str, kind: str, how: str) -> bool:
    """Whether a kernel row is one run: the weights say so, or its taps have whole groups."""
    return how == "joined" or (label in _dense() and CASES[label].c % GROUP[kind] == 0)


@functools.cache
def _dense() -> list[str]:
    return [label for label, case in CASES.items() if case.lda == case.c and case.dilation[1] == 1]


def _source() -> str:
    parts = [PROLOGUE]
    for kind in TYPES:
        for label, product in PRODUCTS.items():
            for step in sorted({_step(k, kind) for k in TERMS}):
                name = identifier("product", f"{label} {step}", kind)
                parts.append(product_source(name, product, kind, LANES, PRODUCT.replace("STEP", str(step))))
        for label, case in CASES.items():
            for how in ("conv", "joined")[: 1 + (label in JOINED)]:
                step = _step(_run_of(case, _one_run(label, kind, how)), kind)
                text = convolution_source(identifier(how, label, kind), case, kind, 32, joined=how == "joined")
                cheap = f"32, {str(case.cheap).lower()}"
                text = text.replace("mn::dot_conv", "mn::tile_conv").replace(cheap, f"32, {step}")
                text = text.replace("(a, b, element)", "(tiles, a, b, element)")
                parts.append(text.replace("{\n", "{\n  mn::Tiles tiles;\n", 1))
    return "".join(parts)


@functools.cache
def _library(level: str) -> Library:
    library = Library(LEVELS[level].compile(_source()), "test library")
    error = ctypes.c_uint64()
    call = (ctypes.c_void_p * 16)(*[ctypes.addressof(error)] * 16)
    library.functions.start(call)
    assert error.value == 0
    return library


def functions(level: str) -> Any:
    if missing := LEVELS[level].missing():
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    return _library(level).functions


@pytest.mark.parametrize("label", PRODUCTS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("level", TIERS)
def test_product(level: str, kind: str, label: str) -> None:
    """What stands past a row's terms is 255 or NaN."""
    case, library = PRODUCTS[label], functions(level)
    panel = case.vectors * LANES
    n = max(1, 3 * panel - panel // 2 - 1)
    for k in TERMS:
        step = _step(k, kind)
        a, b = sides(kind, (case.m, k), (k, n))
        padded = np.full((case.m, k + 3), 255 if kind == "int8" else np.nan, a.dtype)
        padded[:, :k] = a
        packed, out = panels(b, kind, panel), np.full((case.m, n), 77, np.int32 if kind == "int8" else np.float32)
        run = getattr(library, identifier("product", f"{label} {step}", kind))
        run(pointer(padded), ctypes.c_long(k + 3), pointer(packed), ctypes.c_long(k), ctypes.c_long(n), pointer(out))
        check(out, a.astype(float) @ b.astype(float), kind, k)


@pytest.mark.parametrize(
    ("how", "label"), [*(("conv", label) for label in CASES), *(("joined", label) for label in JOINED)]
)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("level", TIERS)
def test_convolution(level: str, kind: str, how: str, label: str) -> None:
    """What stands past the channels, and past the last pixel, is 255 or NaN."""
    case, library = CASES[label], functions(level)
    run = getattr(library, identifier(how, label, kind))
    a, b = sides(kind, (*case.input_shape, case.c), (*case.kernel, case.c, case.n))
    stored = np.full(int(np.prod(case.input_shape)) * case.lda + 3, 255 if kind == "int8" else np.nan, a.dtype)
    stored[:-3].reshape(*case.input_shape, case.lda)[..., : case.c] = a
    packed = grouped(b.reshape(case.kernel[0], -1, case.n) if how == "joined" else b, kind)
    out = np.full((case.rows, case.width, case.n), 77, np.int32 if kind == "int8" else np.float32)
    run(pointer(stored), pointer(packed), pointer(out))
    check(out, reference(case, a, b.astype(float)), kind, int(np.prod(case.kernel)) * case.c)


def test_steps_cut_runs_evenly() -> None:
    for kind, dtype in TYPES.items():
        for terms in range(1, 4000):
            step, groups = _step(terms, kind), -(-terms // together(dtype))
            assert 1 <= step <= 16
            assert -(-groups // step) <= 2 * -(-groups // 16)
        assert tile_step(64, dtype, PLAIN) == 0
    assert [_step(n, "bf16") for n in (768, 80, 21, 34)] == [16, 10, 11, 9]
    assert [_step(n, "int8") for n in (768, 80, 21, 68)] == [16, 10, 6, 9]
