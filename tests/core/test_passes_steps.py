"""Every pass of every target on the test networks, one after the other, and the forms that the targets take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.errors import UnsupportedError, VerifyError
from mononn_core.gpu import Gpu
from mononn_core.graph import Graph
from mononn_core.importer import load
from mononn_core.passes import copies, matrices, pipeline, supported, transposed, windows
from mononn_core.schedule.cuda.tiles import Shape, Target, choose
from tests.core import networks
from tests.core.cuda.networks import convolutions, patches, translator
from tests.core.graphs import Net, Pass, becomes, checked, everything, operators, stepped, unchanged
from tests.core.test_schedule import NETWORKS

MODELS = NETWORKS | {"translator": translator, "patches": patches, "convolutions": convolutions}


@pytest.mark.parametrize("name", MODELS)
def test_every_pass_keeps_every_network(name: str) -> None:
    everything(load(MODELS[name](), {}), 1e-5)


def shortened(graph: Graph) -> Graph:
    """An output lost."""
    return graph.rebuild(graph.nodes, outputs=graph.outputs[:-1])


def retyped(graph: Graph) -> Graph:
    """A type that is not what the operator makes."""
    wrong = graph.types[graph.inputs[0]]
    return graph.rebuild(graph.nodes, {**graph.types, graph.nodes[-1].output: wrong})


def spoilt(graph: Graph) -> Graph:
    constants = {name: value * 2 for name, value in graph.constants.items()}
    return graph.rebuild(graph.nodes, constants=constants)


@pytest.mark.parametrize(
    ("fault", "message"),
    [(shortened, "inputs or outputs differ"), (retyped, "makes .* declared"), (spoilt, "Not equal")],
)
def test_the_pass_that_breaks_a_network_is_named(fault: Pass, message: str) -> None:
    steps = (*pipeline.PIPELINE[:2], ("faulty", fault), *pipeline.PIPELINE[2:])
    with pytest.raises(AssertionError, match=f"(?s)pass faulty: .*{message}"):
        stepped(load(networks.mixed(), {}), steps)


@pytest.mark.parametrize("fault", [shortened, retyped])
def test_between_the_passes_of_every_test_the_graph_is_verified(fault: Pass) -> None:
    assert all(step.__module__ == checked.__module__ for _, step in (*pipeline.PIPELINE, *pipeline.FORMS["cuda"]))
    with pytest.raises(AssertionError, match="pass faulty: "):
        checked("faulty", fault)(load(networks.mixed(), {}))


@pytest.mark.parametrize("target", pipeline.FORMS)
def test_no_illegal_graph_is_lowered(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pipeline.FORMS, target, (("faulty", retyped),))
    with pytest.raises(VerifyError, match=r"makes .*, declared"):
        compiler.lower(networks.mixed(), target=target, arch=() if target == "cpu" else ("sm_80",))


def test_a_pass_that_left_a_graph_as_it_is_is_not_run_on_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def leaves(graph: Graph) -> Graph:
        runs.append("leaves")
        return graph

    def changes(graph: Graph) -> Graph:
        runs.append("changes")
        return graph.rebuild(graph.nodes)

    passes = [("one", leaves), ("one", leaves), ("two", changes), ("one", leaves), ("two", changes), ("one", leaves)]
    monkeypatch.setattr(pipeline, "steps", lambda *_: passes)
    pipeline.run(load(networks.mixed(), {}))
    assert runs == ["leaves", "changes", "leaves", "changes", "leaves"]


PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = {
    "row by matrix": ((4,), (4, 5), {"matmul": 1, "reshape": 2}),
    "matrix by column": ((3, 4), (4,), {"matmul": 1, "reshape": 2}),
    "batch by column": ((2, 3, 4), (4,), {"matmul": 1, "reshape": 2}),
    "row by column": ((4,), (4,), {"matmul": 1, "reshape": 3}),
    "matrices": ((3, 4), (4, 5), {"matmul": 1}),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_vectors_become_matrices(name: str) -> None:
    left, right, wanted = PRODUCTS[name]
    net = Net()
    graph = becomes(matrices.run, net.graph(net("matmul", net.input(*left), net.input(*right))), **wanted)
    assert all(graph.types[n].rank > 1 for node in graph.nodes if node.op == "matmul" for n in node.inputs)


def test_a_row_by_a_transposed_constant_stays_packed() -> None:
    net = Net()
    graph = net.graph(net("matmul", net.input(4), net.random(5, 4), transpose_b=True))
    unchanged(transposed.run, becomes(matrices.run, graph, matmul=1, reshape=2))


@pytest.mark.parametrize(("dtype", "constant", "shape"), [
    ("float32", False, (5, 4)), ("float32", True, (2, 5, 4)), ("float64", True, (5, 4)),
])  # fmt: skip
def test_what_is_not_packed_is_transposed(dtype: str, constant: bool, shape: tuple[int, ...]) -> None:
    net = Net()
    b = net.const(np.ones(shape), dtype) if constant else net.input(*shape, dtype=dtype)
    graph = net.graph(net("matmul", net.input(3, 4, dtype=dtype), b, transpose_b=True))
    becomes(transposed.run, graph, matmul=1, transpose=1)


@pytest.mark.parametrize(
    ("left", "right", "transposed", "wanted"),
    [
        ((2, 130, 8), (2, 8, 130), False, {"pad": 2, "slice": 1}),
        ((2, 130, 8), (2, 24, 8), True, {"pad": 1, "slice": 1}),
        ((3, 130, 8), (3, 201, 8), True, {"pad": 2, "slice": 1}),
        ((2, 40, 8), (2, 8, 160), False, {}),
        ((2, 144, 8), (2, 8, 136), False, {}),
        ((2, 130, 8), (8, 130), False, {}),
    ],
)
def test_several_matrices_at_once_end_where_tiles_do(
    left: tuple[int, ...], right: tuple[int, ...], transposed: bool, wanted: dict[str, int]
) -> None:
    net = Net()
    graph = net.graph(net("matmul", net.input(*left), net.random(*right), transpose_b=transposed))
    if not wanted:
        unchanged(matrices.even, graph)
        return
    after = becomes(matrices.even, graph, matmul=1, **wanted)
    (product,) = (n.output for n in after.nodes if n.op == "matmul")
    batch, m, n = after.types[product].shape
    assert choose(Shape(batch, m, n, 8, exact=True, panels=True), Target(Gpu.named("H100"), "fp16", 256, 1)) is not None


def convolved(dtype: str = "float32", constant: bool = True, group: int = 1) -> Graph:
    net = Net()
    shape = (3, 2, 4 // group, 6)
    weight = net.const(np.ones(shape), dtype) if constant else net.input(*shape, dtype=dtype)
    x = net.input(1, 5, 6, 4, dtype=dtype)
    return net.graph(net("conv", x, weight, strides=(2, 1), dilations=(1, 2), group=group))


@pytest.mark.parametrize(
    ("dtype", "constant", "group"),
    [("float32", False, 2), ("float64", False, 1), ("float64", True, 1), ("float64", True, 2)],
)
def test_convolutions_without_a_template_become_products(dtype: str, constant: bool, group: int) -> None:
    products = {"windows": 1, "matmul": 1, "reshape": 4, "transpose": 3}
    becomes(windows.on_cpu, convolved(dtype, constant, group), **products)
    unchanged(windows.on_cpu, convolved(group=group))
    becomes(windows.on_gpu, convolved(group=group), **products)


def test_weights_that_are_given_are_copied_for_a_cpu() -> None:
    graph = convolved(constant=False)
    after = becomes(windows.on_cpu, graph, conv=1)
    (conv,) = (node for node in after.nodes if node.op == "conv")
    copy = after.producers()[conv.inputs[1]]
    assert (copy.op, copy.inputs) == ("identity", ("in0",)) and "in0" in graph.inputs


def test_operands_outside_the_arena_are_copied_once() -> None:
    net = Net()
    x = net.input(4, 4)
    turned = net("transpose", x, perm=(1, 0))
    hidden = net("tanh", x)
    outputs = [net("matmul", x, net.random(4, 4)), net("matmul", x, turned), net("matmul", hidden, net.random(2, 4, 4))]
    graph = net.graph(*outputs)
    after = becomes(copies.run, graph, matmul=3, tanh=1, transpose=1)
    assert operators(after)["identity"] - operators(graph)["identity"] == 3, "x, x transposed, and the batch of weights"


def scattered(n: Net) -> str:
    return n("scatter_nd", n.input(4, 3), n.input(2, 1, dtype="int64"), n.input(2, 3), reduction="none")


REFUSED: dict[str, tuple[Callable[[Net], str], str, tuple[str, ...]]] = {
    "an operator without a loop": (scattered, "no loop", ("cuda", "cuda-emulated")),
    "no elements": (
        lambda n: n("reduce_sum", n.input(0, 3), axes=(0,), keepdims=False),
        "no elements",
        (*pipeline.FORMS,),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_is_refused_by_name(name: str) -> None:
    make, message, targets = REFUSED[name]
    net = Net()
    graph = net.graph(make(net))
    for target in targets:
        with pytest.raises(UnsupportedError, match=message):
            pipeline.prepare(graph, target)


def test_attention_in_another_type_is_refused() -> None:
    net = Net()
    q, k, v = (net.input(1, 2, 3, 4, dtype="float64") for _ in range(3))
    with pytest.raises(UnsupportedError, match="float32 only"):
        supported.run(net.graph(net("attention", q, k, v, "", scale=1.0)))
