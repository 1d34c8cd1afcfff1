"""The real thing, where there is a GPU and CuPy: answers of every precision and launch, streams, device buffers."""

from __future__ import annotations

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.errors import InputError
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.runtime import conformance
from mononn_core.runtime.cuda_device import present_gpu
from tests.core.networks import MODELS
from tests.core.test_program_compiled import inputs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(present_gpu() is None, reason="no NVIDIA GPU"),
]
LIMITS = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 2e-2}


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.mark.parametrize("launch", ["once", "graph"])
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("name", ["encoder", "mlp", "mixed"])
def test_answers(name, precision, launch, cupy):
    want = evaluate(compiler.lower(MODELS[name](), threads=1).graph, inputs(name))
    with compiler.compile(MODELS[name](), target="cuda", precision=precision, launch=launch) as session:
        binding = session.bind(inputs(name))
        for _ in range(3):
            binding.run()
            for key, value in binding.results().items():
                error = np.linalg.norm(value.astype(np.float64) - want[key]) / np.linalg.norm(want[key])
                assert error < LIMITS[precision]


def test_device_buffers_and_streams(cupy):
    given = inputs("mlp")
    with compiler.compile(MODELS["mlp"](), target="cuda") as session:
        expected = session.run(given)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            binding = session.bind({name: cupy.asarray(value) for name, value in given.items()})
            binding.launch()
            stream.synchronize()
            for name, value in binding.results().items():
                np.testing.assert_array_equal(cupy.asnumpy(value), expected[name])


def test_an_index_out_of_range(cupy):
    wrong = {**inputs("mixed"), "ids": np.array([0, 3, 99, 2])}
    with compiler.compile(MODELS["mixed"](), target="cuda") as session, pytest.raises(InputError, match="it is 99"):
        session.run(wrong)


def test_every_primitive_is_as_the_emulator_has_it(cupy, tmp_path):
    found = conformance.conformance(True, tmp_path / "conformance.npz")
    assert found["different"] == []
