"""Prints a Program as one C++ function for persistent CPU workers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from itertools import product as cartesian
from math import prod

from mononn_core.codegen.cstyle import Pointer, Printer, c_type
from mononn_core.codegen.loops import is_cheap, score_text, write_element, write_statements
from mononn_core.codegen.writer import Writer
from mononn_core.program.abi import ENTRY
from mononn_core.program.expr import Const, Expr, Ranges, Var, add, evaluate_index, minimum, mul
from mononn_core.program.simplify import simplify
from mononn_core.program.tile import Barrier, Buffer, Loop, Operand, Phase, Prefetch, Program, Signal, Slot, Wait

BASES = {"arena": "c->arena", "weight": "c->weights"}


def print_program(program: Program, comment: str = "") -> str:
    """C++ source of ``program``: the vocabulary's headers, one static function a phase, and the entry function.

    ``comment`` (how it was made) goes into the opening comment, after the model's name, phases, barriers and arena.
    """
    return _CpuPrinter(program).source(comment)


class _CpuPrinter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers = program.buffer_map
        self.out = Writer()
        self.executed = sum(isinstance(i, Phase) for i, _ in program.trace())
        self.barriers = sum(isinstance(i, Barrier) for i, _ in program.trace())

    def source(self, comment: str) -> str:
        self._heading(comment)
        self.out.line('#include "mononn_cpu.hpp"')
        self.out.line()
        for table in self.program.tables:
            self._table(table.id)
        for item in self.program.body:
            for phase in item.body if isinstance(item, Loop) else (item,):
                if isinstance(phase, Phase):
                    self._phase(phase, item if isinstance(item, Loop) else None)
        self._entry()
        return self.out.text()

    def _heading(self, comment: str) -> None:
        p = self.program
        self.out.line(f"// {p.name}: {self.executed} phases, {self.barriers} barriers, one function.")
        self.out.line(
            f"// Arena {p.arena_bytes} bytes, weights {p.weight_bytes} bytes, scratch {p.scratch_bytes} a worker."
        )
        for b in p.buffers:
            if b.space == "arena":
                self.out.line(f"//   {b.offset:>10} {b.nbytes:>10}  {b.id} {b.dtype}{list(b.shape)}")
        for line in comment.splitlines():
            self.out.line(f"// {line}")

    def _table(self, name: str) -> None:
        table = next(t for t in self.program.tables if t.id == name)
        if not table.columns:
            return
        with self.out.block(f"static const long table_{name}[{len(table.rows)}][{len(table.columns)}] = {{", "};"):
            for row in table.rows:
                self.out.line("{" + ", ".join(str(self.buffers[b].offset) for b in row) + "},")

    # -- phases -----------------------------------------------------------------------------------------------------

    def _phase(self, phase: Phase, loop: Loop | None) -> None:
        origin = ", ".join(str(o) for o in phase.origin[:4])
        self.out.line()
        self.out.line(f"// {phase.id}: {phase.tasks} tasks; {origin}")
        arguments = "const mononn_call *c, int w, long phase" + (f", const long *t, long {loop.var}" if loop else "")
        with self.out.block(f"static __attribute__((noinline)) void {function(phase)}({arguments}) {{"):
            self.out.line("(void)c, (void)w, (void)phase;" + (f" (void)t, (void){loop.var};" if loop else ""))
            pointers = {o.role: self._pointer(o, loop) for o in phase.task.operands}
            ranges = {a.var: (0, a.extent - 1) for a in phase.domain}
            if loop:
                ranges[loop.var] = (0, loop.count - 1)
            printer = Printer(pointers, ranges)
            for prefetch in phase.prefetches:
                self._prefetch(prefetch, loop)
            self._deal(phase, printer)

    def _pointer(self, operand: Operand, loop: Loop | None, prefix: str = "p_") -> Pointer:
        buffer = self._buffer(operand.buffer)
        kind = c_type(buffer.dtype)
        const = "" if operand.access == "write" or operand.access == "partial" else "const "
        name = prefix + operand.role
        self.out.line(f"{const}{kind} *const {name} = ({const}{kind} *){self._base(operand.buffer, buffer)};")
        del loop
        return Pointer(name, buffer)

    def _buffer(self, which: str | Slot) -> Buffer:
        """The buffer, or for a slot the first iteration's (all of a column lie alike)."""
        if isinstance(which, str):
            return self.buffers[which]
        table = next(t for t in self.program.tables if t.id == which.table)
        return self.buffers[table.rows[0][table.columns.index(which.column)]]

    def _base(self, which: str | Slot, buffer: Buffer) -> str:
        at = str(buffer.offset)
        if isinstance(which, Slot):
            table = next(t for t in self.program.tables if t.id == which.table)
            at = f"t[{table.columns.index(which.column)}]"
        if buffer.space in ("input", "output"):
            return f"c->{buffer.space}s[{at}]"
        if buffer.space in ("local", "scratch"):
            return f"(c->scratch + (long)w * {self.program.scratch_bytes} + {at})"
        return f"({BASES[buffer.space]} + {at})"

    def _deal(self, phase: Phase, printer: Printer) -> None:
        """Loop over this worker's tasks."""
        assign = phase.assign
        extents = {a.var: a.extent for a in phase.domain}
        order = assign.order or tuple(extents)
        owner = assign.owner
        if assign.kind == "owned" and isinstance(owner, Const):
            self.out.line(f"if (mn::owner_of({owner.value}, {assign.owners}, c->workers) != w) return;")
        elif assign.kind == "owned":
            assert owner is not None
            self.out.line(f"const long first = mn::first_of({assign.owners}, w, c->workers);")
            self.out.line(f"const long last = mn::first_of({assign.owners}, w + 1, c->workers);")
        else:
            self.out.line(f"const long first = mn::first_of({phase.tasks}, w, c->workers);")
            self.out.line(f"const long last = mn::first_of({phase.tasks}, w + 1, c->workers);")
            with self.out.block("for (long task = first; task < last; ++task) {"):
                step = phase.tasks
                for var in order:
                    step //= extents[var]
                    self.out.line(f"const long {var} = task / {step} % {extents[var]};")
                self._task(phase, printer)
            return
        self._owned_loops(phase, printer, order, extents)

    def _owned_loops(self, phase: Phase, printer: Printer, order: tuple[str, ...], extents: Mapping[str, int]) -> None:
        owner = phase.assign.owner
        with ExitStack() as stack:
            for var in order:
                low, high = ("first", "last") if owner == Var(var) else ("0", str(extents[var]))
                stack.enter_context(self.out.block(f"for (long {var} = {low}; {var} < {high}; ++{var}) {{"))
            if not isinstance(owner, Const) and not any(owner == Var(v) for v in order):
                assert owner is not None
                self.out.line(f"const long owner = {printer.index(owner)};")
                stack.enter_context(self.out.block("if (owner >= first && owner < last) {"))
            self._task(phase, printer)

    def _task(self, phase: Phase, printer: Printer) -> None:
        for wait in phase.waits:
            self._wait(wait, printer)
        match phase.task.template:
            case "matmul" | "gemv":
                self._matmul(phase, printer)
            case "attention":
                self._attention(phase, printer)
            case _:
                write_statements(self.out, phase.task.body, printer)
        for signal in phase.signals:
            self._signal(signal, printer)

    # -- templates --------------------------------------------------------------------------------------------------

    def _corner(self, printer: Printer, operand: Operand) -> str:
        pointer = printer.pointers[operand.role]
        offset = pointer.address(operand.box.offset, printer.ranges)
        return f"{pointer.name} + {printer.index(offset)}"

    def _extents(self, phase: Phase, operand: Operand, dim: int, printer: Printer) -> tuple[tuple[int, ...], str]:
        """Sizes that dimension ``dim`` of the operand's box takes over the domain, and the C expression of it."""
        box = operand.box
        size, bound, offset = box.size[dim], box.bound[dim], box.offset[dim]
        names = [a.var for a in phase.domain]
        found = set()
        for point in cartesian(*(range(a.extent) for a in phase.domain)):
            found.add(max(0, min(size, bound - evaluate_index(offset, dict(zip(names, point, strict=True))))))
        text = printer.index(simplify(minimum(Const(size), add(Const(bound), mul(offset, -1))), printer.ranges))
        return tuple(sorted(found, reverse=True)), text

    def _matmul(self, phase: Phase, printer: Printer) -> None:
        task = phase.task
        a, b = (next(o for o in task.operands if o.role == r) for r in ("a", "b"))
        rows, rows_text = self._extents(phase, a, 0, printer)
        columns, columns_text = self._extents(phase, b, 1, printer)
        panel = int(task.params["panel"])
        result = task.results[0]
        inner = self._element_printer(printer, result.axes, (a.box.size[0], panel))
        ragged = columns != (panel,)
        if ragged:
            self.out.line(f"const long end = {columns_text};")
        with self.out.block(f"auto element = [&](long {result.axes[0]}, long {result.axes[1]}, auto v) {{", "};"):
            write_element(self.out, result, inner)
        cheap = "true" if is_cheap(result) else "false"
        lda, ldb = (_row_stride(printer.pointers[o.role].buffer) for o in (a, b))
        operands = f"{self._corner(printer, a)}, {lda}, {self._corner(printer, b)}, {ldb}, {a.box.size[1]}"
        function_text = "element"
        if ragged:
            m, n = result.axes
            self.out.line(f"auto edge = [&](long {m}, long {n}, auto v) {{ mn::ragged({m}, {n}, end, v, element); }};")
            function_text = "edge"
        guard = "if (end > 0) " if min(columns) == 0 else ""
        call = f"{panel}, {cheap}>({operands}, {function_text});"
        calls = [(rows_text, r, f"{guard}mn::matmul<{r}, {call}") for r in rows if r > 0]
        self._choose(calls, 0 in rows)

    def _choose(self, calls: list[tuple[str, int, str]], may_be_empty: bool) -> None:
        """One call a possible size; a branch where there are several."""
        if len(calls) == 1 and not may_be_empty:
            self.out.line(calls[0][2])
            return
        for text, size, call in calls:
            self.out.line(f"if ({text} == {size}) {call}")

    def _attention(self, phase: Phase, printer: Printer) -> None:
        task = phase.task
        q, k, v = (next(o for o in task.operands if o.role == r) for r in "qkv")
        result = task.results[0]
        inner = self._element_printer(printer, result.axes, (q.box.size[0], v.box.size[1]))
        scores = self._element_printer(printer, ("i", "j"), (q.box.size[0], k.box.size[0]))
        self.out.line(f"float *local = (float *)(c->scratch + (long)w * {self.program.scratch_bytes});")
        with self.out.block("auto score = [&](long i, long j, auto v) {", "};"):
            self.out.line("using T = decltype(v);")
            self.out.line("(void)i, (void)j;")
            self.out.line(f"return T({score_text(task.prologue['score'], scores)});")
        with self.out.block(f"auto element = [&](long {result.axes[0]}, long {result.axes[1]}, auto v) {{", "};"):
            write_element(self.out, result, inner)
        rows, rows_text = self._extents(phase, q, 0, printer)
        parts = []
        for operand in (q, k, v):
            parts += [self._corner(printer, operand), str(_row_stride(printer.pointers[operand.role].buffer))]
        calls = []
        for r in (r for r in rows if r > 0):
            guard = "true" if task.params.get("guard") else "false"
            shape = f"mn::Attention<{r}, {k.box.size[0]}, {q.box.size[1]}, {v.box.size[1]}, {guard}>"
            self.out.line(f"static_assert({shape}::FLOATS * 4 <= {self.program.scratch_bytes});")
            calls.append((rows_text, r, f"{shape}::run({', '.join(parts)}, local, score, element);"))
        self._choose(calls, 0 in rows)

    def _element_printer(self, printer: Printer, axes: tuple[str, ...], extents: tuple[int, ...]) -> Printer:
        more = {a: (0, e - 1) for a, e in zip(axes, extents, strict=True)}
        return Printer(printer.pointers, {**printer.ranges, **more})

    # -- synchronisation --------------------------------------------------------------------------------------------

    def _counter_index(self, counter: str, index: tuple[Expr, ...], printer: Printer) -> str:
        base = 0
        for known in self.program.counters:
            if known.id == counter:
                linear: Expr = Const(0)
                for e, extent in zip(index, known.shape, strict=True):
                    linear = add(mul(linear, extent), e)
                return printer.index(simplify(add(linear, base), printer.ranges))
            base += prod(known.shape)
        raise AssertionError(f"counter {counter!r} is not declared")

    def _wait(self, wait: Wait, printer: Printer) -> None:
        total = self._arrivals(wait.counter)
        at = self._counter_index(wait.counter, wait.index, printer)
        self.out.line(f"mn::wait(c, {at}, (c->epoch - 1) * {total} + {printer.index(wait.at_least)});")

    def _signal(self, signal: Signal, printer: Printer) -> None:
        self.out.line(f"mn::signal(c, {self._counter_index(signal.counter, signal.index, printer)}, {signal.add});")

    def _arrivals(self, counter: str) -> int:
        """What every element of a counter receives in one run (equal for all elements)."""
        arrivals: dict[tuple[int, ...], int] = {}
        for item, loop in self.program.trace():
            if not isinstance(item, Phase):
                continue
            names = [a.var for a in item.domain]
            for signal in (s for s in item.signals if s.counter == counter):
                for point in cartesian(*(range(a.extent) for a in item.domain)):
                    values = {**loop, **dict(zip(names, point, strict=True))}
                    index = tuple(evaluate_index(e, values) for e in signal.index)
                    arrivals[index] = arrivals.get(index, 0) + signal.add
        totals = set(arrivals.values())
        if len(totals) != 1:
            raise AssertionError(f"elements of counter {counter!r} receive different numbers of arrivals: {totals}")
        return totals.pop()

    def _prefetch(self, prefetch: Prefetch, loop: Loop | None) -> None:
        """Fetch the first task's operand of a later phase, for this worker, into a local buffer or the cache."""
        target = next(p for p in self.program.phases() if p.id == prefetch.phase)
        operand = next(o for o in target.task.operands if o.role == prefetch.role)
        with self.out.block("{"):
            pointer = self._pointer(operand, loop, "f_")
            owned = target.assign.kind == "owned"
            count = target.assign.owners if owned else target.tasks
            self.out.line(f"const long task = mn::first_of({count}, w, c->workers);")
            step = count
            for axis in (a for a in target.domain if a.var in (target.assign.order or [x.var for x in target.domain])):
                step //= axis.extent
                self.out.line(f"const long {axis.var} = task / {max(step, 1)} % {axis.extent};")
                self.out.line(f"(void){axis.var};")
            ranges: Ranges = {a.var: (0, a.extent - 1) for a in target.domain}
            printer = Printer({operand.role: pointer}, ranges)
            corner = self._corner(printer, operand)
            stride, width = _row_stride(pointer.buffer), operand.box.size[1] * pointer.buffer.itemsize
            with self.out.block(f"for (long row = 0; row < {operand.box.size[0]}; ++row) {{"):
                source = f"({corner} + row * {stride})"
                if prefetch.into:
                    local = self.buffers[prefetch.into]
                    kind = c_type(local.dtype)
                    target_text = f"({kind} *){self._base(local.id, local)} + row * {_row_stride(local)}"
                    self.out.line(f"__builtin_memcpy({target_text}, {source}, {width});")
                else:
                    self.out.line(f"mn::touch({source}, {width});")

    # -- entry ------------------------------------------------------------------------------------------------------

    def _entry(self) -> None:
        out = self.out
        out.line()
        with out.block(
            f'extern "C" __attribute__((visibility("default"))) int {ENTRY}(const mononn_call *c, int w) {{'
        ):
            out.line("if (c->abi_version != MONONN_ABI_VERSION) return MONONN_ERROR_ABI;")
            out.line("mn::FlushDenormals mode;")
            out.line(f"uint32_t reached = (uint32_t)(c->epoch - 1) * {self.barriers}u;")
            out.line("(void)reached;")
            out.line(f"mn::Trace trace{{c, w, {self.executed}}};")
            out.line("long phase = 0;")
            for item in self.program.body:
                if isinstance(item, Loop):
                    with out.block(f"for (long {item.var} = 0; {item.var} < {item.count}; ++{item.var}) {{"):
                        table = next(t for t in self.program.tables if t.id == item.table)
                        row = f"table_{item.table}[{item.var}]" if table.columns else "nullptr"
                        out.line(f"const long *t = {row};")
                        self._steps(item.body, f", t, {item.var}")
                else:
                    self._steps((item,), "")
            out.line("return (int)(__atomic_load_n(c->error, __ATOMIC_RELAXED) & 0xff);")

    def _steps(self, items: tuple[Phase | Barrier, ...], more: str) -> None:
        """Barriers and phases with their trace points; a barrier's wait counts for the phase after it."""
        for item in items:
            if isinstance(item, Barrier):
                self.out.line("trace.barrier(phase);")
                self.out.line("mn::barrier(c, w, ++reached);")
            else:
                self.out.line("trace.begin(phase);")
                self.out.line(f"{function(item)}(c, w, phase{more});")
                self.out.line("trace.end(phase++);")


def function(phase: Phase) -> str:
    """The C name of a phase's function."""
    return "phase_" + "".join(ch if ch.isalnum() else "_" for ch in phase.id)


def _row_stride(buffer: Buffer) -> int:
    """Elements between neighbouring rows of a matrix."""
    return buffer.layout.dims[0][-1][1]
