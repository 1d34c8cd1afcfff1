"""Sorting on a CPU: one template for every type, k and direction, exactly as the operator's semantics say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.compiler import CpuStages, lower_imported
from mononn_core.element import C_TYPES, NARROW
from mononn_core.errors import UnsupportedError, VerifyError
from mononn_core.graph import Graph
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import Options
from mononn_core.passes import order, pipeline
from mononn_core.program.interpret import run as interpret
from mononn_core.program.verify import verify
from mononn_core.runtime.session import Session
from mononn_core.runtime.toolchain import compile_shared
from mononn_core.schedule.operands import RowsView
from mononn_core.schedule.views import Views
from tests.core.graphs import Net, assert_same, operators, unchanged
from tests.core.mutate import mutants
from tests.core.oracle import Oracle
from tests.core.test_program_mutants import refusal
from tests.core.test_templates import changed

Array = np.ndarray[Any, Any]
RUNNABLE = [n for n in ("avx512", "avx2", "scalar") if Machine.named(n).features <= Machine.probe().features]
TYPES = sorted(set(C_TYPES) - set(NARROW))
KINDS = ("random", "few", "rare", "special", "ascending", "descending", "equal")


def elements(shape: tuple[int, ...], dtype: str, kind: str, random: np.random.Generator) -> Array:
    """``rare``: one in a hundred is another than the rest, and next to it. ``special``: NaN and zeros of both signs,
    infinities, denormals; the ends of an integer's range."""
    count = int(np.prod(shape))
    if dtype == "bool":
        return random.integers(0, 2 if kind == "random" else 1, shape).astype(bool)
    whole = np.dtype(dtype).kind in "iu"
    if kind in ("ascending", "descending"):
        steps = np.arange(count) % (1 << 7 if np.dtype(dtype).itemsize == 1 else 1 << 15 if whole else count)
        return (steps if kind == "ascending" else steps[::-1]).astype(dtype).reshape(shape)
    if kind == "special":
        ends = [np.iinfo(dtype).min, np.iinfo(dtype).max, 0] if whole else [np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40]
        ends += [] if whole else [np.nan, -np.nan, 1.0, -1.0]
        return np.array(ends, dtype)[random.integers(0, len(ends), shape)]
    if kind == "random" and whole:
        return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    if kind == "rare":
        return np.where(random.random(shape) < 0.01, random.integers(98, 103, shape), 100).astype(dtype)
    if kind == "random":
        return (random.standard_normal(shape) * 50).astype(dtype)
    return random.integers(0, 4 if kind == "few" else 1, shape).astype(dtype)


@st.composite
def values(draw: st.DrawFn, graph: Graph) -> dict[str, Array]:
    """Inputs of every kind."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    kinds = {name: draw(st.sampled_from(KINDS)) for name in graph.inputs}
    return {n: elements(graph.types[n].shape, graph.types[n].dtype, kind, random) for n, kind in kinds.items()}


def lowered(graph: Graph, machine: str = "avx2", threads: int = 2) -> CpuStages:
    return lower_imported(graph, Options(threads=threads), Machine.named(machine))


def answers(stages: CpuStages, given_: Mapping[str, Array], workers: int = 2) -> dict[str, Array]:
    """What the virtual machine gives."""
    shaped = {name: value.reshape(stages.program.buffer(name).shape) for name, value in given_.items()}
    found = interpret(stages.program, shaped, stages.lowered.weights, workers)
    return {name: value.reshape(stages.graph.types[name].shape) for name, value in found.items()}


def assert_equal(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    for name, want in wanted.items():
        assert found[name].dtype == want.dtype
        np.testing.assert_array_equal(found[name], want, name)


SIZES = (
    (1, 1),
    (5, 1),
    (80, 1),
    (1003, 1),
    (7, 7),
    (31, 30),
    (33, 2),
    (64, 2),
    (100, 60),
    (517, 5),
    (3001, 20),
    (300, 300),
)
"""(elements of a row, k): every way that the kernel goes."""


@cache
def many(machine: str) -> tuple[Graph, Session]:
    """Rows of every type and of all sizes, descending and ascending in turn."""
    net, outputs = Net(), []
    for number, (n, k) in enumerate(SIZES):
        for at, dtype in enumerate(("float32", "int64", TYPES[number % len(TYPES)])):
            x = net.input(3, n, dtype=dtype)
            outputs.append(net("order", x, axis=1, k=k, largest=bool((number + at) % 2)))
    graph = net.graph(*outputs)
    stages = lowered(graph, machine)
    assert {phase.task.template for phase in stages.program.phases()} == {"order"}
    return graph, Session(compiler.build(stages), threads=2)


@pytest.mark.parametrize("machine", RUNNABLE)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_positions_are_those_of_the_operator(machine: str, data: st.DataObject) -> None:
    graph, session = many(machine)
    inputs = data.draw(values(graph))
    assert_equal(session.run(inputs), evaluate(graph, inputs))


@pytest.mark.in_turn("largest", "machine")
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("machine", RUNNABLE)
def test_every_type_in_both_directions(machine: str, largest: bool) -> None:
    net = Net()
    sizes = ((130, 9), (40, 40), (50, 1))
    graph = net.graph(
        *(net("order", net.input(2, n, dtype=t), axis=1, k=k, largest=largest) for t in TYPES for n, k in sizes)
    )
    random = np.random.default_rng(4)
    with Session(compiler.build(lowered(graph, machine)), threads=2) as session:
        for kind in KINDS:
            types = ((name, graph.types[name]) for name in graph.inputs)
            inputs = {name: elements(t.shape, t.dtype, kind, random) for name, t in types}
            assert_equal(session.run(inputs), evaluate(graph, inputs))


@pytest.mark.parametrize("machine", ["avx512", "neon"])
def test_it_compiles_for_other_processors(machine: str) -> None:
    net, level = Net(), Machine.named(machine)
    kinds = [("float32", 1), ("float32", 5), ("float64", 200), ("uint8", 5), ("bool", 5)]
    graph = net.graph(*(net("order", net.input(2, 300, dtype=t), axis=1, k=k, largest=True) for t, k in kinds))
    stages = lowered(graph, machine)
    assert compile_shared(
        stages.source, machine=level, extra_flags=(f"-DMONONN_VECTOR_BYTES={level.vector_bytes}",)
    ).code


@st.composite
def sortings(draw: st.DrawFn) -> Graph:
    """Sorting along any axis, what is sorted being seen through a view or computed; positions cast afterwards."""
    net, dtype = Net(), draw(st.sampled_from(TYPES))
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    axis = draw(st.integers(0, len(shape) - 1))
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
            x = net("where", net("equal", x, x), x, net.input(*shape, dtype=dtype))
    found = net("order", x, axis=axis, k=draw(st.integers(1, shape[axis])), largest=draw(st.booleans()))
    return net.graph(net("cast", found, to=draw(st.sampled_from(["int64", "int32", "float32"]))))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 4))
def test_the_virtual_machine_agrees(data: st.DataObject, threads: int, workers: int) -> None:
    graph = data.draw(sortings())
    inputs = data.draw(values(graph))
    stages = lowered(graph, threads=threads)
    assert "order" in [phase.task.template for phase in stages.program.phases()]
    assert_equal(answers(stages, inputs, workers), evaluate(graph, inputs))


def test_rows_in_a_stored_row_are_read_in_place() -> None:
    """One below the other, beside one another, in the middle of a stored row; but not where they are columns."""
    net = Net()
    x, flat = net.input(4, 30), net.input(120)
    part = net("slice", x, starts=(1, 5), sizes=(2, 20), steps=(1, 1))
    seen = [x, net("reshape", flat, shape=(4, 30)), part, net("transpose", x, perm=(1, 0))]
    graph = net.graph(*(net("order", name, axis=1, k=2, largest=True) for name in seen))
    views = Views(graph, frozenset())
    wanted = [RowsView(x, 0, 0, False), RowsView(flat, 0, 0, True), RowsView(x, 1, 5, False), None]
    assert [RowsView.of(views, name) for name in seen] == wanted
    stages = lowered(graph)
    assert len(list(stages.program.phases())) == 5, "one copy"
    inputs = {x: np.random.default_rng(0).standard_normal((4, 30)).astype(np.float32)}
    inputs[flat] = inputs[x].reshape(-1)[::-1].copy()
    with Session(compiler.build(stages), threads=2) as session:
        assert_equal(session.run(inputs), evaluate(graph, inputs))
    assert_equal(answers(stages, inputs), evaluate(graph, inputs))


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32"])
def test_what_is_computed_is_stored_also_where_a_view_shows_it(dtype: str) -> None:
    net = Net()
    x = net.input(12, dtype=dtype)
    computed = net("where", net("equal", x, x), x, net.input(12, dtype=dtype))
    graph = net.graph(net("order", net("reshape", computed, shape=(3, 4)), axis=1, k=2, largest=True))
    inputs = {name: elements((12,), dtype, "random", np.random.default_rng(0)) for name in graph.inputs}
    assert_equal(answers(lowered(graph), inputs), evaluate(graph, inputs))


@pytest.mark.parametrize("largest", [True, False])
def test_a_long_row_is_shared_in_runs(largest: bool) -> None:
    net = Net()
    graph = net.graph(net("order", net.input(1, 4 << 16), axis=1, k=3, largest=largest))
    stages = lowered(graph)
    first = next(p for p in stages.program.phases() if p.task.template == "order")
    assert (first.task.params["length"], first.tasks) == (1 << 16, 2)
    random = np.random.default_rng(1)
    with Session(compiler.build(stages), threads=2) as session:
        for kind in KINDS:
            inputs = {"in0": elements((1, 4 << 16), "float32", kind, random)}
            assert_equal(session.run(inputs), evaluate(graph, inputs))


@pytest.mark.parametrize(
    ("shape", "k", "runs"),
    [
        ((1, 8 << 16), 3, 8),
        ((9 << 16,), 3, 8),
        ((1, 3 << 16), 3, 3),
        ((1, 4 << 16), 512, 2),
        ((1, 4 << 16), 2000, 1),
        ((2, 4 << 16), 3, 1),
        ((1, (4 << 16) + 1), 3, 1),
        ((1, 1 << 16), 3, 1),
    ],
)
def test_how_many_runs_a_row_has(shape: tuple[int, ...], k: int, runs: int) -> None:
    net = Net()
    graph = net.graph(net("order", net.input(*shape), axis=len(shape) - 1, k=k, largest=True))
    if runs == 1:
        unchanged(order.on_cpu, graph)
        return
    after = order.on_cpu(graph)
    first, second = (after.types[node.inputs[0]].shape for node in after.nodes if node.op == "order")
    assert first[-2:] == (runs, shape[-1] // runs) and second[-1] == runs * k


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_ranks_on_a_gpu(largest: bool, axis: int) -> None:
    net = Net()
    x = net("add", net.const(np.random.default_rng(0).integers(0, 4, (6, 5))), net.input())
    graph = net.graph(net("order", x, axis=axis, k=3, largest=largest))
    after = order.on_gpu(graph)
    assert_same(graph, after)
    assert "order" not in operators(after)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("shape", "k", "dtype", "axis"),
    [
        ((2, 1000), 5, "float32", 1),
        ((700, 3), 40, "float32", 0),
        ((3, 5000), 1, "int64", 1),
        ((1, 2500), 70, "int32", 1),
        ((2, 130), 130, "float32", 1),
    ],
)
def test_the_first_k_of_many_are_those_of_each_run(
    shape: tuple[int, int], k: int, dtype: str, axis: int, largest: bool
) -> None:
    net = Net()
    graph = net.graph(net("order", net.input(*shape, dtype=dtype), axis=axis, k=k, largest=largest))
    x = (np.random.default_rng(2).standard_normal(shape) * 50).astype(dtype)
    x.reshape(-1)[::8] = x.reshape(-1)[1]
    after = order.on_gpu(graph)
    assert_equal(evaluate(after, {"in0": x}), evaluate(graph, {"in0": x}))
    assert max(t.size for t in after.types.values()) <= 2 * x.size * max(64, 4 * k), "no matrix of all by all"


def test_a_gpu_sorts_no_long_rows() -> None:
    net = Net()
    graph = net.graph(net("order", net.input(9000), axis=0, k=5000, largest=True))
    unchanged(order.on_gpu, graph)
    with pytest.raises(UnsupportedError, match="the first 5000 of 9000 elements in order have no CUDA kernel yet"):
        pipeline.prepare(graph, "cuda")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"k": 31}, "the first 31 of 30 elements"),
        ({"k": 0}, "the first 0 of 30 elements"),
        ({"nbytes": 0}, "of 0 bytes do not exist"),
        ({"length": 10}, "2 rows of 30 elements are no rows of 10"),
        ({"largest": 1}, "'largest' is 1"),
    ],
)
def test_parameters_fit_the_rows(params: dict[str, object], message: str) -> None:
    net = Net()
    program = lowered(net.graph(net("order", net.input(4, 30), axis=1, k=3, largest=True))).program
    with pytest.raises(VerifyError, match=message):
        verify(changed(program, "order", **params))


def test_rows_are_whole() -> None:
    net = Net()
    x = net("reshape", net.input(120), shape=(4, 30))
    program = lowered(net.graph(net("order", x, axis=1, k=3, largest=True))).program
    with pytest.raises(VerifyError, match="1 rows of 60 elements are no rows of 25"):
        verify(changed(program, "order", length=25))
    with pytest.raises(VerifyError):  # four rows of 15 where two of 30 are stored
        verify(changed(program, "order", length=15))
    (phase,) = program.phases()
    x, out = phase.task.operands
    short = replace(x, box=replace(x.box, bound=(1, 110)))
    task = replace(phase.task, operands=(short, out))
    with pytest.raises(VerifyError, match="a row of operand 'x' is not whole"):
        verify(replace(program, body=(replace(phase, task=task),)))


@pytest.mark.parametrize("beside", [True, False])
def test_mutants_are_refused(beside: bool) -> None:
    """Rows dealt to owners, the last of whom has fewer, and the elements at their positions."""
    net, oracle = Net(), Oracle()
    x = net.input(280) if beside else net.input(7, 40)
    doubled = net("reshape", net("add", x, x), shape=(7, 40))
    places = net("order", doubled, axis=1, k=5, largest=True)
    program = lowered(net.graph(net("gather_elements", doubled, places, axis=1), places)).program
    assert [p.tasks for p in program.phases() if p.task.template == "order"] == [2]
    assert oracle.wrong(program) == ""
    found = list(mutants(program, oracle, 8))
    assert len(found) >= 50
    assert [(m.name, m.site) for m in found if not refusal(m.program)] == []
