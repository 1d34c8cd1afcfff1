"""Canonical forms of elementwise operators and of reductions over stacks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mononn_core.passes import arithmetic, dce
from tests.core.graphs import Net, becomes


def reduced_stack(net: Net, x: str, op: str) -> str:
    """x, -x and exp x as a stack, reduced along its axis."""
    parts = [net("reshape", part, shape=(2, 1, 3)) for part in (x, net("neg", x), net("exp", x))]
    return net(op, net("concat", *parts, axis=1), axes=(1,), keepdims=False)


def reduced_pad(net: Net, x: str, op: str, value: float, axes: tuple[int, ...], mode: str = "constant") -> str:
    """x with a column in front of it, reduced."""
    wide = net("pad", x, before=(0, 1), after=(0, 0), mode=mode, value=value)
    return net(op, wide, axes=axes, keepdims=False)


NEUTRAL: dict[str, tuple[Callable[[Net, str], str], dict[str, int]]] = {
    "x + 0": (lambda n, x: n("add", x, n.const(0.0)), {}),
    "0 + x": (lambda n, x: n("add", n.const(np.zeros((2, 3))), x), {}),
    "x - 0": (lambda n, x: n("sub", x, n.const(0.0)), {}),
    "0 - x stays": (lambda n, x: n("sub", n.const(0.0), x), {"sub": 1}),
    "x * 1": (lambda n, x: n("mul", x, n.const(np.ones(3))), {}),
    "x * 1 grown": (lambda n, x: n("mul", x, n.const(np.ones((4, 1, 1)))), {"expand": 1}),
    "x / 1": (lambda n, x: n("div", x, n.const(1.0)), {}),
    "1 / x stays": (lambda n, x: n("div", n.const(1.0), x), {"div": 1}),
    "x / 4": (lambda n, x: n("div", x, n.const(4.0)), {"mul": 1}),
    "x / 3 stays": (lambda n, x: n("div", x, n.const(3.0)), {"div": 1}),
    "x / 2^-140 stays": (lambda n, x: n("div", x, n.const(2.0**-140)), {"div": 1}),
    "x ** 1": (lambda n, x: n("pow", x, n.const(1.0)), {}),
    "x ** 2": (lambda n, x: n("pow", x, n.const(2.0)), {"mul": 1}),
    "x ** 3 stays": (lambda n, x: n("pow", x, n.const(3.0)), {"pow": 1}),
    "cast to itself": (lambda n, x: n("cast", x, to="float32"), {}),
    "cast there and back": (lambda n, x: n("cast", n("cast", x, to="float64"), to="float32"), {}),
    "narrowing casts stay": (lambda n, x: n("cast", n("cast", x, to="float16"), to="float32"), {"cast": 2}),
    "(x * 2) * 3": (lambda n, x: n("mul", n("mul", x, n.const(2.0)), n.const(3.0)), {"mul": 1}),
    "(x + 2) + 3": (lambda n, x: n("add", n("add", x, n.const(2.0)), n.const(3.0)), {"add": 1}),
    "(x + 1e8) - 1e8 stays": (lambda n, x: n("add", n("add", x, n.const(1e8)), n.const(-1e8)), {"add": 2}),
    "(x * 1e-30) * 1e-30 stays": (lambda n, x: n("mul", n("mul", x, n.const(1e-30)), n.const(1e-30)), {"mul": 2}),
    "where equal branches": (lambda n, x: n("where", n("less", x, n.const(0.0)), x, x), {}),
    "where true": (lambda n, x: n("where", n.const(True, "bool"), x, n.const(0.0)), {}),
    "where not": (
        lambda n, x: n("where", n("not", n("less", x, n.const(0.0))), x, n("neg", x)),
        {"less": 1, "where": 1, "neg": 1},
    ),
    "uniform constant": (lambda n, x: n("mul", x, n.const(np.full((2, 3), 5.0))), {"mul": 1}),
    "late expand": (lambda n, x: n("exp", n("expand", x, shape=(4, 2, 3))), {"exp": 1, "expand": 1}),
    "needless expand": (lambda n, x: n("add", n("expand", n.input(3), shape=(2, 3)), x), {"add": 1}),
    **{
        f"{op} of a stack": (lambda n, x, op=op: reduced_stack(n, x, op), {"reshape": 6, "neg": 1, "exp": 1, **made})
        for op, made in {
            "reduce_sum": {"add": 2},
            "reduce_prod": {"mul": 2},
            "reduce_max": {"max": 2},
            "reduce_min": {"min": 2},
            "reduce_mean": {"add": 2, "div": 1},
        }.items()
    },
    **{
        f"{op} of what is padded with {value}": (
            lambda n, x, op=op, value=value: reduced_pad(n, x, op, value, (0, 1)),
            {op: 1, op[7:]: 1},
        )
        for op in ("reduce_max", "reduce_min")
        for value in (-9.0, 9.0)
    },
    "largest along other axes than the padded one": (
        lambda n, x: reduced_pad(n, x, "reduce_max", 0.0, (0,)),
        {"pad": 1, "reduce_max": 1},
    ),
    "largest of what is reflected": (
        lambda n, x: reduced_pad(n, x, "reduce_max", 0.0, (0, 1), "reflect"),
        {"pad": 1, "reduce_max": 1},
    ),
    "sum of what is padded": (
        lambda n, x: reduced_pad(n, x, "reduce_sum", 2.0, (0, 1)),
        {"pad": 1, "reduce_sum": 1},
    ),
    "sum along another axis": (
        lambda n, x: n("reduce_sum", n("concat", x, n("neg", x), axis=0), axes=(1,), keepdims=True),
        {"neg": 1, "concat": 1, "reduce_sum": 1},
    ),
    "sum of longer parts stays": (
        lambda n, x: n("reduce_sum", n("concat", x, n("neg", x), axis=0), axes=(0,), keepdims=False),
        {"neg": 1, "concat": 1, "reduce_sum": 1},
    ),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_arithmetic(name: str) -> None:
    make, wanted = NEUTRAL[name]
    net = Net()
    graph = net.graph(make(net, net.input(2, 3)))
    becomes(lambda g: dce.run(arithmetic.run(g)), graph, **wanted)


def test_logic() -> None:
    net = Net()
    x = net.input(2, 3, dtype="bool")
    yes, no = net.const(np.ones((4, 1, 1)), "bool"), net.const(False, "bool")
    outputs = [net("and", x, yes), net("or", no, x), net("and", x, no), net("not", net("not", x))]
    becomes(arithmetic.run, net.graph(*outputs), expand=1)
