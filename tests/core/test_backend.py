"""ONNX's own single-operator tests through the importer, the passes and the operators' semantics.

``onnx_backend_expected.txt`` lists those that must pass; ``--update-golden`` rewrites it.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from mononn_core.backend import MononnBackend
from mononn_core.errors import InputError, MononnError, UnsupportedError
from tests.core.models import model, node

EXPECTED = Path(__file__).parent / "onnx_backend_expected.txt"
COMPILED = (
    "test_relu",
    "test_softmax_axis_1",
    "test_matmul_3d",
    "test_reshape_negative_dim",
    "test_gather_negative_indices",
    "test_layer_normalization_3d_axis_negative_1_epsilon",
    "test_maxpool_2d_pads",
    "test_conv_with_strides_padding",
)


@cache
def node_tests() -> dict[str, Any]:
    """ONNX's test cases by name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def answer(case: Any, mode: str) -> None:
    """Run a case; raises AssertionError or MononnError when it does not pass."""
    prepared = MononnBackend.prepare(case.model, "CPU", mode=mode)
    for inputs, wanted in case.data_sets:
        found = prepared.run(inputs)
        Runner.assert_similar_outputs([array(w) for w in wanted], found, case.rtol, case.atol)


def failure(case: Any) -> str:
    """Why a case does not pass ("" when it does). Anything but a named error, or a wrong answer, is raised."""
    try:
        answer(case, "evaluate")
    except UnsupportedError as error:
        return f"UnsupportedError: {error}"
    except (MononnError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_onnx_node_tests(request: pytest.FixtureRequest) -> None:
    failures = {name: failure(case) for name, case in node_tests().items()}
    if request.config.getoption("--update-golden"):
        EXPECTED.write_text("".join(f"{name}\n" for name, why in sorted(failures.items()) if not why), encoding="utf-8")
    expected = [name for name in EXPECTED.read_text(encoding="utf-8").split() if name in failures]
    assert len(expected) > 1500, "this version of onnx has other tests: look, then make golden"
    assert {name: failures[name] for name in expected if failures[name]} == {}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whatever_is_refused_is_refused_by_a_named_error() -> None:
    refused = set(node_tests()) - set(EXPECTED.read_text(encoding="utf-8").split())
    reasons = {name: failure(node_tests()[name]) for name in refused}
    wrong = {name: why for name, why in reasons.items() if why.startswith("AssertionError")}
    assert all("\n" not in why for name, why in reasons.items() if name not in wrong)
    # Rounding to 8-bit exponents, and a tolerance below the reference's own rounding error.
    known = {"test_cast_e8m0_FLOAT_to_FLOAT8E8M0", "test_cast_e8m0_FLOAT16_to_FLOAT8E8M0"}
    assert set(wrong) <= known | {"test_dft_inverse", "test_dft_inverse_opset19"}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str) -> None:
    answer(node_tests()[name], "compile")


def test_an_input_that_decides_shapes_is_bound_by_the_run() -> None:
    proto = model([node("Reshape", "x s", "y")], [("x", "float32", (6,)), ("s", "int64", (2,))], ["y"])
    prepared = MononnBackend.prepare(proto, mode="evaluate")
    x = np.arange(6, dtype=np.float32)
    for shape in ((2, 3), (2, 3), (3, 2)):
        assert prepared.run([x, np.array(shape)])[0].shape == shape


def test_bad_calls_are_named() -> None:
    proto = model([node("Relu", "x", "y")], [("x", "float32", (2,))], ["y"])
    with pytest.raises(UnsupportedError, match="device 'CUDA'"):
        MononnBackend.prepare(proto, "CUDA")
    with pytest.raises(UnsupportedError, match="mode 'guess'"):
        MononnBackend.prepare(proto, mode="guess")
    prepared = MononnBackend.prepare(proto, mode="evaluate")
    with pytest.raises(InputError, match="1 inputs, and 2 were given"):
        prepared.run([np.zeros(2, np.float32)] * 2)
    with pytest.raises(UnsupportedError, match="sequences"):
        prepared.run([[np.zeros(2, np.float32)]])
