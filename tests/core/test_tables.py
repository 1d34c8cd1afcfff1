"""What is computed between two quantisations of one tensor alone is looked up in a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.compiler.cpu import product_features
from mononn_core.graph import Graph
from mononn_core.importer import load
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.passes import pipeline, tables
from mononn_core.runtime.session import Session
from tests.core.networks import Builder
from tests.core.test_quantised import HERE, LEVELS, STEP, Quantised

EVERYWHERE = LEVELS | ({"avx512": Machine.named("avx512")} if Machine.named("avx512").features <= HERE.features else {})
LOOKUPS = {"avx512vbmi"}
NUMBERS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
IMAGE = (1, 5, 9, 7)


def ops(model: bytes) -> list[str]:
    """Operators of the Graph that is lowered for a CPU."""
    graph: Graph = pipeline.prepare(pipeline.run(load(model, {})), "cpu")
    return [n.op for n in graph.nodes]


def silu(b: Quantised, x: str) -> str:
    """As converters write it: the sigmoid is quantised by a scale of its own."""
    zero = b.constant(np.array({"int8": -128, "uint8": 0}[b.activations], b.activations))
    scale = b.constant(np.float32(1 / 255))
    s = b.add("QuantizeLinear", b.add("Sigmoid", x), scale, zero)
    return b.rounded(b.add("Mul", x, b.add("DequantizeLinear", s, scale, zero)))


def convolutions(activations: str) -> bytes:
    """Two convolutions, the second depthwise, with a SiLU behind each."""
    b = Quantised(activations, "int8", per_channel=True)
    x = b.rounded("x")
    for shape, groups in (((20, 5, 1, 1), 1), ((20, 1, 3, 3), 20)):
        w = b.quantised_weight(*shape, axis=0)
        x = silu(b, b.rounded(b.add("Conv", x, w, group=groups, kernel_shape=shape[2:])))
    b.add("Identity", x, output="y")
    return b.model({"x": (TensorProto.FLOAT, IMAGE)}, {"y": (1, 20, 7, 5)})


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_a_silu_is_one_lookup_on_every_processor(activations: str) -> None:
    model = convolutions(activations)
    found = ops(model)
    assert found.count("lookup") == 2 and "sigmoid" not in found
    assert found.count("dequantize") == 1, "what is looked up is multiplied by nothing"
    x = np.random.default_rng(1).standard_normal(IMAGE).astype(np.float32) * 2
    want, answers = evaluate(load(model, {}), {"x": x})["y"], dict[str, np.ndarray]()
    for name, machine in EVERYWHERE.items():
        with Session(compiler.build(compiler.lower(model, threads=2, machine=machine)), threads=2) as session:
            answers[name] = session.run({"x": x})["y"]
        steps = np.abs(answers[name] - want) / STEP
        assert steps.max() < 2.01 and (steps > 0.01).mean() < 0.02, name
        np.testing.assert_array_equal(answers[name], answers["here"])


@pytest.mark.parametrize("level", list(EVERYWHERE))
@pytest.mark.parametrize(("source", "to"), [("uint8", "uint8"), ("int8", "int8"), ("uint8", "int8"), ("int8", "uint8")])
def test_every_byte_has_its_answer(level: str, source: str, to: str) -> None:
    """Of bytes in memory: 256 in a row, and 7 of them, which fill no vector."""
    for count in (256, 7):
        b = Builder("bytes")
        y = b.add("DequantizeLinear", "x", b.constant(np.float32(0.05)), b.constant(np.array(3, source)))
        to_y = b.constant(np.float32(1 / 120)), b.constant(np.array(5 if to == "int8" else 120, to))
        b.add("DequantizeLinear", b.add("QuantizeLinear", b.add("Tanh", y), *to_y), *to_y, output="y")
        model = b.model({"x": (NUMBERS[source], (count,))}, {"y": (count,)})
        assert ops(model) == ["lookup", "dequantize"]
        x = np.arange(count).astype(np.uint8).view(source)
        with Session(compiler.build(compiler.lower(model, threads=1, machine=EVERYWHERE[level])), threads=1) as session:
            np.testing.assert_array_equal(session.run({"x": x})["y"], evaluate(load(model, {}), {"x": x})["y"])


@pytest.mark.parametrize("case", ["scales of channels", "two tensors", "few operations"])
def test_where_there_is_no_table(case: str) -> None:
    b = Quantised("uint8", "int8", per_channel=True)
    x = b.rounded("x")
    if case == "scales of channels":
        x = b.add("Mul", x, b.weight(6))
    y = b.add("Relu" if case == "few operations" else "Sigmoid", x)
    y = b.add("Mul", y, b.rounded("z")) if case == "two tensors" else y
    b.rounded(y, output="y")
    inputs = dict.fromkeys(("x", *("z" if case == "two tensors" else "")), (TensorProto.FLOAT, (4, 6)))
    assert "lookup" not in ops(b.model(inputs, {"y": (4, 6)}))


UNARY = ("Sigmoid", "Tanh", "Relu", "Neg", "Abs", "Erf", "HardSigmoid", "Exp", "Softplus")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from((*UNARY, "Mul", "Add", "rounded")), min_size=1, max_size=8),
    st.sampled_from(["uint8", "int8"]),
    st.data(),
)
def test_a_graph_with_lookups_answers_as_before(steps: list[str], kind: str, data: st.DataObject) -> None:
    """Whatever stands between quantisations: all bytes, bit for bit."""
    b = Quantised(kind, "int8", per_channel=False)
    seen = [b.add("DequantizeLinear", "x", b.scale, b.zero)]
    for step in steps:
        x = data.draw(st.sampled_from(seen))
        if step == "rounded":
            seen.append(b.rounded(x))
        elif step in ("Mul", "Add"):
            seen.append(b.add(step, x, data.draw(st.sampled_from([*seen, b.constant(np.float32(0.7))]))))
        else:
            seen.append(b.add(step, x))
    b.rounded(seen[-1], output="y")
    graph = load(b.model({"x": (NUMBERS[kind], (256,))}, {"y": (256,)}), {})
    x = np.arange(256).astype(np.uint8).view(kind)
    found, want = (evaluate(g, {"x": x})["y"] for g in (tables.run(graph), graph))
    np.testing.assert_array_equal(found, want)


def test_only_the_widest_vectors_look_bytes_up_at_once() -> None:
    machine, avx2 = Machine.named("avx512"), Machine.named("avx2")
    able = replace(machine, features=machine.features | LOOKUPS)
    program = compiler.lower(convolutions("uint8"), threads=2, machine=able).program
    assert product_features(program, able) == LOOKUPS and product_features(program, machine) == frozenset()
    assert product_features(program, replace(avx2, features=avx2.features | LOOKUPS)) == frozenset()
