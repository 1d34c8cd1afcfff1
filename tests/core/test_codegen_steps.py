"""How far apart the neighbours along a variable lie: of all, and of those of one vector."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.codegen.steps import WIDEST, step_along
from mononn_core.machine import Machine
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
    kind, divisor = draw(st.sampled_from(["floordiv", "mod"])), draw(st.sampled_from([12, 16, 48, 512]))
    return first + op(kind, inner, Const(divisor)) * draw(factor)


@given(offsets(), st.integers(0, 40), st.integers(0, 9), st.sampled_from([1, 4, 8, 16]))
def test_what_is_said_of_a_vector_holds_in_it(offset: Expr, vector: int, p: int, lanes: int) -> None:
    step = step_along(offset, "n", aligned=True)
    every = step_along(offset, "n", aligned=False)
    assert every is None or every == step
    if step is not None:
        found = [evaluate_index(offset, {"n": vector * lanes + lane, "p": p}) for lane in range(lanes)]
        assert found == [found[0] + step * lane for lane in range(lanes)]


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
