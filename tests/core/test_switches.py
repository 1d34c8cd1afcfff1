"""The switches of ablations: a launch for every phase, epilogues off, early fetches. Each keeps the answers."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.errors import InputError, OptionError
from mononn_core.lower.prefetch import prefetch_weights
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.expr import Acc, Load, walk
from mononn_core.program.interpret import run as interpret
from mononn_core.program.ir import Loop, Phase
from mononn_core.runtime import trace
from mononn_core.runtime.session import Session
from tests.core.networks import Builder, encoder, mlp
from tests.core.test_compiler import TOLERANCE, error

OWNERS = 2
WIDTH = 640
# Large enough that both owners have work in most phases.
NETWORKS = {
    "encoder": partial(encoder, layers=2, tokens=64, width=64, heads=4, hidden=256),
    "chain": partial(mlp, layers=4, rows=1, width=WIDTH),  # equal layers: a loop
}


@cache
def feed(name: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    if name == "chain":
        return {"x": random.standard_normal((1, WIDTH)).astype(np.float32)}
    mask = (np.arange(64) < 50).astype(np.int64)[None]
    return {"ids": random.integers(0, 11, (1, 64)), "mask": mask}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_launch_for_every_phase_gives_the_same_bits(name: str, workers: int) -> None:
    once = compiler.build(compiler.lower(NETWORKS[name](), threads=OWNERS))
    phases = compiler.build(compiler.lower(NETWORKS[name](), threads=OWNERS, launch="phases"))
    assert (once.manifest["launch"], phases.manifest["launch"]) == ("once", "phases")
    assert once.manifest["phases"] == phases.manifest["phases"]
    with Session(once, threads=workers) as whole, Session(phases, threads=workers) as stepped:
        for _ in range(3):
            for key, value in whole.run(feed(name)).items():
                np.testing.assert_array_equal(stepped.run(feed(name))[key], value)


def test_every_worker_of_every_launched_phase_is_traced() -> None:
    with compiler.compile(NETWORKS["chain"](), threads=OWNERS, launch="phases") as session:
        stamps = trace.record(session, feed("chain"), runs=3)
    assert stamps.shape[1] == OWNERS
    begins, ends = stamps[..., 0].astype(np.int64), stamps[..., 2].astype(np.int64)
    assert (ends >= begins).all()
    assert (begins[:, :, 1:].min(axis=1) >= ends[:, :, :-1].max(axis=1)).all(), "joined before the next launch"


@pytest.mark.parametrize("launch", ["once", "phases"])
def test_an_error_in_a_phase_names_its_node(launch: str) -> None:
    b = Builder("gather")
    b.add("Relu", b.add("Gather", b.weight(4, WIDTH), "i"), output="y")
    model = b.model({"i": (TensorProto.INT64, (640,))}, {"y": (640, WIDTH)})
    with compiler.compile(model, threads=OWNERS, launch=launch) as session, pytest.raises(InputError, match="Relu_1"):
        session.run({"i": np.full(640, 9)})


@pytest.mark.parametrize("name", NETWORKS)
def test_without_epilogues_products_store_what_they_computed(name: str) -> None:
    bare = compiler.lower(NETWORKS[name](), threads=OWNERS, epilogues=False)
    results = [result for phase in bare.program.phases() for result in phase.task.results]
    assert results
    for result in results:
        assert {type(e) for e in walk(result.value)} & {Acc, Load} == {Acc}
    whole = compiler.lower(NETWORKS[name](), threads=OWNERS)
    split = compiler.lower(NETWORKS[name](), threads=OWNERS, fuse=False)
    counts = [len(s.manifest["phases"]) for s in (whole, bare, split)]
    assert counts[0] < counts[1] < counts[2]
    with Session(compiler.build(bare)) as session:
        for key, value in session.run(feed(name)).items():
            assert error(value, evaluate(whole.graph, feed(name))[key]) < TOLERANCE


def test_hints_stand_before_barriers_and_change_no_bit() -> None:
    plain = compiler.lower(NETWORKS["chain"](), threads=OWNERS)
    hinted = compiler.lower(NETWORKS["chain"](), threads=OWNERS, prefetch=True)
    first, *_ = hinted.program.body
    assert isinstance(first, Phase) and first.prefetches, "for the loop behind it"
    loop = next(item for item in hinted.program.body if isinstance(item, Loop))
    assert [p.prefetches[0].phase for p in loop.body if isinstance(p, Phase)] == [
        p.id for p in loop.body if isinstance(p, Phase)
    ], "for the next round"
    assert ("mn::touch" in plain.source, "mn::touch" in hinted.source) == (False, True)
    with Session(compiler.build(plain)) as one, Session(compiler.build(hinted)) as other:
        want, found = one.run(feed("chain"))["y"], other.run(feed("chain"))["y"]
    np.testing.assert_array_equal(found, want)
    machine = interpret(hinted.program, feed("chain"), dict(hinted.lowered.weights))
    np.testing.assert_allclose(machine["y"], want, rtol=1e-4, atol=1e-7)


def test_hints_are_for_constant_right_hand_sides_only() -> None:
    b = Builder("product")
    b.add("MatMul", b.add("Softmax", "x"), b.add("Transpose", b.add("Softmax", "x"), perm=[1, 0]), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (640, 640))}, {"y": (640, 640)})
    program = compiler.lower(model, threads=OWNERS).program
    assert prefetch_weights(program) is program


def test_an_unknown_launch_is_refused() -> None:
    with pytest.raises(OptionError, match="'twice' is unknown; choose one of once, phases"):
        compiler.lower(NETWORKS["chain"](), launch="twice")
