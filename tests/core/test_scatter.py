"""Scatters at positions known at run time, on a CPU: exactly as the operators' semantics say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.compiler import CpuStages, lower_imported
from mononn_core.errors import InputError, VerifyError
from mononn_core.graph import Graph
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import Options
from mononn_core.passes import scatters
from mononn_core.program.interpret import run as interpret
from mononn_core.program.verify import verify
from mononn_core.runtime.session import Session
from tests.core.graphs import Net, assert_same, operators, unchanged
from tests.core.models import model, node
from tests.core.test_templates import changed

Array = np.ndarray[Any, Any]
RUNNABLE = [n for n in ("avx512", "avx2", "scalar") if Machine.named(n).features <= Machine.probe().features]
REDUCTIONS = ("none", "add", "mul", "max", "min")
ND = (((6, 5, 4), 1), ((6, 5, 4), 2), ((6, 5, 4), 3), ((3, 130), 2), ((9,), 1), ((7, 128), 1), ((1, 3), 1))
"""Shapes of data, and how many of their axes a position names."""
ELEMENTS = (((6, 5), (3, 5), 0), ((4, 6, 5), (4, 2, 5), 1), ((3, 130), (2, 70), 1), ((1000,), (90,), 0))
"""Shapes of data and updates, and the axis."""


def lowered(graph: Graph, machine: str = "avx2", threads: int = 2) -> CpuStages:
    return lower_imported(graph, Options(threads=threads), Machine.named(machine))


def scattered(op: str, shape: tuple[int, ...], updates: tuple[int, ...], what: int, how: str, dtype: str) -> Graph:
    """``what``: how many axes a position names (scatter_nd), or the axis. The data is an input, and so is the rest."""
    net = Net()
    data = net.input(*shape, dtype=dtype)
    if op == "scatter_nd":
        where = net.input(*updates, what, dtype="int64")
        made = net.input(*updates, *shape[what:], dtype=dtype)
        return net.graph(net(op, data, where, made, reduction=how))
    where, made = net.input(*updates, dtype="int32"), net.input(*updates, dtype=dtype)
    return net.graph(net(op, data, where, made, reduction=how, axis=what))


@st.composite
def inputs(draw: st.DrawFn, graph: Graph) -> dict[str, Array]:
    """Any values; positions from either end, more than once without a reduction too."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    (node,) = (n for n in graph.nodes if n.op.startswith("scatter"))
    data = graph.types[node.inputs[0]].shape
    extents = np.array(data[: graph.types[node.inputs[1]].shape[-1]])
    if node.op == "scatter_elements":
        extents = np.array(data[int(node.attrs["axis"])])
    found: dict[str, Array] = {}
    for name in graph.inputs:
        kind = graph.types[name]
        if name == node.inputs[1]:
            found[name] = random.integers(-extents, extents, kind.shape).astype(kind.dtype)
        elif kind.dtype == "bool":
            found[name] = random.integers(0, 2, kind.shape).astype(bool)
        else:
            special = random.random(kind.shape) < 0.1 if kind.dtype == "float32" else np.zeros(kind.shape, bool)
            found[name] = np.where(special, np.nan, random.integers(-9, 9, kind.shape)).astype(kind.dtype)
    return found


CASES = [
    *(("scatter_nd", shape, (5,), depth) for shape, depth in ND),
    ("scatter_nd", (6, 5, 4), (2, 3), 1),
    *(("scatter_elements", shape, updates, axis) for shape, updates, axis in ELEMENTS),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_virtual_machine_gives_the_operators_answer(case: Any, data: st.DataObject) -> None:
    op, shape, updates, what = case
    dtype = data.draw(st.sampled_from(("float32", "int64", "int32", "uint8", "bool")))
    how = "none" if dtype == "bool" else data.draw(st.sampled_from(REDUCTIONS))
    graph = scattered(op, shape, updates, what, how, dtype)
    values = data.draw(inputs(graph))
    stages = lowered(graph, threads=data.draw(st.integers(1, 3)))
    assert "scatter_runs" in {phase.task.template for phase in stages.program.phases()}
    shaped = {name: value.reshape(stages.program.buffer(name).shape) for name, value in values.items()}
    (found,) = interpret(stages.program, shaped, stages.lowered.weights, 2).values()
    (want,) = evaluate(graph, values).values()
    np.testing.assert_array_equal(found.reshape(want.shape), want)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("machine", RUNNABLE)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_compiled_code_gives_the_operators_answer(machine: str, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(CASES) - 1))
    op, shape, updates, what = CASES[number]
    dtype = ("float32", "int64", "uint8", "float32", "int32")[number % 5]
    graph = scattered(op, shape, updates, what, REDUCTIONS[number % 5 if number % 2 else 1], dtype)
    values = data.draw(inputs(graph))
    (found,) = session(number, machine, graph).run(values).values()
    np.testing.assert_array_equal(found, next(iter(evaluate(graph, values).values())))


SESSIONS: dict[tuple[int, str], Session] = {}


def session(number: int, machine: str, graph: Graph) -> Session:
    if (number, machine) not in SESSIONS:
        SESSIONS[number, machine] = Session(compiler.build(lowered(graph, machine)), threads=2)
    return SESSIONS[number, machine]


def test_what_it_reads_and_what_reads_it_is_fused_or_stored() -> None:
    net = Net()
    x, where, made = net.input(4, 8, 16), net.input(5, 1, dtype="int64"), net.input(5, 8, 16)
    part = net("slice", net.input(9, 8, 16), starts=(2, 0, 0), steps=(1, 1, 1), sizes=(4, 8, 16))
    wide = net("scatter_nd", net("relu", x), where, net("neg", made), reduction="add")
    other = net(
        "scatter_nd",
        part,
        where,
        net("slice", net.input(5, 8, 40), starts=(0, 0, 8), steps=(1, 1, 1), sizes=(5, 8, 16)),
        reduction="max",
    )
    graph = net.graph(
        net("mul", net("exp", wide), net("reshape", net("transpose", other, perm=(0, 2, 1)), shape=(4, 8, 16)))
    )
    random = np.random.default_rng(2)
    values = {n: random.standard_normal(graph.types[n].shape).astype(np.float32) for n in graph.inputs if n != where}
    values[where] = np.array([[1], [-1], [1], [0], [3]])
    stages = lowered(graph)
    with Session(compiler.build(stages), threads=2) as compiled:
        found = compiled.run(values)
    shaped = {name: value.reshape(stages.program.buffer(name).shape) for name, value in values.items()}
    seen = interpret(stages.program, shaped, stages.lowered.weights, 2)
    for name, want in evaluate(graph, values).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-5)
        np.testing.assert_allclose(seen[name].reshape(want.shape), want, rtol=1e-5)


@pytest.mark.parametrize("bad", [(6, 0), (-7, 0), (0, 4), (1, -5)])
def test_a_position_that_does_not_exist_is_reported(bad: tuple[int, int]) -> None:
    graph = scattered("scatter_nd", (6, 4), (2,), 2, "none", "float32")
    where = np.array([[2, 1], bad])
    given_ = dict(zip(graph.inputs, (np.zeros((6, 4), "float32"), where, np.ones(2, "float32")), strict=True))
    with (
        Session(compiler.build(lowered(graph)), threads=2) as compiled,
        pytest.raises(InputError, match="out of range"),
    ):
        compiled.run(given_)


def test_positions_that_name_no_axis_are_lowered() -> None:
    stages = lowered(scattered("scatter_nd", (6, 5), (2,), 0, "add", "float32"))
    assert "scatter_runs" in {phase.task.template for phase in stages.program.phases()}


def test_constant_positions_that_nearly_all_meet_are_no_table() -> None:
    net = Net()
    where = net.const(np.zeros((500, 1)), "int64")
    graph = net.graph(net("scatter_nd", net.input(4000), where, net.input(500), reduction="add"))
    unchanged(scatters.run, graph)


def test_one_axis_of_many_elements_is_cut_into_rows_for_all_owners() -> None:
    stages = lowered(scattered("scatter_nd", (1 << 16,), (100,), 1, "add", "float32"))
    (phase,) = (p for p in stages.program.phases() if p.task.template == "scatter_runs")
    assert phase.tasks == 2 and phase.task.params["columns"] == 4096


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"reduction": "sub"}, "none it knows"),
        ({"size": 3}, "none it knows"),
        ({"columns": 8}, "are no rows of 8"),
        ({"size": 2}, "'targets' and 'updates' differ"),
    ],
)
def test_a_program_that_fits_together_badly_is_refused(params: dict[str, Any], text: str) -> None:
    program = lowered(scattered("scatter_nd", (6, 4), (3,), 1, "none", "float32")).program
    with pytest.raises(VerifyError, match=text):
        verify(changed(program, "scatter_runs", **params))


@pytest.mark.parametrize(
    ("rows", "blocks"),
    [
        ([[0], [1], [2], [3], [4]], True),  # all of it, in order
        ([[4], [2], [3], [0]], True),  # not in order, and one row stays
        ([[1, 2], [2, 3], [2]], True),  # some are set twice
        ([[3, 1], [0, 0]], False),  # in one step, too: the last one stays
        ([[2]], True),
    ],
)
@pytest.mark.parametrize("between", [False, True])
def test_rows_set_one_after_the_other_are_a_concatenation(rows: list[list[int]], blocks: bool, between: bool) -> None:
    """What an exporter writes for ``out[t] = h`` in a loop; where each step's tensor is read one a step, since the
    parts of all would be as many as the square of the steps."""
    net = Net()
    data, read = net.input(5, 3), []
    for some in rows:
        where, updates = net.const(np.array(some)[:, None], "int64"), net.input(len(some), 3)
        data = net("scatter_nd", data, where, updates, reduction="none")
        if between or some is rows[-1]:
            read.append(net("neg", data))
    graph = net.graph(*read)
    changed = scatters.run(graph)
    assert_same(graph, changed)
    kinds = operators(changed)
    wanted = {"concat": 1} if not between else {"concat": len(rows)} if blocks else {"where": len(rows)}
    assert {kind: kinds[kind] for kind in ("concat", "where") if kind in kinds} == wanted


def test_updates_of_scatters_and_sums_are_no_rows_set_one_after_the_other() -> None:
    net = Net()
    one, two = (net.const([[i]], "int64") for i in (1, 2))
    inner = net("scatter_nd", net.input(1, 3), net.const([[0]], "int64"), net.input(1, 3), reduction="none")
    outer = net("scatter_nd", net.input(4, 3), one, inner, reduction="none")
    graph = net.graph(net("scatter_nd", outer, two, net.input(1, 3), reduction="add"))
    assert_same(graph, scatters.run(graph))


def test_nothing_is_put_anywhere_whatever_its_shape() -> None:
    """As exporters write an assignment to an empty slice."""
    shapes = {"x": (4, 6, 6), "i": (0, 5, 5, 1), "u": (0, 5, 5)}
    kinds = {"x": "float32", "i": "int64", "u": "float32"}
    text = model([node("ScatterND", "x i u", "y")], [(n, kinds[n], s) for n, s in shapes.items()], ["y"])
    x = np.random.default_rng(0).standard_normal(shapes["x"]).astype(np.float32)
    empty = {n: np.zeros(shapes[n], kinds[n]) for n in "iu"}
    with compiler.compile(text.SerializeToString(), threads=2) as session:
        np.testing.assert_array_equal(session.run({"x": x, **empty})["y"], x)
