"""The hand-written CUDA Programs as generated code on the emulator: the same answers as the virtual machine and NumPy,
for any number of blocks, any schedule, as one kernel and as several."""

from __future__ import annotations

import numpy as np
import pytest

from mononn_core.program import abi, interpret
from mononn_core.program.verify import verify
from mononn_core.runtime.gpu_session import on_one_clock
from tests.core.build import Case
from tests.core.cuda.cases import CASES
from tests.core.cuda.emulated import Run
from tests.core.cuda.programs import TOLERANCE

QUICK = (
    "fetched_early-f16",
    "attention-tf32x3",
    "norms-bf16",
    "filled_left-f16",
    "layers-f16",
    "hand_off-tf32x3",
    "depthwise-f16",
    "groups_of_two-bf16",
)
SCHEDULES = ("random:2", "block-first", "reversed", "starve:0")


def check(name: str, case: Case, run: Run, blocks: int, schedule: str) -> None:
    answers = run.run(blocks, schedule)
    for output, expected in case.expected.items():
        bound = TOLERANCE[name.split("-")[-1]] * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(answers[output], expected, rtol=0, atol=bound)
    assert run.report.counters["ldmatrix_conflicts"] == 0
    assert not run.error.any()


@pytest.mark.parametrize("name", sorted(n for n in CASES if not n.endswith("bf16")))
def test_programs_are_legal_and_mean_what_they_say(name: str) -> None:
    case = CASES[name]()
    verify(case.program)
    answers = interpret.run(case.program, dict(case.inputs), dict(case.weights))
    for output, expected in case.expected.items():
        bound = TOLERANCE[name.split("-")[-1]] * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(answers[output], expected, rtol=0, atol=bound)


@pytest.mark.parametrize("name", QUICK)
def test_generated_code_agrees(name: str) -> None:
    case = CASES[name]()
    run = Run(case)
    for blocks, schedule in ((3, "random:1"), (1, "reversed")):  # the second run finds barriers and counters as left
        check(name, case, run, blocks, schedule)


@pytest.mark.emulated
@pytest.mark.parametrize("launch", ["once", "graph"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_generated_code_agrees_under_every_schedule(name: str, launch: str) -> None:
    case = CASES[name]()
    for threads in (128, 256):
        run = Run(case, threads, launch)
        for blocks, schedule in zip((2, 5, 1, 4), SCHEDULES, strict=True):
            check(name, case, run, blocks, schedule)


def test_an_index_out_of_range_is_reported() -> None:
    case = CASES["embedding-f16"]()
    ids = np.array(case.inputs["ids"])
    ids[4] = 31
    run = Run(Case(case.program, {"ids": ids}, case.weights, case.expected))
    run.run(2)
    assert abi.decode_error(int(run.error.view(np.uint64)[0])) == (abi.ERROR_INDEX, 0, 31)


def test_stamps_tell_when_each_block_was_in_each_phase() -> None:
    case = CASES["mlp-f16"]()
    run = Run(case)
    blocks, phases = 2, 3
    raw = run.trace(blocks, phases)
    assert (raw[..., 2] == np.arange(blocks)[:, None, None]).all()
    assert (np.diff(raw[..., 1].reshape(blocks, -1), axis=1) > 0).all(), "a block's cycles only grow"
    stamps = on_one_clock(raw)
    assert np.abs(stamps.astype(np.int64) - raw[..., 0].astype(np.int64)).max() <= 1
    assert (stamps[:, :, 0] <= stamps[:, :, 1]).all()
    assert (stamps[:, :, 1] <= stamps[:, :, 2]).all()
    assert (stamps[:, 1:, 1] >= stamps[:, :-1, 2].max(0)).all(), "a barrier stands between these phases"
