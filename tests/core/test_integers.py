"""Arithmetic on integers that are data: as NumPy has it, and no divisor stops the process."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.compiler import CpuStages, lower_imported
from mononn_core.compiler.cuda import lower_imported as lower_on_gpu
from mononn_core.graph import Graph
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import Options
from mononn_core.program.interpret import run as interpret
from mononn_core.runtime.emulated import EmulatedSession
from mononn_core.runtime.session import Session
from tests.core.graphs import Net

TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
OPERATIONS = (("div", {}), ("mod", {"fmod": False}), ("mod", {"fmod": True}), ("pow", {}))
COUNT = 5


def everything() -> Graph:
    """Every operation on two inputs of every type, and every bit pattern read as another type."""
    net, outputs = Net(), []
    for dtype in TYPES:
        a, b = net.input(COUNT, dtype=dtype), net.input(COUNT, dtype=dtype)
        outputs += [net(op, a, b, **attrs) for op, attrs in OPERATIONS]
        outputs += [net("mod", a, net.const(3, dtype), fmod=fmod) for fmod in (False, True)]
    floats = {"float32": "int32", "float64": "int64"}
    for a, b in (*floats.items(), *((b, a) for a, b in floats.items()), ("int8", "uint8"), ("bool", "uint8")):
        outputs.append(net("bitcast", net.input(COUNT, dtype=a), to=b))
    return net.graph(*outputs)


GRAPH = everything()


@cache
def ready() -> tuple[Session, CpuStages]:
    """Compiled code, and the Program for the virtual machine."""
    stages = lower_imported(GRAPH, Options(threads=1), Machine.probe())
    return Session(compiler.build(stages)), stages


def numbers(dtype: str) -> st.SearchStrategy[int]:
    info = np.iinfo(dtype)
    special = [n for n in (info.min, info.max, -1, 0, 1, 2) if info.min <= n <= info.max]
    return st.one_of(st.sampled_from(special), st.integers(info.min, info.max), st.integers(0, 12))


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, np.ndarray]:
    found = {}
    for name in GRAPH.inputs:
        dtype = GRAPH.types[name].dtype
        if np.dtype(dtype).kind in "iu":
            found[name] = np.array(draw(st.lists(numbers(dtype), min_size=COUNT, max_size=COUNT)), dtype)
        else:
            found[name] = np.random.default_rng(draw(st.integers(0, 999))).standard_normal(COUNT).astype(dtype)
    return found


def lowest_by(divisor: int) -> dict[str, np.ndarray]:
    """Every type's lowest number, by ``divisor``."""
    types = {name: GRAPH.types[name].dtype for name in GRAPH.inputs}
    values: dict[str, np.ndarray] = {}
    for position, (name, dtype) in enumerate(types.items()):
        number = divisor if position % 2 else np.iinfo(dtype).min if np.dtype(dtype).kind in "iu" else 0
        values[name] = np.full(COUNT, number).astype(dtype)
    return values


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=60, deadline=None)
@given(inputs())
@example(lowest_by(-1))
@example(lowest_by(0))
def test_compiled_code_and_the_virtual_machine_give_the_operators_answer(values: dict[str, np.ndarray]) -> None:
    session, stages = ready()
    found, rows = session.run(values), {name: value.reshape(1, COUNT) for name, value in values.items()}
    seen = interpret(stages.program, rows, stages.lowered.weights, 1)
    for name, want in evaluate(GRAPH, values).items():
        where = str(next(n for n in GRAPH.nodes if n.output == name))
        np.testing.assert_array_equal(found[name], want, where)
        np.testing.assert_array_equal(seen[name].reshape(COUNT), want, where)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_gpu_gives_the_same() -> None:
    net, outputs = Net(), []
    for dtype in ("int32", "int64"):
        a, b = net.input(COUNT, dtype=dtype), net.input(COUNT, dtype=dtype)
        outputs += [net(op, a, b, **attrs) for op, attrs in OPERATIONS]
        outputs.append(net("mod", a, net.const(3, dtype), fmod=False))
    graph = net.graph(*outputs)
    divided, divisors = [-9, 7, 5, -8, -(2**31)], [2, 0, -1, 3, -1]
    values = {
        name: np.array(divisors if position % 2 else divided, graph.types[name].dtype)
        for position, name in enumerate(graph.inputs)
    }
    artifact = compiler.build(lower_on_gpu(graph, Options(target="cuda-emulated")))
    with EmulatedSession(artifact, blocks=2) as session:
        found = session.run(values)
    for name, want in evaluate(graph, values).items():
        np.testing.assert_array_equal(found[name], want)
