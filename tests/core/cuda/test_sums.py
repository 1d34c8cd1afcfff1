"""Long sums in fp32: tensor cores cut theirs off toward zero, so each must be short."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.runtime.emulated import EmulatedSession
from tests.core.cuda.test_windows import lowered
from tests.core.networks import Builder


def test_long_sums_keep_the_accuracy_of_float32() -> None:
    """2304 terms of one sign: added up inside the tensor cores they would be off by more than 1e-5."""
    terms = 2304
    b = Builder("long")
    b.add("MatMul", "x", b.constant(np.abs(b.random.standard_normal((terms, 16))).astype(np.float32)), output="y")
    stages = lowered(b.model({"x": (TensorProto.FLOAT, (16, terms))}, {"y": (16, 16)}), "fp32")
    x = np.abs(np.random.default_rng(2).standard_normal((16, terms))).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})["y"]
    with EmulatedSession(compiler.build(stages), blocks=2) as session:
        got = session.run({"x": x})["y"]
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < 1e-6
