"""What a phase moves at least: bytes of every tensor that its tasks read or store, each counted once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from mononn_core.program.expr import Expr, Load, children
from mononn_core.program.footprint import Site
from mononn_core.program.ir import Phase, Program, Reduce
from mononn_core.program.memory import PRIVATE
from mononn_core.program.scalar import Array
from mononn_core.program.template import get


@dataclass(frozen=True)
class Traffic:
    """Bytes of constants that a phase reads, and of everything else in shared memory that it reads or stores."""

    constants: int
    activations: int


def traffic(program: Program, phase: Phase, loop: Mapping[str, int]) -> Traffic:
    """The least that the phase moves in the iteration ``loop``: of each buffer, what its operands' boxes cover, but of
    an operand that only generated loops read no more elements than there are loads."""
    site, moved = Site(program, phase, loop), dict[str, int]()
    loads, kernels = _loads(site), get(phase.task.template).roles
    for operand in phase.task.operands:
        buffer = site.buffer(operand)
        if buffer.space == PRIVATE:
            continue
        elements = _covered(*site.boxes[operand.role])
        if operand.access == "read" and operand.role not in kernels:
            elements = min(elements, loads.get(operand.role, 0))
        most = prod(buffer.shape) * buffer.itemsize
        moved[buffer.id] = min(most, moved.get(buffer.id, 0) + elements * buffer.itemsize)
    constants = sum(n for name, n in moved.items() if program.buffer(name).space == "weight")
    return Traffic(constants, sum(moved.values()) - constants)


def _covered(low: Array, high: Array) -> int:
    """Elements of the boxes ``low`` to ``high``, int64[tasks, rank], each counted once where the boxes stand in a grid;
    never more than of all boxes together."""
    pairs = np.unique(np.concatenate([low, high], axis=1), axis=0)
    low, high = pairs[:, : low.shape[1]], pairs[:, low.shape[1] :]
    whole = int(np.maximum(high - low, 0).prod(axis=1).sum())
    return min(whole, prod(_length(low[:, d], high[:, d]) for d in range(low.shape[1])))


def _length(low: Array, high: Array) -> int:
    """How many numbers lie in the union of the intervals [low, high)."""
    order = np.argsort(low, kind="stable")
    low, high = low[order], high[order]
    before = np.concatenate([low[:1], np.maximum.accumulate(high)[:-1]])
    return int(np.maximum(high - np.maximum(low, before), 0).sum())


def _loads(site: Site) -> dict[str, int]:
    """Role -> loads that the generated loops of all tasks execute, counted as if every guard held."""
    found: dict[str, int] = {}
    for place, statement in site.statements():
        loops = (*place.loops, statement) if isinstance(statement, Reduce) else place.loops
        times = site.tasks * prod(loop.extent for loop in loops)
        for role in _roles(statement.value):
            found[role] = found.get(role, 0) + times
    return found


def _roles(e: Expr) -> list[str]:
    """The operand of every load in an expression, those in the places of others too."""
    here = [e.operand] if isinstance(e, Load) else []
    return [*here, *(role for part in children(e) for role in _roles(part))]
