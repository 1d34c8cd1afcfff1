"""Attention is recognised in the forms exporters write it, and near misses are left alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mononn_core.graph import Graph, Node
from mononn_core.ops.evaluate import run
from mononn_core.passes import attention, pipeline
from tests.core.graphs import Net, assert_same, inputs_of, operators, unchanged

B, H, S, T, D, E = 2, 3, 4, 5, 8, 6
Step = Callable[[Net, str], str]


def nothing(net: Net, x: str) -> str:
    return x


def product(net: Net, q: str, k: str) -> str:
    rank = net.builder.types[k].rank
    return net("matmul", q, net("transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2)))


def written(net: Net, scores: Step = nothing, weights: Step = nothing, axis: int = -1) -> Graph:
    """softmax(scores(q k^T)) v with a step on the scores and one on the weights."""
    q, k, v = net.input(B, H, S, D), net.input(B, H, T, D), net.input(B, H, T, E)
    x = scores(net, product(net, q, k))
    x = weights(net, net("softmax", x, axis=axis % 4))
    return net.graph(net("matmul", x, v))


def attention_of(graph: Graph, tolerance: float = 2e-6) -> Node:
    """The one attention the pipeline finds; no softmax is left, and the values are the same."""
    after = pipeline.run(graph)
    assert_same(graph, after, tolerance)
    assert operators(after).get("attention") == 1, operators(after)
    assert not {"softmax", "matmul"} & set(operators(after))
    return next(n for n in after.nodes if n.op == "attention")


def scaled(net: Net, x: str) -> str:
    return net("mul", x, net.const(0.125))


def biased(*shape: int) -> Step:
    return lambda net, x: net("add", net.input(*shape), x)


def masked(value: float, keep: bool = True, *shape: int) -> Step:
    def step(net: Net, x: str) -> str:
        mask = (
            net.const(np.arange(S * T).reshape(S, T) % 3 < 2, "bool") if not shape else net.input(*shape, dtype="bool")
        )
        constant = net.const(value)
        return net("where", mask, x, constant) if keep else net("where", mask, constant, x)

    return step


def then(*steps: Step) -> Step:
    def step(net: Net, x: str) -> str:
        for part in steps:
            x = part(net, x)
        return x

    return step


FORMS: dict[str, tuple[Step, float, bool]] = {
    "plain": (nothing, 1.0, False),
    "scaled": (scaled, 0.125, False),
    "divided": (lambda n, x: n("div", x, n.const(math.sqrt(D))), 1 / math.sqrt(D), False),
    "scaled twice": (then(scaled, scaled), 0.125**2, False),
    "padding bias": (then(scaled, biased(B, 1, 1, T)), 0.125, True),
    "full bias": (then(scaled, biased(B, H, S, T)), 0.125, True),
    "matrix bias": (biased(S, T), 1.0, True),
    "scalar bias": (biased(), 1.0, True),
    "two biases": (then(scaled, biased(S, T), biased(B, 1, 1, T)), 0.125, True),
    "bias before scale": (then(biased(S, T), scaled), 0.125, True),
    "masked by infinity": (then(scaled, masked(float("-inf"))), 0.125, True),
    "masked by the lowest": (then(scaled, masked(float(np.finfo(np.float32).min))), 0.125, True),
    "masked where true": (then(scaled, masked(-1e9, False)), 0.125, True),
    "masked and biased": (then(scaled, biased(S, T), masked(-1e9)), 0.125, True),
    "masked twice": (then(scaled, masked(-1e9), masked(-1e9, False)), 0.125, True),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    scores, scale, has_bias = FORMS[name]
    node = attention_of(written(Net(), scores))
    assert node.attrs["scale"] == pytest.approx(scale)
    assert bool(node.inputs[3]) == has_bias
    assert node.attrs["guard"] is False


def test_rows_that_are_masked_whole_stay_uniform() -> None:
    """With a finite mask value softmax weighs all positions alike; the added bias must keep that."""
    graph = written(Net(), then(scaled, masked(-1e9, True, 1, 1, S, 1)))
    values = {n: v if v.dtype != bool else np.zeros_like(v) for n, v in inputs_of(graph).items()}
    after = pipeline.run(graph)
    assert "attention" in operators(after)
    np.testing.assert_allclose(run(after, values)["out0"], run(graph, values)["out0"], rtol=1e-5, atol=1e-6)


def guard(net: Net, x: str) -> str:
    return net("where", net("isnan", x), net.const(0.0), x)


def test_a_guard_against_nan_is_kept() -> None:
    mask = masked(float("-inf"), True, 1, 1, S, 1)
    node = attention_of(written(Net(), then(scaled, mask), guard))
    assert node.attrs["guard"] is True


@pytest.mark.parametrize("scale_first", [True, False])
def test_scales_of_q_and_k(scale_first: bool) -> None:
    """The square root of the scale on either side, before or after k is transposed."""
    net = Net()
    q, k, v = net.input(B, H, S, D), net.input(B, H, T, D), net.input(B, H, T, E)
    root = net.const(math.sqrt(0.125))
    left = net("mul", q, root)
    if scale_first:
        scores = product(net, left, net("mul", root, k))
    else:
        scores = net("matmul", left, net("mul", net("transpose", k, perm=(0, 1, 3, 2)), root))
    node = attention_of(net.graph(net("matmul", net("softmax", scores, axis=3), v)))
    assert node.attrs["scale"] == pytest.approx(0.125)
    assert node.inputs[:3] == (q, k, v)


def test_a_transposed_key_by_attribute() -> None:
    net = Net()
    q, k, v = net.input(B, H, S, D), net.input(B, H, T, D), net.input(B, H, T, E)
    x = net("softmax", net("matmul", q, k, transpose_b=True), axis=3)
    assert attention_of(net.graph(net("matmul", x, v))).inputs[:3] == (q, k, v)


@pytest.mark.parametrize("by_attribute", [True, False])
def test_values_on_the_left_of_a_transposed_softmax(by_attribute: bool) -> None:
    """As a non-local block has them, channels first: v softmax(q k)^T."""
    net = Net()
    q, k, v = net.input(B, S, D), net.input(B, T, D), net.input(B, S, T)
    x = net("softmax", product(net, q, k), axis=2)
    if by_attribute:
        y = net("matmul", v, x, transpose_b=True)
    else:
        y = net("matmul", v, net("transpose", x, perm=(0, 2, 1)))
    attention_of(net.graph(y))


def test_rows_that_are_more_than_a_softmax_stay_on_the_left() -> None:
    """Channels mixed by a small matrix of shares: to turn these takes less than to turn all pixels."""
    net = Net()
    pixels, shares = net.input(500, 8), net("softmax", net.input(8, 8), axis=1)
    after = pipeline.run(net.graph(net("matmul", pixels, net("transpose", shares, perm=(1, 0)))))
    (product,) = (n for n in after.nodes if n.op == "matmul")
    assert after.types[product.inputs[0]].shape == (500, 8)


@pytest.mark.parametrize("lead", [(), (4,)])
def test_lower_ranks(lead: tuple[int, ...]) -> None:
    net = Net()
    q, k, v = net.input(*lead, S, D), net.input(*lead, T, D), net.input(*lead, T, E)
    x = net("add", scaled(net, product(net, q, k)), net.input(S, T))
    attention_of(net.graph(net("matmul", net("softmax", x, axis=len(lead) + 1), v)))


def test_keys_shared_by_heads() -> None:
    net = Net()
    q, k, v = net.input(B, H, S, D), net.input(B, 1, T, D), net.input(1, 1, T, E)
    attention_of(net.graph(net("matmul", net("softmax", product(net, q, k), axis=3), v)))


def softmax_elsewhere(net: Net) -> Graph:
    q, v = net.input(B, H, S, D), net.input(B, H, S, E)
    return net.graph(net("matmul", net("softmax", product(net, q, q), axis=2), v))


def shared_scores(net: Net) -> Graph:
    q, k, v = net.input(B, H, S, D), net.input(B, H, T, D), net.input(B, H, T, E)
    x = net("softmax", product(net, q, k), axis=3)
    return net.graph(net("matmul", x, v), x)


NEAR: dict[str, Callable[[Net], Graph]] = {
    "softmax over another axis": softmax_elsewhere,
    "weights that are an output": shared_scores,
    "scores through another function": lambda n: written(n, lambda net, x: net("tanh", x)),
    "a mask that weakens": lambda n: written(n, masked(-100.0)),
    "a mask by position of v": lambda n: written(n, weights=lambda net, x: net("mul", x, net.input(S, T))),
    "scores scaled by a tensor": lambda n: written(n, lambda net, x: net("mul", x, net.input(S, T))),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_stay(name: str) -> None:
    graph = NEAR[name](Net())
    unchanged(attention.run, graph)
    assert_same(graph, pipeline.run(graph), 2e-6)


def test_other_types_stay_written_out() -> None:
    net = Net()
    q = net.input(B, H, S, D, dtype="float64")
    unchanged(attention.run, net.graph(net("matmul", net("softmax", product(net, q, q), axis=3), q)))
