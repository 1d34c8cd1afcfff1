"""What the verifier's proofs rest on: intervals, simplification, enumeration and layouts agree with brute force."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.program import footprint
from mononn_core.program import simplify as simplifier
from mononn_core.program.expr import Const, Expr, Load, Op, Select, Var, evaluate_index, op, substitute
from mononn_core.program.footprint import Runs, Site, joined, runs_of, union
from mononn_core.program.ir import Layout
from mononn_core.program.memory import dim_tables
from mononn_core.program.proof import abstract, guarded_loads, provable
from mononn_core.program.scalar import Frame, evaluate
from mononn_core.program.simplify import bounds, simplify
from mononn_core.program.verify import verify
from mononn_core.program.wellformed import _injective
from tests.core.networks import Builder

RANGES = {"i": (0, 4), "j": (-2, 3), "k": (1, 3)}
ASSIGNMENTS = [
    dict(zip(RANGES, values, strict=True)) for values in product(*(range(a, b + 1) for a, b in RANGES.values()))
]

small = st.integers(-6, 6).map(Const)
positive = st.integers(1, 7)


def _extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: op("sub", *p)),
        st.tuples(inner, st.integers(-5, 5)).map(lambda p: p[0] * p[1]),
        st.tuples(inner, positive).map(lambda p: p[0] // p[1]),
        st.tuples(inner, positive).map(lambda p: p[0] % p[1]),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda p: op(*p)),
        st.tuples(st.sampled_from(["min", "max"]), inner, st.integers(-5, 9)).map(lambda p: _reflected(*p)),
        st.tuples(_compared(inner), inner, inner).map(lambda p: Select(*p)),
        st.tuples(_compared(inner), inner).map(lambda p: Select(p[0], p[1], p[1] + 1)),
        st.tuples(_compared(inner), _compared(inner), inner).map(lambda p: Select(op("and", *p[:2]), p[2], Const(3))),
    )


def _reflected(chosen: str, e: Expr, total: int) -> Expr:
    """One of two that are ``total`` together."""
    return op(chosen, e, e * -1 + total)


def _compared(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.tuples(st.sampled_from(["lt", "le", "gt", "ge"]), inner, inner).map(lambda p: op(*p))


index_expressions = st.recursive(st.one_of(small, st.sampled_from([Var(n) for n in RANGES])), _extend, max_leaves=8)
conditions = st.tuples(st.sampled_from(["lt", "le", "ge", "eq"]), index_expressions, index_expressions).map(
    lambda p: op(*p)
)


@settings(max_examples=300, deadline=None)
@given(index_expressions)
def test_intervals_and_simplification_are_sound(e: Expr) -> None:
    low, high = bounds(e, RANGES)
    simple = simplify(e, RANGES)
    for values in ASSIGNMENTS:
        value = evaluate_index(e, values)
        assert low <= value <= high
        assert evaluate_index(simple, values) == value


def test_what_is_shared_is_simplified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotients and remainders of one position, again and again: as a tree 3 to the power of their depth."""
    seen = []
    monkeypatch.setattr(
        simplifier, "_divide", lambda a, c, ranges: seen.append(a) or Op("floordiv", (a, Const(c)), "int64")
    )
    monkeypatch.setattr(simplifier, "_known", cache(lambda ranges: {}))  # what is found here is nobody else's
    e: Expr = Var("i")
    for _ in range(6):
        e = op("max", op("max", e // 3, e % 5), e // 2)
    for _ in range(2):
        simplify(e, {"i": (0, 1 << 30)})
    assert len(seen) == 12


@settings(max_examples=200, deadline=None)
@given(index_expressions)
def test_grids_agree_with_single_values(e: Expr) -> None:
    frame = Frame()
    for name, (low, high) in RANGES.items():
        frame = frame.loop(name, high - low + 1)
        frame.values[name] = frame.values[name] + low
    grid = frame.full(evaluate(e, frame, _nothing)).reshape(-1)
    assert grid.tolist() == [evaluate_index(e, values) for values in ASSIGNMENTS]


def _nothing(load: Load, index: tuple[np.ndarray, ...], mask: np.ndarray | None) -> np.ndarray:
    raise AssertionError("there are no loads")


@settings(max_examples=300, deadline=None)
@given(conditions, st.lists(conditions, max_size=2))
def test_a_goal_is_proven_exactly_when_it_holds(goal: Op, guards: list[Op]) -> None:
    """Guards count only if they share variables with the goal, directly or through another guard."""
    holds = all(
        evaluate_index(goal, values) for values in ASSIGNMENTS if all(evaluate_index(guard, values) for guard in guards)
    )
    proven = provable(goal, RANGES, tuple(guards))
    assert holds or not proven
    if not guards:
        assert proven == holds


def test_unbounded_variables_and_data_are_not_proven() -> None:
    ranges: dict[str, tuple[float, float]] = {"i": (0, 4)}
    data = Load("ids", (Var("i"),), "int64")
    checked = abstract(op("index", data, Const(9)), ranges)
    free = abstract(data, ranges)
    assert provable(op("lt", checked, Const(9)), ranges)
    assert not provable(op("lt", checked, Const(8)), ranges)
    assert not provable(op("ge", free, Const(0)), ranges)
    assert provable(op("le", op("min", op("max", free, Const(0)), Const(3)), Const(3)), ranges)


def test_equal_data_is_one_variable() -> None:
    """As in a reflection about a position that is loaded."""
    place, other = (op("index", Load("ids", (Var(i),), "int64"), Const(9)) for i in "ij")
    ranges: dict[str, tuple[float, float]] = {"i": (0, 4), "j": (0, 4)}
    assert provable(op("le", abstract(_reflected("min", place, 8), ranges), Const(4)), ranges)
    assert not provable(op("le", abstract(_reflected("min", place, 8), ranges), Const(3)), ranges)
    assert not provable(op("le", abstract(_reflected("min", place, 8), ranges, {"ids"}), Const(4)), ranges)
    assert not provable(op("le", abstract(op("min", place, other * -1 + 8), ranges), Const(4)), ranges)


def test_selects_guard_their_loads() -> None:
    inside = op("lt", Var("i"), Const(3))
    e = Select(inside, Load("a", (Var("i"),), "float32"), Load("b", (Var("i"),), "float32"))
    found = {load.operand: guards for load, guards in guarded_loads(e)}
    ranges = {"i": (0, 9)}
    assert provable(op("lt", Var("i"), Const(3)), ranges, found["a"])
    assert provable(op("ge", Var("i"), Const(3)), ranges, found["b"])
    assert not provable(op("lt", Var("i"), Const(3)), ranges, found["b"])


factors = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), min_size=1, max_size=2).map(tuple)


@settings(max_examples=300, deadline=None)
@given(st.lists(factors, min_size=1, max_size=3).map(tuple), st.data())
def test_layouts(dims: tuple[tuple[tuple[int, int], ...], ...], data: st.DataObject) -> None:
    shape = tuple(data.draw(st.integers(1, int(np.prod([f for f, _ in dim])))) for dim in dims)
    size = data.draw(st.integers(1, 80))
    layout = Layout(dims, size)
    offsets = layout.offsets(shape)
    tables = dim_tables(layout, shape)
    for index in np.ndindex(*shape):
        assert sum(int(t[i]) for t, i in zip(tables, index, strict=True)) == offsets[index]
    reach = sum(s * (f - 1) for dim in dims for f, s in dim)
    distinct = len(np.unique(offsets)) == offsets.size
    assert _injective(layout, shape) == (distinct and reach < size)


tables = st.lists(st.lists(st.integers(0, 9), min_size=0, max_size=6), max_size=3)


@settings(max_examples=300, deadline=None)
@given(tables)
def test_runs_hold_every_element_and_no_other(tables: list[list[int]]) -> None:
    """Runs are in order, and together what the sums of one entry of each table are; where sums are distinct (as
    offsets of elements are) no two runs touch."""
    sums = [sum(entries) for entries in product(*tables)]
    runs = runs_of([np.array(table, np.int64) for table in tables])
    pairs = list(zip(runs.starts.tolist(), runs.ends.tolist(), strict=True))
    assert {n for a, b in pairs for n in range(a, b)} == set(sums)
    assert [a for a, _ in pairs] == sorted(a for a, _ in pairs) and all(a < b for a, b in pairs)
    if len(set(sums)) == len(sums):
        assert all(b < c for (_, b), (c, _) in pairwise(pairs))


def test_substitution_reaches_everything() -> None:
    e = Select(op("lt", Var("i"), Var("j")), Var("i") // 2, Var("j") % 3)
    done = substitute(e, {"i": Const(5), "j": Const(7)})
    assert evaluate_index(done, {}) == 2


sums = st.lists(st.tuples(st.sampled_from(tuple(RANGES)), st.integers(-3, 3)), min_size=1, max_size=3).map(
    lambda parts: sum((Var(name) * k for name, k in parts), Const(0))
)


@settings(max_examples=300, deadline=None)
@given(sums, sums, st.integers(-3, 3), st.integers(-20, 20), st.tuples(st.integers(-9, 9), st.integers(-9, 9)))
def test_sums_that_guards_bound_prove_nothing_that_does_not_hold(
    bounded: Expr, other: Expr, times: int, least: int, ends: tuple[int, int]
) -> None:
    guards = (op("and", op("ge", bounded, Const(ends[0])), op("lt", bounded, Const(ends[1]))),)
    goal = op("ge", bounded * times + other, Const(least))
    met = [v for v in ASSIGNMENTS if evaluate_index(guards[0], v)]
    if provable(goal, RANGES, guards):
        assert all(evaluate_index(goal, values) for values in met)


def test_windows_of_an_image_of_many_pixels_are_proven_inside_it() -> None:
    """Too many to be enumerated: the guards bound the sums that the position is made of."""
    z, height, width = Var("z"), 3000, 2000
    y, x = z // 3 + Var("y"), z % 3 + Var("x")
    ranges: dict[str, tuple[float, float]] = {"z": (0, 8), "y": (0, height - 1), "x": (0, width - 1)}
    guards = tuple(
        op("and", op("ge", at, Const(1)), op("lt", at, Const(extent + 1))) for at, extent in ((y, height), (x, width))
    )
    position = y * width + x + (-width - 1)
    assert provable(op("ge", position, Const(0)), ranges, guards)
    assert provable(op("lt", position, Const(height * width)), ranges, guards)
    assert not provable(op("lt", position, Const(height * width - 1)), ranges, guards)
    assert not provable(op("lt", position, Const(height * width)), ranges, guards[:1])


def test_a_divisor_is_cut_by_what_a_sum_has_in_common_with_it() -> None:
    """A pixel's number of a row of windows, from channels counted through them."""
    ranges = {"m": (0, 48), "p": (0, 5), "n": (0, 15)}
    channels = Var("m") * 96 + Var("p") * 16 + Var("n")
    assert simplify(channels // 672, ranges) == simplify(Var("m") // 7, ranges)
    assert simplify(channels % 672, ranges) == simplify(Var("m") % 7 * 96 + Var("p") * 16 + Var("n"), ranges)


spans = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=8)


def _elements(runs: Runs) -> list[int]:
    return [e for start, end in zip(runs.starts.tolist(), runs.ends.tolist(), strict=True) for e in range(start, end)]


@given(st.lists(spans, min_size=1, max_size=3))
def test_a_union_has_each_element_once_in_the_fewest_runs(parts: list[list[tuple[int, int]]]) -> None:
    given_runs = [Runs(*np.array([(start, start + length) for start, length in part]).T) for part in parts]
    found = union(given_runs)
    assert _elements(found) == sorted({e for runs in given_runs for e in _elements(runs)})
    assert (found.starts[1:] > found.ends[:-1]).all()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 1)), max_size=8))
def test_neighbouring_runs_of_one_task_are_joined(pieces: list[tuple[int, int, int]]) -> None:
    starts, ends, tasks, at = [], [], [], 0
    for gap, length, task in pieces:
        starts, ends, tasks = [*starts, at + gap], [*ends, at + gap + length], [*tasks, task]
        at = ends[-1]
    runs, found = joined(*(np.array(a, np.int64) for a in (starts, ends, tasks)))
    whole = Runs(np.array(starts, np.int64), np.array(ends, np.int64))
    assert _elements(runs) == _elements(whole)
    assert np.repeat(found, runs.ends - runs.starts).tolist() == np.repeat(tasks, whole.ends - whole.starts).tolist()
    assert not ((runs.starts[1:] == runs.ends[:-1]) & (found[1:] == found[:-1])).any()


@pytest.mark.parametrize("rows", [12, 13])
def test_runs_are_stored_as_single_elements_would_be(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder("net")
    hidden = b.add("Relu", b.add("MatMul", "x", b.weight(24, 40)))
    b.add("Concat", b.add("MatMul", hidden, b.weight(40, 9)), b.add("Transpose", b.add("Exp", "t")), output="y", axis=1)
    inputs = {"x": (TensorProto.FLOAT, (rows, 24)), "t": (TensorProto.FLOAT, (5, rows))}
    program = compiler.lower(b.model(inputs, {"y": (rows, 14)}), threads=2).program

    def writers() -> list[dict[int, int]]:
        found = []
        for phase in program.phases():
            for writes in Site(program, phase, {}).footprint().writes:
                lengths = writes.runs.ends - writes.runs.starts
                found.append(dict(zip(_elements(writes.runs), np.repeat(writes.tasks, lengths).tolist(), strict=True)))
        return found

    by_runs = writers()
    monkeypatch.setattr(footprint, "_follow", lambda *_: False)
    assert by_runs == writers() and all(by_runs)


def test_equal_phases_are_enumerated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    enumerated: list[str] = []
    whole = Site.footprint

    def counted(site: Site, loads_stay: bool = False) -> footprint.Footprint:
        enumerated.append(site.phase.id)
        return whole(site, loads_stay)

    monkeypatch.setattr(Site, "footprint", counted)
    counts = []
    for widths in ((20, 24), (20, 24, 28, 36)):
        b, x = Builder("net"), "x"
        for width in widths:  # no two steps are equal, so that there is no loop
            x = b.add("LayerNormalization", x, b.weight(16), axis=-1)
            x = b.add("MatMul", b.add("MatMul", x, b.weight(16, width)), b.weight(width, 16))
        b.add("Tanh", x, output="y")
        program = compiler.lower(b.model({"x": (TensorProto.FLOAT, (6, 16))}, {"y": (6, 16)}), threads=2).program
        enumerated.clear()
        verify(program)
        phases = [phase.id for phase in program.phases()]
        assert sum("norm" in name for name in phases) == len(widths)
        assert sum("norm" in name for name in enumerated) <= 2  # of an input, and of what a product gives
        counts.append(len(enumerated))
    assert counts[1] - counts[0] == 4  # two products more for each width
