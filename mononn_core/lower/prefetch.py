"""Early fetches: before waiting at a barrier, each worker asks for the first weights that it will read after it.

A phase in front of a barrier gets a cache hint for the phase behind it, where that one is a product or a convolution
with a constant right-hand side. In a Loop the last phase's next one is the first of the next round; what follows the
Loop is not asked for in every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mononn_core.program.ir import Barrier, Item, Loop, Phase, Prefetch, Program
from mononn_core.program.template import get


def prefetch_weights(program: Program) -> Program:
    """The same Program with cache hints in front of its barriers; the same object where no phase could use one."""
    body: list[Item] = []
    for at, item in enumerate(program.body):
        if isinstance(item, Loop):
            inside = [_hinted(inner, [*item.body[i + 1 :], *item.body]) for i, inner in enumerate(item.body)]
            body.append(replace(item, body=tuple(inside)))
        else:
            following = [inner for next_ in program.body[at + 1 : at + 3] for inner in _flat(next_)]
            body.append(_hinted(item, following))
    return program if tuple(body) == program.body else replace(program, body=tuple(body))


def _flat(item: Item) -> tuple[Phase | Barrier, ...]:
    return item.body if isinstance(item, Loop) else (item,)


def _hinted(item: Phase | Barrier, following: Sequence[Phase | Barrier]) -> Phase | Barrier:
    """``item`` with a hint for what follows, if that is a barrier and then a product with constant weights."""
    if not isinstance(item, Phase) or len(following) < 2 or not isinstance(following[0], Barrier):
        return item
    target = following[1]
    if not isinstance(target, Phase):
        return item
    role = get(target.task.template).weights
    if not any(o.role == role and o.stable for o in target.task.operands):
        return item
    return replace(item, prefetches=(*item.prefetches, Prefetch(target.id, role)))
