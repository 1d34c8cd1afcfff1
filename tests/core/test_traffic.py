"""What a phase moves at least, counted by hand on small networks."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.program.traffic import _covered
from tests.core.networks import Builder


def moved(b: Builder, inputs: dict, outputs: dict, **options: object) -> list[tuple[int, int]]:
    """(constants, activations) in bytes of every executed phase of a network."""
    stages = compiler.lower(b.model(inputs, outputs), threads=2, machine=Machine.named("avx512"), **options)
    return [(p["bytes"], p["activation_bytes"]) for p in stages.manifest["phases"]]


def test_boxes_that_overlap_count_once_and_never_more_than_all_of_them():
    low, high = np.array([[0, 0], [2, 0], [0, 4], [2, 4], [2, 4]]), np.array([[3, 4], [5, 4], [3, 8], [5, 8], [5, 8]])
    assert _covered(low, high) == 5 * 8
    diagonal = np.arange(4)[:, None] * [2, 2]
    assert _covered(diagonal, diagonal + 2) == 4 * 4, "not the 64 of the square around them"
    assert _covered(np.array([[3, 0]]), np.array([[3, 9]])) == 0


def test_a_product_reads_its_sides_and_stores_its_result_once():
    b = Builder("product")
    b.add("Add", b.add("MatMul", "x", b.weight(96, 64)), "z", output="y")
    ((constants, activations),) = moved(
        b, {"x": (TensorProto.FLOAT, (40, 96)), "z": (TensorProto.FLOAT, (40, 64))}, {"y": (40, 64)}
    )
    assert constants == 4 * 96 * 64
    assert activations == 4 * (40 * 96 + 2 * 40 * 64), "however many tasks read a row of x"


def test_a_slice_is_not_the_tensor_and_a_gather_reads_what_it_takes():
    b = Builder("parts")
    rows = b.add("Gather", b.weight(1000, 64), "ids")
    b.add("Add", rows, b.add("Slice", "x", b.ints(8), b.ints(16), b.ints(0)), output="y")
    inputs = {"x": (TensorProto.FLOAT, (512, 64)), "ids": (TensorProto.INT64, (8,))}
    phases = moved(b, inputs, {"y": (8, 64)})
    constants, activations = (sum(column) for column in zip(*phases, strict=True))
    assert constants == 4 * 8 * 64
    assert 4 * 2 * 8 * 64 < activations < 4 * 3 * 8 * 64, "x in part, y, and numbers of rows"
