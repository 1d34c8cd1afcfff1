"""Compiled Programs: legal, right on the virtual machine under every schedule, and refused when mutated."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from tests.core import mutate_memory, mutate_task  # noqa: F401 (they register their mutations)
from tests.core.mutate import mutants
from tests.core.networks import MODELS
from tests.core.neutral import rewrites
from tests.core.oracle import Oracle
from tests.core.test_program_mutants import refusal

ORACLE = Oracle()
EACH = 8
"""Sites tried per mutation and model."""


@cache
def lowered(name: str, threads: int) -> compiler.Stages:
    return compiler.lower(MODELS[name](), threads=threads, machine=Machine.named("avx2"))


@cache
def inputs(name: str) -> dict[str, np.ndarray]:
    """Seeded inputs; integers are 0 or 1, the first always 1."""
    random = np.random.default_rng(3)
    graph = lowered(name, 1).graph
    values = {}
    for key in graph.inputs:
        kind = graph.types[key]
        draw = random.integers(0, 2, kind.shape) if "int" in kind.dtype else random.standard_normal(kind.shape)
        values[key] = draw.astype(kind.dtype)
        values[key].reshape(-1)[0] = 1
    return values


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_the_machine_agrees_with_the_graph(name: str, threads: int) -> None:
    stages = lowered(name, threads)
    assert ORACLE.wrong(stages.program) == ""
    expected = evaluate(stages.graph, inputs(name))
    program, given = stages.program, {}
    for key, value in inputs(name).items():
        given[key] = value.reshape(program.buffer(key).shape)
    for seed in range(3):
        outputs = run(program, given, stages.lowered.weights, workers=1 + seed * threads, seed=seed)
        for key, want in expected.items():
            np.testing.assert_allclose(outputs[key].reshape(want.shape), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "encoder")) for n in MODELS])
def test_mutants_are_refused(name: str) -> None:
    found = list(mutants(lowered(name, 2).program, ORACLE, EACH))
    assert len(found) >= 100
    assert [(m.name, m.site) for m in found if not refusal(m.program)] == []


@pytest.mark.parametrize("name", MODELS)
def test_neutral_rewrites_are_accepted(name: str) -> None:
    found = list(rewrites(lowered(name, 2).program, EACH))
    assert len(found) >= 20
    assert [(site, text) for site, program in found if (text := refusal(program))] == []
