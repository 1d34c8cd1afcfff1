"""What a team keeps in registers of a row that it passes over more than once: sums, then squares, then the result."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mononn_core.codegen.cuda_expressions import LANE, WIDTHS, CudaPrinter, loadable, unguarded_loads
from mononn_core.codegen.cuda_lanes import store_width
from mononn_core.codegen.cuda_teams import Team, best_width, is_long
from mononn_core.element import COMPUTE
from mononn_core.program.expr import Expr, Load, Var, children, substitute, variables, walk
from mononn_core.program.ir import For, Let, Reduce, Statement, Store

MOST = 32
"""Values of a row that a thread keeps."""
ROW = Var("row_")
"""Stands for the reduced variable in what is kept."""


@dataclass(frozen=True)
class Kept:
    """``name[pass][lane]`` holds ``value`` (of :data:`ROW`) for the thread's part of rows of ``extent`` elements."""

    name: str
    value: Expr
    extent: int
    width: int

    def passes(self, team: Team) -> int:
        """In which a team's threads take such a row."""
        return -(-self.extent // self.width // team.size)


def reduction_width(s: Reduce, printer: CudaPrinter, team: Team) -> int:
    """Neighbours that a thread takes at once when a team shares a reduction."""
    inner, loads = printer.within(s.var, s.extent), unguarded_loads(s.value)
    widths = (w for w in WIDTHS if s.extent % w == 0 and (w == 1 or any(loadable(e, s.var, w, inner) for e in loads)))
    return best_width(s.extent, widths, team)


def plan_rows(
    body: tuple[Statement, ...], printer: CudaPrinter, team: Team, private: Collection[str]
) -> tuple[Kept, ...]:
    """What of the first pass over a row later passes need again, where it fits in registers. Operands that are
    ``private`` may change in between."""
    passes = [_pass(s) for s in body if is_long(None, s) or _is_leaf(s)]
    if not passes or not isinstance(passes[0][2], Reduce):
        return ()
    _, extent, first = passes[0]
    later = [values for values, length, _ in passes[1:] if length == extent]
    width = min(
        reduction_width(s, printer, team)
        if isinstance(s, Reduce)
        else store_width([t for t in s.body if isinstance(t, Store)], s.var, s.extent, printer)
        for _, length, s in passes
        if length == extent
    )
    if not later or -(-extent // width // team.size) * width > MOST:
        return ()
    wanted = {n for values in later for value in values for n in walk(value)}
    wanted -= {n for n in wanted if any(isinstance(m, Load) and m.operand in private for m in walk(n))}
    assert isinstance(first, Reduce)
    found = _maximal(substitute(first.value, {first.var: ROW}), wanted)
    return tuple(Kept(f"row{n}_", e, extent, width) for n, e in enumerate(found))


def _is_leaf(s: Statement) -> bool:
    return isinstance(s, For) and s.bound is None and all(isinstance(t, (Let, Store)) for t in s.body)


def _pass(s: Statement) -> tuple[list[Expr], int, Reduce | For]:
    """(values along :data:`ROW`, extent, the statement) of one pass over a row."""
    assert isinstance(s, (For, Reduce))
    values = [s.value] if isinstance(s, Reduce) else [t.value for t in s.body if isinstance(t, (Let, Store))]
    return [substitute(value, {s.var: ROW}) for value in values], s.extent, s


def _maximal(e: Expr, wanted: set[Expr]) -> list[Expr]:
    """Largest parts of ``e`` that load something along the row and are wanted again."""
    if e in wanted and e.dtype == COMPUTE and ROW.name in variables(e) and any(isinstance(n, Load) for n in walk(e)):
        return [e]
    found: dict[Expr, None] = {}
    for part in children(e):
        found.update(dict.fromkeys(_maximal(part, wanted)))
    return list(found)


def kept_lanes(kept: Iterable[Kept], var: str, extent: int, index: str) -> dict[Expr, str]:
    """Kept values as expressions of ``var`` -> C text of a lane's in pass ``index``."""
    return {substitute(k.value, {ROW.name: Var(var)}): f"{k.name}[{index}][{LANE}]" for k in kept if k.extent == extent}
