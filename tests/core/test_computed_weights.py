"""Convolutions by weights that are computed in the run: of floats where they lie, of bytes as products of windows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.importer import load
from mononn_core.machine import Machine
from mononn_core.passes.pipeline import real_products
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from tests.core.models import model, node

LEVELS = [n for n in ("avx512", "avx2", "scalar") if Machine.named(n).features <= Machine.probe().features]


@dataclass(frozen=True)
class Case:
    """Shapes of an image and of weights, the convolution's attributes, and what template computes it."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    attributes: dict[str, object] = field(default_factory=dict)
    template: str = "conv"


CASES = {
    "one panel": Case((1, 8, 9, 10), (16, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    "ragged panels": Case((1, 5, 9, 10), (70, 5, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "one channel": Case((2, 4, 9, 7), (1, 4, 3, 3), {"dilations": [2, 1]}),
    "single pixels of a batch": Case((4, 12, 6, 6), (33, 12, 1, 1)),
    "a sequence": Case((2, 8, 30), (20, 8, 5), {"pads": [2, 2]}),
    "a volume": Case((1, 2, 5, 6, 7), (16, 2, 3, 3, 3), {"pads": [1] * 6}),
    "long sums": Case((1, 300, 6, 6), (40, 300, 3, 3), {"pads": [1, 1, 1, 1]}),
    "groups": Case((1, 8, 9, 10), (16, 2, 3, 3), {"pads": [1, 1, 1, 1], "group": 4}, "matmul"),
}


def of_floats(case: Case) -> bytes:
    conv = helper.make_node("Conv", ["x", "v", "b"], ["c"], **case.attributes)
    nodes = [node("Tanh", "w", "v"), conv, node("Relu", "c", "y")]
    edges = [("x", "float32", case.x), ("w", "float32", case.w)]
    bias = np.random.default_rng(1).standard_normal(case.w[0]).astype(np.float32)
    return model(nodes, edges, ["y"], {"b": bias}).SerializeToString()


def feeds_of(case: Case) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {n: random.standard_normal(shape).astype(np.float32) for n, shape in (("x", case.x), ("w", case.w))}


def check(text: bytes, feeds: dict[str, np.ndarray], level: str, template: str, exact: bool = False) -> None:
    """The reference's answer, by the template, compiled and on the virtual machine."""
    stages = compiler.lower(text, threads=2, machine=Machine.named(level))
    assert template in [phase.task.template for phase in stages.program.phases()]
    (wanted,) = ReferenceEvaluator(text).run(None, feeds)
    tolerance = 1e-6 if exact else 1e-4
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=tolerance, atol=tolerance)
    given = {n: v.reshape(stages.program.buffer(n).shape) for n, v in feeds.items()}
    seen = run(stages.program, given, stages.lowered.weights, 2)["y"].reshape(wanted.shape)
    np.testing.assert_allclose(seen, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.in_turn("level", "name")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_of_floats(name: str, level: str) -> None:
    check(of_floats(CASES[name]), feeds_of(CASES[name]), level, CASES[name].template)


WEIGHTS_OF_THE_CALLER = {
    "given": ((5, 4, 3, 3), [node("Conv", "x w", "y")], ["y"]),
    "given, of one pixel and channel": ((3, 1, 1, 1), [node("Conv", "x w", "y")], ["y"]),
    "an output as well": (
        (5, 4, 3, 3),
        [node("Tanh", "w", "v"), node("Transpose", "v", "z", perm=[2, 3, 1, 0]), node("Conv", "x v", "y")],
        ["y", "z"],
    ),
    "a part of an output": (
        (5, 4, 3, 3),
        [
            node("Softmax", "w", "v", axis=1),
            node("Transpose", "v", "t", perm=[2, 3, 1, 0]),
            node("Softmax", "t", "u", axis=2),
            node("Concat", "u t", "z", axis=3),
            node("Conv", "x v", "y"),
        ],
        ["y", "z"],
    ),
}


@pytest.mark.parametrize("name", WEIGHTS_OF_THE_CALLER)
def test_no_vector_is_read_behind_an_array_of_the_callers(name: str) -> None:
    """Weights in one are copied; others lie in the arena, which has a margin."""
    w, nodes, outputs = WEIGHTS_OF_THE_CALLER[name]
    case = Case((1, w[1], 6, 6), w)
    text = model(nodes, [("x", "float32", case.x), ("w", "float32", case.w)], outputs).SerializeToString()
    stages = compiler.lower(text, threads=2)
    (phase,) = (p for p in stages.program.phases() if p.task.template == "conv")
    assert {o.role: stages.program.buffer(str(o.buffer)).space for o in phase.task.operands}["b"] == "arena"
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(feeds_of(case))
    for output, wanted in zip(outputs, ReferenceEvaluator(text).run(None, feeds_of(case)), strict=True):
        np.testing.assert_allclose(found[output], wanted, rtol=1e-4, atol=1e-4)


BYTES = {k: c for k, c in CASES.items() if k != "long sums"}


@pytest.mark.in_turn("zeros", "kinds", "name")
@pytest.mark.parametrize("zeros", [(0, 0), (117, 3)])
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("name", BYTES)
def test_of_given_integers(name: str, kinds: tuple[str, str], zeros: tuple[int, int]) -> None:
    case, random = BYTES[name], np.random.default_rng(0)
    limits = [np.iinfo(kind) for kind in kinds]
    feeds = {
        n: random.integers(limit.min, limit.max + 1, shape).astype(kind)
        for n, shape, kind, limit in zip("xw", (case.x, case.w), kinds, limits, strict=True)
    }
    feeds |= {"xz": np.array(zeros[0], kinds[0]), "wz": np.array(zeros[1], kinds[1])}
    nodes = [helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], **case.attributes)]
    edges = [(n, str(v.dtype), v.shape) for n, v in feeds.items()]
    check(model(nodes, edges, ["y"], {}).SerializeToString(), feeds, LEVELS[0], "bytes_matmul", exact=True)


def test_a_gpu_multiplies_whole_numbers() -> None:
    edges = [("x", "uint8", (1, 4, 5, 5)), ("w", "int8", (6, 4, 3, 3))]
    text = model([helper.make_node("ConvInteger", ["x", "w"], ["y"])], edges, ["y"], {}).SerializeToString()
    stages = compiler.lower(text, target="cuda-emulated")
    assert "bytes_matmul" not in [phase.task.template for phase in stages.program.phases()]


def test_a_zero_point_a_channel_stays_exact() -> None:
    random = np.random.default_rng(0)
    feeds = {"x": random.integers(0, 256, (1, 4, 5, 5)).astype(np.uint8)}
    feeds |= {"w": random.integers(-128, 128, (6, 4, 3, 3)).astype(np.int8), "wz": np.arange(6).astype(np.int8)}
    nodes = [helper.make_node("ConvInteger", ["x", "w", "", "wz"], ["y"])]
    text = model(nodes, [(n, str(v.dtype), v.shape) for n, v in feeds.items()], ["y"], {}).SerializeToString()
    wide = {n: v.astype(np.int64) for n, v in feeds.items()}
    windows = np.lib.stride_tricks.sliding_window_view(wide["x"], (3, 3), (2, 3))
    centred = wide["w"] - wide["wz"].reshape(6, 1, 1, 1)
    with compiler.compile(text, threads=2) as session:
        np.testing.assert_array_equal(session.run(feeds)["y"], np.einsum("nchwij,mcij->nmhw", windows, centred))


def quantised(case: Case, zeros: tuple[int, int]) -> bytes:
    nodes = []
    for n, name in enumerate("xw"):
        nodes += [
            node("QuantizeLinear", f"{name} scale zero{n}", f"{name}q"),
            node("DequantizeLinear", f"{name}q scale zero{n}", f"{name}d"),
        ]
    nodes += [helper.make_node("Conv", ["xd", "wd"], ["c"], **case.attributes), node("Relu", "c", "y")]
    constants = {f"zero{n}": np.array(zero, "uint8") for n, zero in enumerate(zeros)}
    edges = [("x", "float32", case.x), ("w", "float32", case.w)]
    constants["scale"] = np.array(0.02, np.float32)
    return model(nodes, edges, ["y"], constants, opset=19).SerializeToString()


@pytest.mark.in_turn("zeros", "name")
@pytest.mark.parametrize("zeros", [(0, 128), (117, 131)])
@pytest.mark.parametrize("name", BYTES)
def test_of_quantised_tensors(name: str, zeros: tuple[int, int]) -> None:
    text = quantised(BYTES[name], zeros)
    assert not real_products(load(text))
    feeds = {n: np.round(v * 40) / 50 for n, v in feeds_of(BYTES[name]).items()}  # no step's half
    check(text, {n: v.astype(np.float32) for n, v in feeds.items()}, LEVELS[0], "bytes_matmul")


def test_why_one_stays_real() -> None:
    case = Case((1, 4, 5, 5), (6, 4, 3, 3))
    nodes = [
        node("QuantizeLinear", "x scale zero", "xq"),
        node("DequantizeLinear", "xq scale zero", "xd"),
        node("QuantizeLinear", "w step zero", "wq"),
        node("DequantizeLinear", "wq step zero", "wd"),
        helper.make_node("Conv", ["xd", "wd"], ["y"]),
    ]
    edges = [("x", "float32", case.x), ("w", "float32", case.w), ("step", "float32", ())]
    constants = {"scale": np.array(0.02, np.float32), "zero": np.array(3, np.uint8)}
    (why,) = real_products(load(model(nodes, edges, ["y"], constants).SerializeToString())).values()
    assert why == "its weights are computed, and they have not one constant scale or are too many"
