"""Between which barriers every phase stands.

A phase stands after everything it reads. What depends on no template stands as early as it can (masks, position biases:
then repeated layers are alike); everything else as late as it can without making the whole longer (the keys and values
that a decoder's layer takes from the encoder: then they lie near their use, layer by layer).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mononn_core.program.ir import Phase


def schedule(phases: Sequence[Phase], local: Collection[str]) -> list[list[Phase]]:
    """Phases by interval; within one they stand in the order given. ``phases`` may come in any order that a reordering
    can run: who reads a buffer depends on all that write it. Worker-local buffers (``local``) order nothing."""
    writers: dict[str, list[int]] = {}
    for n, phase in enumerate(phases):
        for operand in phase.task.operands:
            if operand.access != "read":
                writers.setdefault(str(operand.buffer), []).append(n)
    needs = [
        {
            w
            for o in phase.task.operands
            if o.access == "read" and str(o.buffer) not in local
            for w in writers.get(str(o.buffer), ())
        }
        for phase in phases
    ]
    earliest = _levels(needs)
    followers: list[set[int]] = [set() for _ in phases]
    for n, before in enumerate(needs):
        for w in before:
            followers[w].add(n)
    last = max(earliest, default=0)
    latest = [last - level for level in _levels(followers)]
    heavy = _after_templates(phases, needs)
    chosen = [latest[n] if heavy[n] else earliest[n] for n in range(len(phases))]
    return [[p for n, p in enumerate(phases) if chosen[n] == level] for level in range(last + 1)]


def _levels(needs: Sequence[set[int]]) -> list[int]:
    """Length of the longest chain of needs below every member."""
    found = [0] * len(needs)
    for _ in needs:
        grown = [1 + max((found[w] for w in before), default=-1) for before in needs]
        if grown == found:
            return found
        found = grown
    assert len(needs) <= 1, "phases wait for each other"
    return found


def _after_templates(phases: Sequence[Phase], needs: Sequence[set[int]]) -> list[bool]:
    """Whether a phase is a template, or waits for one."""
    found: list[bool] = [p.task.template != "nest" for p in phases]
    changed = True
    while changed:
        changed = False
        for n, before in enumerate(needs):
            if not found[n] and any(found[w] for w in before):
                found[n] = changed = True
    return found
