"""The Graph's verifier refuses what is illegal, and its text is stable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mononn_core.errors import VerifyError
from mononn_core.graph import Graph, Node, TensorType
from mononn_core.graph.text import to_text
from mononn_core.graph.verify import verify
from mononn_core.ops.registry import infer
from tests.core.graphs import ORIGIN, Net


def small() -> Graph:
    net = Net()
    x = net.input(2, 3)
    total = net("add", net("mul", x, net.const(2.0)), net.random(3))
    return net.graph(net("layer_norm", total, "", "", epsilon=1e-5))


def with_types(graph: Graph, **types: TensorType) -> Graph:
    return replace(graph, types={**graph.types, **types})


def extra(graph: Graph, *inputs: str, output: str = "new", op: str = "relu", **attrs: object) -> Graph:
    """``graph`` with one more node at its end."""
    node = Node(op, inputs, (output,), ORIGIN, attrs)  # type: ignore[arg-type]
    return replace(graph, nodes=(*graph.nodes, node), types={output: TensorType("float32", (2, 3)), **graph.types})


BROKEN: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "read before made": (lambda g: replace(g, nodes=g.nodes[::-1]), "before anything makes it"),
    "read of nothing": (lambda g: extra(g, "nowhere"), "before anything makes it"),
    "assigned twice": (lambda g: extra(g, "in0", output="add"), "assigned already"),
    "input overwritten": (lambda g: extra(g, "in0", output="in0"), "assigned already"),
    "no type": (lambda g: replace(g, types={k: v for k, v in g.types.items() if k != "mul"}), "has no type"),
    "input without type": (lambda g: replace(g, types={k: v for k, v in g.types.items() if k != "in0"}), "no type"),
    "negative extent": (lambda g: with_types(g, in0=TensorType("float32", (-1, 3))), "negative extent"),
    "wrong constant": (lambda g: replace(g, constants={**g.constants, "const": np.zeros(5)}), "declared"),
    "input is constant": (lambda g: replace(g, constants={**g.constants, "in0": np.zeros(5)}), "listed twice"),
    "wrong type": (lambda g: with_types(g, mul=TensorType("float32", (3, 2))), "declared"),
    "types do not fit": (lambda g: with_types(g, in0=TensorType("float64", (2, 3))), "different element types"),
    "unknown operator": (lambda g: extra(g, "in0", op="frobnicate"), "frobnicate"),
    "list attribute": (lambda g: extra(g, "in0", op="reshape", shape=[2, 3]), "not hashable"),
    "output nobody makes": (lambda g: replace(g, outputs=("in0",)), "made by no node"),
    "output twice": (lambda g: replace(g, outputs=("out0", "out0")), "listed twice"),
}


def test_a_legal_graph_passes() -> None:
    verify(small(), infer)


@pytest.mark.parametrize("name", BROKEN)
def test_an_illegal_graph_is_refused(name: str) -> None:
    change, message = BROKEN[name]
    with pytest.raises(VerifyError, match=message):
        verify(change(small()), infer)


def test_text(golden: Callable[[str, str], None]) -> None:
    assert to_text(small()) == to_text(small())
    golden("graph_small.txt", to_text(small()))


def test_rebuild_drops_what_nobody_names() -> None:
    graph = small()
    shorter = graph.rebuild(graph.nodes[:1], outputs=("mul",))
    assert set(shorter.types) == {"in0", "const", "mul"}
    assert set(shorter.constants) == {"const"}


def test_consumers_list_a_reader_once() -> None:
    net = Net()
    x = net.input(2)
    graph = net.graph(net("mul", x, x))
    assert [n.op for n in graph.consumers()[x]] == ["mul"]
    assert graph.producers()["out0"].op == "identity"
