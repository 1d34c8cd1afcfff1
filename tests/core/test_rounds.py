"""Rounds that touch the same, each so much further on, are found as if each had been looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mononn_core.errors import VerifyError
from mononn_core.program import rules
from mononn_core.program.expr import Expr, Load, Var, transform
from mononn_core.program.footprint import Site
from mononn_core.program.ir import Loop, Phase, Program, Result
from mononn_core.program.ordering import Classes, Order
from mononn_core.program.rounds import Rounds
from mononn_core.program.verify import verify
from tests.core.test_recurrent import dealt, lowered, net_of

CASES = [
    ("lstm", (7, 3, 40, 0), (0, 1), ("b", "p"), "batch"),
    ("lstm", (5, 2, 70, 0), (1,), ("lengths",), "rows"),
    ("gru", (6, 1, 150, 0), (0,), ("before", "b"), "columns"),
    ("rnn", (9, 1, 33, 0), (0,), (), "single"),
]


def phases(program: Program) -> list[tuple[Phase, Loop]]:
    return [(p, item) for item in program.body if isinstance(item, Loop) for p in item.body if isinstance(p, Phase)]


def as_lists(classes: Classes) -> list[Any]:
    parts = (*classes.reads, *classes.writes)
    return [classes.keys, *((a.role, a.runs.starts.tolist(), a.runs.ends.tolist(), a.classes.tolist()) for a in parts)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} by {case[4]}")
def test_each_round_touches_what_it_would_alone(case: tuple[Any, ...]) -> None:
    program = dealt(net_of(*case[:4]), "avx2", 2, case[4]).program
    alike = Rounds(program)
    order = Order(program, alike)
    for phase, loop in phases(program):
        assert alike.moves(phase) is not None
        for number in range(loop.count):
            here = {loop.var: number}
            alone = Classes.of(Site(program, phase, here).footprint())
            assert as_lists(order.touched(phase, here)) == as_lists(alone)


def test_a_long_sequence_is_proven_like_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    first = Site.__init__
    monkeypatch.setattr(Site, "__init__", lambda self, *given: (made.append(1), first(self, *given))[1])
    counts = []
    for steps in (10, 40):
        lowered(net_of("gru", (steps, 1, 64, 0), (0, 1), ("before",)))
        counts.append(len(made))
        made.clear()
    assert counts[0] == counts[1]


def with_result(program: Program, phase: Phase, result: Result) -> Program:
    changed = replace(phase, task=replace(phase.task, results=(result,)))
    return rules.changed(program, lambda p: changed if p.id == phase.id else p)


def test_what_only_the_first_round_may_do_is_refused() -> None:
    program = lowered(net_of("rnn", (6, 1, 32, 0), (0,), ())).program
    verify(program)
    ((phase, _),) = phases(program)
    (result,) = phase.task.results

    def further(e: Expr) -> Expr:
        return replace(e, index=(e.index[0] + Var("step"), *e.index[1:])) if isinstance(e, Load) else e

    stored = replace(result, index=(result.index[0] + Var("step"), *result.index[1:]))
    loaded = replace(result, value=transform(result.value, further))
    for wrong in (stored, loaded):
        with pytest.raises(VerifyError, match="accesses stay in the declared box"):
            verify(with_result(program, phase, wrong))
