"""The virtual machine gives the hand-written Programs' answers for every number of workers and every schedule."""

from __future__ import annotations

import numpy as np
import pytest

from mononn_core.program import expr, scalar
from mononn_core.program.interpret import run
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


def test_every_scalar_operation_is_known() -> None:
    assert set(scalar.SCALAR) | {"index"} == expr.UNARY | expr.BINARY


def test_transformer() -> None:
    case = tiny_transformer()
    for workers in (1, 3):
        got = run(case.program, case.inputs, case.weights, workers, seed=workers)
        np.testing.assert_allclose(got["y"], case.expected["y"], rtol=1e-5, atol=1e-6)
