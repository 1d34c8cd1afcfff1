"""Sums of products by constants that become one product: which do, and that answers stay right."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.passes import sums
from mononn_core.passes.pipeline import prepare
from tests.core.networks import Builder
from tests.core.test_joined import check

SHAPE = (1, 8, 12, 10)


def products(model: bytes) -> list[int]:
    """Terms of each product by a constant of the prepared Graph."""
    graph = prepare(compiler.lower(model, threads=1, machine=Machine.named("avx2")).optimized, "cpu")
    return [graph.types[n.inputs[1]].shape[-2] for n in graph.nodes if n.op in ("conv", "matmul")]


def skips(layers: int, kernel: int = 1, width: int = 32, **settings: Any) -> bytes:
    """Layers of 8 channels whose skip connections, ``width`` wide, are summed up as in a WaveNet."""
    b = Builder("skips")
    x, total = "x", ""
    for _ in range(layers):
        h = b.add("Tanh", b.add("Conv", x, b.weight(8, 8, 3, 3), b.weight(8), pads=[1, 1, 1, 1]))
        x = b.add("Add", x, b.add("Conv", h, b.weight(8, 8, 1, 1), b.weight(8)))
        weight = b.weight(width, 8 // settings.get("group", 1), kernel, kernel)
        skip = b.add("Conv", h, weight, b.weight(width), pads=[kernel // 2] * 4, **settings)
        total = b.add("Add", total, skip) if total else skip
    b.add("Relu", total, output="y")
    size = [-(-n // settings.get("strides", [1])[0]) for n in SHAPE[2:]]
    return b.model({"x": (TensorProto.FLOAT, SHAPE)}, {"y": (1, width, *size)})


@pytest.mark.parametrize("threads", [1, 2])
def test_skip_connections_are_summed_in_registers(threads: int) -> None:
    model = skips(5)
    assert sorted(products(model)) == [8] * 9 + [40]  # nobody reads the last layer's own result
    program = check(model, threads, shape=SHAPE)
    assert not any("concat" in phase.id for phase in program.phases())


def test_no_more_terms_than_twice_the_results() -> None:
    assert sorted(products(skips(7, width=16))) == [8] * 13 + [24, 32]
    check(skips(7, width=16), 2, shape=SHAPE)


@pytest.mark.parametrize("settings", [{"kernel": 3}, {"strides": [2, 2]}, {"group": 8}])
def test_of_convolutions_only_those_of_single_pixels_that_lie_side_by_side(settings: dict[str, Any]) -> None:
    model = skips(3, **settings)
    assert max(products(model)) == 8


@pytest.mark.parametrize("bias", [True, False])
def test_products_of_matrices_and_what_else_is_added(bias: bool) -> None:
    b = Builder("matrices")
    parts = [b.add("Tanh", b.add("MatMul", "x", b.weight(8, k))) for k in (5, 16, 3)]
    terms = [b.add("MatMul", part, b.weight(k, 24)) for part, k in zip(parts, (5, 16, 3), strict=True)]
    terms = [b.add("Add", term, b.weight(24)) for term in terms] if bias else terms
    other = b.add("Sigmoid", b.add("MatMul", "x", b.weight(8, 24)))
    b.add("Add", b.add("Add", terms[0], other), b.add("Add", terms[1], terms[2]), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (6, 8))}, {"y": (6, 24)})
    assert 24 in products(model) and len([k for k in products(model) if k in (5, 16, 3)]) == 0
    check(model, 2, shape=(6, 8))


def test_what_others_read_too_stays() -> None:
    b = Builder("shared")
    left, right = (b.add("MatMul", b.add("Tanh", "x"), b.weight(8, 24)), b.add("MatMul", "x", b.weight(8, 24)))
    b.add("Mul", b.add("Add", left, right), left, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (6, 8))}, {"y": (6, 24)})
    assert products(model) == [8, 8]
    check(model, 1, shape=(6, 8))


def test_a_long_sum_is_no_deep_recursion() -> None:
    b = Builder("long")
    total = b.add("MatMul", "x", b.weight(8, 8))
    for _ in range(1200):
        total = b.add("Add", total, "x")
    b.add("Relu", b.add("Add", total, b.add("MatMul", b.add("Tanh", "x"), b.weight(8, 8))), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (6, 8))}, {"y": (6, 8)})
    assert products(model) == [8, 8]


def test_a_graph_without_such_sums_is_the_same_object() -> None:
    graph = compiler.lower(skips(1), threads=1, machine=Machine.named("avx2")).optimized
    assert sums.run(graph) is graph
