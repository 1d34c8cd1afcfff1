"""Tensors without elements: as outputs, as inputs, and beside others."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.runtime.session import Session
from tests.core.networks import Builder

FLOAT = TensorProto.FLOAT


def answers(b: Builder, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]]) -> dict:
    """Of the compiled network, on ones."""
    model = b.model({name: (FLOAT, shape) for name, shape in inputs.items()}, outputs)
    with Session(compiler.build(compiler.lower(model, threads=2)), threads=2) as session:
        return session.run({name: np.ones(shape, np.float32) for name, shape in inputs.items()})


def test_an_output_without_elements_beside_others() -> None:
    b = Builder("part")
    y = b.add("Relu", "x", output="y")
    b.add("Exp", b.add("Slice", y, b.ints(4), b.ints(9), b.ints(0)), output="none")
    found = answers(b, {"x": (4, 3)}, {"y": (4, 3), "none": (0, 3)})
    assert found["none"].shape == (0, 3) and found["none"].dtype == np.float32
    np.testing.assert_array_equal(found["y"], np.ones((4, 3)))


def test_a_network_of_nothing_else() -> None:
    b = Builder("nothing")
    b.add("Exp", "x", output="y")
    assert answers(b, {"x": (0, 3)}, {"y": (0, 3)})["y"].shape == (0, 3)


def test_a_cache_that_is_empty_as_yet() -> None:
    b = Builder("cache")
    keys = b.add("Concat", "past", b.add("Relu", "x"), axis=2)
    b.add("MatMul", "x", b.add("Transpose", keys, perm=[0, 1, 3, 2]), output="y")
    b.add("Identity", keys, output="present")
    found = answers(b, {"past": (1, 2, 0, 4), "x": (1, 2, 3, 4)}, {"y": (1, 2, 3, 3), "present": (1, 2, 3, 4)})
    np.testing.assert_array_equal(found["y"], np.full((1, 2, 3, 3), 4))
    np.testing.assert_array_equal(found["present"], np.ones((1, 2, 3, 4)))


def test_no_updates_leave_what_they_would_be_scattered_to() -> None:
    b = Builder("scatter")
    b.add("ScatterElements", b.add("Relu", "x"), b.constant(np.zeros((0, 3), np.int64)), "none", output="y")
    np.testing.assert_array_equal(answers(b, {"x": (4, 3), "none": (0, 3)}, {"y": (4, 3)})["y"], np.ones((4, 3)))
