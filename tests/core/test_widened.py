"""Models whose own tensors are float16 or bfloat16: computed in float32, of their own types at the edges."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.passes import pipeline
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from tests.core.networks import Builder
from tests.core.test_quantised import LEVELS

TYPES = {"float16": (TensorProto.FLOAT16, np.float16), "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}
UNIT = {"float16": 2**-11, "bfloat16": 2**-8}


def network(name: str) -> bytes:
    """x [5, 19] -> y [5, 12] and z [5, 1]: products, a norm, casts to and from the type, all of it of type ``name``."""
    kind, dtype = TYPES[name]
    b = Builder("narrow")

    def weight(*shape: int) -> str:
        tensor = numpy_helper.from_array(
            (b.random.standard_normal(shape) * shape[0] ** -0.5).astype(dtype), f"w{len(b.weights)}"
        )
        b.weights.append(tensor)
        return tensor.name

    h = b.add("Gelu", b.add("Add", b.add("MatMul", "x", weight(19, 24)), weight(24)))
    h = b.add("LayerNormalization", h, weight(24), weight(24))
    wide = b.add("Cast", b.add("ReduceMax", h, b.ints(1)), to=TensorProto.FLOAT)
    b.add("Cast", b.add("Exp", wide), to=kind, output="z")
    b.add("Softmax", b.add("MatMul", h, weight(24, 12)), output="y")
    graph = helper.make_graph(
        b.nodes,
        "narrow",
        [helper.make_tensor_value_info("x", kind, (5, 19))],
        [helper.make_tensor_value_info(n, kind, s) for n, s in (("y", (5, 12)), ("z", (5, 1)))],
        b.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def wanted(graph, x: np.ndarray) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    """In float32, of the same numbers."""
    found = evaluate(pipeline.run(graph), {"x": x})
    assert all(value.dtype == x.dtype for value in found.values())
    return {name: value.astype(np.float32) for name, value in found.items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", TYPES)
def test_networks(name: str, precision: str) -> None:
    x = np.random.default_rng(1).standard_normal((5, 19)).astype(TYPES[name][1])
    for machine in LEVELS.values():
        stages = compiler.lower(network(name), threads=2, machine=machine, precision=precision)
        inside = [t.dtype for n, t in stages.optimized.types.items() if n not in ("x", "y", "z")]
        assert name not in inside
        want, limit = wanted(stages.graph, x), 2e-2 if precision == "bf16" else UNIT[name]
        with Session(compiler.build(stages), threads=2) as session:
            found = session.run({"x": x})
        for output, value in found.items():
            assert value.dtype == x.dtype
            np.testing.assert_allclose(value.astype(np.float32), want[output], rtol=2 * limit, atol=limit)


@pytest.mark.parametrize("name", TYPES)
def test_near_the_model_in_its_own_type(name: str) -> None:
    """What the model says, rounded after every operator, is as near as so many roundings are."""
    stages = compiler.lower(network(name), threads=2, machine=Machine.named("avx2"))
    x = np.random.default_rng(1).standard_normal((5, 19)).astype(TYPES[name][1])
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)
    for output, value in evaluate(stages.graph, {"x": x}).items():
        near = np.linalg.norm(seen[output].reshape(value.shape).astype(float) - value.astype(float))
        assert near < 12 * UNIT[name] * np.linalg.norm(value.astype(float))
