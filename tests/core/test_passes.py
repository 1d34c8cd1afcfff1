"""Each pass keeps what a Graph means, does what its docstring lists, and leaves near misses alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mononn_core.graph import Graph
from mononn_core.ops.builder import FOLD_LIMIT
from mononn_core.ops.evaluate import run
from mononn_core.passes import (
    cse,
    dce,
    fold,
    merge_matmuls,
    movement,
    pipeline,
    positions,
    scatters,
    sink,
    views,
    whole,
)
from tests.core.graphs import Net, Pass, assert_same, becomes, inputs_of, operators, unchanged


def test_the_pipeline_is_a_list_of_named_steps() -> None:
    names = [name for name, _ in pipeline.PIPELINE]
    assert names[:2] == ["dce", "fold"]
    assert {"norm", "gelu", "attention", "merge_matmuls", "cse"} <= set(names)


@pytest.mark.parametrize("step", dict(pipeline.PIPELINE).values(), ids=dict(pipeline.PIPELINE).keys())
def test_a_pass_without_work_returns_the_same_object(step: Pass) -> None:
    net = Net()
    unchanged(step, dce.run(net.graph(net("tanh", net.input(2, 3)))))


def test_dead_code() -> None:
    net = Net()
    x = net.input(3)
    net("exp", net("neg", x))
    becomes(dce.run, net.graph(net("abs", x)), abs=1)


def test_folding() -> None:
    net = Net()
    x = net.input(2, 3)
    c = net("mul", net.random(2, 3), net.const(2.0))
    becomes(fold.run, net.graph(net("add", x, net("exp", c))), add=1)


def test_folding_does_not_blow_constants_up() -> None:
    net = Net()
    wide = net("expand", net.random(1, 8), shape=(200_000, 8))
    unchanged(fold.run, net.graph(net("mul", wide, wide)))


def test_weights_are_folded_whatever_their_size() -> None:
    """As integers on a scale that are written out; not what is no weight, or not of constants alone."""
    net, size = Net(), int((FOLD_LIMIT / 2) ** 0.5)
    x, scale = net.input(3, size), net.input(size, size)

    def real(seed: int) -> str:
        whole = np.random.default_rng(seed).integers(-128, 128, (size, size))
        return net(
            "mul", net("sub", net("cast", net.const(whole, "int8"), to="float32"), net.const(3.0)), net.const(0.1)
        )

    y = net("matmul", x, net("transpose", real(0), perm=(1, 0)))
    z = net("matmul", x, net("mul", scale, real(1)))
    becomes(fold.run, net.graph(y, z, net("add", scale, real(2))), matmul=2, mul=3, cast=2, sub=2, add=1)


def test_what_is_picked_from_a_constant_may_be_larger_than_what_else_is_folded() -> None:
    """A table of biases and where each pair of positions finds its own."""
    net = Net()
    x = net.input(8, 200, 200)
    picked = net("gather", net.random(8, 729), net.const(np.arange(40000).reshape(200, 200) % 729, "int64"), axis=1)
    grown = net("expand", net.random(1, 200, 1), shape=(8, 200, 200))
    graph = net.graph(net("add", x, picked), net("add", x, grown))
    assert graph.types[picked].nbytes == graph.types[grown].nbytes > FOLD_LIMIT
    becomes(fold.run, graph, add=2, expand=1)


def test_folding_of_tensors_without_elements() -> None:
    net = Net()
    x, y = net.input(0, 3), net.input(2)
    total = net("reduce_sum", x, axes=(0, 1), keepdims=False)
    becomes(fold.run, net.graph(net("add", y, total), net("neg", x)), add=1)


def test_equal_subexpressions_and_constants() -> None:
    net = Net()
    x = net.input(4)
    a = net("mul", x, net.random(4, seed=1))
    b = net("mul", x, net.random(4, seed=1))
    graph = becomes(cse.run, net.graph(net("add", net("exp", a), net("exp", b))), mul=1, exp=1, add=1)
    assert len(graph.constants) == 1


def test_different_attributes_are_different_expressions() -> None:
    net = Net()
    x = net.input(2, 2)
    a, b = net("reduce_sum", x, axes=(0,), keepdims=True), net("reduce_sum", x, axes=(1,), keepdims=True)
    unchanged(cse.run, net.graph(net("add", a, b)))


MOVEMENTS: dict[str, tuple[Callable[[Net, str], str], dict[str, int]]] = {
    "reshape to the same": (lambda n, x: n("reshape", x, shape=(2, 3, 4)), {}),
    "reshape twice": (lambda n, x: n("reshape", n("reshape", x, shape=(24,)), shape=(6, 4)), {"reshape": 1}),
    "transpose twice": (
        lambda n, x: n("transpose", n("transpose", x, perm=(1, 2, 0)), perm=(1, 0, 2)),
        {"transpose": 1},
    ),
    "transpose and back": (lambda n, x: n("transpose", n("transpose", x, perm=(1, 2, 0)), perm=(2, 0, 1)), {}),
    "unit transpose": (lambda n, x: n("transpose", n.input(1, 3, 1, 4), perm=(1, 2, 0, 3)), {"reshape": 1}),
    "whole slice": (lambda n, x: n("slice", x, starts=(0, 0, 0), sizes=(2, 3, 4), steps=(1, 1, 1)), {}),
    "slice of slice": (
        lambda n, x: n(
            "slice",
            n("slice", x, starts=(1, 2, 0), sizes=(1, 3, 2), steps=(1, -1, 3)),
            starts=(0, 2, 1),
            sizes=(1, 2, 1),
            steps=(1, -2, 1),
        ),
        {"slice": 1},
    ),
    "expand twice": (
        lambda n, x: n("expand", n("expand", n.input(1, 3), shape=(2, 3)), shape=(5, 2, 3)),
        {"expand": 1},
    ),
    "unit tile": (lambda n, x: n("tile", n.input(1, 3), repeats=(4, 1)), {"expand": 1}),
    "one concat": (lambda n, x: n("concat", x, axis=1), {}),
    "nested concat": (lambda n, x: n("concat", n("concat", x, n.input(2, 1, 4), axis=1), x, axis=1), {"concat": 1}),
    "unit windows": (lambda n, x: n("windows", x, axis=2, kernel=(1,), strides=(1,), dilations=(1,)), {"reshape": 1}),
    "unit windows with strides": (
        lambda n, x: n("windows", x, axis=1, kernel=(1, 1), strides=(2, 3), dilations=(1, 1)),
        {"slice": 1, "reshape": 1},
    ),
    "gather of one": (lambda n, x: n("gather", x, n.const(-1, "int64"), axis=1), {"slice": 1, "reshape": 1}),
    "gather of a range": (lambda n, x: n("gather", x, n.const([2, 1, 0], "int64"), axis=1), {"slice": 1}),
    "gather of a matrix": (
        lambda n, x: n("gather", x, n.const([[0, 1], [2, 3]], "int64"), axis=2),
        {"reshape": 1},
    ),
    "uneven gather": (lambda n, x: n("gather", x, n.const([0, 2, 1], "int64"), axis=1), {"gather": 1}),
    "gather_nd in order": (
        lambda n, x: n("gather_nd", x, n.const([[[i, j] for j in range(3)] for i in range(2)], "int64"), batch_dims=0),
        {},
    ),
    "gather_nd backwards": (lambda n, x: n("gather_nd", x, n.const([[1], [0]], "int64"), batch_dims=0), {"slice": 1}),
    "gather_nd of one": (
        lambda n, x: n("gather_nd", x, n.const([[-1, 2]], "int64"), batch_dims=0),
        {"slice": 1, "reshape": 1},
    ),
    "gather_nd along an axis": (
        lambda n, x: n("gather_nd", x, n.const([[[1, 0]], [[1, 2]]], "int64"), batch_dims=0),
        {"slice": 1, "reshape": 1},
    ),
    "gather_nd out of order": (
        lambda n, x: n("gather_nd", x, n.const([[0, 1], [1, 2]], "int64"), batch_dims=0),
        {"gather_nd": 1},
    ),
}


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movements(name: str) -> None:
    make, wanted = MOVEMENTS[name]
    net = Net()
    graph = net.graph(make(net, net.input(2, 3, 4)))
    becomes(lambda g: dce.run(movement.run(g)), graph, **wanted)


def heads(net: Net, x: str) -> str:
    return net("transpose", net("reshape", x, shape=(1, 8, 2, 4)), perm=(0, 2, 1, 3))


def test_a_key_transposed_through_three_dimensions_is_one_transpose() -> None:
    """The form PyTorch's exporter gives k^T, and attention then transposes back."""
    net = Net()
    flat = net("reshape", heads(net, net.input(1, 8, 8)), shape=(2, 8, 4))
    turned = net("reshape", net("transpose", flat, perm=(0, 2, 1)), shape=(1, 2, 4, 8))
    graph = becomes(views.run, net.graph(net("transpose", turned, perm=(0, 1, 3, 2))), reshape=1, transpose=1)
    assert [dict(n.attrs) for n in graph.nodes] == [{"shape": (1, 8, 2, 4)}, {"perm": (0, 2, 1, 3)}]


def test_slices_move_before_views() -> None:
    net = Net()
    x = net.input(5, 24)
    split = net("transpose", net("reshape", x, shape=(5, 3, 2, 4)), perm=(1, 2, 0, 3))
    parts = [net("slice", split, starts=(k, 0, 0, 0), sizes=(1, 2, 5, 4), steps=(1, 1, 1, 1)) for k in range(3)]
    graph = becomes(views.run, net.graph(*parts), slice=3, reshape=3, transpose=3)
    assert all(n.inputs == (x,) for n in graph.nodes if n.op == "slice")


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("keepdims", [True, False])
def test_positions_of_extremes(op: str, last: bool, keepdims: bool) -> None:
    net = Net()
    x = net.const(np.random.default_rng(0).integers(0, 3, (4, 5)))
    x = net("mul", x, net.input())
    graph = net.graph(net(op, x, axis=1, keepdims=keepdims, last=last))
    assert_same(graph, positions.run(graph))
    assert op not in operators(positions.run(graph))


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters_at_constant_positions(reduction: str) -> None:
    """Positions repeat, and some count from the end."""
    net = Net()
    data, rows, cells = net.input(4, 3), net.input(2, 2, 3), net.input(2, 3)
    blocks = net.const([[[1], [-4]], [[3], [1]]], "int64")
    columns = net.const([[0, 2, 2], [-1, 1, -1]], "int64")
    by_block = net("scatter_nd", data, blocks, rows, reduction=reduction)
    by_cell = net("scatter_elements", data, columns, cells, axis=1, reduction=reduction)
    graph = net.graph(by_block, by_cell)
    after = scatters.run(graph)
    assert_same(graph, after)
    assert not {"scatter_nd", "scatter_elements"} & set(operators(after))


def projections(net: Net, x: str, biases: bool, count: int = 3) -> list[str]:
    results = [net("matmul", x, net.random(8, 4 + k, seed=k)) for k in range(count)]
    return [net("add", y, net.random(4 + k, seed=9 + k)) if biases else y for k, y in enumerate(results)]


@pytest.mark.parametrize("biases", [True, False])
def test_products_of_one_operand_merge(biases: bool) -> None:
    net = Net()
    outputs = projections(net, net.input(2, 3, 8), biases)
    wanted = {"matmul": 1, "slice": 3, **({"add": 1} if biases else {})}
    becomes(merge_matmuls.run, net.graph(*[net("exp", y) for y in outputs]), exp=3, **wanted)


def test_merged_products_that_are_outputs_keep_their_names() -> None:
    net = Net()
    graph = net.graph(*projections(net, net.input(2, 8), True, 2))
    after = pipeline.run(graph)
    assert_same(graph, after)
    assert operators(after) == {"matmul": 1, "add": 1, "slice": 2}


def test_products_of_a_merged_part_merge() -> None:
    net = Net()
    (part, other) = projections(net, net.input(2, 8), False, 2)
    wanted = {"matmul": 2, "slice": 4}
    second = [net("matmul", part, net.random(4, k, seed=k)) for k in (3, 5)]
    becomes(merge_matmuls.run, net.graph(*[net("exp", y) for y in (other, *second)]), exp=3, **wanted)


def test_products_of_different_operands_stay() -> None:
    net = Net()
    a, b = net.input(2, 8), net.input(2, 8)
    unchanged(merge_matmuls.run, net.graph(projections(net, a, True, 1)[0], projections(net, b, True, 1)[0]))


def test_reshapes_sink_through_products_sums_and_norms() -> None:
    net = Net()
    x = net.input(2, 3, 8)
    y = net("matmul", net("reshape", x, shape=(6, 8)), net.random(8, 8))
    y = net("reshape", net("add", y, net.random(8)), shape=(2, 3, 8))
    y = net("layer_norm", net("add", net("gelu", y, approximate="none"), x), "", "", epsilon=1e-5)
    graph = net.graph(y)
    after = pipeline.run(graph)
    assert_same(graph, after)
    assert operators(after) == {"matmul": 1, "add": 2, "gelu": 1, "layer_norm": 1}


def test_reshapes_that_break_the_last_axis_stay() -> None:
    net = Net()
    y = net("softmax", net("reshape", net.input(4, 6), shape=(4, 2, 3)), axis=2)
    unchanged(sink.run, net.graph(net("add", y, net.random(3))))


CROP = {"starts": (0, 1, 1, 0), "sizes": (1, 8, 8, 6), "steps": (1, 1, 1, 1)}


def test_crops_sink_through_what_follows_them() -> None:
    net = Net()
    y = net("slice", net("tanh", net.input(1, 10, 10, 6)), **CROP)
    y = net("add", y, net.random(1, 1, 1, 6))
    after = becomes(sink.run, net.graph(net("mul", y, net("sigmoid", y))), tanh=1, slice=1, add=1, sigmoid=1, mul=1)
    assert [n.op for n in after.nodes if n.op != "identity"][-1] == "slice"


def test_parts_of_a_tensor_are_no_crops() -> None:
    net = Net()
    x = net("tanh", net.input(1, 10, 10, 6))
    first, second = (net("slice", x, **{**CROP, "starts": (0, k, k, 0)}) for k in (0, 2))
    unchanged(sink.run, net.graph(net("relu", first), net("abs", second)))
    half = net(
        "slice", net("tanh", net.input(1, 10, 10, 6)), **{**CROP, "sizes": (1, 5, 10, 6), "starts": (0, 5, 0, 0)}
    )
    unchanged(sink.run, net.graph(net("relu", half)))


def test_a_transposition_is_reduced_along_the_axis_it_comes_from() -> None:
    """Other readers keep it; where neighbours are few, or reduced themselves, it is reduced as it is."""

    def reduced(channels: int, axes: tuple[int, ...], keepdims: bool = False) -> Graph:
        net = Net()
        t = net("transpose", net.input(2, 30, channels), perm=(0, 2, 1))
        return net.graph(net("reduce_max", t, axes=axes, keepdims=keepdims))

    net = Net()
    t = net("transpose", net.input(2, 30, 16), perm=(0, 2, 1))
    total = net("reduce_sum", net("mul", t, t), axes=(2,), keepdims=True)
    after = becomes(sink.run, net.graph(net("div", t, total)), transpose=2, mul=1, reduce_sum=1, div=1)
    assert [n.attrs["axes"] for n in after.nodes if n.op == "reduce_sum"] == [(1,)]
    becomes(sink.run, reduced(16, (2,), keepdims=True), transpose=1, reduce_max=1)
    becomes(sink.run, reduced(16, (0, 2)), transpose=1, reduce_max=1, reshape=1)
    for graph in (reduced(4, (2,)), reduced(16, (1, 2)), reduced(16, (1,))):
        unchanged(sink.run, graph)


def test_a_vector_is_repeated_in_front_of_what_cuts_its_axis() -> None:
    """The pixels that a transposed convolution computes as channels."""
    net = Net()
    y = net("reshape", net("tanh", net.input(1, 5, 4, 12)), shape=(5, 4, 2, 2, 3))
    y = net("add", net("transpose", y, perm=(0, 2, 1, 3, 4)), net.random(3))
    graph = net.graph(net("where", net("greater", y, net.const(0)), y, net("mul", y, net.const(0.2))))
    after = becomes(sink.run, graph, tanh=1, add=1, greater=1, mul=1, where=1, reshape=1, transpose=1)
    assert [n.op for n in after.nodes if n.op != "identity"][-2:] == ["reshape", "transpose"]


def test_what_is_read_elsewhere_too_stays_behind_its_move() -> None:
    net = Net()
    y = net("reshape", net.input(3, 8), shape=(2, 3, 4))
    inner = net("sigmoid", y)
    unchanged(sink.run, net.graph(net("mul", y, inner), inner))


def test_outputs_that_share_a_value_keep_both_names() -> None:
    net = Net()
    x = net.input(3)
    y = net("tanh", x)
    graph = net.graph(y, y, x, net.const([1.0, 2.0]))
    after = pipeline.run(graph)
    assert_same(graph, after)
    assert operators(after) == {"tanh": 1, "identity": 3}


def test_the_pipeline_is_deterministic() -> None:
    net = Net()
    graph = net.graph(*projections(net, net.input(2, 8), True))
    first, second = pipeline.run(graph), pipeline.run(graph)
    assert first.nodes == second.nodes
    values = inputs_of(graph)
    for name, value in run(first, values).items():
        np.testing.assert_array_equal(value, run(second, values)[name])


def test_a_reshape_sinks_through_a_long_network() -> None:
    """However long the chain: a sweep goes on with what it has just moved."""
    net = Net()
    y = net("reshape", net.input(2, 3, 4), shape=(6, 4))
    for number in range(200):
        y = net("matmul", y, net.random(4, 4, seed=number)) if number % 10 == 0 else net("tanh", y)
    after = pipeline.run(net.graph(y))
    assert [n.op for n in after.nodes][-1] == "reshape"
    assert operators(after)["reshape"] == 1


@pytest.mark.parametrize("op", whole.KINDS)
@pytest.mark.parametrize(("shape", "axes"), [((1, 96, 90, 3), (0, 1, 2, 3)), ((1, 9216), (1,)), ((8208, 2), (0, 1))])
def test_a_large_tensor_is_reduced_in_two_steps(op: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    net = Net()
    graph = net.graph(net(op, net("tanh", net.input(*shape)), axes=axes, keepdims=False))
    changed = whole.on_cpu(graph)
    assert_same(graph, changed)
    first, second = (n for n in changed.nodes if n.op == op)
    assert 4 <= changed.types[first.output].size <= 96 and changed.types[second.output].size == 1


@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 96, 90), (1, 2)), ((8191,), (0,)), ((8209,), (0,)), ((90, 90), (0, 1))]
)
def test_other_reductions_stay_one(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Of several results, of few elements, or of an axis whose length has no divisors."""
    net = Net()
    unchanged(whole.on_cpu, net.graph(net("reduce_sum", net.input(*shape), axes=axes, keepdims=False)))
