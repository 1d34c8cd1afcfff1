"""GELU and the norms are recognised however they are written, and near misses are not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from mononn_core.passes import gelu, norm, pipeline
from tests.core.graphs import Net, assert_same, becomes, operators, unchanged


def erf_gelu(net: Net, x: str, half: float = 0.5, root: float = math.sqrt(2), one: float = 1.0) -> str:
    bell = net("add", net("erf", net("div", x, net.const(root))), net.const(one))
    return net("mul", x, net("mul", net.const(half), bell))


def tanh_gelu(net: Net, x: str, cubic: float = 0.044715) -> str:
    inner = net("add", x, net("mul", net.const(cubic), net("pow", x, net.const(3.0))))
    bell = net("add", net.const(1.0), net("tanh", net("mul", net.const(math.sqrt(2 / math.pi)), inner)))
    return net("mul", net("mul", net.const(0.5), x), bell)


def horner_gelu(net: Net, x: str) -> str:
    """sqrt(2 / pi) x (1 + 0.044715 x^2), as some exporters factor it."""
    square = net("mul", net("mul", x, x), net.const(0.044715))
    inner = net("mul", net("mul", x, net.const(math.sqrt(2 / math.pi))), net("add", square, net.const(1.0)))
    bell = net("add", net("tanh", inner), net.const(1.0))
    return net("mul", bell, net("mul", x, net.const(0.5)))


GELUS: dict[str, tuple[Callable[[Net, str], str], str]] = {
    "erf": (erf_gelu, "none"),
    "erf, other order": (
        lambda n, x: n(
            "mul", n("mul", x, n("add", n.const(1.0), n("erf", n("mul", x, n.const(math.sqrt(0.5)))))), n.const(0.5)
        ),
        "none",
    ),
    "tanh": (tanh_gelu, "tanh"),
    "tanh, factored": (horner_gelu, "tanh"),
    "of a product": (lambda n, x: erf_gelu(n, n("mul", x, n.const(3.0))), "none"),
}


@pytest.mark.parametrize("name", GELUS)
def test_gelu(name: str) -> None:
    make, approximate = GELUS[name]
    net = Net()
    graph = net.graph(make(net, net.input(4, 5)))
    after = gelu.run(graph)
    assert_same(graph, after)
    assert [n.attrs["approximate"] for n in after.nodes if n.op == "gelu"] == [approximate]
    assert "erf" not in operators(after)
    assert "tanh" not in operators(after)


@pytest.mark.parametrize(
    "make",
    [
        lambda n, x: erf_gelu(n, x, half=0.4),
        lambda n, x: erf_gelu(n, x, root=1.5),
        lambda n, x: erf_gelu(n, x, one=2.0),
        lambda n, x: tanh_gelu(n, x, cubic=0.05),
        lambda n, x: n("mul", n("neg", x), n("add", n("erf", x), n.const(1.0))),
    ],
)
def test_what_is_nearly_gelu_stays(make: Callable[[Net, str], str]) -> None:
    net = Net()
    unchanged(gelu.run, net.graph(make(net, net.input(4, 5))))


def written_norm(net: Net, x: str, axis: int = -1, power: bool = True, how: str = "div", centre: bool = True) -> str:
    axis %= net.builder.types[x].rank
    d = net("sub", x, net("reduce_mean", x, axes=(axis,), keepdims=True)) if centre else x
    square = net("pow", d, net.const(2.0)) if power else net("mul", d, d)
    variance = net("add", net("reduce_mean", square, axes=(axis,), keepdims=True), net.const(1e-5))
    if how == "div":
        return net("div", d, net("sqrt", variance))
    if how == "reciprocal":
        return net("mul", net("reciprocal", net("sqrt", variance)), d)
    if how == "one over":
        return net("mul", d, net("div", net.const(1.0), net("sqrt", variance)))
    return net("mul", d, net("pow", variance, net.const(-0.5)))


@pytest.mark.parametrize("how", ["div", "reciprocal", "one over", "power"])
@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("centre", [True, False])
def test_norms(how: str, power: bool, centre: bool) -> None:
    net = Net()
    y = written_norm(net, net.input(2, 3, 8), power=power, how=how, centre=centre)
    y = net("mul", net.random(8), y)
    y = net("add", y, net.random(1, 8, seed=1))
    wanted = {"layer_norm": 1} if centre else {"rms_norm": 1, "add": 1}
    graph = becomes(norm.run, net.graph(y), **wanted)
    (node,) = (n for n in graph.nodes if n.op.endswith("_norm"))
    assert node.attrs["epsilon"] == pytest.approx(1e-5)
    assert all(graph.types[name].shape == (8,) for name in node.inputs[1:])


def test_norm_over_another_axis_stays() -> None:
    net = Net()
    unchanged(norm.run, net.graph(written_norm(net, net.input(2, 3, 8), axis=1)))


def test_norm_with_a_shift_before_its_scale_keeps_both() -> None:
    net = Net()
    y = net("mul", net("add", written_norm(net, net.input(3, 8)), net.random(8)), net.random(8, seed=1))
    becomes(norm.run, net.graph(y), layer_norm=1, mul=1)


def test_origins_survive() -> None:
    net = Net()
    graph = net.graph(erf_gelu(net, written_norm(net, net.input(4, 8))))
    names = {n.origin.name for n in graph.nodes}
    assert {n.origin.name for n in pipeline.run(graph).nodes} <= names
