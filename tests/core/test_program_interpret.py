"""The virtual machine gives the hand-written Programs' answers for every number of workers and every schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mononn_core.codegen.cstyle import Printer
from mononn_core.errors import InputError, VerifyError
from mononn_core.program import expr, scalar
from mononn_core.program.expr import Cast, Const, Expr, op
from mononn_core.program.functions import FUNCTIONS, Function
from mononn_core.program.interpret import run
from mononn_core.program.ir import Phase
from tests.core.programs import CASES
from tests.core.transformer import tiny_transformer


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("name", CASES)
def test_answers(name: str, workers: int) -> None:
    case = CASES[name]()
    for seed in range(4):
        outputs = run(case.program, case.inputs, case.weights, workers, seed)
        assert outputs.keys() == case.expected.keys()
        for key, want in case.expected.items():
            np.testing.assert_allclose(outputs[key], want, rtol=2e-5, atol=2e-6)


def test_an_index_out_of_range_is_an_input_error() -> None:
    case = CASES["tokens_attention"]()
    ids = case.inputs["ids"].copy()
    ids[2] = 11
    with pytest.raises(InputError, match="index 11, taken from the inputs, is out of range for an extent of 11"):
        run(case.program, {**case.inputs, "ids": ids}, case.weights)


def test_wrong_inputs_are_named() -> None:
    case = CASES["rolled_loop"]()
    with pytest.raises(InputError, match="input 'x' is missing"):
        run(case.program, {}, case.weights)
    with pytest.raises(InputError, match=r"input 'x' has type float64\[3, 10\], wanted float32\[3, 10\]"):
        run(case.program, {"x": case.inputs["x"].astype(np.float64)}, case.weights)


def test_a_deadlock_is_reported() -> None:
    program = CASES["counter_hand_off"]().program
    first, *rest = program.body
    assert isinstance(first, Phase)
    with pytest.raises(VerifyError, match="deadlock: worker 0 waits at a counter in phase 'sum'"):
        run(replace(program, body=(replace(first, signals=()), *rest)), CASES["counter_hand_off"]().inputs, {})


SCALARS = [
    (op("div", Const(-7, "int32"), Const(2, "int32")), -3),
    (op("floordiv", Const(-7), Const(2)), -4),
    (op("mod", Const(-7), Const(3)), 2),
    (op("fmod", Const(-7.5, "float32"), Const(2.0, "float32")), -1.5),
    (op("round", Const(2.5, "float32")), 2),
    (op("max", Const(float("nan"), "float32"), Const(1.0, "float32")), float("nan")),
    (Cast(Const(-2.9, "float32"), "int32"), -2),
    (Cast(Const(0.1, "float32"), "bool"), True),
    (op("erf", Const(0.5, "float32")), 0.5204999),
    (op("sigmoid", Const(-200.0, "float32")), 0),
    (op("softplus", Const(100.0, "float32")), 100),
]


@pytest.mark.parametrize(("e", "want"), SCALARS)
def test_scalar_operations(e: Expr, want: float) -> None:
    with np.errstate(all="ignore"):
        got = scalar.evaluate(e, scalar.Frame(), _no_loads)
    assert got.dtype == np.dtype(e.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def _no_loads(*_: object) -> np.ndarray:
    raise AssertionError("there are no loads")


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=lambda f: f.name)
def test_every_scalar_operation_is_computed_and_written(function: Function) -> None:
    """In a type that it takes; whether they agree the generated programs' tests say."""
    logic = function.name in ("and", "or", "xor", "not")
    dtype = "bool" if logic else "int64" if function.name.startswith(("bit", "sh", "index", "known")) else "float32"
    e = expr.op(function.name, *(expr.Var(f"a{n}", dtype) for n in range(function.arity)))
    assert e.dtype == ("bool" if function.comparison else dtype)
    assert Printer({}, {}).scalar(e)
    if function.name not in ("index", "known_index"):
        values = {f"a{n}": np.asarray([1], dtype) for n in range(function.arity)}
        with np.errstate(all="ignore"):
            assert scalar.evaluate(e, scalar.Frame((1,), values), _no_loads).dtype == e.dtype


def test_transformer() -> None:
    case = tiny_transformer()
    for workers in (1, 3):
        got = run(case.program, case.inputs, case.weights, workers, seed=workers)
        np.testing.assert_allclose(got["y"], case.expected["y"], rtol=1e-5, atol=1e-6)
