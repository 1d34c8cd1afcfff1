"""Products of vectors with matrices that indices choose (the experts of a mixture) read the matrices in place."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.passes.pipeline import prepare
from mononn_core.program.text import to_text
from tests.core.networks import Builder
from tests.core.test_joined import check

TOKENS, WIDTH, INNER, EXPERTS = 6, 8, 20, 5


def mixture(how: str, side: str, vectors: int = 1, table: str = "constant", again: bool = False) -> bytes:
    """Every token's two experts, chosen by a product of its own, as a product with a SiLU in front."""
    b = Builder("mixture")
    scores = b.add("MatMul", "x", b.weight(WIDTH, EXPERTS))
    best = b.add("Concat", b.add("ArgMax", scores, axis=1), b.add("ArgMin", scores, axis=1), axis=1)
    shape = (EXPERTS, INNER, WIDTH) if side == "left" else (EXPERTS, WIDTH, INNER)
    experts = b.weight(*shape)
    if table != "constant":
        experts = b.add("Mul", experts, b.add("ReduceMax", "x", keepdims=0))
    if how == "gather":
        matrices = b.add("Gather", experts, best, axis=0)
        lead = (TOKENS, 2)
    else:
        matrices = b.add("GatherND", experts, b.add("Reshape", best, b.constant(np.array([TOKENS * 2, 1], np.int64))))
        lead = (TOKENS * 2,)
    y = b.add("Mul", "x", b.add("Sigmoid", "x"))
    y = b.add("Unsqueeze", y, b.constant(np.array([1], np.int64)))
    y = b.add("Expand", y, b.constant(np.array([TOKENS, 2 * vectors, WIDTH], np.int64)))
    size = (*lead, WIDTH, vectors) if side == "left" else (*lead, vectors, WIDTH)
    y = b.add("Reshape", y, b.constant(np.array(size, np.int64)))
    z = b.add("MatMul", *((matrices, y) if side == "left" else (y, matrices)))
    if again:
        z = b.add("Add", z, b.add("ReduceMean", matrices, keepdims=0))
    b.add("Reshape", z, b.constant(np.array([TOKENS, -1], np.int64)), output="y")
    return b.model({"x": (TensorProto.FLOAT, (TOKENS, WIDTH))}, {"y": (TOKENS, 2 * vectors * INNER)})


def operators(model: bytes) -> list[str]:
    graph = prepare(compiler.lower(model, threads=1, machine=Machine.named("avx2")).optimized, "cpu")
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", ["gather", "gather_nd"])
def test_chosen_matrices_are_not_copied(how: str, side: str) -> None:
    model = mixture(how, side)
    assert operators(model).count("matmul") == 1  # that chooses
    program = check(model, 2, shape=(TOKENS, WIDTH))
    copied = TOKENS * 2 * WIDTH * INNER
    assert all(np.prod(buffer.shape) < copied for buffer in program.buffers)
    (reduced,) = (part for part in to_text(program).split("phase ") if "reduce_sum" in part.splitlines()[0])
    assert "sigmoid" not in reduced  # it would be computed for every column


@pytest.mark.parametrize("case", ["vectors", "table", "again"])
def test_other_products_stay(case: str) -> None:
    settings = {"vectors": {"vectors": 3}, "table": {"table": "computed"}, "again": {"again": True}}[case]
    model = mixture("gather", "left", **settings)
    assert operators(model).count("matmul") == 2
    check(model, 2, shape=(TOKENS, WIDTH))
