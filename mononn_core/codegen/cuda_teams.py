"""What the mapping of a nest to threads needs to know of its loops: what is independent, what are rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mononn_core.codegen.cuda_expressions import CudaPrinter
from mononn_core.program.expr import Expr, Load, variables, walk
from mononn_core.program.ir import For, Let, Reduce, Statement, Store

PRIVATE = "local"
SHORT = 32
"""Reductions of fewer terms are done by one thread."""


@dataclass(frozen=True)
class Team:
    """Threads that share loops: their number, C text of a thread's own number, the reduction and the barrier of all."""

    size: int
    index: str
    reduce: str
    sync: str


WARP = Team(32, "mn::lane()", "mn::warp_reduce", "mn::sync_warp();")


def block(threads: int) -> Team:
    """All threads of a block."""
    return Team(threads, "mn::thread()", "mn::block_reduce", "mn::sync_block();")


def inside(statement: Statement) -> Iterator[Statement]:
    """The statement and all in it."""
    yield statement
    if isinstance(statement, For):
        for inner in statement.body:
            yield from inside(inner)


def is_long(loop: For | None, statement: Statement) -> bool:
    """Whether a statement in ``loop`` is a reduction that threads share: not one of neighbouring columns."""
    return isinstance(statement, Reduce) and statement.extent >= SHORT and (loop is None or loop.kind != "vector")


def has_long(loop: For) -> bool:
    """Whether threads share a reduction somewhere inside."""
    return any(is_long(loop, s) or (isinstance(s, For) and has_long(s)) for s in loop.body)


def row_loads(body: tuple[Statement, ...], privates: Privates) -> int:
    """Values that loops over a row load from global memory."""
    total = 0
    for s in body:
        values = [s.value] if isinstance(s, Reduce) else []
        if isinstance(s, For):
            values = [t.value for t in s.body if isinstance(t, (Let, Store))]
        loads = {n for value in values for n in walk(value) if isinstance(n, Load) and n.operand not in privates.ids}
        total += len(loads) * s.extent if isinstance(s, (For, Reduce)) else 0
    return total


def best_width(points: int, widths: Iterable[int], team: Team) -> int:
    """Neighbours a thread takes of so many points: for the fewest passes, then for the most threads."""
    return min(widths, key=lambda w: (-(-points // (w * team.size)), w))


def chain(loop: For) -> tuple[tuple[For, ...], tuple[Let, ...]] | None:
    """Loops that can be dealt to threads as one space, with the bindings between them; None where rows are reduced."""
    if has_long(loop):
        return None
    loops, lets = [loop], list[Let]()
    while True:
        *before, last = loops[-1].body
        if not isinstance(last, For) or not all(isinstance(s, Let) for s in before):
            return tuple(loops), tuple(lets)
        lets += [s for s in before if isinstance(s, Let)]
        loops.append(last)


class Privates:
    """Accesses to a worker's own buffers, which other threads of the block share."""

    def __init__(self, printer: CudaPrinter) -> None:
        self.ids = {r: p.buffer.id for r, p in printer.pointers.items() if p.buffer.space == PRIVATE}

    def stored(self, statement: Statement) -> dict[str, list[tuple[Expr, ...]]]:
        """Buffer -> indices that are stored."""
        found: dict[str, list[tuple[Expr, ...]]] = {}
        for s in inside(statement):
            if isinstance(s, Store) and s.operand in self.ids:
                found.setdefault(self.ids[s.operand], []).append(s.index)
        return found

    def loaded(self, statement: Statement) -> dict[str, list[tuple[Expr, ...]]]:
        """Buffer -> indices that are loaded."""
        found: dict[str, list[tuple[Expr, ...]]] = {}
        for s in inside(statement):
            values: tuple[Expr, ...] = ()
            if isinstance(s, Store):
                values = (*s.index, s.value)
            elif isinstance(s, (Let, Reduce)):
                values = (s.value,)
            for n in (n for value in values for n in walk(value)):
                if isinstance(n, Load) and n.operand in self.ids:
                    found.setdefault(self.ids[n.operand], []).append(n.index)
        return found

    def independent(self, loop: For) -> bool:
        """Whether iterations may run side by side: what they store they do not load, or only at their own index."""
        if not self.ids:
            return True
        stored, loaded = self.stored(loop), self.loaded(loop)
        names = {s.var for s in inside(loop) if isinstance(s, (For, Reduce))} - {loop.var}
        return all(_separate(stored[b] + loaded[b], loop.var, names) for b in stored.keys() & loaded.keys())


def _separate(indices: list[tuple[Expr, ...]], var: str, inner: set[str]) -> bool:
    """Whether all indices have one dimension that is the same function of ``var`` and of nothing inside the loop."""
    return any(
        all(i[d] == e for i in indices) and var in variables(e) and inner.isdisjoint(variables(e))
        for d, e in enumerate(indices[0])
    )
