"""The verifier accepts the hand-written Programs (what it refuses: test_program_mutants)."""

from __future__ import annotations

import pytest

from mononn_core.program.verify import verify
from tests.core.programs import CASES


@pytest.mark.parametrize("name", CASES)
def test_accepts(name: str) -> None:
    verify(CASES[name]().program)
