"""What every way of running a network must give: the Graph's semantics, and the same bits for any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core import compiler
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session


def assert_all_agree(stages: Any, atol: float, interpreted: int) -> None:
    """Of a lowered network from x to y: its Program, where x has fewer elements than ``interpreted``, and its compiled
    function with 1, 2 and 4 workers. ``atol``: of the latter."""
    x = np.random.default_rng(1).standard_normal(stages.graph.types["x"].shape).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})["y"]
    if x.size < interpreted:
        given = {"x": x.reshape(stages.program.buffer("x").shape)}
        seen = run(stages.program, given, stages.lowered.weights, workers=2)
        np.testing.assert_allclose(seen["y"].reshape(want.shape), want, rtol=1e-4, atol=1e-5)
    artifact, answers = compiler.build(stages), []
    for workers in (1, 2, 4):
        with Session(artifact, threads=workers) as session:
            answers.append(session.run({"x": x})["y"])
        np.testing.assert_allclose(answers[-1], want, rtol=1e-4, atol=atol)
        np.testing.assert_array_equal(answers[-1], answers[0])
