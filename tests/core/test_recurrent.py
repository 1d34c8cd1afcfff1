"""Recurrent layers: the operator against ONNX Runtime, the template against the operator, steps written one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mononn_core import compiler
from mononn_core.compiler import CpuStages, lower_imported
from mononn_core.decide.cpu import CpuScheduler
from mononn_core.errors import UnsupportedError, VerifyError
from mononn_core.graph import Graph
from mononn_core.importer.reader import load
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.ops.recurrent import ROUNDED
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program.interpret import run as interpret
from mononn_core.program.ir import Loop, Phase
from mononn_core.program.verify import verify
from mononn_core.runtime.session import Session
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.schedule import GroupSchedule, Partition, Schedule
from tests.core.graphs import Net, operators
from tests.core.test_bf16 import NARROW
from tests.core.test_templates import changed

Array = np.ndarray[Any, Any]
RUNNABLE = [n for n in ("avx512", "avx2", "scalar") if Machine.named(n).features <= Machine.probe().features]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}


def lowered(graph: Graph, machine: str = "avx2", threads: int = 2, schedule: Schedule | None = None) -> CpuStages:
    return lower_imported(graph, Options(threads=threads), Machine.named(machine), schedule)


def recurrent(
    kind: str,
    sizes: tuple[int, int, int, int],
    direction: str = "forward",
    optional: tuple[str, ...] = ("b",),
    **attrs: Any,
) -> tuple[bytes, dict[str, Array]]:
    """An ONNX model of one layer and its inputs; sizes: steps, sequences, features, units. ``optional``: "b" biases,
    "l" lengths, "h" first states, "p" peepholes."""
    steps, rows, features, units = sizes
    random, gates = np.random.default_rng(sum(sizes)), GATES[kind]
    directions = 2 if direction == "bidirectional" else 1

    def floats(*shape: int) -> Array:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    stored = {"w": floats(directions, gates * units, features), "r": floats(directions, gates * units, units)}
    given = {"x": random.standard_normal((steps, rows, features)).astype(np.float32)}
    names = ["x", "w", "r", "", "", "", "", ""]
    if "b" in optional:
        stored["b"], names[3] = floats(directions, 2 * gates * units), "b"
    if "l" in optional:
        given["l"], names[4] = random.integers(1, steps + 1, rows).astype(np.int32), "l"
    for position in range(5, 5 + STATES[kind]) if "h" in optional else ():
        given[f"h{position}"], names[position] = floats(directions, rows, units), f"h{position}"
    if "p" in optional and kind == "LSTM":
        stored["p"], names[7] = floats(directions, 3 * units), "p"
    while not names[-1]:
        names.pop()
    if attrs.get("layout"):
        given["x"] = np.ascontiguousarray(given["x"].transpose(1, 0, 2))
    outputs = ["y", "y_h", "y_c"][: 1 + STATES[kind]]
    node = helper.make_node(kind, names, outputs, "layer", hidden_size=units, direction=direction, **attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in given.items()
    ]
    made = helper.make_graph(
        [node],
        "layer",
        inputs,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in stored.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString(), given


CASES: dict[str, tuple[Any, ...]] = {
    "lstm": ("LSTM", (5, 1, 8, 20)),
    "lstm, all there is": ("LSTM", (6, 3, 4, 17), "bidirectional", ("b", "l", "h", "p")),
    "lstm backwards": ("LSTM", (4, 2, 4, 40), "reverse", ("l",)),
    "gru": ("GRU", (5, 4, 8, 33), "bidirectional", ("b", "h", "l")),
    "gru, reset in front": ("GRU", (5, 3, 8, 20), "bidirectional", ("b", "h", "l")),
    "gru, reset in front, plain": ("GRU", (4, 1, 8, 70), "reverse", ()),
    "rnn": ("RNN", (6, 5, 8, 70), "bidirectional", ("b", "l")),
    "one step": ("LSTM", (1, 2, 4, 16), "bidirectional", ("b", "h")),
}
MORE: dict[str, dict[str, Any]] = {
    "lstm backwards": {"clip": 0.3, "input_forget": 1},
    "gru": {"linear_before_reset": 1},
    "rnn": {"activations": ["Relu", "Tanh"]},
}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_onnx_runtime(case: str) -> None:
    model, given = recurrent(*CASES[case], **MORE.get(case, {}))
    wanted = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, given)
    graph = load(model)
    for found in (evaluate(graph, given), session(lowered(graph)).run(given)):
        for value, want in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


def test_the_batch_may_come_first() -> None:
    sizes, optional = (5, 3, 4, 16), ("b",)
    model, given = recurrent("LSTM", sizes, "bidirectional", optional)
    first, turned = recurrent("LSTM", sizes, "bidirectional", optional, layout=1)
    y, h, c = evaluate(load(model), given).values()
    found = session(lowered(load(first))).run(turned)
    for value, want in zip(
        found.values(), (y.transpose(2, 0, 1, 3), *(v.transpose(1, 0, 2) for v in (h, c))), strict=True
    ):
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


def session(stages: CpuStages) -> Session:
    return Session(compiler.build(stages), threads=stages.options.threads)


def net_of(kind: str, sizes: tuple[int, int, int, int], reverse: tuple[int, ...], optional: tuple[str, ...]) -> Graph:
    """A recurrence alone; sizes: steps, sequences, units, 0. ``optional``: of "b", "p", "lengths", "before" (a GRU's
    reset gate in front of the product), "8" (weights of 8 bits on a scale a column), "int8" or "int16" (of those, with
    states rounded so)."""
    (steps, rows, units, _), gates, directions = sizes, GATES[kind.upper()], len(reverse)
    net, random = Net(), np.random.default_rng(units)
    weights = random.standard_normal((directions, units, gates * units)).astype(np.float32) / np.sqrt(units)
    scale = (np.abs(weights).max(1) / 127).astype(np.float32)
    whole = np.round(weights / scale[:, None])
    rounded = next((name for name in optional if name.startswith("int")), "")
    eight = "8" in optional or bool(rounded)
    inputs = [
        net.input(steps, rows, directions * gates * units),
        net.const(whole, "int8") if eight else net.const(weights),
        net.input(directions, rows, units),
        net.input(directions, rows, units) if kind == "lstm" else "",
        net.input(directions, gates * units) if "b" in optional else "",
        net.input(directions, 3 * units) if "p" in optional and kind == "lstm" else "",
        net.input(rows, dtype="int32") if "lengths" in optional else "",
        net.const(scale) if eight else "",
    ]
    names = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}[kind]
    found = net(
        "recurrence",
        *inputs,
        kind=kind,
        reverse=reverse,
        activations=",".join(names * directions),
        clip=0.0,
        coupled=False,
        after="before" not in optional,
        **({"rounded": rounded} if rounded else {}),
    )
    return net.graph(found)


def values_of(graph: Graph, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        name: (
            random.integers(0, 8, graph.types[name].shape)
            if graph.types[name].dtype == "int32"
            else random.standard_normal(graph.types[name].shape)
        ).astype(graph.types[name].dtype)
        for name in graph.inputs
    }


def small(name: str, l2_bytes: int = 4096) -> Machine:
    """The machine ``name`` with a second-level cache that holds no weights, or few."""
    return replace(Machine.named(name), l2_bytes=l2_bytes)


def dealt(graph: Graph, machine: str, threads: int, kind: str) -> CpuStages:
    """The recurrence dealt as ``kind`` says."""
    options = Options(threads=threads)
    groups = CpuGroups(pipeline.prepare(pipeline.run(graph), "cpu"), options, small(machine))
    own, root = next((s.own, s.root) for s in groups.stages if s.root is not None and s.root.op == "recurrence")
    template = "recurrence_bytes" if "rounded" in root.attrs else "recurrence"
    fixed = {own: GroupSchedule(own, template, Partition(kind, threads))}
    return lower_imported(graph, options, small(machine), CpuScheduler(groups).decide(fixed))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_virtual_machine_gives_the_operators_answer(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(("rnn", "gru", "lstm")))
    steps, rows, units = (data.draw(st.integers(1, n)) for n in (5, 5, 140))
    reverse = data.draw(st.sampled_from(((0,), (1,), (0, 1), (1, 1))))
    optional = data.draw(st.lists(st.sampled_from(("b", "p", "lengths", "before", "8", *ROUNDED)), unique=True))
    graph = net_of(kind, (steps, rows, units, 0), reverse, tuple(optional))
    threads = data.draw(st.integers(1, 3))
    machine = data.draw(st.sampled_from(("avx512", "avx2", "scalar")))
    ways = {"rows": rows % threads == 0, "batch": len(reverse) % threads == 0, "columns": units > 64 * (threads - 1)}
    kinds = ["single", *(way for way, fits in ways.items() if threads > 1 and fits)]
    stages = dealt(graph, machine, threads, data.draw(st.sampled_from(kinds)))
    given = values_of(graph, 3)
    shaped = {name: value.reshape(stages.program.buffer(name).shape) for name, value in given.items()}
    (found,) = interpret(stages.program, shaped, stages.lowered.weights, 2).values()
    (want,) = evaluate(graph, given).values()
    np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-4, atol=reach(optional))


def reach(optional: Sequence[str]) -> float:
    """How far answers may be apart: a number that is half a step between two may be rounded to either."""
    return next((1e-5 + steps for name, steps in (("int8", 2e-2), ("int16", 1e-4)) if name in optional), 1e-5)


COMPILED = [
    ("lstm", (7, 1, 72, 0), (0, 1), ("b", "lengths")),
    ("lstm", (9, 6, 36, 0), (0,), ("p",)),
    ("gru", (7, 5, 50, 0), (0, 1), ("b",)),
    ("gru", (8, 2, 150, 0), (1,), ("b", "before", "lengths")),
    ("gru", (6, 1, 40, 0), (0, 1), ("before",)),
    ("rnn", (7, 4, 100, 0), (1,), ("lengths",)),
    ("lstm", (5, 1, 90, 0), (0,), ("b", "8")),
    ("gru", (4, 3, 120, 0), (0, 1), ("before", "8")),
    ("lstm", (1, 5, 90, 0), (0, 1), ("b", "int8")),
    ("lstm", (6, 1, 131, 0), (0, 1), ("b", "int8")),
    ("gru", (4, 9, 70, 0), (0,), ("before", "int16")),
    ("gru", (1, 2, 140, 0), (0, 1), ("int16",)),
    ("rnn", (6, 3, 100, 0), (1,), ("lengths", "int16")),
]


@cache
def compiled(number: int, machine: str) -> Session:
    return session(lower_imported(net_of(*COMPILED[number]), Options(threads=2), small(machine)))


@pytest.mark.parametrize("machine", RUNNABLE)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, len(COMPILED) - 1), st.integers(0, 1 << 32))
def test_compiled_code_gives_the_operators_answer(machine: str, number: int, seed: int) -> None:
    graph = net_of(*COMPILED[number])
    given = values_of(graph, seed)
    (found,) = compiled(number, machine).run(given).values()
    _, (steps, *_), _, optional = COMPILED[number]
    alike = 1e-5 if steps == 1 else reach(optional)  # one step rounds what both are given
    np.testing.assert_allclose(found, next(iter(evaluate(graph, given).values())), rtol=1e-4, atol=alike)


@pytest.mark.parametrize("optional", [("b",), ("b", "int8"), ("int16",)])
def test_bits_do_not_depend_on_the_number_of_workers(optional: tuple[str, ...]) -> None:
    stages = lowered(net_of("lstm", (12, 3, 72, 0), (0, 1), optional), threads=4)
    artifact, given = compiler.build(stages), values_of(stages.graph, 1)
    first, *others = ([*Session(artifact, threads=n).run(given).values()] for n in (1, 2, 4))
    for other in others:
        np.testing.assert_array_equal(first[0], other[0])


def test_a_long_sequence_is_a_loop_and_its_owners_meet_behind_every_step() -> None:
    program = lowered(net_of("lstm", (600, 1, 128, 0), (0,), ())).program
    (loop,) = (item for item in program.body if isinstance(item, Loop))
    assert loop.count == 599 and len(loop.body) == 2


def test_owners_of_a_direction_each_do_not_meet() -> None:
    program = lowered(net_of("lstm", (50, 1, 128, 0), (0, 1), ())).program
    bodies = [item.body for item in program.body if isinstance(item, Loop)]
    assert [[phase.assign.owner.value for phase in body] for body in bodies] == [[0], [1]]  # type: ignore[union-attr]


@pytest.mark.parametrize(("l2_bytes", "loops"), [(1 << 17, 2), (1 << 18, 1)])
def test_directions_that_owners_share_follow_one_another_where_a_cache_holds_one(l2_bytes: int, loops: int) -> None:
    net = net_of("lstm", (50, 1, 128, 0), (0, 1), ())  # a direction's weights are 256 KiB, an owner has half
    groups = CpuGroups(pipeline.prepare(pipeline.run(net), "cpu"), Options(threads=2), small("avx2", l2_bytes))
    own = next(s.own for s in groups.stages if s.root is not None and s.root.op == "recurrence")
    items = groups.items(GroupSchedule(own, "recurrence", Partition("columns", 2)))
    assert [type(item) for item in items].count(Loop) == loops


@pytest.mark.parametrize(("l2_bytes", "kind"), [(1 << 17, "columns"), (1 << 18, "batch")])
def test_owners_share_a_direction_whose_weights_one_cache_does_not_hold(l2_bytes: int, kind: str) -> None:
    net = net_of("lstm", (50, 1, 128, 0), (0, 1), ())
    machine = replace(Machine.named("avx2"), l2_bytes=l2_bytes, l2_bandwidth=80e9, l3_bandwidth=10e9)
    groups = CpuGroups(pipeline.prepare(pipeline.run(net), "cpu"), Options(threads=2), machine)
    decided = CpuScheduler(groups).decide()
    (found,) = (group.partition.kind for group in decided.groups if group.template == "recurrence")
    assert found == kind


def test_a_reset_gate_in_front_of_the_product_takes_two_products_a_step() -> None:
    program = lowered(net_of("gru", (300, 1, 200, 0), (0,), ("before",))).program
    (loop,) = (item for item in program.body if isinstance(item, Loop))
    assert [type(item).__name__ for item in loop.body] == ["Barrier", "Phase"] * 2
    first, second = (item for item in loop.body if isinstance(item, Phase))
    assert (len(first.task.results), len(second.task.results)) == (2, 1)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_gpu_gets_the_steps_one_by_one_and_no_more_than_it_can_take(kind: str) -> None:
    model, given = recurrent(kind, (4, 2, 8, 20), "bidirectional")
    graph = load(model)
    after = pipeline.run(graph, "cuda")
    assert "recurrence" not in operators(after)
    for value, want in zip(evaluate(after, given).values(), evaluate(graph, given).values(), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)
    with pytest.raises(UnsupportedError, match="a recurrence of 300 steps is not compiled for this target"):
        pipeline.run(load(recurrent(kind, (300, 2, 8, 20))[0]), "cuda")


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"gates": 0}, "it has no tile"),
        ({"block": 7}, "are no blocks of 4 times 7"),
        ({"gates": 3, "block": 8}, "are no blocks of 3 times 8"),
    ],
)
def test_a_program_that_fits_together_badly_is_refused(params: dict[str, Any], text: str) -> None:
    program = lowered(net_of("lstm", (3, 2, 16, 0), (0,), ())).program
    with pytest.raises(VerifyError, match=text):
        verify(changed(program, "recurrence", **params))


def test_an_accumulator_that_no_gate_has_is_refused() -> None:
    program = lowered(net_of("lstm", (3, 2, 16, 0), (0,), ())).program
    fewer = changed(program, "recurrence", gates=2, block=16)
    with pytest.raises(VerifyError, match=r"uses accumulator [23]; there are 2"):
        verify(fewer)


def test_states_stay_as_they_are_computed_where_others_multiply_narrow_numbers() -> None:
    net, units = Net(), 64
    first = net.const(np.zeros((1, 3, units)))
    settled = {"reverse": (0,), "activations": "sigmoid,tanh,tanh", "clip": 0.0, "coupled": False, "after": True}
    weights, given = net.random(1, units, 4 * units), net.input(5, 3, 4 * units)
    states = net("recurrence", given, weights, first, first, "", "", "", kind="lstm", **settled)
    shown = net("slice", states, starts=(0, 0, 0, 0), sizes=(1, 5, 3, units), steps=(1, 1, 1, 1))
    graph = net.graph(net("matmul", net("reshape", shown, shape=(15, units)), net.random(units, units)))
    program = lower_imported(graph, Options(threads=2, precision="bf16"), NARROW).program
    assert {b.dtype for b in program.buffers if b.space == "arena"} == {"float32"}


@pytest.mark.parametrize(("units", "kind"), [(25, "single"), (256, "columns")])
def test_units_are_shared_where_meeting_in_every_step_takes_less_than_their_work(units: int, kind: str) -> None:
    stages = lowered(net_of("lstm", (50, 1, units, 0), (0,), ()), "avx512")
    (found,) = (group.partition.kind for group in stages.lowered.schedule.groups if group.template == "recurrence")
    assert found == kind


@pytest.mark.parametrize("units", [64, 40, 25])
def test_the_last_units_that_are_no_whole_vector_are_computed_in_one(units: int) -> None:
    source = lowered(net_of("lstm", (5, 1, units, 0), (0,), ("b", "lengths")), "avx512").source
    assert ("auto tail_" in source) == (units % 16 > 0) and "lane_ <" not in source
