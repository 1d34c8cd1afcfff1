"""Positions that come from data: the first k of many, and elements of tensors joined or padded on their way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import mononn_core as mononn
from mononn_core import compiler
from mononn_core.errors import InputError
from mononn_core.runtime.session import Session
from tests.core.models import assert_agrees, model, node

RANDOM = np.random.default_rng(2)


def first_k(shape: tuple[int, ...], k: int, dtype: str, axis: int, largest: int) -> tuple[ModelProto, np.ndarray]:
    """(v, i) = TopK(x), an eighth of x equal."""
    x = (RANDOM.standard_normal(shape) * 50).astype(dtype)
    x.reshape(-1)[::8] = x.reshape(-1)[1]
    nodes = [node("TopK", "x k", "v i", axis=axis, largest=largest)]
    return model(nodes, [("x", dtype, shape)], ["v", "i"], {"k": np.array([k])}), x


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "k", "dtype", "axis"),
    [
        ((2, 1000), 5, "float32", 1),
        ((700, 3), 40, "float32", 0),
        ((3, 5000), 1, "int64", -1),
        ((1, 2500), 70, "int32", 1),
        ((2, 130), 130, "float32", 1),
    ],
)
def test_the_first_k(shape: tuple[int, ...], k: int, dtype: str, axis: int, largest: int) -> None:
    proto, x = first_k(shape, k, dtype, axis, largest)
    assert_agrees(proto, {"x": x})


def test_the_first_of_more_than_are_ranked_at_once_compile() -> None:
    proto, x = first_k((2, 20000), 3, "float32", 1, 1)
    found = mononn.compile(proto.SerializeToString()).run({"x": x})
    want = np.argsort(-x, axis=1, kind="stable")[:, :3]
    assert (found["i"] == want).all() and (found["v"] == np.take_along_axis(x, want, 1)).all()


@pytest.mark.parametrize("op", ["Pad", "Concat"])
def test_elements_at_positions_known_at_run_time(op: str) -> None:
    other: Any = np.array([0, 2, 0, 3]) if op == "Pad" else np.ones((3, 5), np.float32)
    attributes = {} if op == "Pad" else {"axis": 1}
    nodes = [node(op, "x p", "q", **attributes), node("GatherElements", "q i", "y", axis=1)]
    proto = model(nodes, [("x", "float32", (3, 10)), ("i", "int64", (3, 40))], ["y"], {"p": other})
    x, i = RANDOM.standard_normal((3, 10)).astype(np.float32), RANDOM.integers(0, 15, (3, 40))
    whole = np.pad(x, ((0, 0), (2, 3))) if op == "Pad" else np.concatenate([x, other], 1)
    found = mononn.compile(proto.SerializeToString()).run({"x": x, "i": i})["y"]
    assert (found == np.take_along_axis(whole, i, 1)).all()


@pytest.mark.parametrize("at", [-2, 0, 2, 3, -4])
@pytest.mark.parametrize("op", ["GatherND", "GatherElements"])
def test_one_constant_position_in_rows_of_a_product(op: str, at: int) -> None:
    nodes = [
        node("MatMul", "x w", "h"),
        node("Reshape", "h s", "r"),
        node("Transpose", "r", "t", perm=[1, 0, 2]),
        node(op, "t p", "y", **({} if op == "GatherND" else {"axis": 0})),
    ]
    w, shape = RANDOM.standard_normal((8, 24)).astype(np.float32), np.array([2, 3, 8])
    positions = np.array([[at]] if op == "GatherND" else [[[at]]])
    proto = model(nodes, [("x", "float32", (2, 8))], ["y"], {"w": w, "s": shape, "p": positions})
    x = RANDOM.standard_normal((2, 8)).astype(np.float32)
    session = mononn.compile(proto.SerializeToString())
    if not -3 <= at < 3:
        with pytest.raises(InputError, match=f"out of range in {op} node .*it is {at}"):
            session.run({"x": x})
        return
    whole = (x.astype(np.float64) @ w).reshape(2, 3, 8).transpose(1, 0, 2)[at]
    found, wanted = session.run({"x": x})["y"][0], whole if op == "GatherND" else whole[:1, :1]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("reflected", [False, True])
def test_windows_at_constant_positions(reflected: bool) -> None:
    """What an unfolding is exported as: positions in even steps are computed, others are loaded; the range of both is
    known, so that no run checks them."""
    windows = np.arange(20)[:, None] * 3 + np.arange(5)[None] * 2
    if reflected:
        windows = np.minimum(windows, 2 * 61 - windows)
    nodes = [node("Pad", "x wide", "p"), node("Gather", "p windows", "w", axis=2), node("Relu", "w", "y")]
    constants = {"wide": np.array([0, 0, 2, 0, 0, 1]), "windows": windows}
    proto = model(nodes, [("x", "float32", (2, 17, 63))], ["y"], constants)
    x = RANDOM.standard_normal((2, 17, 63)).astype(np.float32)
    stages = compiler.lower(proto.SerializeToString(), threads=2)
    assert "checked_index" not in stages.source
    assert ("const int64_t *" in stages.source) == reflected
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run({"x": x})["y"]
    padded = np.pad(x, ((0, 0), (0, 0), (2, 1)))
    np.testing.assert_array_equal(found, np.maximum(padded[:, :, windows], 0))
