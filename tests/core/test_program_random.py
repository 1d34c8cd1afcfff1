"""Random little Programs: the verifier, the oracle and the virtual machine judge alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core.errors import VerifyError
from mononn_core.program.expr import Const, Expr
from mononn_core.program.interpret import run
from mononn_core.program.ir import Assign, Barrier, Counter, Item, Phase, Program, Signal, Wait
from mononn_core.program.verify import verify
from tests.core.build import buffer, copy_phase, random, v
from tests.core.oracle import Oracle

ROWS, COLUMNS = 3, 2
SHAPE = (ROWS, COLUMNS)
ROW = COLUMNS * 4
OWNERS: tuple[tuple[str, Expr] | None, ...] = (None, ("g", v("r")), ("g", ROWS - 1 - v("r")), ("h", v("r")))

steps = st.lists(
    st.tuples(
        st.integers(0, 3),  # the source: this many targets back, or x
        st.sampled_from("abc"),
        st.sampled_from(OWNERS),
        st.booleans(),  # a barrier before it
        st.booleans(),  # it signals its row
        st.booleans(),  # it waits for the signals of its row so far
        st.sampled_from([ROWS] * 7 + [1, 2]),  # rows copied
    ),
    min_size=1,
    max_size=5,
)
places = st.one_of(st.permutations([0, ROWS, 2 * ROWS]), st.tuples(*(st.integers(0, 2 * ROWS) for _ in "abc")))


def build(program_steps: list[tuple], offsets: Sequence[int]) -> Program:
    """Copies of rows from buffer to buffer; ends with a copy of the last target to y."""
    body: list[Item] = []
    written = ["x"]
    program_steps = [*program_steps, (0, "y", *program_steps[-1][2:6], ROWS)]
    signalled = np.zeros(ROWS, int)
    for n, (back, target, owner, barrier, signals, waits, rows) in enumerate(program_steps):
        source = written[-1 - back % len(written)]
        written.append(target)
        if barrier:
            body.append(Barrier(n))
        phase: Phase = copy_phase(f"p{n}", source, target, SHAPE)
        phase = replace(phase, domain=(replace(phase.domain[0], extent=rows),))
        if owner is not None:
            phase = replace(phase, assign=Assign("owned", owner[0], owner[1], ROWS))
        counts = signalled[:rows]
        if waits and counts.min() > 0 and counts.min() == counts.max():
            phase = replace(phase, waits=(Wait("n", (v("r"),), Const(int(counts[0]))),))
        if signals:
            phase = replace(phase, signals=(Signal("n", (v("r"),)),))
            signalled[:rows] += 1
        body.append(phase)
    arena = [buffer(name, SHAPE, "arena", offset * ROW) for name, offset in zip("abc", offsets, strict=True)]
    return Program(
        "random",
        (buffer("x", SHAPE, "input"), *arena, buffer("y", SHAPE, "output")),
        tuple(body),
        counters=(Counter("n", (ROWS,)),),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=3 * ROWS * ROW,
    )


def outcome(program: Program, workers: int, seed: int) -> np.ndarray | None:
    """What the virtual machine answers; None when it refuses."""
    try:
        return run(program, {"x": random(SHAPE, 1)}, {}, workers, seed)["y"]
    except VerifyError:
        return None


@settings(max_examples=400, deadline=None)
@given(steps, places)
def test_three_judges_agree(program_steps: list[tuple], offsets: Sequence[int]) -> None:
    program = build(program_steps, offsets)
    reason = Oracle().wrong(program)
    try:
        verify(program)
        refused = ""
    except VerifyError as error:
        refused = str(error)
    early = "may arrive before" in refused  # counters that count too early are beyond the oracle
    assert bool(reason) == bool(refused) or early, (reason, refused)
    if not refused:
        answers = [outcome(program, workers, seed) for seed, workers in enumerate((1, 2, 3, 3, 4))]
        assert all(a is not None and np.array_equal(a, answers[0]) for a in answers)
