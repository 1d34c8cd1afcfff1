"""Functions of CUDA code: which phases share one, and how near the vocabulary's elementary functions are."""

from __future__ import annotations

import math
import re
import struct

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.codegen.cuda_functions import Function, Functions, Place, mark
from mononn_core.codegen.writer import Writer
from mononn_core.emulate import Watch, build
from tests.core.cuda.networks import translator

VALUES = 2048
KERNEL = """
#define MONONN_THREADS 128
#define MONONN_ERROR_INDEX 1
%s
#include "mononn_cuda.cuh"
struct Call { float *out; const float *in; };
extern "C" __global__ void functions(const __grid_constant__ Call call) {
  for (int i = mn::thread(); i < %d; i += 128) call.out[i] = mn::%s(call.in[i]);
}
"""


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(
    ("name", "exact"),
    [("erf", math.erf), ("sigmoid", lambda x: 1 / (1 + math.exp(-x))), ("rsqrt", lambda x: 1 / math.sqrt(abs(x)))],
)
def test_elementary_functions_are_near_the_exact_ones(name: str, exact: object, rounded: bool) -> None:
    assert callable(exact)
    given = np.concatenate([np.linspace(-9, 9, VALUES - 4, dtype=np.float32), np.float32([-80, 80, 1e-20, -1e-20])])
    given = np.abs(given) if name == "rsqrt" else given
    out = np.zeros(VALUES, np.float32)
    text = KERNEL % ("#define MONONN_ROUNDED" if rounded else "", VALUES, name)
    watched = [Watch(out.ctypes.data, out.nbytes, "out"), Watch(given.ctypes.data, given.nbytes, "in", read_only=True)]
    words = struct.pack("<2Q", out.ctypes.data, given.ctypes.data)
    build(text).launch("functions", words, 1, 128, 256, watch=watched)
    expected = np.array([exact(float(v)) for v in given])
    assert (np.abs(out - expected) <= np.maximum(np.abs(expected), 1.0) * (6e-7 if rounded else 2e-7)).all()
    assert np.isfinite(out).all()


def printed(*functions: Function) -> tuple[str, list[tuple[str, str]]]:
    made, out = Functions(functions), Writer()
    made.write(out, "void", "int x")
    return out.text(), [made.call(f.name) for f in functions]


def test_functions_that_differ_in_places_alone_are_one() -> None:
    lines = (f"p = arena_ + {mark(0)};", f"q = weights_ + {mark(1)};", f"r = weights_ + {mark(2)};")
    rolled = Function("a", "a", lines, (Place(64), Place(0, 256, "i"), Place(128, 256, "i")), "i")
    last = Function("b", "b", lines, (Place(64), Place(1024), Place(1152)))
    text, calls = printed(rolled, last)
    assert "p = arena_ + 64;" in text, "what all agree on stays a constant"
    assert "q = weights_ + at0_;" in text and "r = weights_ + (at0_ + 128ll);" in text
    assert text.count("void ") == 1 and "void a(int x, int64_t at0_)" in text
    assert calls == [("a", ", (0ll + 256ll * (i))"), ("a", ", 1024")]


def test_a_function_of_its_own_keeps_its_constants_and_its_loop() -> None:
    one = Function("a", "a", (f"p = weights_ + {mark(0)};",), (Place(0, 256, "i"),), "i")
    other = Function("b", "b", (f"p = arena_ + {mark(0)};",), (Place(512),))
    text, calls = printed(one, other)
    assert "p = weights_ + (0ll + 256ll * (i));" in text and "p = arena_ + 512;" in text
    assert calls == [("a", ", i"), ("b", "")]


def test_places_that_drift_apart_are_arguments_of_their_own() -> None:
    lines = (f"p = {mark(0)};", f"q = {mark(1)};")
    text, calls = printed(
        Function("a", "a", lines, (Place(0), Place(64))),
        Function("b", "b", lines, (Place(256), Place(512))),
        Function("c", "c", lines, (Place(text="table[2]"), Place(64))),
    )
    assert "p = at0_;" in text and "q = at1_;" in text
    assert calls == [("a", ", 0, 64"), ("a", ", 256, 512"), ("a", ", table[2], 64")]


def test_what_asks_whether_an_iteration_comes_looks_its_place_up_itself() -> None:
    lines = ("if (i + 1 < 3) {", f"p = {mark(0)};", "}")
    ahead = [Function(name, name, lines, (Place(text=f"table[i + 1][{n}]"),), "i") for n, name in enumerate("ab")]
    text, calls = printed(*ahead)
    assert calls == [("a", ", i"), ("b", ", i")] and "p = table[i + 1][0];" in text
    even = [Function(name, name, lines, (Place(n, 256, "i + 1"),), "i") for n, name in enumerate("ab")]
    text, calls = printed(*even)
    assert calls == [("a", ", i, (0ll + 256ll * (i + 1))"), ("a", ", i, (1ll + 256ll * (i + 1))")]
    assert "void a(int x, int i, int64_t at0_)" in text


def test_a_last_layer_runs_the_code_of_the_others() -> None:
    text = compiler.lower(translator(), target="cuda", arch=("sm_90a",), precision="fp16").source
    called = re.findall(r"now_ = (\w+)\(", text)
    defined = re.findall(r"MN_PHASE mn::Turn (\w+)\(", text)
    assert len(set(defined)) == len(defined) and set(called) == set(defined)
    assert len(called) > len(defined) + 3
