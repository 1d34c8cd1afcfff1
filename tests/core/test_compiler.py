"""The whole road on small networks: right on every vector width, the same bits for any workers, the same bytes."""

from __future__ import annotations

import ctypes
import mmap
import re
import shutil
from collections import Counter
from concurrent.futures import Executor, Future
from functools import cache
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.compiler import cpu
from mononn_core.errors import InputError, OptionError, UnsupportedError
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import Given, Options
from mononn_core.program.ir import Loop, Phase
from mononn_core.program.rules import depends
from mononn_core.runtime.session import Session
from tests.core.cuda.networks import translator
from tests.core.networks import MODELS, Builder, encoder
from tests.core.test_program_compiled import inputs

TOLERANCE = 1e-5
"""Relative L2 error against the imported Graph, evaluated by NumPy."""


@cache
def expected(name: str) -> dict[str, np.ndarray]:
    graph = compiler.lower(MODELS[name](), threads=1).graph
    return evaluate(graph, inputs(name))


def error(value: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(value.astype(np.float64) - want) / np.linalg.norm(want.astype(np.float64)))


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_and_bits(name: str, level: str) -> None:
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    first = None
    artifact = compiler.build(compiler.lower(MODELS[name](), threads=2, machine=machine))
    for workers in (1, 2, 4):
        with Session(artifact, threads=workers) as session:
            answers = session.run(inputs(name))
        first = first or answers
        for key, want in expected(name).items():
            assert error(answers[key], want) < TOLERANCE
            np.testing.assert_array_equal(answers[key], first[key])


@pytest.mark.parametrize("name", MODELS)
def test_neon_and_gcc_compile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.build(compiler.lower(MODELS[name](), threads=2, machine=Machine.named("neon")))
    if shutil.which("g++"):
        monkeypatch.setenv("MONONN_CXX", "g++")
        with compiler.compile(MODELS[name](), threads=2) as session:
            for key, value in session.run(inputs(name)).items():
                assert error(value, expected(name)[key]) < TOLERANCE


def test_the_same_model_gives_the_same_bytes(tmp_path) -> None:  # type: ignore[no-untyped-def]
    files = []
    for i in range(2):
        compiler.build(compiler.lower(encoder(), threads=2)).save(tmp_path / f"{i}.mono")
        files.append((tmp_path / f"{i}.mono").read_bytes())
    assert files[0] == files[1]


def test_the_source_is_compiled_once_while_the_program_is_proven(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    begun = list[str]()

    def note(name: str) -> None:
        real = getattr(cpu, name)
        monkeypatch.setattr(cpu, name, lambda *given: (begun.append(name), real(*given))[1])

    note("compile_program")
    note("prove")
    with Immediate() as compiling:
        artifact = compiler.build(compiler.lower(MODELS["encoder"](), threads=2, compiler=compiling))
    assert begun == ["compile_program", "prove"]
    with Session(artifact) as session:
        assert error(session.run(inputs("encoder"))["y"], expected("encoder")["y"]) < TOLERANCE


class Immediate(Executor):
    """Computes where others would begin to."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        done: Future[object] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def test_equal_layers_are_one_loop_and_share_owners() -> None:
    """Four equal layers: the inner ones are rolled, and at most two barriers stand in a layer."""
    program = compiler.lower(encoder(layers=6), threads=2).program
    loops = [item for item in program.body if isinstance(item, Loop)]
    assert [loop.count for loop in loops] and max(loop.count for loop in loops) >= 4
    about = compiler.lower(encoder(layers=6), threads=2).manifest
    assert about["barriers"] <= 2 * 6 + 2


@pytest.mark.parametrize("launch", ["once", "phases"])
def test_phases_that_differ_in_their_places_alone_share_a_function(launch: str) -> None:
    """The first and the last layer are not in the loop of the others, and compute as they do."""
    stages = compiler.lower(encoder(layers=6), threads=2, launch=launch)
    functions = re.findall(r"^MN_PHASE void (\w+)\(.*\) \{$", stages.source, re.M)
    assert len(set(functions)) == len(functions) < len(list(stages.program.phases()))
    assert max(Counter(re.findall(r"\b(phase_\w+)\(call, w", stages.source)).values()) > 1
    feeds = inputs("encoder")
    wanted = evaluate(stages.graph, feeds)
    with Session(compiler.build(stages)) as session:
        assert error(session.run(feeds)["y"], wanted["y"]) < TOLERANCE


def test_layers_that_take_their_columns_of_one_product_are_one_loop() -> None:
    """Every layer of a decoder reads its keys and values from one product's result, further on each time."""
    stages = compiler.lower(translator(layers=4), threads=2)
    loops = [item for item in stages.program.body if isinstance(item, Loop)]
    assert any(depends(p, loop.var) for loop in loops for p in loop.body if isinstance(p, Phase))
    rng = np.random.default_rng(7)
    shapes = {n: stages.graph.types[n] for n in stages.graph.inputs}
    feeds = {n: rng.standard_normal(t.shape).astype(t.dtype) for n, t in shapes.items()}
    wanted, first = evaluate(stages.graph, feeds), None
    artifact = compiler.build(stages)
    for workers in (1, 2, 4):
        with Session(artifact, threads=workers) as session:
            answers = session.run(feeds)
        first = first or answers
        for name, want in wanted.items():
            assert error(answers[name], want) < TOLERANCE
            np.testing.assert_array_equal(answers[name], first[name])


def test_fusion_off_computes_the_same() -> None:
    with compiler.compile(encoder(), threads=2, fuse=False) as plain, compiler.compile(encoder(), threads=2) as fused:
        a, b = plain.run(inputs("encoder"))["y"], fused.run(inputs("encoder"))["y"]
    assert plain.info["phases"].__len__() > fused.info["phases"].__len__()
    assert error(a, b) < TOLERANCE


@settings(max_examples=12, deadline=None)
@given(
    m=st.integers(1, 40), k=st.integers(1, 70), n=st.integers(1, 70), threads=st.integers(1, 3), seed=st.integers(0, 99)
)
def test_any_product_shape(m: int, k: int, n: int, threads: int, seed: int) -> None:
    """Every M, N, K: ragged rows, ragged panels, with a bias and a residual in the epilogue."""
    b = Builder("product", seed)
    hidden = b.add("Add", b.linear("x", k, n), "r")
    b.add("Tanh", hidden, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (m, k)), "r": (TensorProto.FLOAT, (m, n))}, {"y": (m, n)})
    stages = compiler.lower(model, threads=threads)
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.standard_normal((m, k), np.float32), "r": rng.standard_normal((m, n), np.float32)}
    with Session(compiler.build(stages)) as session:
        assert error(session.run(feeds)["y"], evaluate(stages.graph, feeds)["y"]) < TOLERANCE


@pytest.mark.parametrize(("k", "n"), [(3, 1), (5, 40), (7, 130)])
def test_nothing_is_read_past_the_callers_arrays(k: int, n: int) -> None:
    """A right-hand side that is an input, right before a page nobody may touch: its last panel is ragged."""
    b = Builder("edge")
    b.add("MatMul", "x", "w", output="y")
    shapes = {"x": (4, k), "w": (k, n)}
    model = b.model({name: (TensorProto.FLOAT, shape) for name, shape in shapes.items()}, {"y": (4, n)})
    area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    start = np.frombuffer(area, np.uint8).ctypes.data
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0  # PROT_NONE
    x = np.random.default_rng(0).standard_normal(shapes["x"]).astype(np.float32)
    w = np.frombuffer(area, np.float32, k * n, mmap.PAGESIZE - 4 * k * n).reshape(k, n)
    w[...] = np.random.default_rng(1).standard_normal(w.shape)
    with compiler.compile(model, threads=2) as session:
        assert error(session.run({"x": x, "w": w})["y"], x @ w) < TOLERANCE


def test_names_of_a_model_cannot_leave_a_comment() -> None:
    b = Builder("mischief\\\n#error out of the comment")
    b.add("Relu", "x", output="y\n#error too")
    model = b.model({"x": (TensorProto.FLOAT, (3, 4))}, {"y\n#error too": (3, 4)})
    with compiler.compile(model, threads=2) as session:
        assert session.run({"x": -np.ones((3, 4), np.float32)})["y\n#error too"].max() == 0


def test_an_index_out_of_range_is_named() -> None:
    with compiler.compile(encoder(), threads=2) as session:
        feeds = dict(inputs("encoder"))
        feeds["ids"] = np.full_like(feeds["ids"], 1000)
        with pytest.raises(InputError, match="out of range"):
            session.run(feeds)
        session.run(inputs("encoder"))


def test_keywords_are_the_options() -> None:
    assert get_type_hints(Given) == get_type_hints(Options)


def test_bad_options_and_operators_are_named() -> None:
    with pytest.raises(OptionError, match="target"):
        compiler.lower(encoder(), target="tpu")
    with pytest.raises(OptionError, match="precision"):
        compiler.lower(encoder(), precision="fp8")
    for function in (compiler.lower, compiler.compile):
        with pytest.raises(TypeError, match="'thread'"):
            function(encoder(), thread=2)
    b = Builder("unsupported")
    b.add("NonZero", "x", output="y")
    with pytest.raises(UnsupportedError, match="NonZero"):
        compiler.lower(b.model({"x": (TensorProto.FLOAT, (3, 4))}, {"y": (2, 12)}))


def test_a_network_that_memory_does_not_hold_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mononn_core.compiler.cpu._memory", lambda: 1000)
    with pytest.raises(UnsupportedError, match="there is no memory to compile 'encoder', whose largest tensor takes"):
        compiler.lower(encoder(), threads=2)
