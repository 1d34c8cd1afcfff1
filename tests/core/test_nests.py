"""Loops without a template: neighbouring columns are computed side by side, at borders and in joined tensors too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from mononn_core import compiler
from mononn_core.codegen.cstyle import Pointer, Printer, interval
from mononn_core.codegen.loops import LONGEST_KEPT, write_statements
from mononn_core.codegen.writer import Writer
from mononn_core.decide.cpu import CpuScheduler
from mononn_core.element import BF16, COMPUTE, SMALL_FLOATS
from mononn_core.errors import UnsupportedError
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.passes import pipeline
from mononn_core.program.expr import Cast, Const, Expr, Load, Op, Var, const, evaluate_index, op
from mononn_core.program.interpret import run
from mononn_core.program.ir import Buffer, For, Layout, Store
from mononn_core.runtime.session import Session
from mononn_core.schedule import binder, nests
from mononn_core.schedule.groups import CpuGroups
from tests.core.networks import Builder, encoder

LEVELS = [pytest.param("avx512"), pytest.param("avx2")]


def check(model: bytes, level: str) -> str:
    """The compiled network and the virtual machine against the Graph; gives the source."""
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    stages = compiler.lower(model, threads=2, machine=machine)
    x = np.random.default_rng(1).standard_normal(stages.graph.types["x"].shape).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})["y"]
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)
    np.testing.assert_allclose(seen["y"].reshape(want.shape), want, rtol=1e-5, atol=1e-6)
    artifact = compiler.build(stages)
    with Session(artifact, threads=2) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-5, atol=1e-6)
    return artifact.texts["source"]


def phases(source: str, operator: str) -> list[str]:
    """The text of the phases that come from ``operator``."""
    parts = source.split("\n// ")
    return [part for part in parts if f"; {operator} node" in part.splitlines()[0]]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("perm", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("length", "times"), [(5, 1), (37, 1), (LONGEST_KEPT, 1), (LONGEST_KEPT + 1, 2)])
def test_exponentials_of_a_row_are_computed_once(length: int, times: int, perm: tuple[int, int], level: str) -> None:
    """Longer rows are not kept; what is stored may lie in another order."""
    b = Builder("kept")
    y = b.add("Mul", b.add("Softmax", b.add("Exp", "x"), axis=-1), b.weight(length))
    b.add("Transpose", y, perm=list(perm), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (6, length))}, {"y": tuple((6, length)[p] for p in perm)})
    (text,) = phases(check(model, level), "Softmax")
    assert text.count("mn::exp<T>((") == times
    assert text.count(" / ") == 1, "one a row"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("channels", "size", "beta"), [(32, 5, 0.75), (35, 4, 0.75), (7, 3, 0.75), (32, 5, 0.5)])
def test_local_response(channels: int, size: int, beta: float, level: str) -> None:
    b = Builder("local")
    b.add("LRN", b.add("Conv", "x", b.weight(channels, 3, 1, 1)), output="y", size=size, alpha=0.3, beta=beta, bias=1.5)
    model = b.model({"x": (TensorProto.FLOAT, (1, 3, 5, 6))}, {"y": (1, channels, 5, 6)})
    (text,) = phases(check(model, level), "LRN")
    assert "each_lane" in text and "mn::load_between" in text
    assert ("powf" not in text) == (beta == 0.75)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("batch", "depth", "height"), [(1, 6, 6), (2, 4, 7), (1, 5, 7)])
def test_rows_of_padded_slices_are_counted_not_divided(batch: int, depth: int, height: int, level: str) -> None:
    b = Builder("volume")
    x = b.add("Conv", "x", b.weight(16, 3, 1, 1, 1))
    x = b.add("Conv", x, b.weight(16, 16, 3, 3, 2), pads=[1, 1, 0, 1, 1, 1], strides=[2, 1, 1])
    b.add("Relu", x, output="y")
    y = (batch, 16, (depth - 1) // 2 + 1, height, 9)
    model = b.model({"x": (TensorProto.FLOAT, (batch, 3, depth, height, 9))}, {"y": y})
    (text,) = (part for part in phases(check(model, level), "Conv") if "_pad: " in part)
    code = text.split("{", 1)[1]
    assert "/" not in code and "%" not in code and "gather" not in code


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("second", [32, 1, 20])
def test_pool_of_joined_channels(second: int, level: str) -> None:
    b = Builder("joined")
    parts = [b.add("Conv", "x", b.weight(channels, 3, 1, 1)) for channels in (16, second)]
    pooled = b.add("MaxPool", b.add("Concat", *parts, axis=1), kernel_shape=[3, 3], strides=[2, 2])
    other = b.add("Concat", parts[0], parts[0], axis=1)  # so that it is stored apart
    mean = b.add("ReduceMean", other, b.constant(np.array([1, 2, 3])), keepdims=1)
    b.add("Add", b.add("Conv", pooled, b.weight(8, 16 + second, 1, 1)), mean, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, 3, 9, 9))}, {"y": (1, 8, 4, 4)})
    (text,) = phases(check(model, level), "MaxPool")
    assert text.count("mn::each_lane") == 2
    assert "gather" not in text


@pytest.mark.parametrize("level", LEVELS)
def test_the_boxes_of_a_detector(level: str) -> None:
    """Distances as means over classes, whose softmax is along the second axis, beside scores of joined scales."""
    b = Builder("boxes")
    sizes, channels = ((8, 8), (4, 4)), 64 + 10
    maps = []
    for step in (1, 2):
        weight = b.weight(channels, 3, 1, 1)
        maps.append(b.add("Conv", "x", weight, strides=[step, step]))
    flat = [b.add("Reshape", m, b.ints(1, channels, h * w)) for m, (h, w) in zip(maps, sizes, strict=True)]
    joined, places = b.add("Concat", *flat, axis=2), sum(h * w for h, w in sizes)
    boxes, scores = (b.add("Slice", joined, b.ints(a), b.ints(e), b.ints(1)) for a, e in ((0, 64), (64, channels)))
    split = b.add("Reshape", boxes, b.ints(1, 4, 16, places))
    shares = b.add("Softmax", b.add("Transpose", split, perm=[0, 2, 1, 3]), axis=1)
    means = b.add("Conv", shares, b.constant(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)))
    distances = b.add("Reshape", means, b.ints(1, 4, places))
    b.add("Concat", distances, b.add("Sigmoid", scores), output="y", axis=1)
    model = b.model({"x": (TensorProto.FLOAT, (1, 3, 8, 8))}, {"y": (1, 14, places)})
    source = check(model, level)
    assert "".join(phases(source, "Softmax")).count("mn::exp<T>") == 1, "of each number once, a place in each lane"
    assert "conv<" not in phases(source, "Conv")[-1], "means are sums over planes"
    moved = [operator for operator in ("Slice", "Reshape", "Transpose") if phases(source, operator)]
    assert not moved, "what is joined is read in place"


def test_power_of_three_quarters() -> None:
    values = np.array([0.0, -0.0, 2e-38, 0.3, 1, 7, 3e38, np.inf, -np.inf, -1, np.nan] * 3, np.float32)
    b = Builder("power")
    b.add("Pow", "x", b.constant(np.float32(0.75)), output="y")
    stages = compiler.lower(b.model({"x": (TensorProto.FLOAT, values.shape)}, {"y": values.shape}), threads=1)
    with Session(compiler.build(stages), threads=1) as session, np.errstate(invalid="ignore"):
        np.testing.assert_allclose(session.run({"x": values})["y"], np.power(values, np.float32(0.75)), rtol=3e-7)


x, z = Var("x"), Var("z")
SIDES = st.tuples(st.sampled_from([x, x * -1, z, x * 2]), st.sampled_from([z, z * -3, Const(0)]), st.integers(-5, 5))


@st.composite
def conditions(draw: st.DrawFn) -> Op:
    """A comparison of x with z and a constant, some in shapes that are no interval of x, or two of them."""

    def one() -> Op:
        left, right, constant = draw(SIDES)
        name = draw(st.sampled_from(["lt", "le", "gt", "ge", "eq"]))
        return op(name, left + constant, right) if draw(st.booleans()) else op(name, right, left + constant)

    return op("and", one(), one()) if draw(st.booleans()) else one()


def holds(condition: Expr, values: dict[str, int]) -> bool:
    assert isinstance(condition, Op)
    if condition.name == "and":
        return all(holds(a, values) for a in condition.args)
    a, b = (evaluate_index(e, values) for e in condition.args)
    return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b}[condition.name]


@given(conditions())
def test_interval_holds_where_the_condition_does(condition: Op) -> None:
    found = interval(condition, "x")
    if found is None:
        return
    low, high = found
    for value in range(-20, 21):
        for other in range(3):
            values = {"x": value, "z": other}
            inside = all(evaluate_index(e, values) <= value for e in low)
            inside = inside and all(value < evaluate_index(e, values) for e in high)
            assert inside == holds(condition, values), (str(condition), values)


def test_what_is_no_interval() -> None:
    two = x * 2
    assert interval(op("and", op("ge", x + z, Const(2)), op("lt", Const(1) - x, z)), "x") is not None
    for condition in (op("lt", two, z), op("eq", x, z), op("lt", z, Const(3)), op("lt", x // 2, z)):
        assert interval(condition, "x") is None, str(condition)
        assert interval(op("and", condition, op("lt", x, z)), "x") is None


def doubled(kind: str, dtype: str = BF16) -> str:
    """A loop that doubles a stored narrow row."""
    j, shape = Var("j"), (1, 32)
    value = op("mul", Cast(Load("x", (Const(0), j), dtype), COMPUTE), const(2.0))
    loop = For("j", 32, (Store("y", (Const(0), j), Cast(value, dtype)),), kind=kind)
    pointers = {r: Pointer(f"p_{r}", Buffer(r, dtype, shape, Layout.row_major(shape), "arena")) for r in "xy"}
    out = Writer()
    write_statements(out, (loop,), Printer(pointers, {}))
    return out.text()


def test_a_narrow_type_widens_where_it_is_loaded_and_is_rounded_where_it_is_stored() -> None:
    text = doubled("vector")
    assert "mn::store<T>(p_y + j, (mn::load<T>(p_x + j) * mn::splat<T>(2.0f)));" in text
    text = doubled("serial")
    assert "p_y[j] = mn::from_float<mn::bf16>((mn::to_float(p_x[j]) * 2.0f));" in text


def test_a_type_that_a_target_does_not_hold_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'float8_e5m2' has no generated form"):
        doubled("serial", SMALL_FLOATS[2])


@pytest.mark.parametrize("kind", ["int32", "uint8", "int8", "float32"])
def test_neighbours_of_any_type_are_stored_as_they_are(kind: str) -> None:
    """Whole vectors and what is left of a row, along the last axis and across it."""
    dtype = TensorProto.DataType.Value({"float32": "FLOAT"}.get(kind, kind.upper()))
    graph = helper.make_graph(
        [helper.make_node("Sub", ["a", "b"], ["y"]), helper.make_node("Transpose", ["y"], ["z"], perm=[1, 0])],
        "g",
        [helper.make_tensor_value_info(name, dtype, (5, 43)) for name in "ab"],
        [helper.make_tensor_value_info("y", dtype, (5, 43)), helper.make_tensor_value_info("z", dtype, (43, 5))],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    random = np.random.default_rng(0)
    a = random.integers(40, 100, (5, 43)).astype(kind)
    b = random.integers(0, 40, (5, 43)).astype(kind)
    with compiler.compile(made.SerializeToString(), threads=2) as session:
        found = session.run({"a": a, "b": b})
    np.testing.assert_array_equal(found["y"], a - b)
    np.testing.assert_array_equal(found["z"], (a - b).T)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("channels", "rounded"), [(16, False), (32, False), (16, True)])
def test_windows_for_weights_of_a_run_are_copied_by_whole_vectors(channels: int, rounded: bool, level: str) -> None:
    """Neither is a column divided for each element, nor what windows that overlap show computed for every tap, be it
    quantised and dequantised there."""
    b = Builder("modulated")
    x = b.add("Conv", "x", b.weight(2 * channels, 3, 1, 1))
    weight = b.add("Mul", b.weight(8, channels, 3, 3), b.add("ReduceMean", x))
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    wide = b.add("Resize", x, "", scales, mode="linear")
    if rounded:
        scale, zero = b.constant(np.float32(0.01)), b.constant(np.uint8(128))
        wide = b.add("DequantizeLinear", b.add("QuantizeLinear", wide, scale, zero), scale, zero)
    b.add("Conv", wide, weight, output="y", pads=[1, 1, 1, 1], group=2)
    model = b.model({"x": (TensorProto.FLOAT, (1, 3, 6, 5))}, {"y": (1, 8, 12, 10)})
    (text,) = (part for part in phases(check(model, level), "Conv") if "_reshape: " in part)
    (inner,) = text.split(f"each_lane<{channels}>(")[1:]
    assert not any(word in inner for word in ("gather", "x /", "x %", "index"))


@pytest.mark.parametrize("kind", ["uint8", "bool", "int64", "float64", "int16"])
def test_neighbours_that_stay_as_they_are_are_copied_together(kind: str) -> None:
    """Of types that are not computed in vectors."""
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    starts, ends, axes = (
        helper.make_tensor(n, TensorProto.INT64, [2], v) for n, v in zip("sea", ([1, 3], [5, 40], [0, 1]), strict=True)
    )
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "s", "e", "a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", dtype, (5, 43))],
        [helper.make_tensor_value_info("y", dtype, (4, 37))],
        [starts, ends, axes],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    stages = compiler.lower(made.SerializeToString(), threads=2)
    assert "__builtin_memcpy(p_out + " in stages.source
    x = (np.random.default_rng(0).standard_normal((5, 43)) * 50).astype(kind)
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], x[1:5, 3:40])


def test_nests_that_differ_in_their_tensors_alone_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = 0
    whole = nests._task

    def counted(*given: Any) -> Any:
        nonlocal built
        built += 1
        return whole(*given)

    monkeypatch.setattr(nests, "_task", counted)

    def tasks_of(*factors: float) -> int:
        nonlocal built
        b, x, built = Builder("alike"), "x", 0
        for factor in factors:
            scaled = b.add("Mul", x, b.constant(np.array(factor, np.float32)))
            x = b.add("Transpose", b.add("Softmax", scaled, axis=-1), perm=[1, 0])
        b.add("Tanh", x, output="y")
        check(b.model({"x": (TensorProto.FLOAT, (16, 16))}, {"y": (16, 16)}), "avx2")
        return built

    assert tasks_of(0.5, 0.5, 0.5) == tasks_of(*[0.5] * 7) < tasks_of(*[0.5, 2.0] * 3)
    assert tasks_of(*[0.0] * 4) < tasks_of(*[0.0, -0.0] * 2)


def test_what_ends_products_of_equal_layers_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_of(layers: int) -> tuple[int, str]:
        stages = compiler.lower(encoder(layers), threads=2, machine=Machine.named("avx2"))
        groups = CpuGroups(pipeline.prepare(stages.optimized, "cpu"), stages.options, stages.machine)
        CpuScheduler(groups).decide()
        return len(groups.builder.ends), stages.source

    (few, _), (many, source) = ends_of(3), ends_of(6)
    assert few == many > 0
    monkeypatch.setattr(binder, "stored_once", lambda *given: given[-1]())
    assert ends_of(6) == (0, source)


@pytest.mark.parametrize("level", LEVELS)
def test_the_peaks_of_a_map_are_found_in_vectors(level: str) -> None:
    """What is as large as its neighbours, times whether it is (a detector of centres)."""
    b = Builder("peaks")
    y = b.add("Conv", "x", b.weight(24, 3, 1, 1))
    peak = b.add("Equal", b.add("MaxPool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), y)
    z = b.add("Mul", y, b.add("Cast", peak, to=TensorProto.FLOAT))
    b.add("Conv", z, b.weight(4, 24, 1, 1), output="y")
    (pool,) = phases(check(b.model({"x": (TensorProto.FLOAT, (1, 3, 6, 7))}, {"y": (1, 4, 6, 7)}), level), "MaxPool")
    assert "each_lane" in pool and "float total" not in pool
