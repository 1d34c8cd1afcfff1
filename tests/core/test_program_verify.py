"""The verifier accepts the hand-written Programs (what it refuses: test_program_mutants)."""

from __future__ import annotations

import time

import pytest

from mononn_core.program.verify import verify
from tests.core.programs import CASES
from tests.core.transformer import bert_base, tiny_transformer


@pytest.mark.parametrize("name", CASES)
def test_accepts(name: str) -> None:
    verify(CASES[name]().program)


def test_accepts_a_transformer_quickly() -> None:
    verify(tiny_transformer().program)
    program = bert_base()
    start = time.perf_counter()
    verify(program)
    assert time.perf_counter() - start < 10, "BERT-base must verify in seconds (usually half of one)"
