"""The text of a Program is golden (its numbers are checked by test_program_interpret) and stable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mononn_core.program.expr import Acc, Const, Select, Var, op
from mononn_core.program.text import expr_text, to_text
from tests.core.programs import CASES
from tests.core.transformer import tiny_transformer


@pytest.mark.parametrize("name", [*CASES, "tiny_transformer"])
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    make = CASES.get(name, tiny_transformer)
    text = to_text(make().program)
    assert text == to_text(make().program)
    golden(f"program_{name}.txt", text)


def test_brackets_follow_precedence() -> None:
    i, j = Var("i"), Var("j")
    assert expr_text((i + j) * 4 - i) == "(i + j) * 4 + i * -1"
    assert expr_text(i + j * 4) == "i + j * 4"
    assert expr_text(op("sub", i, op("sub", j, i))) == "i - (j - i)"
    assert expr_text(op("floordiv", op("mod", i, j), Const(2))) == "i % j // 2"
    assert expr_text(Select(op("lt", i, Const(3)), Acc(), Acc())) == "select(i < 3, acc, acc)"
