"""Weights of seven bits: pairs of their products with bytes are added in 16 bits, exactly, where no instruction does
all of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.program.interpret import run
from mononn_core.program.template import operand
from mononn_core.runtime.session import Session
from tests.core.models import model, node

Arrays = dict[str, np.ndarray]  # type: ignore[type-arg]


def network(largest: int, random: np.random.Generator) -> tuple[bytes, Arrays, list[np.ndarray]]:  # type: ignore[type-arg]
    """A product, a dense strided convolution and one in groups, with weights that are the largest or the smallest that
    they may be, or any between; inputs and answers."""
    weights = {"w": (38, 45), "k": (21, 6, 3, 3), "g": (32, 16, 1, 1)}
    constants = {name: random.integers(-largest, largest + 1, shape).astype(np.int8) for name, shape in weights.items()}
    for value in constants.values():
        value[..., :9] = largest
        value[:5] = -largest
    feeds = {name: random.integers(0, 256, s).astype(np.uint8) for name, s in INPUTS.items()}
    feeds["a"][:7], feeds["x"][:, :, :5] = 255, 255
    nodes = [
        node("MatMulInteger", "a w", "m"),
        helper.make_node("ConvInteger", ["x", "k"], ["c"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("ConvInteger", ["z", "g"], ["n"], group=2),
    ]
    proto = model(nodes, [(name, "uint8", s) for name, s in INPUTS.items()], ["m", "c", "n"], constants)
    return proto.SerializeToString(), feeds, ReferenceEvaluator(proto).run(None, feeds)


INPUTS = {"a": (29, 38), "x": (1, 6, 13, 17), "z": (1, 32, 7, 9)}


@pytest.mark.parametrize(("largest", "seven"), [(64, True), (65, False), (1, True)])
@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_sums_are_exact(level: str, largest: int, seven: bool) -> None:
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    serialized, feeds, wanted = network(largest, np.random.default_rng(largest))
    stages = compiler.lower(serialized, threads=2, machine=machine)
    product, *convolutions = (p.task.params for p in stages.program.phases() if p.task.template != "nest")
    assert (product.get("pairs") == "seven_bits") is seven
    assert [bool(conv.get("seven_bits")) for conv in convolutions] == [seven] * 2
    assert ("mn::seven_bits(" in stages.source) is seven
    given = {name: value.reshape(stages.program.buffer(name).shape) for name, value in feeds.items()}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(feeds)
    for name, want in zip(("m", "c", "n"), wanted, strict=True):
        np.testing.assert_array_equal(found[name], want)
        np.testing.assert_array_equal(seen[name].reshape(want.shape), want)


def test_other_processors_multiply_bytes() -> None:
    serialized, *_ = network(64, np.random.default_rng(0))
    avx2 = Machine.named("avx2")
    for machine in (replace(avx2, features=avx2.features | {"avxvnni"}), Machine.named("neon")):
        assert "seven_bits" not in compiler.lower(serialized, threads=2, machine=machine).source


@pytest.mark.parametrize(
    ("rows", "large", "most"),
    [
        (64, 0.002, True),
        (63, 0.002, False),  # too few rows
        (64, 0.05, False),  # too many vectors would be multiplied twice
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_few_pairs_that_do_not_fit(transposed: bool, rows: int, large: float, most: bool) -> None:
    """Are multiplied beside the others, where that takes less than words of 16 bits."""
    random = np.random.default_rng(5)
    w = np.where(random.random((101, 37)) < large, 127, random.integers(-50, 51, (101, 37))).astype(np.int8)
    feeds = {"x": random.integers(0, 256, (rows, 101)).astype(np.float32)}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "s", "z"]),
        helper.make_node("Transpose", ["w"], ["v"], perm=[1, 0]),
        helper.make_node("MatMulInteger", ["a", "v" if transposed else "w"], ["m"]),
    ]
    constants = {"w": np.ascontiguousarray(w.T) if transposed else w}
    proto = model(nodes if transposed else nodes[::2], [("x", "float32", (rows, 101))], ["m"], constants)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=Machine.named("avx2"))
    (product,) = (p.task for p in stages.program.phases() if p.task.template == "matmul")
    assert product.params.get("pairs", "") == ("most" if most else "")
    assert stages.program.buffer(operand(product, "a").buffer).dtype == ("uint8" if most else "int16")
    answers(stages, feeds, proto)


@pytest.mark.parametrize("beside", [False, True])
def test_bytes_are_stored_as_words(beside: bool) -> None:
    """Whatever made them: a cast, a pool, a concatenation; but not beside words that are the network's own."""
    random = np.random.default_rng(6)
    weights = {"k": random.integers(-128, 128, (32, 24, 3, 3)).astype(np.int8)}
    inputs = [("x", "float32", (1, 12, 9, 9)), ("y", "float32", (1, 12, 9, 9)), ("h", "int16", (1, 12, 9, 9))]
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.UINT8),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2]),
        helper.make_node("Cast", ["h" if beside else "y"], ["c"], to=TensorProto.UINT8),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2]),
        helper.make_node("Concat", ["b", "d"], ["e"], axis=1),
        helper.make_node("ConvInteger", ["e", "k"], ["r"], pads=[1] * 4),
    ]
    feeds = {name: random.integers(0, 256, shape).astype(dtype) for name, dtype, shape in inputs}
    if beside:
        feeds["h"] -= 77  # a cast to bytes keeps the lower ones
    used = [i for i in inputs if i[0] != ("y" if beside else "h")]
    proto = model(nodes, used, ["r"], weights)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=Machine.named("avx2"))
    (conv,) = (p.task for p in stages.program.phases() if p.task.template == "conv")
    assert stages.program.buffer(operand(conv, "a").buffer).dtype == ("uint8" if beside else "int16")
    answers(stages, {name: feeds[name] for name, *_ in used}, proto)


def answers(stages: compiler.Stages, feeds: Arrays, proto: ModelProto) -> None:
    """The virtual machine and, where it can run, the compiled function give ONNX's own answers."""
    wanted = ReferenceEvaluator(proto).run(None, feeds)
    given = {name: value.reshape(stages.program.buffer(name).shape) for name, value in feeds.items()}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)
    for output, want in zip(proto.graph.output, wanted, strict=True):
        np.testing.assert_array_equal(seen[output.name].reshape(want.shape), want)
    if not stages.machine.features <= Machine.probe().features:
        return
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(feeds)
    for output, want in zip(proto.graph.output, wanted, strict=True):
        np.testing.assert_array_equal(found[output.name], want)
