"""What follows a template in its phase: any elementwise expression over its result, however often that is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from mononn_core.schedule.fuse import DEEPEST
from tests.core.networks import Builder

ROWS, COLUMNS = 19, 37


def silu(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Sigmoid", x))


def gated(b: Builder, x: str) -> str:
    """silu(a W) (b V): the later product finishes both."""
    return b.add("Mul", silu(b, product(b, "x")), product(b, x))


def product(b: Builder, x: str) -> str:
    return b.add("Add", b.add("MatMul", x, b.weight(COLUMNS, COLUMNS)), b.weight(COLUMNS))


def mish(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Tanh", b.add("Softplus", x)))


def leaky(b: Builder, x: str) -> str:
    return b.add("LeakyRelu", x, alpha=0.1)


def thresholded(b: Builder, x: str) -> str:
    """A truth value of it chooses."""
    zero = b.constant(np.float32(0))
    return b.add("Where", b.add("Greater", x, b.constant(np.float32(0.1))), x, zero)


def cubic(b: Builder, x: str) -> str:
    """Its square is read twice, itself three times."""
    square = b.add("Mul", x, x)
    return b.add("Add", b.add("Mul", square, x), b.add("Sub", square, x))


def shown(b: Builder, x: str) -> str:
    """What is read twice is an output too."""
    b.add("Identity", x, output="z")
    return silu(b, x)


def apart(b: Builder, x: str) -> str:
    """A row operator reads it, and then both meet."""
    return b.add("Mul", x, b.add("ReduceMean", x, b.constant(np.array([1])), keepdims=1))


def often(b: Builder, x: str) -> str:
    """Written out it would be of 2^20 operators."""
    for _ in range(20):
        x = silu(b, x)
    return x


def model(body: Callable[[Builder, str], str], extra: bool = False) -> bytes:
    """x [ROWS, COLUMNS] -> y: a product with a bias, ``body``, and another product."""
    b = Builder("fusion")
    y = body(b, product(b, "x"))
    b.add("MatMul", y, b.weight(COLUMNS, COLUMNS), output="y")
    outputs = {"y": (ROWS, COLUMNS), **({"z": (ROWS, COLUMNS)} if extra else {})}
    return b.model({"x": (TensorProto.FLOAT, (ROWS, COLUMNS))}, outputs)


@pytest.mark.parametrize(
    ("body", "templates"),
    [
        (silu, ["matmul"] * 2),
        (mish, ["matmul"] * 2),
        (leaky, ["matmul"] * 2),
        (thresholded, ["matmul"] * 2),
        (cubic, ["matmul"] * 2),
        (gated, ["matmul"] * 3),
        (shown, ["matmul", "nest", "matmul"]),
        (apart, None),
        (often, None),
    ],
)
def test_expressions(body: Callable[[Builder, str], str], templates: list[str] | None) -> None:
    """Near the Graph, and the virtual machine near both; no phase of its own for what can be computed in registers."""
    stages = compiler.lower(model(body, extra=body is shown), threads=2)
    if templates is not None:
        assert [phase.task.template for phase in stages.program.phases()] == templates
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})
    seen = run(stages.program, {"x": x}, stages.lowered.weights, workers=2)
    with Session(compiler.build(stages), threads=2) as session:
        answer = session.run({"x": x})
    for name, value in want.items():
        for found in (answer[name], seen[name].reshape(value.shape)):
            np.testing.assert_allclose(found, value, rtol=2e-5, atol=2e-5 * np.abs(value).max())


def test_an_image_with_a_gate() -> None:
    """SiLU behind a convolution, and the border of the next one."""
    b = Builder("image")
    y = silu(b, b.add("Conv", "x", b.weight(20, 3, 3, 3), b.weight(20), pads=[1, 1, 1, 1]))
    y = silu(b, b.add("Conv", y, b.weight(24, 20, 3, 3), b.weight(24), pads=[1, 1, 1, 1], strides=[2, 2]))
    b.add("Conv", y, b.weight(8, 24, 1, 1), output="y")
    stages = compiler.lower(b.model({"x": (TensorProto.FLOAT, (1, 3, 12, 14))}, {"y": (1, 8, 6, 7)}), threads=2)
    computing = [p.task.template for p in stages.program.phases() if "border" not in p.id]
    assert computing[1:] == ["conv"] * 3, "the first puts the picture's border around it"
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 14)).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})["y"]
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("first", ["input", "product", "softmax"])
def test_hundreds_of_operators_one_after_the_other(first: str) -> None:
    """What is evaluated for an element is bounded: the compiler recurses over it, and so do compilers of C++."""
    b, x = Builder("long"), "x"
    if first != "input":
        x = b.linear("x", COLUMNS, COLUMNS) if first == "product" else b.add("Softmax", "x", axis=-1)
    for number in range(600):
        shifted = b.add("Add", b.add("Sin", x), "x")
        x = b.add("Tanh", shifted, output="y" if number == 599 else "")
    stages = compiler.lower(b.model({"x": (TensorProto.FLOAT, (2, COLUMNS))}, {"y": (2, COLUMNS)}), threads=2)
    assert 1800 / DEEPEST - 1 <= len(stages.manifest["phases"]) <= 1800 / DEEPEST + 3
    x = np.random.default_rng(0).standard_normal((2, COLUMNS)).astype(np.float32)
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], evaluate(stages.graph, {"x": x})["y"], atol=1e-5)


def test_hundreds_of_parts_in_another_order() -> None:
    """Which part an element lies in is found in few steps: the compiler recurses over them."""
    b, parts = Builder("parts"), 300
    rows = [b.add("Slice", "x", *(b.ints(n) for n in (k, k + 1, 0, 1))) for k in range(parts)]
    b.add("Slice", b.add("Concat", *reversed(rows), axis=0), *(b.ints(n) for n in (3, parts, 0, 1)), output="y")
    x = np.random.default_rng(0).standard_normal((parts, 5)).astype(np.float32)
    stages = compiler.lower(b.model({"x": (TensorProto.FLOAT, x.shape)}, {"y": (parts - 3, 5)}), threads=2)
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], x[::-1][3:])
