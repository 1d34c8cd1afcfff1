"""The verifier refuses every Program known to be wrong and accepts every neutral rewrite."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from mononn_core.errors import VerifyError
from mononn_core.program.interpret import run
from mononn_core.program.ir import Program
from mononn_core.program.verify import verify
from tests.core import mutate_memory, mutate_task  # noqa: F401 (they register their mutations)
from tests.core.build import Case
from tests.core.mutate import MUTATIONS, Mutant, mutants
from tests.core.neutral import REWRITES, rewrites
from tests.core.oracle import Oracle
from tests.core.programs import CASES
from tests.core.transformer import tiny_transformer

ORACLE = Oracle()
ALL = {**CASES, "tiny_transformer": tiny_transformer}
NAMES = [*CASES, pytest.param("tiny_transformer", marks=pytest.mark.slow)]


@cache
def broken(name: str) -> tuple[Mutant, ...]:
    """Every known-wrong variant of a hand-written Program."""
    return tuple(mutants(ALL[name]().program, ORACLE))


def refusal(program: Program) -> str:
    """The verifier's message, "" when it accepts."""
    try:
        verify(program)
    except VerifyError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_wrong_programs_are_refused(name: str) -> None:
    assert [(m.name, m.site) for m in broken(name) if not refusal(m.program)] == []


def test_there_are_many_wrong_programs_of_every_kind() -> None:
    found = Counter(m.name for name in ALL for m in broken(name))
    assert set(found) == set(MUTATIONS)
    assert found.total() >= 500


def test_a_refusal_names_phase_buffer_origin_and_rule() -> None:
    (renamed,) = (m for m in broken("owned_group") if (m.name, m.site) == ("group_renamed", "normalise"))
    assert refusal(renamed.program) == (
        "phase 'normalise' from Sub node 'normalise': operand 'in' reads buffer 'h', whose write is not ordered "
        "before it (rule: every read is ordered after its write)"
    )


@pytest.mark.parametrize("name", NAMES)
def test_neutral_rewrites_are_accepted_and_change_nothing(name: str) -> None:
    case = ALL[name]()
    for site, program in rewrites(case.program):
        assert refusal(program) == "", site
        assert answers_right(case, program, seed=1), site


def test_there_are_many_neutral_rewrites_of_every_kind() -> None:
    found = Counter(site.split(":")[0] for make in ALL.values() for site, _ in rewrites(make().program))
    assert set(found) == set(REWRITES)
    assert found.total() >= 100


def answers_right(case: Case, program: Program, seed: int, workers: int = 3) -> bool:
    """Whether the virtual machine gives the case's answer."""
    got = run(program, case.inputs, case.weights, workers, seed)
    return all(np.allclose(got[k], want, rtol=2e-5, atol=2e-6) for k, want in case.expected.items())


RACES = ("barrier_dropped", "wait_dropped", "owner_permuted", "owner_forgotten", "group_renamed")
ORDER = ("barrier_dropped", "phase_moved_across_barrier", "phases_swapped", "owner_permuted", "table_rows_swapped")
PLACE = ("arena_offset_shifted", "arena_offset_on_another_buffer", "operand_reads_another_buffer")


@pytest.mark.parametrize("name", ALL)
def test_the_machine_finds_a_schedule_that_shows_the_race(name: str) -> None:
    """What the verifier calls unordered really goes wrong on the virtual machine in some legal schedule."""
    case = ALL[name]()
    for m in broken(name):
        if m.name in RACES:
            assert any(goes_wrong(case, m.program, seed) for seed in range(60)), (m.name, m.site)


def goes_wrong(case: Case, program: Program, seed: int) -> bool:
    try:
        return not answers_right(case, program, seed, workers=2 + seed % 3)
    except VerifyError:
        return True


@pytest.mark.parametrize("name", ALL)
def test_what_the_oracle_finds_harmless_is_accepted(name: str) -> None:
    """The verifier is exact about order and coverage, not merely safe."""
    program = ALL[name]().program
    for mutation in (*ORDER, *PLACE):
        for site, changed in MUTATIONS[mutation].sites(program):
            assert bool(ORACLE.wrong(changed)) == bool(refusal(changed)), (mutation, site)
