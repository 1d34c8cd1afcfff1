"""The importer: shapes, names, functions, control flow, and one clear sentence for every bad model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mononn_core.errors import InputError, ModelError, MononnError, ShapeError, UnsupportedError
from mononn_core.graph.verify import verify
from mononn_core.importer import check, load
from mononn_core.importer.context import converts
from mononn_core.ops.evaluate import run
from tests.core.graphs import infer, operators
from tests.core.models import assert_agrees, model, node, random_inputs, value_info

DYNAMIC = [("a", "float32", ("batch", 3)), ("b", "float32", ("batch", "width"))]


def dynamic() -> bytes:
    return bytes(model([node("Concat", "a b", "y", axis=1)], DYNAMIC, ["y"]).SerializeToString())


def test_a_dimension_nobody_gave_is_named() -> None:
    with pytest.raises(ShapeError, match=r"input 'a': dimension 0 \(batch\) is dynamic.*--shape a=128x3"):
        load(dynamic())


def test_a_symbol_holds_for_every_input() -> None:
    graph = load(dynamic(), {"b": (2, 5)})
    assert graph.types["a"].shape == (2, 3)
    assert graph.types["y"].shape == (2, 8)


@pytest.mark.parametrize("unknown", [-1, "?", ""])
def test_a_dimension_without_a_name_may_be_anything(unknown: int | str) -> None:
    """However the exporter wrote that it is not known: each by itself."""
    made = model([node("Relu", "a", "y")], [("a", "float32", (unknown, unknown, 3))], ["y"])
    with pytest.raises(ShapeError, match=r"dimension 0 is dynamic.*--shape a=128x128x3"):
        load(made.SerializeToString())
    assert load(made.SerializeToString(), {"a": (2, 5, 3)}).types["y"].shape == (2, 5, 3)


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        ({"c": (1,)}, InputError, "no input 'c'; its inputs are a, b"),
        ({"a": (1, 4)}, ShapeError, "dimension 1 is 3, and the shape given says 4"),
        ({"a": (1, 3, 1)}, ShapeError, "has 2 dimensions, and shape"),
        ({"a": (1, 3), "b": (2, 5)}, ShapeError, r"dimension 0 \(batch\) is 1, and the shape given says 2"),
        ({"a": (-1, 3)}, ShapeError, "negative"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], error: type[MononnError], message: str) -> None:
    with pytest.raises(error, match=message):
        load(dynamic(), shapes)


def test_fixed_inputs_become_constants() -> None:
    graph = load(dynamic(), {"b": (2, 5)}, {"a": np.zeros((2, 3))})
    assert graph.inputs == ("b",)
    assert graph.types["a"].dtype == "float32"


def test_shape_computations_fold_on_the_way() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axis", "n1"),
        node("Concat", "n1 minus", "target", axis=0),
        node("Reshape", "x target", "r"),
        node("ConstantOfShape", "s", "z", value=numpy_helper.from_array(np.array([2.0], np.float32))),
        node("Add", "x z", "sum"),
        node("Range", "zero n one", "ids"),
    ]
    constants = {k: np.array(v, np.int64) for k, v in {"zero": 0, "one": 1, "axis": [0], "minus": [-1]}.items()}
    graph = load(model(nodes, [("x", "float32", (2, 3, 4))], ["r", "sum", "ids"], constants).SerializeToString())
    assert graph.types["r"].shape == (2, 12)
    assert operators(graph) == {"reshape": 1, "add": 1, "identity": 1}
    found = run(graph, {"x": np.zeros((2, 3, 4), np.float32)})
    assert found["ids"].tolist() == [0, 1]
    assert (found["sum"] == 2).all()


def test_names_and_origins_are_the_models() -> None:
    graph = load(
        model([node("Relu", "x", "h"), node("Exp", "h", "y")], [("x", "float32", (2,))], ["y"]).SerializeToString()
    )
    assert graph.inputs == ("x",)
    assert graph.outputs == ("y",)
    assert [str(n.origin) for n in graph.nodes] == ["Relu node 'Relu_h'", "Exp node 'Exp_y'"]
    assert [n.output for n in graph.nodes] == ["h", "y"]


def test_outputs_that_are_inputs_constants_or_twins() -> None:
    nodes = [
        node("Relu", "x", "h"),
        node("Identity", "h", "h2"),
        node("Identity", "x", "x2"),
        node("Identity", "c", "c2"),
    ]
    proto = model(nodes, [("x", "float32", (2,))], ["h", "h2", "x2", "c2"], {"c": np.float32([1, 2])})
    verify(load(proto.SerializeToString()), infer)
    assert_agrees(proto, random_inputs([("x", "float32", (2,))]))


def test_initializers_that_are_also_inputs_are_constants() -> None:
    inputs = [("x", "float32", (2,)), ("w", "float32", (2,))]
    graph = load(model([node("Add", "x w", "y")], inputs, ["y"], {"w": np.ones(2, np.float32)}).SerializeToString())
    assert graph.inputs == ("x",)


def own_function() -> onnx.ModelProto:
    """y = scale(x, factor=3) twice, where scale calls another function."""
    factor = onnx.NodeProto(op_type="Constant", output=["c"])
    reference = factor.attribute.add(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    assert reference.ref_attr_name == "factor"
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    inner = helper.make_function("mine", "Twice", ["v"], ["w"], [node("Add", "v v", "w")], opsets)
    body = [factor, node("Mul", "v c", "h"), node("Twice", "h", "w", domain="mine")]
    outer = helper.make_function("mine", "Scale", ["v"], ["w"], body, opsets, attributes=["factor"])
    nodes = [node("Scale", "x", "h", domain="mine", factor=3.0), node("Scale", "h", "y", domain="mine", factor=0.5)]
    return model(nodes, [("x", "float32", (2, 3))], ["y"], functions=[inner, outer], domains=["mine"])


def test_own_functions_are_expanded() -> None:
    proto = own_function()
    graph = load(proto.SerializeToString())
    assert operators(graph) == {"mul": 2, "add": 2}
    assert_agrees(proto, random_inputs([("x", "float32", (2, 3))]))
    assert [row[2] for row in check(proto.SerializeToString())] == ["expanded", "expanded"]


def test_standard_functions_are_expanded() -> None:
    inputs = [("x", "float32", (2, 6, 3))]
    constants = {"s": np.ones(6, np.float32), "b": np.arange(6, dtype=np.float32)}
    proto = model([node("GroupNormalization", "x s b", "y", num_groups=2)], inputs, ["y"], constants, opset=21)
    assert_agrees(proto, random_inputs(inputs))


def branches(condition: str) -> onnx.ModelProto:
    out = [value_info(("y", "float32", None))]
    sides = {
        f"{k}_branch": helper.make_graph([node(op, "x", "y")], k, [], out)
        for k, op in (("then", "Exp"), ("else", "Neg"))
    }
    nodes = [node("Identity", "x", "same"), node("If", condition, "y", **sides)]
    inputs = [("x", "float32", (2,)), ("c", "bool", ())]
    return model(nodes, inputs, ["y"], {"known": np.array(False)})


def test_a_constant_condition_chooses_its_branch() -> None:
    assert operators(load(branches("known").SerializeToString())) == {"neg": 1}


def test_a_condition_from_the_inputs_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"If node 'If_y': its condition depends on 'c'"):
        load(branches("c").SerializeToString())


def test_loops_unroll() -> None:
    body = helper.make_graph(
        [node("Identity", "cond", "cond_out"), node("Add", "v x", "v_out"), node("Mul", "v_out v_out", "scan")],
        "body",
        [value_info(e) for e in (("i", "int64", ()), ("cond", "bool", ()), ("v", "float32", (2,)))],
        [value_info(e) for e in (("cond_out", "bool", ()), ("v_out", "float32", (2,)), ("scan", "float32", (2,)))],
    )
    inputs = [("x", "float32", (2,))]
    proto = model(
        [node("Loop", "n t x", "y s", body=body)], inputs, ["y", "s"], {"n": np.int64(3), "t": np.array(True)}
    )
    assert_agrees(proto, random_inputs(inputs))


def test_an_unknown_operator_is_named() -> None:
    proto = model([node("Frobnicate", "x", "y", domain="acme")], [("x", "float32", (2,))], ["y"], domains=["acme"])
    with pytest.raises(UnsupportedError, match=r"Frobnicate node 'Frobnicate_y': operator acme.Frobnicate has no form"):
        load(proto.SerializeToString())


def test_a_shape_that_depends_on_data_is_named() -> None:
    proto = model([node("Reshape", "x s", "y")], [("x", "float32", (6,)), ("s", "int64", (2,))], ["y"])
    with pytest.raises(UnsupportedError, match=r"Reshape node 'Reshape_y': its shape depends on 's'"):
        load(proto.SerializeToString())


def test_shapes_that_clash_name_the_node() -> None:
    proto = model([node("Add", "x x2", "y")], [("x", "float32", (2,)), ("x2", "float32", (3,))], ["y"])
    with pytest.raises(ShapeError, match=r"Add node 'Add_y': shapes .* do not broadcast"):
        load(proto.SerializeToString())


def test_check_judges_each_node() -> None:
    nodes = [node("Relu", "x", "a"), node("NonMaxSuppression", "a a", "b"), node("Add", "b a", "c")]
    nodes.append(node("GroupNormalization", "a s s", "y", num_groups=1))
    inputs = [("x", "float32", ("n", 3, 4)), ("s", "float32", (3,))]
    data = model(nodes, inputs, ["y"], opset=21).SerializeToString()
    for shapes in ({}, {"x": (2, 3, 4)}):
        rows = check(data, shapes)
        assert [r[1] for r in rows] == ["Relu", "NonMaxSuppression", "Add", "GroupNormalization"]
        assert [r[2] for r in rows] == ["native", "unsupported", "native", "expanded"]
        assert "no form" in rows[1][3]


def test_converters_are_registered_once() -> None:
    with pytest.raises(ValueError, match="two converters"):
        converts("MatMul")(lambda ctx: "")


WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def external(folder: Path, location: str = "weights.bin", **entries: int) -> Path:
    """A model beside (or beyond) a weight file."""
    proto = model([node("MatMul", "x w", "y")], [("x", "float32", (2, 4))], ["y"], {"w": WEIGHT})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    (folder / "weights.bin").write_bytes(b"\0" * 8 + WEIGHT.tobytes())
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    graph = load(external(tmp_path, offset=8, length=48))
    np.testing.assert_array_equal(graph.constants["w"], WEIGHT)


def test_external_data_that_is_missing_or_short(tmp_path: Path) -> None:
    path = external(tmp_path, "other.bin", offset=8, length=48)
    with pytest.raises(ModelError, match=r"external data 'other.bin' of tensor 'w' cannot be read \(No such file"):
        load(path)
    with pytest.raises(ModelError, match="ends after 0 of 99 bytes"):
        load(external(tmp_path, offset=10_000, length=99))
    with pytest.raises(ModelError, match="do not fit its shape"):
        load(external(tmp_path, offset=8, length=44))
    with pytest.raises(ModelError, match="given as bytes"):
        load(path.read_bytes())


def test_external_data_outside_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    for location in ("../secret.bin", str(tmp_path / "secret.bin"), "link.bin", ""):
        with pytest.raises(ModelError, match="lies outside the model's folder"):
            load(external(inside, location, offset=0, length=48))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    good = bytes(
        model([node("MatMul", "x w", "y")], [("x", "float32", (2, 4))], ["y"], {"w": WEIGHT}).SerializeToString()
    )
    path = tmp_path / "bad.onnx"
    for data in (b"", b"hello world", b"\x89PNG\r\n" * 20, *(good[:n] for n in range(0, len(good) - 1, 7))):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=r"bad.onnx.*(is not an ONNX model|is truncated)") as caught:
            load(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path / "missing.onnx")
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path)


def test_damaged_models_are_named_errors() -> None:
    x = [("x", "float32", (2, 3))]
    damaged = {
        "reads 'ghost'": model([node("Relu", "ghost", "y")], x, ["y"]),
        "made by no node": model([node("Relu", "x", "h")], x, ["y"]),
        "more than one -1": model([node("Reshape", "x s", "y")], x, ["y"], {"s": np.array([-1, -1])}),
        "axis 5 does not exist": model([node("Softmax", "x", "y", axis=5)], x, ["y"]),
        "MaxPool node .* cannot be read": model([node("MaxPool", "x", "y")], x, ["y"]),
        "a required input is missing": model([node("Gather", "x", "y")], x, ["y"]),
    }
    for message, proto in damaged.items():
        with pytest.raises(MononnError, match=message):
            load(proto.SerializeToString())


def test_a_name_that_is_no_text_is_a_named_error() -> None:
    proto = model([node("Add", "name other", "y")], [("name", "float32", ("n",)), ("other", "float32", ("n",))], ["y"])
    damaged = proto.SerializeToString().replace(b"name", b"n\xffme")
    with pytest.raises(ModelError, match="not UTF-8"):
        load(damaged, {"other": (2,), b"n\xffme": (2,)})  # type: ignore[dict-item]


def test_strings_and_sequences_are_named() -> None:
    text = model([node("Identity", "t", "y")], [], ["y"])
    text.graph.input.append(helper.make_tensor_value_info("t", TensorProto.STRING, [1]))
    with pytest.raises(UnsupportedError, match="string elements"):
        load(text.SerializeToString())
    sequence = model([node("SequenceConstruct", "x x", "y")], [("x", "float32", (2,))], ["y"])
    with pytest.raises(UnsupportedError, match="output 'y' is a sequence"):
        load(sequence.SerializeToString())


def test_sequences_inside_a_model_dissolve() -> None:
    nodes = [
        node("SplitToSequence", "x", "s", axis=1),
        node("SequenceInsert", "s x0", "t"),
        node("SequenceAt", "t two", "third"),
        node("ConcatFromSequence", "t", "all", axis=1),
        node("SequenceLength", "t", "n"),
    ]
    constants = {"x0": np.ones((2, 1), np.float32), "two": np.int64(2)}
    graph = load(model(nodes, [("x", "float32", (2, 2))], ["third", "all", "n"], constants).SerializeToString())
    found = run(graph, {"x": np.zeros((2, 2), np.float32)})
    assert found["n"] == 3
    np.testing.assert_array_equal(found["all"], [[0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(found["third"], [[1], [1]])


@pytest.mark.parametrize("seed", range(4))
def test_nodes_in_any_order(seed: int) -> None:
    """Some tools append what they insert; graphs inside nodes read from around them, and have names of their own."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [node("Mul", "late x", f"{name}_y"), node("Add", "x far", "late")],
            name, [], [value_info((f"{name}_y", "float32", (2, 3)))],
        )
        for name in ("then", "else")
    }  # fmt: skip
    nodes = [
        node("Relu", "x", "near"),
        node("Add", "near x", "far"),
        node("If", "yes", "picked", **branches),
        node("Sub", "picked near", "late"),
        node("Identity", "late", "y"),
    ]
    proto = model([nodes[i] for i in np.random.default_rng(seed).permutation(5)], [("x", "float32", (2, 3))], ["y"],
                  {"yes": np.bool_(True)})  # fmt: skip
    x = np.array([[1, -2, 3], [0.5, 0, -1]], np.float32)
    near = np.maximum(x, 0)
    np.testing.assert_allclose(run(load(proto.SerializeToString()), {"x": x})["y"], (2 * x + near) * x - near)


def test_a_circle_is_named() -> None:
    proto = model(
        [node("Relu", "b", "a"), node("Relu", "a", "b"), node("Relu", "x", "y")], [("x", "float32", (2,))], ["y"]
    )
    with pytest.raises(ModelError, match="reads 'b', which nothing makes"):
        load(proto.SerializeToString())


DAMAGED = {
    "an attribute of another kind": (
        node("Gelu", "a", "y", approximate=3),
        "attribute 'approximate' is INT, not STRING",
    ),
    "a type the operator does not take": (
        node("Tanh", "i", "y"),
        r"its input 0 \(input\) is int64, which it does not take",
    ),
    "two types where one is meant": (node("Add", "a i", "y"), "input 1 .B. is int64, another one float32"),
    "a triangle of a vector": (node("Trilu", "v", "y"), "has no triangle"),
    "blocks of no pixels": (node("SpaceToDepth", "m", "y", blocksize=-1), "blocks of -1 by -1 pixels"),
    "positions for other updates": (
        node("ScatterElements", "a j v", "y"),
        r"there is not one position of int64\[1, 1\] for each of float32\[3\]",
    ),
    "more parts of a position than axes": (node("ScatterND", "v k v", "y"), "there is not one position of int64"),
    "numbers that are quantised to fractions": (
        node("QuantizeLinear", "a s", "y", output_dtype=TensorProto.FLOAT16),
        "to integers, not to float16",
    ),
    "a depth below zero": (node("OneHot", "i d o", "y"), "would have a negative extent"),
    "indices beyond the data beside their axis": (
        node("GatherElements", "v3 k3", "y", axis=1),
        "reach beyond data .* in an axis that they do not index",
    ),
    "a tensor that no machine holds": (node("Pad", "v p", "y"), "GiB, and at most 64 are handled"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_node_that_onnx_does_not_allow_is_named(case: str) -> None:
    inputs = [
        ("a", "float32", (2, 3)),
        ("i", "int64", (2, 3)),
        ("j", "int64", (1, 1)),
        ("k", "int64", (1, 5)),
        ("m", "float32", (1, 1, 4, 6)),
        ("v", "float32", (3,)),
        ("v3", "float32", (2, 5)),
        ("k3", "int64", (3, 1)),
    ]
    damaged, text = DAMAGED[case]
    stored = {"s": np.float32(1), "p": np.array([0, 1 << 62]), "d": np.array(-1), "o": np.float32([0, 1])}
    made = model([damaged], [i for i in inputs if i[0] in damaged.input], ["y"], stored, opset=23)
    with pytest.raises(MononnError, match=text):
        load(made.SerializeToString())
