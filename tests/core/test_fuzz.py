"""Damaged models end in a named error or in right answers: some of those of `make fuzz`, and what it finds."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from tests.core import networks
from tests.fuzz import judge
from tests.fuzz.mutate import model_of

MODEL = networks.mlp(2)


def test_damaged_models() -> None:
    found = list(judge.verdicts(range(1_000_000, 1_000_060), 0, 1))
    assert {number: (verdict, why) for number, verdict, why in found if verdict not in judge.FINE} == {}
    assert len({verdict for _, verdict, _ in found}) >= 3, "some are refused, some lowered, some run"


def test_a_number_is_a_model() -> None:
    assert model_of(7, 3) == model_of(7, 3)
    assert len({model_of(number, 0) for number in range(50)}) > 40


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(KeyError("x"), "internal error"), (MemoryError(), "out of memory"), (ValueError(), "internal error")],
)
def test_what_is_no_named_error_is_a_bug(error: Exception, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(*_: object) -> None:
        raise error

    monkeypatch.setattr(judge, "lower_imported", lower)
    found, why = judge.judge(MODEL, 1)
    assert found == verdict and type(error).__name__ in why


def test_a_wrong_answer_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge.judge(MODEL, 0) == ("right", "")
    right = judge.evaluate
    monkeypatch.setattr(judge, "evaluate", lambda graph, given: {n: v + 1 for n, v in right(graph, given).items()})
    assert judge.judge(MODEL, 0)[0] == "wrong answer"


def test_answers_that_differ() -> None:
    x = np.linspace(0, 1, 50, dtype=np.float32)
    assert judge.differs(x, x * np.float32(1 + 1e-5)) == ""
    assert "relative L2" in judge.differs(x, x * np.float32(1.01))
    assert judge.differs(x, np.where(x > 0.9, np.float32(np.inf), x)) == ""
    assert "in one of them alone" in judge.differs(np.full(50, np.nan, np.float32), x)
    assert "instead of" in judge.differs(x, x.astype(np.float64))
    assert judge.differs(np.arange(90), np.arange(90) + (np.arange(90) == 3) * 5) == ""
    assert "are others" in judge.differs(np.arange(90), np.arange(90) + 2)


def silent(pipe: Connection, seed: int) -> None:
    pipe.recv()
    time.sleep(60)


def crashing(pipe: Connection, seed: int) -> None:
    pipe.recv()
    os._exit(3)


@pytest.mark.parametrize(("serve", "grace", "verdict"), [(silent, 1.0, "hung"), (crashing, 60.0, "crashed")])
def test_a_process_that_ends_or_hangs_is_a_verdict(serve, grace, verdict) -> None:  # type: ignore[no-untyped-def]
    with judge.Judge(0, serve, grace) as one:
        one.send(0)
        assert one.answer()[0] == verdict
