"""Images that are enlarged: rows between neighbours are computed once, positions that constants give are not checked,
and an image's border is told from its inside a row at a time, not a vector at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core.program.expr import Const, Expr, Load, Op, Select, Var, op, substitute, variables, walk
from mononn_core.program.hoist import hoist, unswitched
from mononn_core.program.ir import For, Let, Store
from mononn_core.program.simplify import bounds, simplify
from tests.core.networks import Builder
from tests.core.test_nests import LEVELS, check, phases


def resized(mode: str, factor: float, channels: int, pads: list[int] | None) -> bytes:
    """A convolution, its result enlarged, and one more of that with a border, or nothing more."""
    b = Builder("resized")
    x = b.add("Conv", "x", b.weight(channels, 3, 1, 1))
    height, width = int(5 * factor), int(7 * factor)
    scales = b.constant(np.array([1, 1, factor, factor], np.float32))
    how = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
    if pads is None:
        b.add("Resize", x, "", scales, output="y", **how)
        return b.model({"x": (TensorProto.FLOAT, (1, 3, 5, 7))}, {"y": (1, channels, height, width)})
    large = b.add("Resize", x, "", scales, **how)
    b.add("Conv", large, b.weight(4, channels, 3, 3), output="y", pads=pads)
    return b.model({"x": (TensorProto.FLOAT, (1, 3, 5, 7))}, {"y": (1, 4, height, width)})


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [5, 32])
def test_rows_of_an_enlarged_image_are_interpolated_once(channels: int, level: str) -> None:
    source = check(resized("linear", 4.0, channels, None), level)
    rows, *more = phases(source, "Resize")
    assert "checked_index" not in source
    assert "_add: " in rows and len(more) == 1  # one phase along each axis
    assert "each_lane" in more[0] or "each_column" in more[0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("mode", "channels"), [("nearest", 32), ("nearest", 5), ("linear", 32)])
def test_a_border_is_told_from_the_inside_once_a_row(mode: str, channels: int, level: str) -> None:
    source = check(resized(mode, 2.0, channels, [1, 1, 1, 1]), level)
    (text,) = (part for part in phases(source, "Conv") if "_pad: " in part)
    assert "checked_index" not in text
    if channels == 32:
        inside, outside = text.split("if (", 1)[1].split("else {")
        loop = inside.split("each_lane<32>(")[1]
        assert "?" not in loop and "[(o" not in loop  # no condition, and no position loaded
        assert "load" not in outside.split("}")[0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_reflected_border_is_enlarged(mode: str, level: str) -> None:
    b = Builder("reflected")
    wide = b.add("Pad", b.add("Relu", "x"), b.ints(0, 0, 2, 1, 0, 0, 0, 3), mode="reflect")
    b.add("Resize", wide, "", b.constant(np.array([1, 1, 2, 2], np.float32)), output="y", mode=mode)
    source = check(b.model({"x": (TensorProto.FLOAT, (1, 3, 5, 7))}, {"y": (1, 3, 14, 22)}), level)
    assert "checked_index" not in source


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("below", [False, True])
def test_positions_below_zero_are_counted_in_a_run(below: bool, level: str) -> None:
    b = Builder("gathered")
    b.add("Gather", b.add("Relu", "x"), b.constant(np.array([3, -1 if below else 3, 0, 2])), output="y", axis=1)
    source = check(b.model({"x": (TensorProto.FLOAT, (4, 4, 20))}, {"y": (4, 4, 20)}), level)
    assert ("checked_index(" in source) == below


@st.composite
def chosen(draw: st.DrawFn) -> Expr:
    """A value along "x": of loads by row, by column or by both, chosen by a condition on the row or the column."""
    parts: list[Expr] = [
        Load("a", (Var("y"), Var("x")), "float32"),
        Load("b", (Const(0), Var("y")), "float32"),
        Load("c", (Const(0), Var("x")), "float32"),
        Const(0.5, "float32"),
    ]
    for _ in range(draw(st.integers(1, 4))):
        left, right = draw(st.sampled_from(parts)), draw(st.sampled_from(parts))
        if draw(st.booleans()):
            parts.append(op(draw(st.sampled_from(["add", "mul", "max"])), left, right))
        else:
            where = draw(st.sampled_from([Var("y"), Var("x")]))
            parts.append(Select(op("lt", where, Const(draw(st.integers(0, 4)))), left, right))
    return parts[-1]


@settings(max_examples=200)
@given(chosen(), chosen())
def test_an_unswitched_loop_stores_the_same(then: Expr, otherwise: Expr) -> None:
    value = Select(op("lt", Var("y"), Const(2)), then, otherwise)
    found = unswitched(For("x", 4, (Store("out", (Var("y"), Var("x")), value),), "vector"))
    if found is None:
        assert not any(hoist(part, "x")[0] for part in (then, otherwise))
        return
    condition, *branches = found
    assert condition == value.condition
    for branch, meant in zip(branches, (value.then, value.otherwise), strict=True):
        *lets, own = branch
        assert isinstance(own, For) and (own.var, own.extent, own.kind) == ("x", 4, "vector")
        names = {let.name: let.value for let in lets if isinstance(let, Let)}
        assert len(names) == len(lets) and not any("x" in variables(v) for v in names.values())
        (store,) = own.body
        assert isinstance(store, Store) and substitute(store.value, names) == meant


def test_loops_that_have_nothing_to_gain_stay_whole() -> None:
    row, both = op("lt", Var("y"), Const(3)), Load("a", (Var("y"), Var("x")), "float32")
    store = Store("out", (Var("y"), Var("x")), Select(row, both, Const(0.0, "float32")))
    assert unswitched(For("x", 8, (store,), "vector")) is None  # nothing is loaded again
    by_column = Select(op("lt", Var("x"), Const(3)), Load("b", (Const(0), Var("y")), "float32"), both)
    assert unswitched(For("x", 8, (Store("out", store.index, by_column),), "vector")) is None


def test_known_positions_are_bounded() -> None:
    position = op("known_index", Load("i", (Const(0), Var("x")), "int64"), Const(5))
    assert bounds(position, {}) == (0, 4)
    assert simplify(op("index", position, Const(5)), {}) == position
    checked = simplify(op("index", position, Const(4)), {})
    assert any(isinstance(n, Op) and n.name == "index" for n in walk(checked))
