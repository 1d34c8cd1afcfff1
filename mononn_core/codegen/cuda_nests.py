"""Prints generated nests for the threads of a block.

Rows that are reduced go to warps, whose lanes share the columns; long single rows to the whole block. Loops without
such a reduction are one space of points that is dealt to the threads, V neighbours at a time, ``ilp`` of them loaded
before the first is stored. Between a store to the block's own memory and a load of it stands a barrier of those who
share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from math import prod

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cuda_ahead import coalesced, is_weight, loads_ahead, ready, words_of
from mononn_core.codegen.cuda_expressions import (
    LANE,
    WIDTHS,
    CudaPrinter,
    address,
    divisor,
    loadable,
    unguarded_loads,
)
from mononn_core.codegen.cuda_lanes import keep_lanes, reduced_in, store_width, write_lanes
from mononn_core.codegen.cuda_rows import Kept, kept_lanes, plan_rows, reduction_width
from mononn_core.codegen.cuda_teams import WARP, Privates, Team, best_width, block, chain, is_long, row_loads
from mononn_core.codegen.loops import REDUCERS
from mononn_core.codegen.writer import Writer
from mononn_core.program.expr import Const, Expr, Load, minimum
from mononn_core.program.ir import For, Let, Reduce, Statement, Store
from mononn_core.program.simplify import simplify

HEAVY = 4096
"""A row that loads so many values is shared by the whole block where there are few rows."""
UNROLLED = 8
"""Passes over a row that are written out, so that the row stays in registers from one reduction to the next."""
ILP = 8
REGISTERS = 32
"""Registers that a thread loads ahead, at most."""
ROWS_AHEAD, COLUMNS_AHEAD = 64, 48
"""Registers that a thread may hold of rows under way, and of weights that belong to their columns."""


class NestWriter:
    """Prints one task's body for blocks of ``threads``."""

    def __init__(self, out: Writer, printer: CudaPrinter, threads: int, ilp: int = ILP) -> None:
        self.out, self.ilp, self.threads = out, ilp, threads
        self.privates = Privates(printer)
        self.warps = threads // 32
        self.kept: tuple[Kept, ...] = ()
        self.filled = False

    def task(self, body: tuple[Statement, ...], printer: CudaPrinter) -> None:
        """A task's whole body; all threads of the block take part."""
        if self.privates.ids:
            self.out.line("mn::sync_block();  // the last task's memory has been read")
        if any(is_long(None, s) for s in body) and row_loads(body, self.privates) < HEAVY:
            with self.out.block("if (mn::warp() == 0) {"):
                self._statements(body, printer, WARP)
        else:
            self._statements(body, printer, block(self.threads))

    def _statements(self, body: tuple[Statement, ...], printer: CudaPrinter, team: Team) -> None:
        stored, loaded = set[str](), set[str]()
        outer = self.kept, self.filled
        self.kept, self.filled = plan_rows(body, printer, team, self.privates.ids.keys()), False
        for kept in self.kept:
            passes = -(-kept.extent // kept.width // team.size)
            self.out.line(f"float {kept.name}[{passes}][{kept.width}];")
        if team is not WARP and not self.kept and any(is_long(None, s) for s in body):
            printer = self._columns(body, None, printer, team)
        for statement in body:
            writes, reads = self.privates.stored(statement).keys(), self.privates.loaded(statement).keys()
            if reads & stored or writes & (loaded | stored):
                self.out.line(team.sync)
                stored, loaded = set(), set()
            self._statement(statement, printer, team)
            stored, loaded = stored | writes, loaded | reads
        self.kept, self.filled = outer

    def _statement(self, statement: Statement, printer: CudaPrinter, team: Team) -> None:
        match statement:
            case For():
                self._for(statement, printer, team)
            case Reduce() if is_long(None, statement):
                self._reduce(statement, printer, team)
            case Store():
                with self.out.block(f"if ({team.index} == 0) {{"):
                    self._scalar((statement,), printer)
            case _:
                self._scalar((statement,), printer)

    def _for(self, loop: For, printer: CudaPrinter, team: Team) -> None:
        limit, inner = self._limit(loop, printer), printer.within(loop.var, loop.extent)
        if loop.extent == 1:
            with self.out.block(f"if (0 < {limit}) {{"):
                self.out.line(f"[[maybe_unused]] const int {loop.var} = 0;")
                self._statements(loop.body, inner, team)
            return
        if not self.privates.independent(loop):
            if any(isinstance(s, For) or is_long(loop, s) for s in loop.body):
                self._serial(loop, limit, inner, team)
            else:
                with self.out.block(f"if ({team.index} == 0) {{"):
                    self._scalar((loop,), printer)
            return
        found = chain(loop)
        if found:
            self._flat(*found, printer, team)
        elif team is not WARP and (loop.extent * 3 >= self.warps or row_loads(loop.body, self.privates) < HEAVY):
            self._rows(loop, limit, inner)
        else:
            self._serial(loop, limit, inner, team)

    def _rows(self, loop: For, limit: str, inner: CudaPrinter) -> None:
        """A row a warp. Of few rows as many as registers hold are loaded before the first is reduced, and reduced side
        by side."""
        kept = plan_rows(loop.body, inner, WARP, self.privates.ids.keys())
        first = next((s for s in loop.body if isinstance(s, Reduce) and is_long(None, s)), None)
        count, rest = divmod(loop.extent, self.warps)
        one_by_one = any(isinstance(s, Reduce) and not is_long(None, s) for s in loop.body)
        one_by_one |= bool(self.privates.stored(loop).keys() & self.privates.loaded(loop).keys())
        loads: dict[Expr, str] = {}
        group = 1
        if first is not None and kept and limit == str(loop.extent) and not rest and not one_by_one:
            free = ready(loop.body, unguarded_loads(first.value, inner.loaded), inner)
            scope = inner.within(first.var, first.extent)
            chosen = [e for e in free if loadable(e, first.var, kept[0].width, scope)]
            words = words_of(chosen, kept[0].width) * kept[0].passes(WARP)
            group = next((g for g in range(count, 1, -1) if count % g == 0 and g * words <= ROWS_AHEAD), 1)
            if group > 1 or count * words <= ROWS_AHEAD:
                loads = {e: f"rows{n}_[row_][pass_]" for n, e in enumerate(chosen)}
        if first is None or not loads:
            with self.out.block(f"for (int {loop.var} = mn::warp(); {loop.var} < {limit}; {loop.var} += mn::WARPS) {{"):
                self._statements(loop.body, inner, WARP)
            return
        known = {**inner.loaded, **{e: f"{name}[{LANE}]" for e, name in loads.items()}}
        inner = self._columns(loop.body, kept[0], replace(inner, loaded=known), WARP)
        row = f"const int {loop.var} = (group_ * {group} + row_) * mn::WARPS + mn::warp();"
        outer = self.kept, self.filled
        self.kept, self.filled = tuple(replace(k, name=f"{k.name}[row_]") for k in kept), False
        with self.out.block(f"MN_NOUNROLL for (int group_ = 0; group_ < {count // group}; ++group_) {{"):
            self._load_ahead(loads, first.var, kept[0], WARP, inner, (row, group))
            for k in kept:
                self.out.line(f"float {k.name}[{group}][{k.passes(WARP)}][{k.width}];")
            self._abreast(loop.body, row, group, inner)
        self.kept, self.filled = outer

    def _abreast(self, body: tuple[Statement, ...], row: str, count: int, printer: CudaPrinter) -> None:
        """``body`` for ``count`` rows of a warp, whose variable the text ``row`` declares: each reduction is that of
        all rows side by side, so that they wait for their shuffles once."""
        known = [row]
        for s in body:
            if isinstance(s, Let):
                value = printer.scalar(s.value)
                known.append(f"[[maybe_unused]] const {c_type(s.value.dtype)} {s.name} = {value};")
                continue
            if isinstance(s, Reduce):
                self.out.line(f"{reduced_in(s.value.dtype)} {s.name}_rows_[{count}];")
            with self.out.block(f"MN_UNROLL for (int row_ = 0; row_ < {count}; ++row_) {{"):
                for text in known:
                    self.out.line(text)
                if isinstance(s, Reduce):
                    self.out.line(f"{s.name}_rows_[row_] = {self._partial(s, printer, WARP)};")
                else:
                    self._statement(s, printer, WARP)
            if isinstance(s, Reduce):
                self.out.line(f"mn::warp_reduce_rows<{REDUCERS[s.op]}>({s.name}_rows_);")
                known.append(f"const {c_type(s.value.dtype)} {s.name} = {s.name}_rows_[row_];")

    def _columns(self, body: tuple[Statement, ...], row: Kept | None, printer: CudaPrinter, team: Team) -> CudaPrinter:
        """Loads the weights that passes over a row take after its sums before these. ``row``: what is kept of it; with
        none a single pass of the team must cover it."""
        sums = next((n for n, s in enumerate(body) if is_long(None, s)), len(body))
        for s in (s for s in body[sums:] if isinstance(s, For) and s.bound is None and chain(s) == ((s,), ())):
            scope = printer.within(s.var, s.extent)
            shape = row or Kept("", Const(0), s.extent, self._width((s,), scope, team))
            values = [t.value for t in s.body if isinstance(t, (Let, Store))]
            found = dict.fromkeys(e for value in values for e in unguarded_loads(value, printer.loaded))
            chosen = [
                e
                for e in ready(body, found, printer)
                if is_weight(e, printer) and loadable(e, s.var, shape.width, scope)
            ]
            fits = s.extent == shape.extent and (row is not None or shape.passes(team) == 1)
            if chosen and fits and words_of(chosen, shape.width) * shape.passes(team) <= COLUMNS_AHEAD:
                index = "0" if row is None else "g_"
                loads: dict[Expr, str] = {e: f"{s.var}{n}_ahead_[{index}]" for n, e in enumerate(chosen)}
                self._load_ahead({e: n.replace("[0]", "[g_]") for e, n in loads.items()}, s.var, shape, team, printer)
                known = {e: f"{name}[{LANE}]" for e, name in loads.items()}
                printer = replace(printer, loaded={**printer.loaded, **known})
        return printer

    def _load_ahead(
        self,
        loads: Mapping[Expr, str],
        var: str,
        row: Kept,
        team: Team,
        printer: CudaPrinter,
        rows: tuple[str, int] = ("", 0),
    ) -> None:
        """Declares and loads what a team's threads have of a row, or of each of so many ``rows``, whose variable C text
        declares."""
        passes, chunks = row.passes(team), row.extent // row.width
        index = "pass_" if rows[0] else "g_"
        for e, name in loads.items():
            text = name.replace("row_", str(rows[1])).replace(index, str(passes))
            self.out.line(f"mn::Lanes<{c_type(e.dtype)}, {row.width}> {text};")
        over = [f"MN_UNROLL for (int {index} = 0; {index} < {passes}; ++{index}) {{"]
        if rows[0]:
            over.insert(0, f"MN_UNROLL for (int row_ = 0; row_ < {rows[1]}; ++row_) {{")
        with ExitStack() as stack:
            for text in over:
                stack.enter_context(self.out.block(text))
                if "row_" in text:
                    self.out.line(rows[0])
            self.out.line(f"const int at_ = {index} * {team.size} + {team.index};")
            if chunks % team.size:
                self.out.line(f"if (at_ >= {chunks}) break;")
            self.out.line(f"const int {var} = at_ * {row.width};")
            scope = printer.within(var, row.extent)
            for e, name in loads.items():
                assert isinstance(e, Load)
                self.out.line(f"{name} = mn::load<{row.width}>({address(e, scope)});")

    def _serial(self, loop: For, limit: str, inner: CudaPrinter, team: Team) -> None:
        """One iteration after the other, each shared by the team."""
        with self.out.block(f"for (int {loop.var} = 0; {loop.var} < {limit}; ++{loop.var}) {{"):
            self._statements(loop.body, inner, team)
            if self.privates.stored(loop):
                self.out.line(team.sync)

    def _limit(self, loop: For, printer: CudaPrinter) -> str:
        bound = Const(loop.extent) if loop.bound is None else minimum(Const(loop.extent), loop.bound)
        return printer.index(simplify(bound, printer.ranges))

    # -- reductions -------------------------------------------------------------------------------------------------

    def _reduce(self, s: Reduce, printer: CudaPrinter, team: Team) -> None:
        """Threads of the team share the terms; all get the result."""
        part = self._partial(s, printer, team)
        self.out.line(f"const {c_type(s.value.dtype)} {s.name} = {team.reduce}<{REDUCERS[s.op]}>({part});")

    def _partial(self, s: Reduce, printer: CudaPrinter, team: Team) -> str:
        """Reduces each thread's share of the terms; C text of the result."""
        kind, reducer = reduced_in(s.value.dtype), REDUCERS[s.op]
        inner = printer.within(s.var, s.extent)
        known = kept_lanes(self.kept, s.var, s.extent, "pass_")
        width = next((k.width for k in self.kept if known), 0) or reduction_width(s, printer, team)
        chunks = s.extent // width
        passes = -(-chunks // team.size)
        part = f"{s.name}_part_"
        self.out.line(f"{kind} {part}[{width}];")
        self.out.line(f"MN_UNROLL for (int u_ = 0; u_ < {width}; ++u_) {part}[u_] = {reducer}::identity<{kind}>();")
        unroll = "MN_UNROLL" if passes <= UNROLLED or known else f"MN_UNROLL_BY({self.ilp})"
        with self.out.block(f"{unroll} for (int pass_ = 0; pass_ < {passes}; ++pass_) {{"):
            self.out.line(f"const int at_ = pass_ * {team.size} + {team.index};")
            if chunks % team.size:
                self.out.line(f"if (at_ >= {chunks}) break;")
            self.out.line(f"const int {s.var} = at_ * {width};")
            if known and not self.filled:
                for value, name in known.items():
                    inner = keep_lanes(self.out, name, value, s.var, width, inner)
                self.filled = True
            inner = replace(inner, loaded={**inner.loaded, **known})
            write_lanes(self.out, (Let("term_", s.value),), s.var, str(width), width, inner)
            self.out.line(
                f"MN_UNROLL for (int u_ = 0; u_ < {width}; ++u_) "
                f"{part}[u_] = {reducer}::apply<{kind}>({part}[u_], ({kind})term_[u_]);"
            )
        self.out.line(
            f"MN_UNROLL for (int u_ = 1; u_ < {width}; ++u_) "
            f"{part}[0] = {reducer}::apply<{kind}>({part}[0], {part}[u_]);"
        )
        return f"{part}[0]"

    # -- spaces of independent points -------------------------------------------------------------------------------

    def _flat(self, loops: tuple[For, ...], lets: tuple[Let, ...], printer: CudaPrinter, team: Team) -> None:
        for loop in loops:
            printer = printer.within(loop.var, loop.extent)
        last = loops[-1]
        simple = all(isinstance(s, (Let, Reduce, Store)) for s in last.body)
        width = self._width(loops, printer, team) if simple else 1
        dealt = coalesced(loops, printer) if width == 1 and simple else loops
        chunks = prod(loop.extent for loop in loops) // width
        passes = -(-chunks // team.size)
        known = (
            kept_lanes(self.kept, last.var, last.extent, "g_") if self.filled and loops == (last,) and simple else {}
        )
        if known:
            width = self.kept[0].width
            chunks = last.extent // width
            passes = -(-chunks // team.size)
        printer = replace(printer, loaded={**printer.loaded, **known})
        ahead = loads_ahead(last, frozenset(t.name for t in lets), width, printer) if simple else {}
        group = max(1, min(passes, self.ilp, REGISTERS // words_of(ahead, width))) if ahead else 1
        group = passes if known else group
        step = team.size * group
        unroll = "MN_NOUNROLL " if passes > group else ""
        with self.out.block(f"{unroll}for (int at_ = {team.index}; at_ < {chunks}; at_ += {step}) {{"):
            if group == 1 and not known and not any(ahead.values()):
                self._point(dealt, last, lets, "at_", width, chunks, printer)
                return
            wheres = {c: f"where{n}_[g_]" for n, c in enumerate(dict.fromkeys(c for c in ahead.values() if c))}
            for number, e in enumerate(ahead):
                self.out.line(f"mn::Lanes<{c_type(e.dtype)}, {width}> ahead{number}_[{group}];")
            for name in wheres.values():
                self.out.line(f"bool {name.replace('g_', str(group))};")
            over, at = f"MN_UNROLL for (int g_ = 0; g_ < {group}; ++g_) {{", f"at_ + g_ * {team.size}"
            if ahead:
                with self.out.block(over), self._inside(dealt, at, width, chunks, printer):
                    self._load(ahead, wheres, width, printer)
            loaded: dict[Expr, str] = {e: f"ahead{number}_[g_][{LANE}]" for number, e in enumerate(ahead)}
            printer = replace(printer, loaded={**printer.loaded, **loaded, **wheres})
            with self.out.block(over):
                self._point(dealt, last, lets, at, width, chunks, printer)

    def _load(
        self, ahead: Mapping[Load, Expr | None], wheres: Mapping[Expr, str], width: int, printer: CudaPrinter
    ) -> None:
        """The loads of one group, those under a condition where it holds."""
        for condition, name in wheres.items():
            self.out.line(f"{name} = {printer.scalar(condition)};")
        for number, (e, where) in enumerate(ahead.items()):
            load = f"load<{width}>(" if where is None else f"load_if<{width}>({wheres[where]}, "
            self.out.line(f"ahead{number}_[g_] = mn::{load}{address(e, printer)});")

    def _width(self, loops: tuple[For, ...], printer: CudaPrinter, team: Team) -> int:
        """Neighbours along the last loop that a thread takes."""
        last = loops[-1]
        stores = [s for s in last.body if isinstance(s, Store)]
        most = store_width(stores, last.var, last.extent, printer) if stores else 1
        whole = last.extent if last.bound is None else divisor(simplify(last.bound, printer.ranges))
        return best_width(
            prod(loop.extent for loop in loops), (w for w in WIDTHS if w <= most and whole % w == 0), team
        )

    def _inside(
        self, loops: tuple[For, ...], at: str, width: int, chunks: int, printer: CudaPrinter
    ) -> AbstractContextManager[None]:
        """Declares the loops' variables of chunk ``at``; a block that runs where it is inside them all."""
        conditions = [f"{at} < {chunks}"] if at != "at_" else []
        step = chunks
        for loop in loops:
            extent = loop.extent // width if loop is loops[-1] else loop.extent
            step //= extent
            text = f"({at})" + (f" / {step}" if step > 1 else "") + (f" % {extent}" if loop is not loops[0] else "")
            self.out.line(f"const int {loop.var} = {text}{f' * {width}' if loop is loops[-1] and width > 1 else ''};")
            self.out.line(f"(void){loop.var};")
            if loop.bound is not None:
                conditions.append(f"{loop.var} < {self._limit(loop, printer)}")
        return self.out.block(f"if ({' && '.join(conditions)}) {{" if conditions else "{")

    def _point(
        self,
        loops: tuple[For, ...],
        last: For,
        lets: tuple[Let, ...],
        at: str,
        width: int,
        chunks: int,
        printer: CudaPrinter,
    ) -> None:
        with self._inside(loops, at, width, chunks, printer):
            self._scalar(lets, printer)
            if all(isinstance(s, (Let, Reduce, Store)) for s in last.body):
                write_lanes(self.out, last.body, last.var, str(width), width, printer)
            else:
                self._scalar(last.body, printer)

    # -- one thread -------------------------------------------------------------------------------------------------

    def _scalar(self, body: tuple[Statement, ...], printer: CudaPrinter) -> None:
        """Statements that one thread runs alone."""
        for s in body:
            match s:
                case Let(name, value):
                    self.out.line(f"[[maybe_unused]] const {c_type(value.dtype)} {name} = {printer.scalar(value)};")
                case Reduce():
                    kind, reducer = reduced_in(s.value.dtype), REDUCERS[s.op]
                    total = f"{s.name}_part_"
                    self.out.line(f"{kind} {total} = {reducer}::identity<{kind}>();")
                    with self.out.block(f"for (int {s.var} = 0; {s.var} < {s.extent}; ++{s.var}) {{"):
                        term = printer.within(s.var, s.extent).scalar(s.value)
                        self.out.line(f"{total} = {reducer}::apply<{kind}>({total}, ({kind})({term}));")
                    self.out.line(f"const {c_type(s.value.dtype)} {s.name} = ({c_type(s.value.dtype)}){total};")
                case Store():
                    pointer = printer.pointers[s.operand]
                    at = printer.index(pointer.address(s.index, printer.ranges))
                    self.out.line(f"{pointer.name}[{at}] = {printer.scalar(s.value)};")
                case For():
                    limit = self._limit(s, printer)
                    with self.out.block(f"for (int {s.var} = 0; {s.var} < {limit}; ++{s.var}) {{"):
                        self._scalar(s.body, printer.within(s.var, s.extent))
