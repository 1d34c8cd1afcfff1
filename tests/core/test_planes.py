"""Products that mix few planes of a tensor (talking heads) read the planes where they lie."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.passes.pipeline import prepare
from mononn_core.passes.planes import MOST_PLANES, SHORTEST_ROW
from mononn_core.program.interpret import run
from tests.core import models
from tests.core.models import node
from tests.core.networks import Builder
from tests.core.test_joined import check


def mix(
    shape: tuple[int, ...], perm: tuple[int, ...], planes: int, bias: bool = True, back: bool = True
) -> tuple[bytes, int]:
    """A transposition, a product by a constant, its bias, and the transposition ``back`` in front of a softmax; and how
    many products the prepared Graph has."""
    b = Builder("planes")
    terms = shape[perm[-1]]
    z = b.add("MatMul", b.add("Transpose", b.add("Exp", "x"), perm=list(perm)), b.weight(terms, planes))
    if bias:
        z = b.add("Add", z, b.weight(planes))
    if back:
        z = b.add("Transpose", z, perm=np.argsort(perm).tolist())
    b.add("Softmax", z, axis=-1, output="y")
    made = [shape[p] for p in perm[:-1]] + [planes]
    made = [made[p] for p in np.argsort(perm)] if back else made
    model = b.model({"x": (TensorProto.FLOAT, shape)}, {"y": tuple(made)})
    graph = prepare(compiler.lower(model, threads=1, machine=Machine.named("avx2")).optimized, "cpu")
    return model, sum(node.op == "matmul" for node in graph.nodes)


@pytest.mark.in_turn("bias", "back", "shape")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("shape", "perm", "planes"),
    [
        ((1, 4, 12, 19), (0, 2, 3, 1), 4),
        ((2, 3, 7, SHORTEST_ROW), (0, 2, 3, 1), 5),
        ((MOST_PLANES, 9, 24), (1, 2, 0), MOST_PLANES),
        ((3, 4, 18), (0, 2, 1), 2),
        ((2, 6, 3, 17), (2, 3, 1, 0), 1),
    ],
)
def test_planes_are_read_where_they_lie(
    shape: tuple[int, ...], perm: tuple[int, ...], planes: int, bias: bool, back: bool
) -> None:
    model, products = mix(shape, perm, planes, bias, back)
    assert products == 0
    for threads in (1, 2):
        check(model, threads, shape=shape)


@pytest.mark.parametrize(
    ("shape", "perm", "planes"),
    [
        ((2, 5, 6, 4), (0, 2, 1, 3), 4),  # the terms lie side by side already
        ((1, MOST_PLANES + 1, 12, 19), (0, 2, 3, 1), 4),
        ((1, 4, 12, 19), (0, 2, 3, 1), MOST_PLANES + 1),
        ((1, 4, 12, SHORTEST_ROW - 1), (0, 2, 3, 1), 4),  # no vectors along the last axis
    ],
)
def test_other_products_stay(shape: tuple[int, ...], perm: tuple[int, ...], planes: int) -> None:
    model, products = mix(shape, perm, planes)
    assert products == 1
    check(model, 2, shape=shape)


@pytest.mark.parametrize("level", ["avx2", "avx512"])
@pytest.mark.parametrize("terms", [4, MOST_PLANES])
def test_planes_of_bytes_are_summed_up_exactly(terms: int, level: str) -> None:
    """Bytes at the ends of their range, and a zero point; the sum is quantised behind the product."""
    random = np.random.default_rng(terms)
    shape = (1, terms, 5, 21)
    weights = random.choice(np.array([-128, -127, 127, 3], np.int8), (terms, 3))
    constants = {
        "step": np.float32(0.25), "zero": np.uint8(7), "w": weights, "u": np.array([0.5, 1, 0.125], np.float32),
        "none": np.zeros(3, np.int8), "large": np.float32(64.0), "middle": np.uint8(120),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x step zero", "q"),
        node("DequantizeLinear", "q step zero", "d"),
        node("Transpose", "d", "t", perm=[0, 2, 3, 1]),
        node("DequantizeLinear", "w u none", "v", axis=1),
        node("MatMul", "t v", "p"),
        node("QuantizeLinear", "p large middle", "r"),
        node("DequantizeLinear", "r large middle", "s"),
        node("Transpose", "s", "y", perm=[0, 3, 1, 2]),
    ]
    proto = models.model(nodes, [("x", "float32", shape)], ["y"], constants)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=Machine.named(level))
    assert "matmul" not in {n.op for n in prepare(stages.optimized, "cpu").nodes}
    x = random.choice(np.array([-2.0, 62.0, 1.25, 40.0], np.float32), shape)
    seen = run(stages.program, {"x": x.reshape(stages.program.buffer("x").shape)}, stages.lowered.weights, workers=2)
    assert_array_equal(seen["y"].reshape(1, 3, 5, 21), evaluate(stages.graph, {"x": x})["y"])
    assert len(np.unique(seen["y"])) > 20
