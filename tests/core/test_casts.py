"""Values of other types than float behind a product: in its epilogue or a stage of their own, as ONNX says."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.runtime.session import Session
from tests.core.models import model, node

FLOAT, WORDS = TensorProto.FLOAT, ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Pow")
Nodes = list[tuple[str, str, dict[str, int]]]


def cast(to: int) -> tuple[str, str, dict[str, int]]:
    return ("Cast", "", {"to": to})


def back(name: str, first: str = "Mul half") -> Nodes:
    """To a type and back."""
    operator, other = first.partition(" ")[::2]
    return [(operator, other, {}), cast(TensorProto.DataType.Value(name)), cast(FLOAT), ("Add", "half", {})]


def words(operator: str) -> Nodes:
    return [cast(TensorProto.INT32), (operator, "three", {}), cast(FLOAT)]


CHAINS: dict[str, Nodes] = {
    **{f"{name} and back": back(name, "Abs") for name in ("UINT8", "UINT16", "UINT32", "UINT64")},
    **{f"{name} and back": back(name) for name in ("INT8", "INT16", "INT32", "INT64", "BOOL", "DOUBLE")},
    **{
        f"to {name}": [("Abs", "", {}), cast(TensorProto.DataType.Value(name))]
        for name in ("UINT8", "INT8", "UINT16", "INT16", "INT32")
    },
    **{f"words: {operator}": words(operator) for operator in WORDS},
    "words: Abs": [cast(TensorProto.INT32), ("Abs", "", {}), ("Neg", "", {}), cast(FLOAT)],
    "words: Less": [cast(TensorProto.INT32), ("Less", "three", {}), cast(FLOAT)],
    "bytes: Add": [("Abs", "", {}), cast(TensorProto.UINT8), ("Add", "byte", {}), cast(FLOAT)],
    "Less": [("Less", "half", {}), cast(FLOAT), ("Mul", "half", {})],
    "Not": [("Greater", "half", {}), ("Not", "", {}), cast(FLOAT)],
    "IsNaN": [("Log", "", {}), ("IsNaN", "", {}), cast(FLOAT)],
    "Less to words": [("Less", "half", {}), cast(TensorProto.INT32)],
    "Less to bytes": [("Less", "half", {}), cast(TensorProto.UINT8)],
}


@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_what_follows_a_product(level: str) -> None:
    """Every chain of its own product, in one network, against ONNX's reference; the products' values are whole or
    halves, so that no rounding hides or makes a difference."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    random = np.random.default_rng(0)
    constants = {"half": np.float32(0.5), "three": np.int32(3), "byte": np.uint8(3)}
    nodes, outputs = [], []
    for number, (name, chain) in enumerate(CHAINS.items()):
        constants[f"w{number}"] = random.integers(-3, 4, (6, 21)).astype(np.float32)
        value = f"v{number}"
        nodes.append(node("MatMul", f"x w{number}", value))
        for step, (operator, other, attributes) in enumerate(chain):
            nodes.append(node(operator, f"{value} {other}".strip(), f"v{number}_{step}", **attributes))
            value = f"v{number}_{step}"
        outputs.append((name, value))
    proto = model(nodes, [("x", "float32", (5, 6))], [value for _, value in outputs], constants)
    x = random.integers(-4, 5, (5, 6)).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(proto).run(None, {"x": x})
    artifact = compiler.build(compiler.lower(proto.SerializeToString(), threads=2, machine=machine))
    with Session(artifact, threads=2) as session:
        found = session.run({"x": x})
    wrong = [n for (n, v), want in zip(outputs, wanted, strict=True) if not np.array_equal(found[v], want)]
    assert wrong == []


@pytest.mark.parametrize("kind", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_integers_are_interpolated_as_numbers(mode: str, kind: str) -> None:
    resize = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    proto = model([resize], [("x", kind, (1, 2, 5, 6))], ["y"], scales)
    low = 0 if kind == "uint8" else -120
    x = np.random.default_rng(1).integers(low, 120, (1, 2, 5, 6)).astype(kind)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    artifact = compiler.build(compiler.lower(proto.SerializeToString(), threads=2))
    with Session(artifact, threads=2) as session:
        found = session.run({"x": x})["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_large_whole_constants() -> None:
    """More digits than a float32 has, in vectors of int32."""
    constants = {"a": np.array(16777217, np.int32), "b": np.array(33554435, np.int32)}
    proto = model([node("Add", "x a", "s"), node("Mul", "s b", "y")], [("x", "int32", (3, 50))], ["y"], constants)
    x = np.arange(150, dtype=np.int32).reshape(3, 50)
    with Session(compiler.build(compiler.lower(proto.SerializeToString(), threads=2)), threads=2) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], (x + constants["a"]) * constants["b"])


@pytest.mark.parametrize("kind", ["uint16", "int16", "uint8", "int8"])
@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
def test_quantised_values_are_computed_in_vectors(level: str, kind: str) -> None:
    """A quantised tensor that two read is stored, another one is a rounded float on its way; the third power is two
    products. Powers of two as scales, so that no rounding decides."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    constants = {
        "scale": np.float32(2.0**-5),
        "zero": np.array((low + high) // 2 + 1, kind),
        "fine": np.float32(2.0**-9),
        "three": np.float32(3),
    }
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("Transpose", "q", "turned", perm=(1, 0)),
        node("DequantizeLinear", "q scale zero", "d"),
        node("Pow", "d three", "p"),
        node("QuantizeLinear", "p fine zero", "r"),
        node("DequantizeLinear", "r fine zero", "s"),
        node("Sub", "s d", "y"),
    ]
    proto = model(nodes, [("x", "float32", (37, 50))], ["y", "q", "turned"], constants, opset=21)
    x = (np.random.default_rng(2).standard_normal((37, 50)) * 3).astype(np.float32)
    wanted = ReferenceEvaluator(proto).run(None, {"x": x})
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert "powf" not in stages.source
    assert "rintf" not in stages.source
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run({"x": x})
    for name, want in zip(("y", "q", "turned"), wanted, strict=True):
        np.testing.assert_array_equal(found[name], want)


@pytest.mark.parametrize("zero", [0, 77])
@pytest.mark.parametrize("kind", ["uint16", "int16", "uint8", "int8"])
@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
def test_what_is_quantised_is_the_nearest_whole_number(level: str, kind: str, zero: int) -> None:
    """Ties to the even one before an odd zero point is added, numbers far out and infinite ones to the ends."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    constants = {"scale": np.float32(0.25), "zero": np.array(zero, kind)}
    quantise = node("QuantizeLinear", "x scale zero", "y")
    proto = model([quantise], [("x", "float32", (2411,))], ["y"], constants, opset=21)
    ends = [f * np.float32(s) for s in (-1, 1) for f in (8e3, 1.6e4, 1e9, 1e30, np.inf)]
    x = np.concatenate([np.arange(-1200, 1201) / 16, ends]).astype(np.float32)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    wanted = np.clip(np.rint(x.astype(np.float64) / 0.25) + zero, low, high).astype(kind)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert ("mn::store_nearest<" if kind.endswith("t8") else "mn::nearest<T>") in stages.source
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], wanted)
