"""Copies whose vectors' neighbours lie apart where they are read: squares are transposed in registers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.errors import InputError
from mononn_core.machine import Machine
from mononn_core.runtime.session import Session
from tests.core.models import model, node

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "matrix": ((40, 51), (1, 0), ()),
    "channels last": ((2, 19, 9, 27), (0, 2, 3, 1), ()),
    "channels last, bordered": ((1, 24, 11, 18), (0, 2, 3, 1), (0, 1, 2, 0, 0, 2, 1, 0)),
    "rows of pixels in front": ((1, 24, 11, 18), (0, 2, 3, 1), (0, 2, 0, 0, 0, 1, 0, 0)),
    "channels first": ((1, 10, 33, 21), (0, 3, 1, 2), ()),
    "channels first, bordered": ((2, 10, 12, 37), (0, 3, 1, 2), (0, 0, 1, 3, 0, 0, 1, 3)),
    "keys": ((3, 2, 25, 16), (0, 1, 3, 2), ()),
    "reversed": ((16, 3, 2, 48), (3, 2, 1, 0), ()),
    "few rows": ((7, 64), (1, 0), ()),
}
"""Shape, axes, and what is padded in front of and behind each."""
WITH_SQUARES = 8


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
def test_as_the_reference(level: str) -> None:
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    nodes, edges, constants, feeds = [], [], {"one": np.float32(1)}, {}
    random = np.random.default_rng(0)
    for number, (shape, axes, padded) in enumerate(SHAPES.values()):
        x, moved = f"x{number}", f"t{number}"
        feeds[x] = random.standard_normal(shape).astype(np.float32)
        edges.append((x, "float32", shape))
        nodes.append(helper.make_node("Transpose", [x], [moved], perm=axes))
        if padded:
            constants[f"p{number}"] = np.array(padded, np.int64)
            nodes.append(helper.make_node("Pad", [moved, f"p{number}"], [moved := f"b{number}"]))
        nodes.append(helper.make_node("Add", [moved, moved], [f"m{number}"]))
        nodes.append(helper.make_node("Add", [f"m{number}", "one"], [f"y{number}"]))
    outputs = [f"y{number}" for number in range(len(SHAPES))]
    proto = model(nodes, edges, outputs, constants)
    wanted = ReferenceEvaluator(proto).run(None, feeds)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert stages.source.count("mn::each_square(") == WITH_SQUARES
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(feeds)
    wrong = [k for k, name, want in zip(SHAPES, outputs, wanted, strict=True) if not np.array_equal(found[name], want)]
    assert wrong == []


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
@pytest.mark.parametrize("channels", [18, 27, 32])
@pytest.mark.parametrize("border", [False, True])
def test_neighbours_that_lie_where_data_says(level: str, channels: int, border: bool) -> None:
    """Pixels picked by constant and by given positions and added up, then channels first: of 18 channels a part of a
    square, and columns that fill no square. With a border, a given position also says whether there is a pixel."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    random = np.random.default_rng(channels)
    edges = [("x", "float32", (1, 7, 9, channels)), ("given", "int64", (35,)), ("w", "float32", (35, 1))]
    feeds = {"x": random.standard_normal((1, 7, 9, channels)).astype(np.float32)}
    feeds |= {"given": random.integers(-9, 9, 35), "w": random.standard_normal((35, 1)).astype(np.float32)}
    constants = {"rows": random.integers(-7, 7, 12), "columns": random.integers(0, 9, 35)}
    bordered = []
    if border:
        constants["wide"] = np.array([0, 0, 2, 0, 0, 0, 3, 0])
        bordered = [
            helper.make_node("Pad", ["r", "wide"], ["e"]),
            helper.make_node("Gather", ["e", "given"], ["g"], axis=2),
            helper.make_node("Add", ["s", "g"], ["t"]),
        ]
    nodes = [
        helper.make_node("Gather", ["x", "rows"], ["r"], axis=1),
        helper.make_node("Gather", ["r", "given"], ["p"], axis=2),
        helper.make_node("Gather", ["r", "columns"], ["q"], axis=2),
        helper.make_node("Mul", ["p", "w"], ["v"]),
        helper.make_node("Add", ["v", "q"], ["s"]),
        *bordered,
        helper.make_node("Transpose", ["t" if bordered else "s"], ["y"], perm=(0, 3, 1, 2)),
    ]
    proto = model(nodes, edges, ["y"], constants)
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert "mn::each_column(" in stages.source
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=1e-6, atol=1e-6)
        with pytest.raises(InputError, match="out of range"):
            session.run({**feeds, "given": feeds["given"] + 18})


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
def test_few_channels_are_stored_in_turn(level: str) -> None:
    """Pictures of two to five channels, as float32 and quantised: up to four are put in turn in registers, five are
    stored element by element. 37 columns are vectors and a rest."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    random, nodes, edges, feeds, outputs = np.random.default_rng(0), [], [], {}, []
    for channels in (2, 3, 4, 5):
        x, last, quantised = (f"{name}{channels}" for name in ("x", "y", "q"))
        feeds[x] = random.standard_normal((1, channels, 6, 37)).astype(np.float32)
        edges.append((x, "float32", (1, channels, 6, 37)))
        outputs += [last, quantised]
        nodes += [
            helper.make_node("Transpose", [x], [f"t{channels}"], perm=(0, 2, 3, 1)),
            helper.make_node("Add", [f"t{channels}", f"t{channels}"], [last]),
            helper.make_node("QuantizeLinear", [x, "scale", "zero"], [f"b{channels}"]),
            helper.make_node("Transpose", [f"b{channels}"], [quantised], perm=(0, 2, 3, 1)),
        ]
    proto = model(nodes, edges, outputs, {"scale": np.float32(0.02), "zero": np.uint8(120)})
    wanted = ReferenceEvaluator(proto).run(None, feeds)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    in_turn = [re.findall(rf"store_in_turn<[\w:<>]*, {channels}>", stages.source) for channels in (2, 3, 4, 5)]
    assert [len(found) for found in in_turn] == [2, 2, 2, 0]
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(feeds)
    assert [name for name, want in zip(outputs, wanted, strict=True) if not np.array_equal(found[name], want)] == []


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
def test_vectors_are_of_the_loop_whose_neighbours_lie_side_by_side(level: str) -> None:
    """Means of rows that constants pick, of an image stored channels last: vectors of channels, though the mean's own
    last axis is another. And rows that are chosen where a constant does not say zero."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    nodes = [
        node("Transpose", "x", "first", perm=(0, 3, 1, 2)),
        node("Gather", "first rows", "picked", axis=2),
        node("ReduceMean", "picked axes", "mean", keepdims=0),
        node("Transpose", "mean", "y", perm=(0, 2, 3, 1)),
        node("Transpose", "v", "other", perm=(0, 3, 1, 2)),
        node("Gather", "other rows", "chosen", axis=2),
        node("Where", "none zero chosen", "z"),
    ]
    constants = {
        "rows": np.array([[0, 5], [3, 3], [7, -1]]),
        "axes": np.array([3]),
        "none": np.array([True, False, True]).reshape(3, 1, 1),
        "zero": np.float32(0),
    }
    edges = [(name, "float32", (1, 8, 20, 27)) for name in ("x", "v")]
    proto = model(nodes, edges, ["y", "z"], constants)
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal((1, 8, 20, 27)).astype(np.float32) for name in ("x", "v")}
    stages = compiler.lower(proto.SerializeToString(), threads=1, machine=machine)
    assert "mn::each_lane<27>(" in stages.source
    assert "return (!h0); }" in stages.source
    wanted = ReferenceEvaluator(proto).run(None, feeds)
    with Session(compiler.build(stages), threads=1) as session:
        found = session.run(feeds)
    for name, want in zip(("y", "z"), wanted, strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("level", ["avx512", "avx2"])
@pytest.mark.parametrize("taps", [3, 5])
def test_windows_of_few_taps_are_put_in_turn(level: str, taps: int) -> None:
    """Unfolded rows, the taps of a channel side by side: vectors of channels, up to four taps put in turn."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    windows = np.arange(20)[:, None] * 2 + np.arange(taps)[None]
    nodes = [
        node("Pad", "x wide", "p"),
        node("Gather", "p windows", "w", axis=0),
        node("Transpose", "w", "t", perm=(0, 2, 1)),
        node("Reshape", "t shape", "y"),
    ]
    constants = {"wide": np.array([1, 0, 2, 0]), "windows": windows, "shape": np.array([20, 37 * taps])}
    proto = model(nodes, [("x", "float32", (40, 37))], ["y"], constants)
    x = np.random.default_rng(0).standard_normal((40, 37)).astype(np.float32)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert ("mn::store_in_turn<T, 3>" in stages.source) == (taps == 3)
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run({"x": x})["y"]
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
@pytest.mark.parametrize("quantised", [False, True])
def test_pairs_that_are_turned_are_read_and_stored_in_turn(level: str, quantised: bool) -> None:
    """Rotary positions (Su et al., "RoFormer", 2021), each pair of neighbours: x cos + (-odd, even) sin. As tools
    quantise it each step is put to 8 bits, and a choice of two such values is no integer on its way."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    random, nodes = np.random.default_rng(0), []

    def step(op: str, inputs: str, output: str, **attrs: object) -> None:
        nodes.append(helper.make_node(op, inputs.split(), [f"{output}_" if quantised else output], **attrs))
        if quantised:
            nodes.append(helper.make_node("QuantizeLinear", [f"{output}_", "scale", "zero"], [f"{output}_q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{output}_q", "scale", "zero"], [output]))

    step("Relu", "x", "r")
    for name in ("even", "odd"):
        step("Slice", f"r {name} ends axes steps", f"{name}_half")
    step("Neg", "odd_half", "minus")
    step("Unsqueeze", "minus last", "left")
    step("Unsqueeze", "even_half last", "right")
    step("Concat", "left right", "pairs", axis=-1)
    step("Reshape", "pairs shape", "turned")
    step("Mul", "turned sin", "b")
    step("Mul", "r cos", "a")
    step("Add", "a b", "y")
    shape = (2, 7, 46)
    constants = {
        "even": np.array([0]), "odd": np.array([1]), "ends": np.array([46]), "axes": np.array([2]),
        "steps": np.array([2]), "last": np.array([3]), "shape": np.array(shape),
        "sin": random.standard_normal((7, 46)).astype(np.float32), "zero": np.uint8(120),
        "cos": random.standard_normal((7, 46)).astype(np.float32), "scale": np.float32(0.0625),
    }  # fmt: skip
    proto = model(nodes, [("x", "float32", shape)], ["y"], constants, opset=19)
    feeds = {"x": random.standard_normal(shape).astype(np.float32)}
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert "mn::store_in_turn<T, 2>" in stages.source
    assert "(uint8_t)" not in stages.source, "what is quantised stays a float until it is stored"
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
@pytest.mark.parametrize(("rows", "channels"), [(40, 37), (21, 8), (9, 50)])
def test_rows_whose_neighbours_are_stored_side_by_side(level: str, rows: int, channels: int) -> None:
    """A softmax, a norm, a sum and a pool of which rows are stored as columns: squares of them."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    nodes = [
        node("Softmax", "x", "s"),
        node("LayerNormalization", "x scale bias", "n"),
        node("ReduceSum", "v axes", "r", keepdims=0),
        *(node("Transpose", name, f"{name}_y", perm=(0, 2, 1)) for name in ("s", "n", "r")),
        node("Add", "p p", "image"),
        node("MaxPool", "image", "m", kernel_shape=(3, 3), strides=(2, 2)),
        node("Sigmoid", "m", "m_y"),
    ]
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal((3, rows, channels)).astype(np.float32),
        "v": random.standard_normal((3, rows, 5, channels)).astype(np.float32),
        "p": random.standard_normal((2, channels, 13, 2 * rows + 1)).astype(np.float32),
    }
    constants = {name: random.standard_normal(channels).astype(np.float32) for name in ("scale", "bias")}
    outputs = [f"{name}_y" for name in ("s", "n", "r", "m")]
    edges = [(name, "float32", value.shape) for name, value in feeds.items()]
    proto = model(nodes, edges, outputs, constants | {"axes": np.array([2])}, opset=18)
    wanted = ReferenceEvaluator(proto).run(None, feeds)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert level == "scalar" or stages.source.count(f"mn::store_turned<{channels}>(") == 4
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(feeds)
    for name, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
@pytest.mark.parametrize("quantised", [False, True])
def test_what_products_store_is_transposed_in_squares(level: str, quantised: bool) -> None:
    """Columns of a product that others have as rows, as floats and as bytes: the product stores its own rows, another
    stage transposes them. A norm of rows that lie as columns reads them transposed as well."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    random = np.random.default_rng(0)
    nodes = [node("MatMul", "x w", "p")]
    constants = {n: random.standard_normal(96).astype(np.float32) for n in ("scale", "bias")}
    constants["w"] = random.integers(-9, 9, (40, 96)).astype(np.float32)
    if quantised:
        constants |= {"step": np.float32(4), "zero": np.uint8(120)}
        nodes += [
            node("QuantizeLinear", "p step zero", "q"),
            node("Transpose", "q", "t", perm=(0, 2, 1)),
            node("DequantizeLinear", "t step zero", "d"),
            node("Softmax", "d", "y"),
        ]
    else:
        nodes += [node("Transpose", "p", "t", perm=(0, 2, 1)), node("Softmax", "t", "y")]
        nodes += [node("Transpose", "v", "u", perm=(0, 2, 1)), node("LayerNormalization", "u scale bias", "z")]
    feeds = {"x": random.integers(-9, 9, (3, 93, 40)).astype(np.float32)}
    feeds |= {} if quantised else {"v": random.standard_normal((2, 96, 77)).astype(np.float32)}
    outputs = ["y"] if quantised else ["y", "z"]
    edges = [(n, "float32", value.shape) for n, value in feeds.items()]
    proto = model(nodes, edges, outputs, constants, opset=19)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert stages.source.count("mn::load_square(") == len(outputs)
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(feeds)
    for n, want in zip(outputs, ReferenceEvaluator(proto).run(None, feeds), strict=True):
        np.testing.assert_allclose(found[n], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
def test_parts_of_rows_are_transposed_in_squares_each(level: str) -> None:
    """A concatenation of rows that lie as columns."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    nodes = [node("Transpose", x, f"{x}_t", perm=(0, 2, 1)) for x in "ab"]
    nodes += [node("Concat", "a_t b_t", "c", axis=2), node("Add", "c c", "y")]
    random = np.random.default_rng(0)
    feeds = {x: random.standard_normal((2, n, 40)).astype(np.float32) for x, n in (("a", 75), ("b", 30))}
    proto = model(nodes, [(x, "float32", value.shape) for x, value in feeds.items()], ["y"], {})
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert stages.source.count("mn::each_square(") == 2
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(feeds)["y"]
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("level", ["avx512", "avx2", "scalar"])
@pytest.mark.parametrize("last", ["ReduceL2", "ReduceMax"])
def test_channels_over_their_norms(level: str, last: str) -> None:
    """Each is one number over all rows, added up side by side; what is divided by it goes channels first in squares."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    nodes = [node("Relu", "x", "r"), node("Transpose", "r", "t", perm=(0, 2, 1))]
    nodes += [
        helper.make_node(last, ["t", "axis"], ["n"], keepdims=1),
        node("Add", "n one", "m"),
        node("Div", "t m", "y"),
    ]
    x = np.random.default_rng(0).standard_normal((2, 83, 40)).astype(np.float32)
    constants = {"axis": np.array([-1]), "one": np.float32(1)}
    proto = model(nodes, [("x", "float32", x.shape)], ["y"], constants)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert stages.source.count("mn::each_square(") == 1 and "mn::reduce<" not in stages.source
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run({"x": x})["y"]
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=2e-6)


def test_a_view_of_what_is_transposed_after_all() -> None:
    """Channels attend to channels: a product reads an image channels first, and transposed back, which is no view of
    the image as soon as that is stored channels first."""
    nodes = [
        node("Conv", "x w", "p"),
        node("Relu", "p", "r"),
        node("Reshape", "r flat", "f"),
        node("Transpose", "f", "t", perm=(0, 2, 1)),
        node("MatMul", "f t", "s"),
        node("Sigmoid", "s", "a"),
        node("MatMul", "a f", "m"),
        node("Reshape", "m image", "i"),
        node("Add", "r i", "y"),
    ]
    random = np.random.default_rng(0)
    constants = {
        "w": random.standard_normal((32, 16, 1, 1)).astype(np.float32) * np.float32(0.1),
        "flat": np.array([1, 32, 324]),
        "image": np.array([1, 32, 18, 18]),
    }
    proto = model(nodes, [("x", "float32", (1, 16, 18, 18))], ["y"], constants)
    feeds = {"x": random.standard_normal((1, 16, 18, 18)).astype(np.float32)}
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    with Session(compiler.build(compiler.lower(proto.SerializeToString(), threads=2)), threads=2) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-5)
