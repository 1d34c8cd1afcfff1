"""How far apart the neighbours along a variable lie: of all, and of those of one vector."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.codegen.steps import WIDEST, run_along, step_along
from mononn_core.importer import load
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.expr import Const, Expr, Var, evaluate_index, op
from mononn_core.runtime.session import Session
from tests.core.models import model, node

N, P = Var("n"), Var("p")


@st.composite
def offsets(draw: st.DrawFn) -> Expr:
    """a n + b p + c, and of such a sum the quotient or remainder by a number, times another."""
    factor = st.sampled_from([0, 1, 2, 8, 16, 48])
    first = N * draw(factor) + P * draw(factor) + draw(factor)
    inner = N * draw(st.sampled_from([1, 1, 2])) + P * draw(factor) + draw(st.sampled_from([-16, 0, 5, 32]))
    kind, divisor = draw(st.sampled_from(["floordiv", "mod"])), draw(st.sampled_from([12, 16, 24, 48, 512]))
    found = op(kind, inner, Const(divisor))
    if draw(st.booleans()):
        found = op(draw(st.sampled_from(["floordiv", "mod"])), found, Const(draw(st.sampled_from([2, 3]))))
    return first + found * draw(factor)


@given(offsets(), st.integers(0, 40), st.integers(0, 9), st.sampled_from([1, 4, 8, 16]))
def test_what_is_said_of_a_vector_holds_in_it(offset: Expr, vector: int, p: int, lanes: int) -> None:
    step = step_along(offset, "n", aligned=True)
    every = step_along(offset, "n", aligned=False)
    assert every is None or every == step
    if step is not None:
        found = [evaluate_index(offset, {"n": vector * lanes + lane, "p": p}) for lane in range(lanes)]
        assert found == [found[0] + step * lane for lane in range(lanes)]


@given(offsets(), st.integers(0, 40), st.integers(0, 9))
def test_lanes_of_a_run_lie_side_by_side(offset: Expr, vector: int, p: int) -> None:
    run = int(run_along(offset, "n").strip(", ") or 1)
    for first in range(vector * WIDEST, (vector + 1) * WIDEST, run):
        found = [evaluate_index(offset, {"n": first + lane, "p": p}) for lane in range(run)]
        assert found == list(range(found[0], found[0] + run))


def test_runs_within_a_vector_are_known() -> None:
    inner, row = P * 32 + N, 24  # channels of a tap of a transposed convolution, of two by two
    tap = op("floordiv", inner, Const(row))
    apart = op("floordiv", inner, Const(2 * row)) * 1000 + op("mod", tap, Const(2)) * 32 + op("mod", inner, Const(row))
    assert step_along(apart, "n", aligned=True) is None and run_along(apart, "n") == ", 8"
    assert run_along(op("mod", inner, Const(20)), "n") == ", 4" and run_along(op("mod", inner, Const(6)), "n") == ""


@pytest.mark.parametrize("machine", ["avx512", "avx2", "scalar"])
@pytest.mark.parametrize("channels", [24, 20, 6])
def test_channels_of_a_transposed_convolution_are_stored_in_runs(channels: int, machine: str) -> None:
    random = np.random.default_rng(0)
    constants = {
        "w": random.standard_normal((16, channels, 2, 2)).astype(np.float32),
        "v": random.standard_normal((8, channels, 3, 3)).astype(np.float32),
    }
    nodes = [
        node("ConvTranspose", "x w", "t", kernel_shape=[2, 2], strides=[2, 2]),
        node("Relu", "t", "r"),
        node("Conv", "r v", "y", kernel_shape=[3, 3]),
    ]
    made = model(nodes, [("x", "float32", (1, 16, 5, 6))], ["y"], constants)
    given = {"x": random.standard_normal((1, 16, 5, 6)).astype(np.float32)}
    stages = compiler.lower(made.SerializeToString(), threads=1, machine=Machine.named(machine))
    if channels % 4 == 0 and machine == "avx512":
        assert "mn::scatter_at<T, " in stages.source
    if stages.machine.features <= Machine.probe().features:
        found = Session(compiler.build(stages)).run(given)
        for name, want in evaluate(load(made.SerializeToString()), given).items():
            np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-4)


def test_rows_of_whole_vectors_are_known() -> None:
    inner = P * 48 + N
    apart = op("floordiv", inner, Const(512)) * 33792 + op("mod", inner, Const(512))
    assert step_along(apart, "n", aligned=True) == 1 and step_along(apart, "n", aligned=False) is None
    assert step_along(op("mod", inner, Const(40)), "n", aligned=True) is None, "a vector may reach across"
    assert Machine.named("avx512").lanes("float32") == WIDEST


@pytest.mark.parametrize("columns", [192, 200])
def test_columns_that_a_reader_has_in_rows_are_stored_in_vectors(columns: int) -> None:
    """Three rows of columns, over which panels of 48 reach; vectors do not where a row is of whole ones."""
    random = np.random.default_rng(0)
    constants = {
        "w": random.standard_normal((32, 3 * columns)).astype(np.float32),
        "v": random.standard_normal((3, columns, 16)).astype(np.float32),
        "shape": np.array([64, 3, columns]),
    }
    nodes = [
        node("MatMul", "x w", "h"),
        node("Reshape", "h shape", "rows"),
        node("Transpose", "rows", "turned", perm=[1, 0, 2]),
        node("MatMul", "turned v", "y"),
    ]
    proto = model(nodes, [("x", "float32", (64, 32))], ["y"], constants)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=Machine.named("avx512"))
    assert ("scatter_at" in stages.source) == (columns % 16 != 0)
    x = random.standard_normal((64, 32)).astype(np.float32)
    turned = (x @ constants["w"]).reshape(64, 3, columns).swapaxes(0, 1)
    with Session(compiler.build(compiler.lower(proto.SerializeToString(), threads=2)), threads=2) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], turned @ constants["v"], rtol=1e-4, atol=1e-3)
