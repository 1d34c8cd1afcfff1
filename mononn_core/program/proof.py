"""Small proofs about index expressions: by intervals, and by enumeration where intervals are too weak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, prod

import numpy as np

from mononn_core.program.expr import (
    INDEX,
    TRUE,
    Acc,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Ranges,
    Select,
    Var,
    children,
    op,
    transform,
    variables,
    walk,
)
from mononn_core.program.scalar import Array, Frame, evaluate
from mononn_core.program.simplify import simplify

ENUMERATION_LIMIT = 1 << 24
"""Most assignments that a proof enumerates; what needs more counts as not proven."""


def _no_loads(load: Load, index: tuple[Array, ...], mask: Array | None) -> Array:
    raise AssertionError("a guard or goal without free variables loads")


def guarded_loads(e: Expr, guards: tuple[Expr, ...] = ()) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """Every Load in ``e`` with the conditions under which lazy Selects evaluate it."""
    if isinstance(e, Load):
        yield e, guards
    if isinstance(e, Select):
        yield from guarded_loads(e.condition, guards)
        yield from guarded_loads(e.then, (*guards, e.condition))
        yield from guarded_loads(e.otherwise, (*guards, op("not", e.condition)))
        return
    for part in children(e):
        yield from guarded_loads(part, guards)


def abstract(e: Expr, ranges: dict[str, tuple[float, float]]) -> Expr:
    """``e`` with everything that depends on data replaced by variables whose ranges are added to ``ranges``: a checked
    index lies in its extent, of anything else nothing is known."""

    def fresh(low: float, high: float, dtype: str) -> Var:
        name = f"?{len(ranges)}"
        ranges[name] = (low, high)
        return Var(name, dtype)

    def change(n: Expr) -> Expr:
        match n:
            case Op("index", (_, Const(value=extent))):
                return fresh(0, extent - 1, INDEX)
            case Load() | Acc():
                return fresh(-inf, inf, n.dtype)
            case Cast(value, dtype) if any(v.startswith("?") for v in variables(value)):
                return fresh(-inf, inf, dtype)
            case _:
                return n

    return transform(e, change)


def provable(goal: Expr, ranges: Mapping[str, tuple[float, float]], guards: tuple[Expr, ...] = ()) -> bool:
    """Whether the condition ``goal`` holds for every assignment of its variables within ``ranges`` (inclusive) that
    satisfies all ``guards``. Guards over variables without a finite range are ignored, which is safe."""
    finite: Ranges = {n: (int(a), int(b)) for n, (a, b) in ranges.items() if a > -inf and b < inf}
    if simplify(goal, finite) == TRUE:
        return True
    names = set(variables(goal))
    if not names <= finite.keys():
        return False
    usable = [g for g in guards if variables(g) <= finite.keys() and not any(isinstance(n, Load) for n in walk(g))]
    chosen: list[Expr] = []
    while more := [g for g in usable if g not in chosen and variables(g) & names]:
        chosen += more
        names |= {n for g in more for n in variables(g)}
    ordered = sorted(names)
    if prod(finite[n][1] - finite[n][0] + 1 for n in ordered) > ENUMERATION_LIMIT:
        return False
    frame = Frame()
    for n in ordered:
        low, high = finite[n]
        frame = frame.loop(n, high - low + 1)
        frame.values[n] = frame.values[n] + low
    met = evaluate(goal, frame, _no_loads).astype(bool)
    for guard in chosen:
        met = met | ~evaluate(guard, frame, _no_loads).astype(bool)
    return bool(np.all(met))
