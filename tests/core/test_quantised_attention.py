"""Attention of quantised operands: both products in integers, scores and probabilities rounded where the model says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.passes.pipeline import real_products
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from tests.core.networks import Builder
from tests.core.test_quantised import LEVELS
from tests.core.tiles import TILED, built


@dataclass(frozen=True)
class Form:
    """Attention of ``heads`` heads: ``tokens`` queries of ``depth`` over ``keys`` keys, values of ``width``. Scores are
    quantised and dequantised after the places ``rounded``, of "product", "scale" and "bias"."""

    heads: int = 3
    tokens: int = 19
    keys: int = 21
    depth: int = 12
    width: int = 20
    types: tuple[str, str, str] = ("uint8", "uint8", "uint8")
    zeros: tuple[int, int, int] = (131, 120, 127)
    rounded: tuple[str, ...] = ("product",)
    probabilities: tuple[str, int] = ("uint8", 0)
    scale: bool = True
    mask: str = "added"
    guard: bool = False


FORMS = {
    "as tools write it": Form(),
    "operands alone": Form(rounded=()),
    "everywhere": Form(rounded=("product", "scale", "bias"), tokens=16, keys=32, width=32),
    "without a scale": Form(scale=False, mask="", heads=2, depth=64, width=64, keys=128, tokens=33),
    "signed": Form(types=("int8", "int8", "int8"), zeros=(-7, 3, 0), probabilities=("int8", -128)),
    "symmetric": Form(types=("int8", "int8", "int8"), zeros=(0, 0, 0), probabilities=("int8", 0)),
    "mixed types": Form(types=("uint8", "int8", "uint8"), zeros=(0, 0, 128), rounded=("bias",)),
    "rows without a key": Form(mask="chosen", guard=True, rounded=()),
    "one key": Form(keys=1, tokens=1, rounded=("scale",), width=3, depth=4),
}
EVERYWHERE = ("as tools write it", "signed", "rows without a key", "one key")
"""What is compiled for every processor."""


def network(form: Form) -> bytes:
    """x [heads, tokens, depth], k [heads, keys, depth], v [heads, keys, width] -> y [heads, tokens, width]."""
    b = Builder("attention")

    def rounded(x: str, step: float, dtype: str, zero: int) -> str:
        parts = b.constant(np.float32(step)), b.constant(np.array(zero, dtype))
        return b.add("DequantizeLinear", b.add("QuantizeLinear", x, *parts), *parts)

    def scores_rounded(x: str, place: str, step: float) -> str:
        return rounded(x, step, "uint8", 140) if place in form.rounded else x

    steps = (0.021, 0.024, 0.019)
    q, k, v = (rounded(b.add("Relu", n) if n == "q" else n, *rest)
               for n, *rest in zip(("q", "k", "v"), steps, form.types, form.zeros, strict=True))  # fmt: skip
    score = scores_rounded(b.add("MatMul", q, b.add("Transpose", k, perm=[0, 2, 1])), "product", 0.13)
    if form.scale:
        score = b.add("Div", score, b.constant(np.float32(form.depth**0.5)))
    score = scores_rounded(score, "scale", 0.033)
    if form.mask.startswith("added"):
        score = b.add("Add", score, b.constant(np.float32(b.random.random((form.tokens, form.keys)) * -2)))
        score = b.add("Mul", score, b.constant(np.float32(0.7))) if form.mask != "added" else score
    elif form.mask:
        hidden = b.random.random((form.tokens, form.keys)) < 0.4
        hidden[2] = True
        score = b.add("Where", b.constant(hidden), b.constant(np.float32(-np.inf)), score)
    weights = b.add("Softmax", scores_rounded(score, "bias", 0.04), axis=-1)
    if form.guard:
        weights = b.add("Where", b.add("IsNaN", weights), b.constant(np.float32(0)), weights)
    y = b.add("MatMul", rounded(weights, 0.7 / 255, *form.probabilities), v)
    b.add("Mul", y, b.constant(np.float32(3)), output="y")
    shapes = {n: (form.heads, rows, columns) for n, rows, columns in (
        ("q", form.tokens, form.depth), ("k", form.keys, form.depth), ("v", form.keys, form.width))}  # fmt: skip
    return b.model({n: (TensorProto.FLOAT, s) for n, s in shapes.items()}, {"y": (form.heads, form.tokens, form.width)})


def inputs(form: Form) -> dict[str, np.ndarray]:
    """Numbers beyond the ends of what integers hold."""
    random = np.random.default_rng(5)
    sizes = {"q": (form.tokens, form.depth), "k": (form.keys, form.depth), "v": (form.keys, form.width)}
    return {n: random.normal(0, 1.2, (form.heads, *s)).astype(np.float32) for n, s in sizes.items()}


def close(found: np.ndarray, want: np.ndarray) -> None:
    """Equal, but where a tie between two probabilities or scores was broken the other way."""
    np.testing.assert_allclose(found, want, atol=0.05 * np.abs(want).max())
    assert np.linalg.norm(found - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("name", FORMS)
def test_attention(name: str) -> None:
    """Both products are of integers, on every processor and with the same answer for any number of workers."""
    form = FORMS[name]
    model, given = network(form), inputs(form)
    levels = LEVELS if name in EVERYWHERE else {"here": LEVELS["here"]}
    for machine in levels.values():
        stages = compiler.lower(model, threads=2, machine=machine)
        (node,) = (n for n in stages.optimized.nodes if n.op in ("attention", "matmul"))
        assert stages.optimized.types[node.output].dtype == "int32"
        assert {stages.optimized.types[n].dtype for n in node.inputs[:3]} <= {"uint8", "int8"}
        want = evaluate(stages.graph, given)["y"]
        close(evaluate(stages.optimized, given)["y"], want)
        artifact, answers = compiler.build(stages), []
        for workers in (1, 2, 3):
            with Session(artifact, threads=workers) as session:
                answers.append(session.run(given)["y"])
        close(answers[0], want)
        for answer in answers[1:]:
            np.testing.assert_array_equal(answer, answers[0])
    assert real_products(stages.graph) == {}


@pytest.mark.parametrize("name", FORMS)
def test_tile_registers(name: str) -> None:
    form = FORMS[name]
    stages, given = compiler.lower(network(form), threads=2, machine=TILED), inputs(form)
    want = evaluate(stages.graph, given)["y"]
    for artifact in built(stages):
        answers = []
        for workers in (1, 3):
            with Session(artifact, threads=workers) as session:
                answers.append(session.run(given)["y"])
        close(answers[0], want)
        np.testing.assert_array_equal(answers[1], answers[0])


@pytest.mark.parametrize("name", ["as tools write it", "signed", "rows without a key"])
def test_the_virtual_machine_agrees(name: str) -> None:
    form = FORMS[name]
    stages = compiler.lower(network(form), threads=2, machine=Machine.named("avx2"))
    given = {n: x.reshape(stages.program.buffer(n).shape) for n, x in inputs(form).items()}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)["y"]
    want = evaluate(stages.graph, inputs(form))["y"]
    close(seen.reshape(want.shape), want)


@pytest.mark.parametrize(
    ("form", "products"),
    [(Form(depth=14), 2), (Form(mask="added, then scaled"), 2), (Form(probabilities=("uint16", 0)), 1)],
    ids=["no whole groups", "scaled last", "probabilities of 16 bits"],
)
def test_what_is_no_attention_of_integers(form: Form, products: int) -> None:
    """The products of attention of another form are such of bytes where their operands are, and right."""
    stages = compiler.lower(network(form), threads=2)
    found = [node.op for node in stages.optimized.nodes]
    assert (found.count("bytes_matmul"), "attention" in found) == (products, False)
    reals = ["its right side is no constant matrix, and they are no bytes, the left one's unsigned"]
    assert list(real_products(stages.graph).values()) == reals[: 2 - products]
    with Session(compiler.build(stages), threads=2) as session:
        close(session.run(inputs(form))["y"], evaluate(stages.graph, inputs(form))["y"])


def test_attention_of_which_one_product_is_quantised_is_one() -> None:
    """Of real numbers, where the other product is not of bytes."""
    b = Builder("half")
    scale, zero = b.constant(np.float32(0.03)), b.constant(np.uint8(120))
    q, k = (b.add("DequantizeLinear", b.add("QuantizeLinear", x, scale, zero), scale, zero) for x in "qk")
    scores = b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2]))
    b.add("MatMul", b.add("Softmax", scores), "v", output="y")
    shapes = {"q": (1, 2, 19, 16), "k": (1, 2, 21, 16), "v": (1, 2, 21, 24)}
    proto = b.model({n: (TensorProto.FLOAT, shape) for n, shape in shapes.items()}, {"y": (1, 2, 19, 24)})
    stages = compiler.lower(proto, threads=2)
    found = [node.op for node in stages.optimized.nodes]
    assert (found.count("attention"), found.count("bytes_matmul")) == (1, 0)
    feeds = {n: b.random.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    with Session(compiler.build(stages), threads=2) as session:
        close(session.run(feeds)["y"], evaluate(stages.graph, feeds)["y"])
