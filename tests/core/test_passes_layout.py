"""Images stay channels last: what transpositions behind products and convolutions sink through."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from mononn_core.importer import load
from mononn_core.passes import layout, pipeline
from tests.core.graphs import Net, assert_same, operators
from tests.core.models import assert_agrees, model, node, random_inputs


@pytest.mark.parametrize(
    ("shape", "perm", "spatial"),
    [
        ((2, 12, 5), (0, 2, 1), (3, 4)),
        ((12, 5), (1, 0), (3, 4)),
        ((1, 3, 2, 2, 5), (0, 4, 1, 2, 3), (3, 4)),
        ((3, 4, 2, 2, 5), (4, 0, 2, 1, 3), (6, 8)),
    ],
)
def test_channels_brought_to_the_front_go_back_behind_what_is_done_to_an_image(
    shape: tuple[int, ...], perm: tuple[int, ...], spatial: tuple[int, int]
) -> None:
    net = Net()
    n = shape[0] if perm[0] == 0 else 1
    image = net("reshape", net("transpose", net.input(*shape), perm=perm), shape=(n, 5, *spatial))
    padded = net("pad", image, before=(0, 0, 1, 0), after=(0, 0, 0, 2), mode="constant", value=0.0)
    picked = net("gather", net("exp", padded), net.const([2, 0, 0], "int64"), axis=3)
    graph = net.graph(picked)
    changed = layout.run(graph)
    assert_same(graph, changed)
    assert changed.nodes[-1].op == "transpose" and changed.nodes[-1].attrs["perm"] == (0, 3, 1, 2)
    (gathered,) = (n for n in changed.nodes if n.op == "gather")
    assert changed.types[gathered.output].shape[-1] == 5, "channels last"


@pytest.mark.parametrize(
    ("shape", "perm", "whole"),
    [((2, 12, 5), (0, 2, 1), (1, 10, 3, 4)), ((12, 5), (1, 0), (5, 1, 3, 4)), ((2, 5, 12), (0, 1, 2), (2, 5, 3, 4))],
)
def test_other_reshapes_stay(shape: tuple[int, ...], perm: tuple[int, ...], whole: tuple[int, ...]) -> None:
    net = Net()
    graph = net.graph(net("exp", net("reshape", net("transpose", net.input(*shape), perm=perm), shape=whole)))
    moves = [] if perm == tuple(range(len(perm))) else ["transpose"]
    assert [n.op for n in layout.run(graph).nodes if n.op != "identity"] == [*moves, "reshape", "exp"]


def test_channels_in_groups_stay_last_until_they_are_summed_up() -> None:
    """Split attention (Zhang et al., "ResNeSt", 2020): groups of channels, weighted and added."""
    net = Net()
    image = net("transpose", net.input(2, 5, 6, 12), perm=(0, 3, 1, 2))
    groups = net("exp", net("reshape", net("relu", image), shape=(2, 3, 4, 5, 6)))
    weights = net("reshape", net.input(2, 12), shape=(2, 3, 4, 1, 1))
    weighted = net("mul", groups, weights)
    both = net("concat", weighted, groups, axis=1)
    summed = net("reduce_sum", both, axes=(1,), keepdims=False)
    again = net("reshape", net("neg", weighted), shape=(2, 6, 2, 5, 6))
    flat = net("reshape", again, shape=(2, 12, 30))
    outputs = (net("transpose", summed, perm=(0, 2, 3, 1)), net("reduce_mean", again, axes=(2, 4), keepdims=True), flat)
    changed = pipeline.run(net.graph(*outputs))
    assert_same(net.graph(*outputs), changed)
    for n in changed.nodes:
        if n.op in ("relu", "exp", "mul", "concat"):
            assert changed.types[n.output].shape[1:3] == (5, 6), f"{n.op}: channels last"


@pytest.mark.parametrize(
    ("split", "perm", "joined"),
    [
        ((2, 6), (0, 2, 1, 3, 4), (12,)),
        ((2, 3, 2), (0, 3, 2, 1, 4, 5), (12,)),
        ((2, 3, 2), (0, 2, 3, 1, 4, 5), (6, 2)),
        ((2, 6), (0, 2, 1, 4, 3), None),
        ((2, 6), (0, 3, 1, 2, 4), None),
    ],
)
def test_channels_that_are_shuffled_stay_last(
    split: tuple[int, ...], perm: tuple[int, ...], joined: tuple[int, ...] | None
) -> None:
    """Zhang et al., "ShuffleNet", CVPR 2018, section 3.1; but not where other axes change places too."""
    net = Net()
    image = net("relu", net("transpose", net.input(2, 5, 6, 12), perm=(0, 3, 1, 2)))
    shuffled = net("transpose", net("reshape", image, shape=(2, *split, 5, 6)), perm=perm)
    if joined is not None:
        shuffled = net("reshape", shuffled, shape=(2, *joined, 5, 6))
        rank = 3 + len(joined)
        sizes = (2, joined[0] // 2, *joined[1:], 5, 6)
        shuffled = net("slice", shuffled, starts=(0, 1, *[0] * (rank - 2)), sizes=sizes, steps=(1,) * rank)
    graph = net.graph(net("exp", shuffled))
    changed = layout.run(graph)
    assert_same(graph, changed)
    (last,) = (n for n in changed.nodes if n.op == "exp")
    assert (changed.types[last.inputs[0]].shape[:3] == (2, 5, 6)) == (joined is not None)


def test_groups_of_one_tensor_are_no_groups_of_another() -> None:
    net = Net()
    image = net("transpose", net.input(1, 5, 5, 12), perm=(0, 3, 1, 2))
    two = net("reshape", image, shape=(1, 3, 4, 5, 5))
    volume = net("transpose", net.input(1, 4, 5, 5, 3), perm=(0, 4, 1, 2, 3))
    graph = net.graph(net("add", two, volume), net("concat", two, volume, axis=2))
    assert_same(graph, layout.run(graph))


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("scales", [(1.0, 1.0, 2.0, 3.5), (1.0, 1.0, 0.4, 1.0), (1.0, 1.0, 2.0, 0.5)])
def test_linear_interpolation_adds_two_neighbours(scales: tuple[float, ...], coordinates: str) -> None:
    how = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    edges = [("x", "float32", (2, 3, 5, 6))]
    resize = helper.make_node("Resize", ["x", "", "scales"], ["y"], **how)
    proto = model([resize], edges, ["y"], {"scales": np.array(scales, np.float32)})
    assert_agrees(proto, random_inputs(edges))
    graph = pipeline.run(load(proto.SerializeToString()))
    assert "matmul" not in operators(graph)


def test_a_pixel_spread_over_an_image_joins_it_channels_last() -> None:
    """Pyramid pooling: what becomes of one pixel is a reshape, not a transposition."""
    random = np.random.default_rng(1)
    constants = {name: random.standard_normal((6, 5, 1, 1)) for name in "uv"}
    constants |= {"w": random.standard_normal((4, 12, 1, 1))}
    nodes = [
        node("Conv", "x u", "one"),
        node("Relu", "one", "a"),
        node("GlobalAveragePool", "x", "pool"),
        node("Conv", "pool v", "two"),
        node("Resize", "two - - size", "wide", mode="linear"),
        node("Concat", "a wide", "both", axis=1),
        node("Conv", "both w", "y"),
    ]
    whole = {k: v.astype(np.float32) for k, v in constants.items()} | {"size": np.array([1, 6, 7, 9])}
    proto = model(nodes, [("x", "float32", (1, 5, 7, 9))], ["y"], whole)
    assert_agrees(proto, random_inputs([("x", "float32", (1, 5, 7, 9))]))
    moves = [n for n in pipeline.run(load(proto.SerializeToString())).nodes if n.op == "transpose"]
    assert len(moves) == 2, "the input's and the output's"


def requantised(name: str) -> list[onnx.NodeProto]:
    """``name`` of what is quantised and dequantised again, as tools write it behind each operator: from ``name``."""
    return [
        node("QuantizeLinear", f"{name}f step zero", f"{name}q"),
        node("DequantizeLinear", f"{name}q step zero", name),
    ]


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("groups", [1, 4, 12])
def test_a_group_norm_between_convolutions_leaves_images_as_they_are(groups: int, quantised: bool) -> None:
    """As exporters write it: an instance norm of joined channels; quantised, with its steps between."""
    random = np.random.default_rng(groups)
    constants = {
        "w": random.standard_normal((12, 3, 3, 3)),
        "u": random.standard_normal((2, 12, 1, 1)),
        "scale": random.uniform(0.5, 2, groups),
        "bias": random.standard_normal(groups),
        "step": np.asarray(0.125),
    }
    others = {"joined": np.array([2, groups, -1]), "apart": np.array([2, 12, 5, 6]), "zero": np.uint8(120)}
    f = "f" if quantised else ""
    nodes = [
        node("Conv", "x w", f"y{f}", pads=[1, 1, 1, 1]),
        *requantised("y") * quantised,
        node("Reshape", "y joined", f"z{f}"),
        *requantised("z") * quantised,
        node("InstanceNormalization", "z scale bias", f"n{f}", epsilon=1e-3),
        *requantised("n") * quantised,
        node("Reshape", "n apart", f"m{f}"),
        *requantised("m") * quantised,
        node("Conv", "m u", "out"),
    ]
    given = {name: value.astype(np.float32) for name, value in constants.items()} | others
    edges = [("x", "float32", (2, 3, 5, 6))]
    proto = model(nodes, edges, ["out"], given)
    assert_agrees(proto, random_inputs(edges))
    graph = pipeline.run(load(proto.SerializeToString()))
    images = [n for n in graph.nodes if n.op == "transpose" and graph.types[n.output].size > 2 * 12]
    assert [graph.types[n.output].shape for n in images] == [(2, 5, 6, 3), (2, 2, 5, 6)], "in and out alone"


def test_what_is_done_to_a_flat_image_by_numbers_is_done_to_the_image() -> None:
    net = Net()
    flat = net("reshape", net("transpose", net.input(2, 3, 4, 6), perm=(0, 3, 1, 2)), shape=(2, 2, 36))
    image = net("reshape", net("exp", net("mul", flat, net.const(0.5))), shape=(2, 6, 3, 4))
    graph = net.graph(net("transpose", image, perm=(0, 2, 3, 1)), flat)
    changed = layout.run(graph)
    assert_same(graph, changed)
    (exp,) = (n for n in changed.nodes if n.op == "exp")
    assert changed.types[exp.output].shape == (2, 3, 4, 6)


def test_an_instance_norm_of_a_sequence_stays() -> None:
    proto = model(
        [node("InstanceNormalization", "x s b", "y")],
        [("x", "float32", (2, 4, 9))],
        ["y"],
        {"s": np.ones(4, np.float32), "b": np.zeros(4, np.float32)},
    )
    assert_agrees(proto, random_inputs([("x", "float32", (2, 4, 9))]))
    assert operators(pipeline.run(load(proto.SerializeToString())))["layer_norm"] == 1


def test_a_sequence_between_convolutions_is_an_image_of_one_column() -> None:
    """What stands between them is done channels last: norm, slope, border, joined and summed channels."""
    net = Net()
    column = net("transpose", net.input(2, 9, 1, 4), perm=(0, 3, 1, 2))
    x = net("reshape", column, shape=(2, 4, 9))
    scaled = net("mul", x, net.const(np.arange(4.0).reshape(4, 1)))
    mean = net("reduce_mean", scaled, axes=(2,), keepdims=True)
    padded = net("pad", net("sub", scaled, mean), before=(0, 0, 2), after=(0, 0, 1), mode="constant", value=0.0)
    cut = net("slice", padded, starts=(0, 0, 1), sizes=(2, 4, 10), steps=(1, 1, 1))
    joined = net("concat", cut, net("exp", cut), axis=1)
    image = net("transpose", net("reshape", joined, shape=(2, 8, 10, 1)), perm=(0, 2, 3, 1))
    graph = net.graph(net("relu", image), net("reduce_sum", joined, axes=(1,), keepdims=False))
    changed = pipeline.run(graph)
    assert_same(graph, changed)
    assert "transpose" not in operators(changed)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("axis", "moved"), [(1, True), (0, True), (2, False), (3, False)])
def test_a_softmax_along_another_axis_moves_it_to_the_end_and_back(op: str, axis: int, moved: bool) -> None:
    net = Net()
    graph = net.graph(net(op, net.input(9, 8, 3, 10), axis=axis))
    changed = layout.run(graph)
    assert_same(graph, changed)
    (rows,) = (n for n in changed.nodes if n.op == op)
    assert (rows.attrs["axis"] == 3) == (moved or axis == 3)
    assert operators(changed).get("transpose", 0) == 2 * moved
