"""The cost model's constants from traces: what a GPU's phases took against what the model says of them.

The constants are those for which the model's seconds come nearest to the measured ones: least squares of the logarithms
of their ratios, each phase weighted by the seconds it took, by a pattern search over the logarithms of the constants
(Hooke and Jeeves, "Direct Search Solution of Numerical and Statistical Problems", J. ACM 8, 1961). A constant that no
phase depends on keeps its estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, log, sqrt
from typing import Any

from mononn_core.cost.cuda import ESTIMATED, Constants, Work, barrier_seconds, work_of
from mononn_core.gpu import Gpu
from mononn_core.program.ir import Barrier, Program

STEPS = (2.0, 1.4, 1.15, 1.05, 1.02)
"""Factors by which a constant is tried up and down, one after the other."""
FARTHEST = 30.0
"""A constant stays within so many times its estimate."""
SHARES = ("tensor_share", "few_threads_share")
"""Constants that are at most 1."""


@dataclass(frozen=True)
class Observation:
    """An executed phase: its work, whether a barrier stands before it, its launch, and seconds as traced."""

    phase: str
    work: Work
    barrier: bool
    gpu: Gpu
    threads: int
    blocks_per_sm: int
    seconds: float

    def predicted(self, constants: Constants) -> float:
        """What the model says of it."""
        before = barrier_seconds(self.gpu, constants) if self.barrier else 0.0
        return before + self.work.seconds(self.gpu, self.threads, self.blocks_per_sm, constants)


@dataclass(frozen=True)
class Fit:
    """``error``: the typical ratio between model and measurement with ``constants``, at least 1 (1.1: a tenth off)."""

    constants: Constants
    error: float


def observations(
    program: Program, gpu: Gpu, threads: int, blocks_per_sm: int, rows: Sequence[Mapping[str, Any]]
) -> list[Observation]:
    """A Program's executed phases with their times.

    Args:
        program: as scheduled for ``gpu`` and that launch.
        rows: of :func:`mononn_core.trace_report`, in the order of execution.

    Raises:
        ValueError: the rows are of another Program.
    """
    found, waits = [], False
    executed = iter(rows)
    for item, loop in program.trace():
        if isinstance(item, Barrier):
            waits = True
            continue
        row, name = next(executed, None), item.name_in(loop)
        if row is None or row["id"] != name:
            raise ValueError(f"phase {name} was not traced where it is executed: {row and row['id']}")
        if row["seconds"] > 0:
            work = work_of(program, item, loop)
            found.append(Observation(item.id, work, waits, gpu, threads, blocks_per_sm, float(row["seconds"])))
        waits = False
    return found


def error(seen: Sequence[Observation], constants: Constants) -> float:
    """As :attr:`Fit.error`."""
    weight = sum(o.seconds for o in seen)
    squares = sum(o.seconds * log(o.predicted(constants) / o.seconds) ** 2 for o in seen)
    return exp(sqrt(squares / weight))


def fit(seen: Sequence[Observation], start: Constants = ESTIMATED) -> Fit:
    """The constants that describe ``seen`` best; ``seen`` has at least one phase."""
    best, least = start, error(seen, start)
    for step in STEPS:
        while True:
            before = least
            for field in fields(Constants):
                for factor in (step, 1 / step):
                    tried = _moved(best, field.name, factor, start)
                    found = error(seen, tried)
                    if found < least * (1 - 1e-9):
                        best, least = tried, found
            if least > before * (1 - 1e-6):
                break
    return Fit(best, least)


def _moved(constants: Constants, name: str, factor: float, start: Constants) -> Constants:
    """``constants`` with one of them times ``factor``, within its bounds."""
    value, estimate = getattr(constants, name) * factor, getattr(start, name)
    value = min(max(value, estimate / FARTHEST), estimate * FARTHEST, 1.0 if name in SHARES else float("inf"))
    return replace(constants, **{name: value})
