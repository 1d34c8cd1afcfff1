"""Whole networks on the emulator without its race detector: minutes each, make test-networks."""

import numpy as np
import pytest

from mononn_bench.gpu_suite.case import Case, make_models
from mononn_core import compiler
from mononn_core.runtime.emulated import EmulatedSession


@pytest.mark.networks
@pytest.mark.parametrize("name", ["bert-base", "vit-base", "t5-small"])
def test_a_network_agrees_with_float64(name, tmp_path):
    case = Case(str(tmp_path), name, 1, "fp32", "cpu")
    make_models([case], "cpu")
    stages = compiler.lower(case.folder / "model.onnx", target="cuda-emulated", precision="fp16", gpu="H100")
    session = EmulatedSession(compiler.build(stages), sanitize=False)
    with np.load(case.reference) as stored:
        given = {key: stored[f"0/in/{key}"] for key in session.inputs}
        expected = {key: stored[f"0/out/{key}"] for key in session.outputs}
    for key, got in session.run(given).items():
        error = np.linalg.norm(got - expected[key]) / np.linalg.norm(expected[key])
        assert error < 5e-3, key
