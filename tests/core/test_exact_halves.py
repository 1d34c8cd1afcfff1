"""Weights that 16 bits hold as they are: stored so where few rows wait for them, and no bit of an answer changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mononn_core as mononn
from mononn_core.compiler import CpuStages, Stages, build_family, lower
from mononn_core.machine import Machine
from mononn_core.program.interpret import run as interpret
from mononn_core.runtime.session import Session
from mononn_core.schedule import phases
from mononn_core.schedule.narrow import CHUNK, exactly_half

Array = np.ndarray[Any, Any]
RUNNABLE = [n for n in ("avx512", "avx2", "scalar") if Machine.named(n).features <= Machine.probe().features]
RANDOM = np.random.default_rng(11)
SMALL = replace(Machine.probe(), l2_bytes=1 << 20, l3_bytes=1 << 25)
"""This processor, its caches of a known size."""


def halves(shape: tuple[int, ...], kind: str) -> Array:
    """Random numbers of such a type, some of them its smallest, as float32."""
    values = (RANDOM.standard_normal(shape) * np.exp(RANDOM.uniform(-14, 1, shape))).astype(np.float32)
    return values.astype(getattr(ml_dtypes, kind, kind)).astype(np.float32)


def perceptron(rows: int | str, weights: list[Array]) -> bytes:
    """y = relu(x w0) w1 .."""
    nodes, x = [], "x"
    for i in range(len(weights)):
        nodes += [helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]), helper.make_node("Relu", [f"m{i}"], [f"r{i}"])]
        x = f"r{i}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, size])
        for name, size in (("x", weights[0].shape[0]), (x, weights[-1].shape[1]))
    ]
    constants = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def stored(stages: Stages) -> set[str]:
    """The types of the packed weights."""
    return {b.dtype for b in stages.program.buffers if b.space == "weight" and "@" in b.id}


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_what_is_exactly_a_half(kind: str) -> None:
    values = halves((3, CHUNK), kind)
    assert exactly_half(values) == kind
    values[2, -1] = np.float32(0.1)
    assert exactly_half(values) == "", "the last one alone is none"


def test_the_ends_of_binary16() -> None:
    ends = np.array([0, -0.0, 65504, -65504, 2.0**-24, 3 * 2.0**-24, 2.0**-14, 1], np.float32)
    assert exactly_half(ends) == "float16"
    assert exactly_half(np.array([65536.0], np.float32)) == "bfloat16"
    for one in (2.0**-25 + 2.0**-24, 2.0**-14 + 2.0**-25, 65505, 65504 + 16, np.inf + 1, 2.0**-126 * 1.001):
        assert exactly_half(np.append(ends, np.float32(one))) == ""


@pytest.mark.in_turn("machine", "kind", "rows")
@pytest.mark.parametrize("machine", [*RUNNABLE, "this"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 3, 7, 8])
def test_no_bit_changes(rows: int, kind: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron(rows, [halves((70, 130), kind), halves((130, 1100), kind), halves((1100, 9), kind)])
    monkeypatch.setattr(phases, "FAR", 0)
    level = Machine.probe() if machine == "this" else Machine.named(machine)
    x = RANDOM.standard_normal((rows, 70)).astype(np.float32)
    stages = lower(model, machine=level, threads=2)
    assert isinstance(stages, CpuStages) and stored(stages) == {kind}
    (name, found), *_ = Session(stages.build()).run({"x": x}).items()
    seen = interpret(stages.program, {"x": x}, stages.lowered.weights, 1)[name]
    assert np.linalg.norm(seen.reshape(found.shape) - found) < 1e-6 * np.linalg.norm(found)
    monkeypatch.setattr(phases, "exactly_half", lambda _: "")
    floats = lower(model, machine=level, threads=2, schedule=stages.lowered.schedule)
    assert stored(floats) == {"float32"}
    np.testing.assert_array_equal(found, Session(floats.build()).run({"x": x})[name])


def test_more_rows_of_what_caches_hold_and_other_numbers_stay_floats() -> None:
    for model in (
        perceptron(3, [halves((64, 64), "float16")]),
        perceptron(2, [RANDOM.standard_normal((64, 64)).astype(np.float32)]),
    ):
        assert stored(lower(model, threads=2, machine=SMALL)) == {"float32"}


@pytest.mark.parametrize(("rows", "kind"), [((2, 8), "float16"), ((4, 64), "float32")])
def test_a_family_has_one_copy(rows: tuple[int, ...], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the one with most rows stores it."""
    monkeypatch.setattr(phases, "FAR", 0)
    weights = [halves((1200, 1100), "float16"), halves((1100, 1200), "float16")]
    model = perceptron("n", weights)
    family = build_family(model, [{"x": (n, 1200)} for n in rows], threads=2, machine=SMALL)
    size = sum(w.size for w in weights) * (2 if kind == "float16" else 4)
    assert size <= family.manifest["weight_bytes"] < 1.1 * size
    with Session(family) as session:
        for n in rows:
            x = RANDOM.standard_normal((n, 1200)).astype(np.float32)
            (y,) = session.run({"x": x}).values()
            exact = np.maximum(np.maximum(x @ weights[0].astype(float), 0) @ weights[1].astype(float), 0)
            assert np.linalg.norm(y - exact) < 1e-5 * np.linalg.norm(exact)


def test_a_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "FAR", 0)
    units, steps = 384, 5  # of weights of a direction more than the second-level cache holds
    constants = {"w": halves((2, 4 * units, 24), "float16"), "r": halves((2, 4 * units, units), "float16") / 16}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=units, direction="bidirectional")
    edges = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, 1, 24)),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (steps, 2, 1, units)),
    ]
    tensors = [numpy_helper.from_array(v.astype(np.float16).astype(np.float32), n) for n, v in constants.items()]
    graph = helper.make_graph([node], "lstm", edges[:1], edges[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    x = RANDOM.standard_normal((steps, 1, 24)).astype(np.float32)
    stages = lower(model, threads=2, machine=SMALL)
    assert isinstance(stages, CpuStages) and stored(stages) == {"float16"}, "of both products"
    monkeypatch.setattr(phases, "exactly_half", lambda _: "")
    floats = lower(model, threads=2, machine=SMALL, schedule=stages.lowered.schedule)
    assert stored(floats) == {"float32"}
    found, same = (Session(each.build()).run({"x": x})["y"] for each in (stages, floats))
    np.testing.assert_array_equal(found, same)


def test_a_family_with_few_rows_by_what_is_computed() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["v"], ["r"]),
        helper.make_node("MatMul", ["a", "r"], ["y"]),
    ]
    sizes = {"x": ["n", 64], "v": [640, 96], "y": ["n", 96]}
    x, v, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes.items())
    w = halves((64, 640), "float16")
    graph = helper.make_graph(nodes, "computed", [x, v], [y], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    given = {"x": RANDOM.standard_normal((2, 64)).astype(np.float32), "v": halves((640, 96), "float16")}
    found = mononn.compile(model, shapes=[{"x": (1, 64)}, {"x": (2, 64)}], threads=2).run(given)["y"]
    exact = given["x"] @ w.astype(float) @ np.maximum(given["v"].astype(float), 0)
    assert np.linalg.norm(found - exact) < 1e-5 * np.linalg.norm(exact)
