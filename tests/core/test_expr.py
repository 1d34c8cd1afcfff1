"""Expressions that are equal are one object."""

from __future__ import annotations

import copy
import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from mononn_core.program import expr
from mononn_core.program.expr import TRUE, Acc, Cast, Const, Expr, Load, LookupTable, Op, Select, Var, op, substitute


def some() -> list[Expr]:
    """One of each class, built anew."""
    x = Var("x")
    loaded = Load("a", (x // 4, x % 4), "float32")
    chosen = Select(op("lt", x, Const(3)), loaded, Const(0.5, "float32"))
    return [x, loaded, chosen, Acc(part=1), Cast(x, "float32"), LookupTable((1, 2)), op("exp", chosen), x * 2 + 1]


def test_equal_expressions_are_one_object() -> None:
    assert all(a is b for a, b in zip(some(), some(), strict=True))
    assert len(set(some())) == len(some())
    assert Var("x") is Var("x", "int64") is Var(name="x", dtype="int64")
    loaded = Load("a", (Var("x"),), "float32")
    assert replace(loaded, operand="b") is Load("b", (Var("x"),), "float32")
    assert substitute(loaded, {"x": Var("y")}) is Load("a", (Var("y"),), "float32")


def test_a_constant_is_a_value_of_its_type() -> None:
    assert Const(1, "bool") is TRUE
    assert Const(1, "float32") is Const(1.0, "float32")
    assert Const(1) is not Const(1, "int32")
    zero, negative = Const(0.0, "float32"), Const(-0.0, "float32")
    assert zero is not negative
    assert (str(zero.value), str(negative.value)) == ("0.0", "-0.0")
    assert (Const(True, "int64").value, Const(2.0).value, Const(2.5).value) == (1, 2, 2.5)
    assert type(Const(2.0).value) is int


def test_a_field_that_is_none_of_its_class_is_refused() -> None:
    with pytest.raises(TypeError):
        Var("x", unknown=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="unknown scalar operation"):
        Op("no such", (Var("x"),), "int64")


def test_what_nothing_holds_is_forgotten() -> None:
    held = some()
    before = len(expr._LIVING)
    more = [Var(f"forgotten{number}") * 3 + number for number in range(2, 100)]
    assert len(expr._LIVING) >= before + 3 * len(more)
    del more
    gc.collect()
    assert len(expr._LIVING) <= before
    assert all(a is b for a, b in zip(held, some(), strict=True))


def test_threads_make_the_same_objects() -> None:
    def build(_: int) -> list[Any]:
        return [Var(f"threaded{number}") // 5 + number for number in range(300)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            first, *others = threads.map(build, range(8))
    finally:
        sys.setswitchinterval(before)
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))


def test_copies_are_the_same_objects() -> None:
    assert all(copy.copy(e) is e and copy.deepcopy(e) is e for e in some())
