"""Sums and products up to each position: a template on a CPU, reductions elsewhere, as the semantics say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.compiler import CpuStages, lower_imported
from mononn_core.errors import ShapeError, VerifyError
from mononn_core.graph import Graph
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import Options
from mononn_core.passes import cumulative
from mononn_core.program.interpret import run as interpret
from mononn_core.program.verify import verify
from mononn_core.runtime.session import Session
from mononn_core.runtime.toolchain import compile_shared
from tests.core.graphs import Net, operators
from tests.core.test_templates import changed

Array = np.ndarray[Any, Any]
RUNNABLE = [n for n in ("avx512", "avx2", "scalar") if Machine.named(n).features <= Machine.probe().features]
TYPES = ("float32", "float64", "int32", "int64")
WAYS = [
    {"product": p, "exclusive": e, "reverse": r} for p in (False, True) for e in (False, True) for r in (False, True)
]
SHAPES = (
    ((3, 40), 1),
    ((1, 1000), 1),
    ((5, 7), 0),
    ((33, 150), 0),
    ((2, 9, 64), 1),
    ((1, 20, 70), 1),
    ((3, 4, 5, 2), 2),
)
"""(shape, axis): rows and columns, short and longer than vectors, dealt by rows and by columns, ragged ends."""


def lowered(graph: Graph, machine: str = "avx2", threads: int = 2) -> CpuStages:
    return lower_imported(graph, Options(threads=threads), Machine.named(machine))


def elements(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> Array:
    """Near one in size, so that products stay in range; of integers products wrap."""
    if np.dtype(dtype).kind == "i":
        return random.integers(-5, 6, shape).astype(dtype)
    return (random.choice([-1.0, 1.0], shape) * random.uniform(0.9, 1.1, shape)).astype(dtype)


def inputs_of(graph: Graph) -> dict[str, Array]:
    random = np.random.default_rng(3)
    return {name: elements(graph.types[name].shape, graph.types[name].dtype, random) for name in graph.inputs}


def exact(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """In float64 where the answers are floats."""
    wide = {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in inputs.items()}
    return evaluate(graph, wide)


def assert_close(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    for name, want in wanted.items():
        assert found[name].shape == want.shape
        if found[name].dtype.kind == "f":
            np.testing.assert_allclose(found[name], want, rtol=2e-5, atol=2e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], want, name)


@pytest.mark.in_turn("machine", "way")
@pytest.mark.parametrize("way", WAYS, ids=lambda w: "-".join(k for k, on in w.items() if on) or "plain")
@pytest.mark.parametrize("machine", RUNNABLE)
def test_every_type_and_shape(machine: str, way: dict[str, bool]) -> None:
    net = Net()
    kinds = [(shape, axis, dtype) for shape, axis in SHAPES for dtype in TYPES]
    found = [net("cumulative", net.input(*shape, dtype=dtype), axis=axis, **way) for shape, axis, dtype in kinds]
    graph = net.graph(*found)
    stages, inputs = lowered(graph, machine), inputs_of(graph)
    assert [phase.task.template for phase in stages.program.phases()].count("cumulative") == len(kinds)
    wanted = exact(graph, inputs)
    with Session(compiler.build(stages), threads=2) as session:
        assert_close(session.run(inputs), wanted)
    assert_close(answers(stages, inputs), wanted)


def answers(stages: CpuStages, inputs: dict[str, Array], workers: int = 2) -> dict[str, Array]:
    """What the virtual machine gives."""
    shaped = {name: value.reshape(stages.program.buffer(name).shape) for name, value in inputs.items()}
    found = interpret(stages.program, shaped, stages.lowered.weights, workers)
    return {name: value.reshape(stages.graph.types[name].shape) for name, value in found.items()}


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Along any axis, of what a view shows or is computed; something elementwise behind."""
    net, dtype = Net(), draw(st.sampled_from(TYPES))
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    x = net.input(*shape, dtype=dtype)
    match draw(st.sampled_from(["plain", "flat", "slice", "turned", "computed"])):
        case "flat":
            x = net("reshape", net.input(int(np.prod(shape)), dtype=dtype), shape=shape)
        case "slice":
            whole = net.input(*(n + 2 for n in shape), dtype=dtype)
            x = net("slice", whole, starts=(1,) * len(shape), sizes=shape, steps=(1,) * len(shape))
        case "turned":
            x = net("transpose", net.input(*shape[::-1], dtype=dtype), perm=tuple(range(len(shape)))[::-1])
        case "computed":
            x = net("add", x, net.input(*shape, dtype=dtype))
    flags = {name: draw(st.booleans()) for name in ("product", "exclusive", "reverse")}
    found = net("cumulative", x, axis=draw(st.integers(0, len(shape) - 1)), **flags)
    return net.graph(net("add", found, net.input(shape[-1], dtype=dtype)))


@settings(max_examples=100, deadline=None)
@given(networks(), st.integers(1, 5), st.integers(1, 4))
def test_the_virtual_machine_agrees(graph: Graph, threads: int, workers: int) -> None:
    stages, inputs = lowered(graph, threads=threads), inputs_of(graph)
    assert "cumulative" in [phase.task.template for phase in stages.program.phases()]
    assert_close(answers(stages, inputs, workers), exact(graph, inputs))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 5), max_size=2),
    st.sampled_from([1, 7, 32, 33, 100, 530]),
    st.lists(st.integers(1, 5), max_size=1),
    st.sampled_from(["float64", "int64", "uint8"]),
    st.sampled_from(WAYS),
)
def test_reductions_say_the_same(lead: list[int], n: int, tail: list[int], dtype: str, way: dict[str, bool]) -> None:
    net = Net()
    graph = net.graph(net("cumulative", net.input(*lead, n, *tail, dtype=dtype), axis=len(lead), **way))
    after = cumulative.on_gpu(graph)
    assert "cumulative" not in operators(after)
    assert max(t.size for t in after.types.values()) <= 32 * max(64, 2 * n) * int(np.prod([*lead, *tail]))
    inputs = {"in0": elements((*lead, n, *tail), dtype, np.random.default_rng(1))}
    assert_close(evaluate(after, inputs), evaluate(graph, inputs))


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_other_types_are_reduced_on_a_cpu(dtype: str) -> None:
    net = Net()
    graph = net.graph(net("cumulative", net.input(2, 50, dtype=dtype), axis=1, **WAYS[0]))
    x = np.random.default_rng(0).integers(0, 4, (2, 50)).astype(dtype)
    with Session(compiler.build(lowered(graph)), threads=2) as session:
        np.testing.assert_array_equal(session.run({"in0": x})["out0"], np.cumsum(x, axis=1, dtype=dtype))


@pytest.mark.parametrize("machine", ["avx512", "neon"])
def test_it_compiles_for_other_processors(machine: str) -> None:
    net, level = Net(), Machine.named(machine)
    graph = net.graph(
        *(net("cumulative", net.input(3, 40, 20, dtype=t), axis=a, **WAYS[3]) for t in TYPES for a in (1, 2))
    )
    source, flags = lowered(graph, machine).source, (f"-DMONONN_VECTOR_BYTES={level.vector_bytes}",)
    assert compile_shared(source, machine=level, extra_flags=flags).code


def test_an_infinity_reaches_what_follows_alone() -> None:
    net = Net()
    graph = net.graph(net("cumulative", net.input(1, 100), axis=1, **WAYS[0]))
    x = np.ones((1, 100), np.float32)
    x[0, 50] = np.inf
    with Session(compiler.build(lowered(graph)), threads=1) as session:
        np.testing.assert_array_equal(session.run({"in0": x})["out0"], np.cumsum(x, axis=1, dtype=np.float32))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"length": 7}, "4 rows of 30 elements are not cut into runs of 7"),
        ({"length": 0}, "are not cut into runs of 0"),
        ({"down": True}, "4 rows of 30 elements are not cut into runs of 30"),
        ({"product": 1}, "'product' is 1"),
    ],
)
def test_parameters_fit_the_rows(params: dict[str, object], message: str) -> None:
    net = Net()
    program = lowered(net.graph(net("cumulative", net.input(8, 30), axis=1, **WAYS[0]))).program
    with pytest.raises(VerifyError, match=message):
        verify(changed(program, "cumulative", **params))


def test_an_axis_that_is_not_there() -> None:
    net = Net()
    with pytest.raises(ShapeError, match="axis 2 does not fit"):
        net("cumulative", net.input(8, 30), axis=2, **WAYS[0])
