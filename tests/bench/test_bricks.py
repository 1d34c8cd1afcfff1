"""Networks cut into bricks: what they compute, what tells them apart, and how a database of their times is filled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from mononn_bench import cli
from mononn_bench.bricked import EMPTY, LAYERS, WHOLE, BrickedModel, BrickTime, Layer, SystemBricks
from mononn_bench.bricks.case import Entrant, brick_case, cut_model
from mononn_bench.bricks.cut import Network, key_of
from mononn_bench.bricks.measure import VISITS, Ground
from mononn_bench.bricks.pad import MULTIPLE, padded
from mononn_bench.codec import read_record, write_record
from mononn_bench.errors import ModelError
from mononn_bench.measure.process import Limits

Array = NDArray[Any]
ROWS, WIDTH = 3, 4


def a_network(folder: Path, nodes: Sequence[NodeProto], constants: dict[str, Array], left: Sequence[str]) -> Network:
    """Nodes over x [3, 4] float32 as a file, opened to be cut."""
    ends = helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])
    outputs = [helper.make_empty_tensor_value_info(name) for name in left]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [ends], outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    onnx.save(model, folder / "m.onnx")
    return Network(folder / "m.onnx")


def run(model: onnx.ModelProto, values: Sequence[Array]) -> list[Array]:
    names = [value.name for value in model.graph.input]
    found: list[Array] = ReferenceEvaluator(model).run(None, dict(zip(names, values, strict=True)))  # type: ignore[assignment]
    return found


def chained(network: Network, length: int, x: Array) -> dict[str, Array]:
    """Every tensor that bricks make for each other or for the user, brick after brick."""
    cut, known = network.cut(length), {"x": x}
    for _, layers in cut.runs:
        read, made = network.ends(layers)
        known |= zip(made, run(network.model(layers), [known[name] for name in read]), strict=True)
    assert cut.stops[-1] == len(network.layers)
    return known


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[NodeProto], dict[str, Array], list[str]]:
    """Nodes over [3, 4]: arithmetic between any two tensors so far, products by weights, reshapes to a shape that is
    worked out in the graph, and weights that are transposed in it.
    """
    random = np.random.default_rng(draw(st.integers(0, 99)))
    constants: dict[str, Array] = {"two": np.array([2], np.int64)}
    nodes, known = list[NodeProto](), ["x"]
    for i in range(draw(st.integers(1, 12))):
        name, one, other = f"v{i}", draw(st.sampled_from(known)), draw(st.sampled_from(known))
        kind = draw(st.sampled_from(["Add", "Mul", "Relu", "product", "prepared", "reshape"]))
        if kind in ("product", "prepared"):
            constants[f"w{i}"] = random.standard_normal((WIDTH, WIDTH)).astype(np.float32)
            if kind == "prepared":
                nodes.append(helper.make_node("Transpose", [f"w{i}"], [f"p{i}"]))
            nodes.append(helper.make_node("MatMul", [one, f"p{i}" if kind == "prepared" else f"w{i}"], [name]))
        elif kind == "reshape":
            nodes.append(helper.make_node("Shape", [other], [f"s{i}"]))
            nodes.append(helper.make_node("Reshape", [one, f"s{i}"], [name]))
        else:
            nodes.append(helper.make_node(kind, [one] if kind == "Relu" else [one, other], [name]))
        known.append(name)
    return nodes, constants, [known[-1], *draw(st.lists(st.sampled_from(known[1:]), max_size=2, unique=True))][:2]


@settings(max_examples=60, deadline=None)
@given(graph=graphs(), length=st.sampled_from([WHOLE, 1, 2, 3, 8]))
def test_bricks_one_after_the_other_compute_what_the_network_does(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[list[NodeProto], dict[str, Array], list[str]], length: int
) -> None:
    nodes, constants, left = graph
    folder = tmp_path_factory.mktemp("m")
    network = a_network(folder, nodes, constants, list(dict.fromkeys(left)))
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    whole = run(onnx.load(folder / "m.onnx"), [x])
    known = chained(network, length, x)
    for name, value in zip(dict.fromkeys(left), whole, strict=True):
        np.testing.assert_array_equal(known[name], value)


def linear(folder: Path, weight: Array, attribute: int = 0) -> str:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=attribute)]
    network = a_network(folder, nodes, {"w": weight.astype(np.float32)}, ["y"])
    return network.cut(WHOLE).keys[0]


def test_a_brick_is_told_apart_by_what_it_computes_and_not_by_its_weights(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    square = random.standard_normal((WIDTH, WIDTH))
    key = linear(tmp_path, square)
    assert key == linear(tmp_path, square + 1)
    assert key != linear(tmp_path, square, attribute=1)
    assert key != linear(tmp_path, random.standard_normal((WIDTH, WIDTH + 1)))


def clipped(folder: Path, bound: float) -> str:
    nodes = [helper.make_node("Clip", ["x", "", "high"], ["y"])]
    return a_network(folder, nodes, {"high": np.float32(bound)}, ["y"]).cut(WHOLE).keys[0]


def quantised(folder: Path, scale: float, zero: int) -> str:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    constants = {"s": np.float32(scale), "z": np.uint8(zero)}
    return a_network(folder, nodes, constants, ["y"]).cut(WHOLE).keys[0]


def test_single_numbers_count_but_scales_and_zero_points_that_are_not_zero_do_not(tmp_path: Path) -> None:
    assert clipped(tmp_path, 6.0) != clipped(tmp_path, 1.0)
    assert quantised(tmp_path, 0.5, 3) == quantised(tmp_path, 0.25, 128)
    assert quantised(tmp_path, 0.5, 3) != quantised(tmp_path, 0.5, 0)


def test_layers_that_are_alike_are_one_brick_wherever_they_stand(tmp_path: Path) -> None:
    names = ["x", "a", "b", "c", "y"]
    nodes = [helper.make_node("Relu", [one], [other], name=other) for one, other in pairwise(names)]
    network = a_network(tmp_path, nodes, {}, ["y"])
    cut = network.cut(LAYERS)
    assert (len(cut.keys), len(set(cut.keys)), cut.stops) == (4, 1, (1, 2, 3, 4))
    assert network.described() == tuple(
        Layer(name, "Relu", reads) for name, reads in (("a", ()), ("b", (0,)), ("c", (1,)), ("y", (2,)))
    )


def test_a_brick_does_not_end_where_a_shape_is_not_known(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Shape", ["places"], ["shape"]),
        helper.make_node("ReduceSum", ["shape"], ["y"], keepdims=0),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    network = a_network(tmp_path, nodes, {}, ["y", "z"])
    assert [node.op_type for node in network.layers] == ["NonZero", "Shape", "ReduceSum", "Relu"]
    assert network.cut(LAYERS).stops == (2, 3, 4)


def test_what_a_subgraph_reads_from_outside_is_an_input_of_the_brick(tmp_path: Path) -> None:
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [ROWS, WIDTH])
        return helper.make_graph([helper.make_node(op, ["a"], ["out"])], op, [], [out])

    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["chosen"], to=TensorProto.BOOL),
        helper.make_node("If", ["chosen"], ["y"], then_branch=branch("Neg"), else_branch=branch("Relu")),
    ]
    network = a_network(tmp_path, nodes, {}, ["y"])
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    np.testing.assert_array_equal(chained(network, LAYERS, x)["y"], -np.abs(x))
    assert network.ends(range(3, 4)) == (["chosen", "a"], ["y"])


@pytest.mark.parametrize("op", ["Conv", "MatMul", "Gemm"])
def test_padded_channels_leave_the_others_as_they_were(op: str) -> None:
    random = np.random.default_rng(0)
    shapes = {"Conv": ([1, 5, 6, 6], [20, 5, 3, 3]), "MatMul": ([2, 3, 5], [5, 20]), "Gemm": ([3, 5], [20, 5])}
    (shape, weights), said = shapes[op], {"transB": 1} if op == "Gemm" else {}
    constants = {"c0": random.standard_normal(weights), "c1": random.standard_normal(20)}
    node = helper.make_node(op, ["x0", *list(constants)[: 1 if op == "MatMul" else 2]], ["t0"], **said)
    out = {"Conv": [1, 20, 4, 4], "MatMul": [2, 3, 20], "Gemm": [3, 20]}[op]
    model = helper.make_model(
        helper.make_graph(
            [node],
            "brick",
            [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("t0", TensorProto.FLOAT, out)],
            [numpy_helper.from_array(v.astype(np.float32), n) for n, v in constants.items() if n in node.input],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    wide = padded(model)
    assert wide is not None
    onnx.checker.check_model(wide, full_check=True)
    axis = 1 if op == "Conv" else -1
    x = random.standard_normal(shape).astype(np.float32)
    more = [(0, MULTIPLE - 5 if i == axis % len(shape) else 0) for i in range(len(shape))]
    answer, before = run(wide, [np.pad(x, more)])[0], run(model, [x])[0]
    np.testing.assert_allclose(answer.take(range(20), axis), before, rtol=1e-5, atol=1e-5)
    assert not answer.take(range(20, 32), axis).any()
    assert padded(wide) is None
    assert key_of(wide) != key_of(model)


def a_case(folder: Path, model: Path, systems: Sequence[str], said: list[str]) -> BrickedModel:
    ground = Ground((0,), Limits(5.0, 600), folder / "scratch")
    entrants = [Entrant(name, Path(sys.executable), "made-by") for name in systems]
    return brick_case(
        model, entrants, [2], ground, precision="fp32", machine_name="here", database=folder / "database",
        command="again", say=said.append, lock=folder / "lock",
    )  # fmt: skip


def test_bricks_are_measured_once_and_failures_are_rows(linear_folder: Path, tmp_path: Path) -> None:
    systems, said = ["fake-ok", "fake-broken", "fake-crash", "fake-missing"], list[str]()
    found = a_case(tmp_path, linear_folder, systems, said)
    assert [cut.length for cut in found.cuts] == [WHOLE, 1, 2]
    assert [found.operators(run) for _, run in found.cuts[2].runs] == ["MatMul+Add", "Relu"]
    right, broken, crash, missing = found.systems
    keys = {key for cut in found.cuts for key in cut.keys} | {EMPTY}
    assert {brick.key for brick in found.bricks} | {EMPTY} == keys
    keys |= {brick.padded for brick in found.bricks if brick.padded}
    assert set(right.times) == set(broken.times) == keys
    assert all(time.status == "ok" and len(time.seconds) == VISITS for time in right.times.values())
    assert {time.reason for time in broken.times.values()} == {"ValueError: operator Softmax is not supported"}
    assert {time.reason for time in crash.times.values()} == {"ended by SIGSEGV in block"}
    assert (missing.times, missing.reason) == ({}, "the library fake is not installed")
    assert not (tmp_path / "scratch").exists()
    said.clear()
    again = a_case(tmp_path, linear_folder, systems[:1], said)
    assert again.systems[0] == right
    assert not any("building" in line for line in said)


def test_only_a_brick_that_failed_is_measured_again(linear_folder: Path, tmp_path: Path) -> None:
    said = list[str]()
    a_case(tmp_path, linear_folder, ["fake-ok"], said)
    (path,) = (tmp_path / "database").glob("fake-ok-*.json")
    record = read_record(SystemBricks, path)
    failed, *others = record.times
    write_record(replace(record, times={**record.times, failed: BrickTime("timeout", "no answer to block")}), path)
    said.clear()
    (found,) = a_case(tmp_path, linear_folder, ["fake-ok"], said).systems
    assert f"  fake-ok: building 1 of {len(record.times)} bricks" in said
    assert (found.times[failed].status, len(found.times[failed].seconds)) == ("ok", VISITS)
    assert [found.times[key] for key in others] == [record.times[key] for key in others]
    assert read_record(SystemBricks, path).times == found.times


def test_a_padded_product_is_a_brick_of_its_own(linear_folder: Path) -> None:
    cuts, bricks, makers = cut_model(Network(linear_folder / "model.onnx"), [])
    wider = {brick.key: brick.padded for brick in bricks}
    product, add, relu = cuts[1].keys
    wide = makers[wider[product]]()
    assert [d.dim_value for d in wide.graph.output[0].type.tensor_type.shape.dim] == [1, MULTIPLE]
    assert key_of(wide) == wider[product]
    assert wider[add] == wider[relu] == ""


def test_what_has_no_layers_is_refused_with_a_sentence(tmp_path: Path) -> None:
    nodes = [helper.make_node("Abs", ["w"], ["y"])]
    network = a_network(tmp_path, nodes, {"w": np.float32([1.0])}, ["y"])
    with pytest.raises(ModelError, match="computes nothing from its inputs"):
        cut_model(network, [1])
    assert cli.main(["bricks", "--model", "mlp", "--target", "cuda"]) == 2
    assert cli.main(["bricks", "--model", "mlp", "--defaults"]) == 2


def test_lengths_are_whole_numbers_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bricks", "--model", "mlp", "--lengths", "1,0"])
    assert "'0' is not a whole number from 1" in capsys.readouterr().err
