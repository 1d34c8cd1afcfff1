"""The convolution kernels of the CPU vocabulary against NumPy, on this machine, and their machine code elsewhere."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mononn_core.machine import Machine
from mononn_core.runtime.cpu import Library
from mononn_core.runtime.toolchain import compile_shared
from mononn_core.schedule.decisions import most_at_once
from tests.core.test_codegen_assembly import inner_loops


@dataclass(frozen=True)
class Case:
    """One convolution: ``rows`` x ``width`` outputs of [kh, kw, c] windows, ``n`` outputs a panel (0: depthwise, or in
    groups of ``group`` channels)."""

    c: int
    lda: int
    rows: int
    width: int
    n: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    cheap: bool = True
    group: int = 1

    @property
    def input_shape(self) -> tuple[int, int]:
        """Bordered rows and pixels a row that the windows touch."""
        extents = zip((self.rows, self.width), self.kernel, self.stride, self.dilation, strict=True)
        height, width = ((o - 1) * s + (k - 1) * d + 1 for o, k, s, d in extents)
        return height, width

    def function(self, name: str, machine: Machine) -> str:
        """The C function ``name(a, b, out)`` with the register tiles of a machine."""
        pitch = self.input_shape[1]
        numbers = (self.c, self.lda, pitch, self.width, *self.kernel, *self.stride, *self.dilation)
        geometry = f"mn::Windows<{', '.join(map(str, numbers))}>"
        columns = self.n or self.c
        store = "mn::store<mn::V>(p, v)"
        if columns % 16:
            store = f"for (int i = 0; i < mn::W && n + i < {columns}; ++i) p[i] = v[i]"
        place = f"float *p = out + (y * {self.width} + x) * {columns} + n"
        element = f"[&](long y, long x, long n, mn::V v) {{ {place}; {store}; }}"
        most = (
            most_at_once(self.n // machine.lanes("float32"), machine) if self.n else machine.vector_registers // 2 - 2
        )
        call = f"mn::depthwise<{geometry}, {self.rows}, {most}, {self.group}>(a, b, {self.lda}, {element})"
        if self.n:
            cheap = str(self.cheap).lower()
            call = f"mn::conv<{geometry}, {self.rows}, {self.n}, {most}, {cheap}>(a, b, {element})"
        visible = '__attribute__((visibility("default")))'
        return f'extern "C" {visible} void {name}(const float *a, const float *b, float *out) {{ {call}; }}'


CASES = {
    "3x3": Case(c=16, lda=32, rows=3, width=56, n=32),
    "uneven": Case(c=6, lda=32, rows=2, width=55, n=32),
    "short rows": Case(c=8, lda=8, rows=7, width=7, n=32, cheap=False),
    "one column": Case(c=8, lda=32, rows=17, width=1, n=32),
    "strided": Case(c=8, lda=32, rows=3, width=14, n=32, stride=(2, 2)),
    "dilated": Case(c=4, lda=32, rows=2, width=9, n=32, kernel=(2, 3), dilation=(2, 3), stride=(1, 2)),
    "stem": Case(c=3, lda=3, rows=2, width=28, n=32, kernel=(7, 7), stride=(2, 2)),
    "1x1": Case(c=24, lda=32, rows=2, width=28, n=32, kernel=(1, 1)),
    "odd": Case(c=5, lda=32, rows=2, width=13, n=16, kernel=(1, 1), stride=(2, 2)),
    "far rows": Case(c=256, lda=272, rows=7, width=7, n=32, stride=(2, 2)),
    "far terms": Case(c=2304, lda=2320, rows=7, width=7, n=32, kernel=(1, 1)),
    "far, in threes": Case(c=2061, lda=2064, rows=3, width=5, n=32, kernel=(1, 1), cheap=False),
    "far, one by one": Case(c=2053, lda=2064, rows=2, width=28, n=32, kernel=(1, 1)),
    "group": Case(c=16, lda=96, rows=2, width=28, n=16),
    "depthwise": Case(c=40, lda=64, rows=3, width=14, n=0),
    "depthwise strided": Case(c=20, lda=32, rows=5, width=7, n=0, stride=(2, 2)),
    "depthwise 5x5": Case(c=16, lda=32, rows=4, width=20, n=0, kernel=(5, 5)),
    "groups of 4": Case(c=40, lda=64, rows=3, width=14, n=0, group=4),
    "groups of 2": Case(c=32, lda=32, rows=2, width=9, n=0, group=2, stride=(2, 2)),
    "depthwise dilated": Case(c=16, lda=32, rows=4, width=9, n=0, kernel=(3, 2), dilation=(2, 2), stride=(1, 2)),
}
NAMES = {label: f"case{i}" for i, label in enumerate(CASES)}
NAMED = {NAMES[label]: case for label, case in CASES.items()}
INCLUDE = '#include "mononn_conv.hpp"'


def library(machine: Machine, cases: Mapping[str, Case]) -> bytes:
    """A function for each case."""
    source = "\n".join([INCLUDE, *(case.function(name, machine) for name, case in cases.items())])
    return compile_shared(source, machine=machine, extra_flags=(f"-DMONONN_VECTOR_BYTES={machine.vector_bytes}",)).code


def reference(case: Case, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Windows times weights in double precision, tap by tap."""
    out = np.zeros((case.rows, case.width, case.n or case.c))
    channel = np.arange(case.c)
    (kh, kw), (sh, sw), (dh, dw) = case.kernel, case.stride, case.dilation
    for i in range(kh):
        for j in range(kw):
            rows = slice(i * dh, i * dh + (case.rows - 1) * sh + 1, sh)
            pixels = a[rows, j * dw : j * dw + (case.width - 1) * sw + 1 : sw, : case.c].astype(float)
            if case.n:
                out += pixels @ b[i, j]
            for c in range(0 if case.n else case.group):
                out += pixels[..., channel // case.group * case.group + c] * b[i, j, c, : case.c]
    return out


@pytest.fixture(scope="module")
def host() -> Library:
    return Library(library(Machine.probe(), NAMED), "test library")


@pytest.mark.parametrize("label", CASES)
def test_against_numpy(label: str, host: Library) -> None:
    case = CASES[label]
    random = np.random.default_rng(1)
    a = random.standard_normal((*case.input_shape, case.lda), dtype=np.float32)
    b = random.standard_normal(
        (*case.kernel, *((case.c, case.n) if case.n else (case.group, case.lda))), dtype=np.float32
    )
    out = np.full((case.rows, case.width, case.n or case.c), np.nan, np.float32)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (a, b, out))
    getattr(host.functions, NAMES[label])(*pointers)
    np.testing.assert_allclose(out, reference(case, a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tiles", [2, 3, 4, 21, 100])
@pytest.mark.parametrize("machine", [Machine.probe(), Machine.named("avx2")], ids=["here", "avx2"])
def test_all_tiles_fetch_equal_parts_of_the_next_panel(machine: Machine, tiles: int) -> None:
    """Each line of it once or more, and behind it no more than an element a row. A tile that is alone fetches
    none, or all of it where panels are short."""
    rows, row, line = 48, 32, 16
    source = f"""{INCLUDE}
    template <class T, int LINES, int EVERY> constexpr int every(mn::Fetch<T, LINES, EVERY>) {{
      static_assert(LINES == 1);
      return EVERY;
    }}
    extern "C" __attribute__((visibility("default"))) int places(const float *b, long *out) {{
      for (int tile = 0; tile < {tiles}; ++tile) {{
        auto fetch = mn::fetch_of<{tiles}, {row}>(tile, b, {rows});
        for (int k = 0; k < {rows}; ++k) *out++ = fetch.from(k).next - b;
      }}
      static_assert(std::is_same_v<decltype(mn::fetch_of<1, {row}>(0, b, {rows})), mn::Fetch<float, 0>>);
      using Short = decltype(mn::fetch_of<1, {row}, true>(0, b, {rows}));
      static_assert(std::is_same_v<Short, mn::Fetch<float, {row // line}>>);
      return every(mn::fetch_of<{tiles}, {row}>(0, b, {rows}));
    }}"""
    if not machine.features <= Machine.probe().features:
        pytest.skip("this processor has no avx2")
    code = compile_shared(source, machine=machine, extra_flags=(f"-DMONONN_VECTOR_BYTES={machine.vector_bytes}",)).code
    places = np.zeros((tiles, rows), np.int64)
    loaded = Library(code, "test library")
    every = loaded.functions.places(None, ctypes.c_void_p(places.ctypes.data))
    fetched = places[:, ::every] // line
    first = rows * row // line
    assert set(fetched.ravel().tolist()) >= set(range(first, 2 * first))
    assert fetched.max() <= 2 * first + rows // line
    hop = -(-row // tiles)
    assert every == (1 if machine.vector_bytes == 64 else next(n for n in (4, 2, 1) if n * hop <= line))


@pytest.mark.parametrize("name", ["avx2", "neon"])
def test_other_machines(name: str) -> None:
    assert library(Machine.named(name), NAMED).startswith(b"\x7fELF")


@pytest.mark.skipif(not shutil.which("objdump"), reason="objdump is not installed")
@pytest.mark.parametrize(
    ("level", "case", "accumulators", "step"),
    [
        ("avx512", Case(c=64, lda=96, rows=2, width=56, n=32), 28, 2),
        ("avx512", Case(c=256, lda=272, rows=6, width=7, n=32, kernel=(1, 1)), 28, 2),
        ("avx512", Case(c=3, lda=3, rows=1, width=112, n=32, kernel=(7, 7), stride=(2, 2)), 28, 3),
        ("avx512", Case(c=16, lda=96, rows=2, width=56, n=16), 28, 2),
        ("avx2", Case(c=64, lda=96, rows=2, width=12, n=16), 12, 4),
        ("avx2", Case(c=64, lda=96, rows=2, width=12, n=24), 12, 4),
        ("avx2", Case(c=64, lda=64, rows=996, width=1, n=16, kernel=(2, 1), cheap=False), 12, 4),
        ("avx2", Case(c=3, lda=3, rows=1, width=12, n=16, kernel=(7, 7), stride=(2, 2)), 12, 3),
        ("avx512", Case(c=144, lda=160, rows=4, width=56, n=0), 14, 9),
        ("avx2", Case(c=144, lda=160, rows=4, width=57, n=0), 6, 9),
    ],
)
def test_inner_loop(level: str, case: Case, accumulators: int, step: int, tmp_path: Path) -> None:
    """``step`` multiply-adds an accumulator in the main tile's inner loop, and none of them goes to the stack."""
    code = library(Machine.named(level), {"tile": case})
    (body,) = inner_loops(code, tmp_path)
    multiply_adds = [t for t in body if "vfmadd" in t]
    assert len(multiply_adds) == accumulators * step
    assert all(("zmm" if level == "avx512" else "ymm") in t for t in multiply_adds)
    assert not [t for t in body if "%rsp" in t], "a spill"
    vectors = case.n * 4 // Machine.named(level).vector_bytes
    if vectors:
        others = [t for t in body if "vfmadd" not in t and "prefetch" not in t]
        # beside loads: three pointers (of what is fetched too), the count, the branch
        assert len(others) <= step * (accumulators // vectors + vectors) + 5, others
