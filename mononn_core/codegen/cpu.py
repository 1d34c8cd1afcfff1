"""Prints a Program as one C++ function for persistent CPU workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from mononn_core.codegen.cpu_storage import TILES, Place, cpu_template
from mononn_core.codegen.cpu_sync import CpuSync
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.writer import Writer
from mononn_core.element import WORD
from mononn_core.program.abi import ENTRY, STEPS
from mononn_core.program.expr import Acc, Const, Var, walk
from mononn_core.program.ir import Barrier, Loop, Phase, Program


def print_program(program: Program, comment: str = "", launch: str = "once") -> str:
    """C++ source of ``program``: the vocabulary's headers, one function a phase, and the entry function.

    Args:
        program: a verified Program; the compiler gets the width of vector registers as MONONN_VECTOR_BYTES.
        comment: how it was made; goes into the opening comment, after the model's name, phases, barriers and arena.
        launch: "once", or "phases": the entry function runs the one phase that the call names.
    """
    return _CpuPrinter(program).source(comment, launch)


@dataclass(frozen=True)
class Printed:
    """The lines of a phase's function, with ``at_[i]`` wherever ``places[i]`` is meant."""

    phase: Phase
    loop: Loop | None
    lines: tuple[str, ...]
    places: tuple[Place, ...]

    @property
    def movable(self) -> bool:
        """Whether the round that a loop is in says nothing but where the operands lie."""
        if self.loop is None:
            return True
        mentioned = re.compile(rf"\b{self.loop.var}\b")
        return all(p.fixed for p in self.places) and not any(map(mentioned.search, self.lines))


class _CpuPrinter(CpuSync):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.printed = 0
        self.shared = dict[str, str]()
        """Phase -> the function that computes it, where others that do the same elsewhere share it."""
        self.executed = sum(isinstance(i, Phase) for i, _ in program.trace())
        self.barriers = sum(isinstance(i, Barrier) for i, _ in program.trace())
        self.headers = tuple(dict.fromkeys(h for p in program.phases() for h in cpu_template(p).headers(p, self)))

    def source(self, comment: str, launch: str) -> str:
        self._heading(comment)
        self.out.line('#include "mononn_cpu.hpp"')
        for header in self.headers:
            self.out.line(f'#include "{header}"')
        if any(Acc(WORD) in walk(r.value) for p in self.program.phases() for r in p.task.results):
            self.out.line("// Exact sums of integers: what is computed of them is rounded alike on every processor.")
            for line in ("#if defined(__clang__)", "#pragma clang fp contract(off)", "#endif"):
                self.out.line(line)
        self.out.line()
        printed = self._alike()
        self._tables(printed)
        for alike in printed:
            self._phase(alike)
        self.out.line()
        self.out.line("#if MN_HERE(0)")
        phase_by_phase = launch == "phases" or all(_alone(phase) for phase, *_ in self._executed())
        if phase_by_phase:  # also where no phase needs more than the caller: nobody is woken
            self._steps_table()
        self._entry(self._one_phase if phase_by_phase else self._whole)
        self.out.line("#endif")
        return self.out.text()

    def _heading(self, comment: str) -> None:
        p = self.program
        self.out.line(f"// {comment_text(p.name)}: {self.executed} phases, {self.barriers} barriers, one function.")
        self.out.line(
            f"// Arena {p.arena_bytes} bytes, weights {p.weight_bytes} bytes, scratch {p.scratch_bytes} a worker."
        )
        for b in p.buffers:
            if b.space == "arena":
                self.out.line(f"//   {b.offset:>10} {b.nbytes:>10}  {comment_text(b.id)} {b.dtype}{list(b.shape)}")
        for line in comment.splitlines():
            self.out.line(f"// {line}")

    def _tables(self, printed: list[list[Printed]]) -> None:
        """Where the operands of each round of a loop lie, unless all its phases have tables of their own."""
        rows = {a.loop.table for a, *others in printed if a.loop is not None and not others}
        read = {at.text.partition("[")[0] for alike in printed for one in alike for at in one.places}
        for table in self.program.tables:
            if table.columns and (table.id in rows or f"table_{table.id}" in read):
                head = f"static const long table_{table.id}[{len(table.rows)}][{len(table.columns)}] = {{"
                with self.out.block(head, "};"):
                    for row in table.rows:
                        self.out.line("{" + ", ".join(str(self.buffers[b].offset) for b in row) + "},")

    # -- phases -----------------------------------------------------------------------------------------------------

    def _alike(self) -> list[list[Printed]]:
        """All phases; together those whose functions differ in the places of their operands alone."""
        found = dict[object, list[Printed]]()
        for item in self.program.body:
            for phase in item.body if isinstance(item, Loop) else (item,):
                if isinstance(phase, Phase):
                    printed = self._lines(phase, item if isinstance(item, Loop) else None)
                    found.setdefault(printed.lines if printed.movable else phase.id, []).append(printed)
        return list(found.values())

    def _lines(self, phase: Phase, loop: Loop | None) -> Printed:
        outside, self.out, self.places = self.out, Writer(), []
        pointers = {o.role: self.pointer(o) for o in phase.task.operands}
        ranges = {a.var: (0, a.extent - 1) for a in phase.domain}
        if loop:
            ranges[loop.var] = (0, loop.count - 1)
        printer = Printer(pointers, ranges)
        for prefetch in (p for p in phase.prefetches if p.into):
            self.prefetch(prefetch, phase, loop)
        cpu_template(phase).write_state(phase, self)
        self._deal(phase, printer)
        for prefetch in (p for p in phase.prefetches if not p.into):
            self.prefetch(prefetch, phase, loop)
        printed = Printed(phase, loop, self.out.lines, tuple(self.places))
        self.out = outside
        return printed

    def _phase(self, alike: list[Printed]) -> None:
        """One function for phases that are alike."""
        first, together = alike[0], len(alike) > 1
        name, loop, unused = function(first.phase), first.loop, "(void)call, (void)worker, (void)ordinal;"
        self.out.line()
        for one in alike:
            self.out.line(f"// {one.phase.id}: {one.phase.tasks} tasks; {', '.join(map(str, one.phase.origin[:4]))}")
            if together:
                self.shared[one.phase.id] = name
                self._places(one)
        arguments = "const mononn_call *call, int worker, long ordinal"
        if together:
            arguments, unused = f"{arguments}, const long *at_", f"{unused} (void)at_;"
        elif loop:
            arguments, unused = (
                f"{arguments}, const long *row_, long {loop.var}",
                f"{unused} (void)row_, (void){loop.var};",
            )
        head = f"MN_PHASE void {name}({arguments})"
        self.out.line(f"{head};")
        self.out.line(f"#if MN_HERE({self.printed})")
        with self.out.block(f"{head} {{"):
            self.out.line(unused)
            for line in first.lines:
                self.out.line(
                    line if together else re.sub(r"\bat_\[(\d+)\]", lambda m: first.places[int(m[1])].text, line)
                )
        self.out.line("#endif")
        self.printed += 1

    def _places(self, printed: Printed) -> None:
        """The table of where the operands of a phase that shares its function lie, a row for each round."""
        rounds = [{printed.loop.var: i} for i in range(printed.loop.count)] if printed.loop else [{}]
        head = f"static const long at_{function(printed.phase)}[{len(rounds)}][{max(len(printed.places), 1)}] = {{"
        with self.out.block(head, "};"):
            for loop in rounds:
                offsets = (self.buffers[self.program.resolve(p.which, loop)].offset for p in printed.places)
                self.out.line("{" + ", ".join(map(str, offsets)) + "},")

    def _deal(self, phase: Phase, printer: Printer) -> None:
        """Loop over this worker's tasks."""
        assign = phase.assign
        extents = {a.var: a.extent for a in phase.domain}
        order = assign.order or tuple(extents)
        owner = assign.owner
        if assign.kind == "owned" and isinstance(owner, Const):
            with self.out.block(f"if (mn::owner_of({owner.value}, {assign.owners}, call->workers) == worker) {{"):
                self._owned_loops(phase, printer, order, extents)
            return
        if assign.kind == "owned":
            assert owner is not None
            self.out.line(f"const long first_ = mn::first_of({assign.owners}, worker, call->workers);")
            self.out.line(f"const long last_ = mn::first_of({assign.owners}, worker + 1, call->workers);")
        else:
            self.out.line(f"const long first_ = mn::first_of({phase.tasks}, worker, call->workers);")
            self.out.line(f"const long last_ = mn::first_of({phase.tasks}, worker + 1, call->workers);")
            with self.out.block("for (long task_ = first_; task_ < last_; ++task_) {"):
                step = phase.tasks
                for var in order:
                    step //= extents[var]
                    self.out.line(f"const long {var} = task_ / {step} % {extents[var]};")
                self._task(phase, printer)
            return
        self._owned_loops(phase, printer, order, extents)

    def _owned_loops(self, phase: Phase, printer: Printer, order: tuple[str, ...], extents: Mapping[str, int]) -> None:
        owner = phase.assign.owner
        with ExitStack() as stack:
            for var in order:
                low, high = ("first_", "last_") if owner == Var(var) else ("0", str(extents[var]))
                stack.enter_context(self.out.block(f"for (long {var} = {low}; {var} < {high}; ++{var}) {{"))
            if not isinstance(owner, Const) and not any(owner == Var(v) for v in order):
                assert owner is not None
                self.out.line(f"const long owner_ = {printer.index(owner)};")
                stack.enter_context(self.out.block("if (owner_ >= first_ && owner_ < last_) {"))
            self._task(phase, printer)

    def _task(self, phase: Phase, printer: Printer) -> None:
        for wait in phase.waits:
            self.wait(wait, printer)
        cpu_template(phase).write_call(phase, printer, self)
        for signal in phase.signals:
            self.signal(signal, printer)

    # -- entry ------------------------------------------------------------------------------------------------------

    def _entry(self, body: Callable[[], None]) -> None:
        out = self.out
        out.line()
        with out.block(
            f'extern "C" __attribute__((visibility("default"))) int {ENTRY}(const mononn_call *call, int worker) {{'
        ):
            out.line("if (call->abi_version != MONONN_ABI_VERSION) return MONONN_ERROR_ABI;")
            out.line("mn::FlushDenormals mode;")
            if TILES in self.headers:
                out.line("mn::TileRegisters tiles{call};")
                out.line("if (!tiles.allowed) return MONONN_ERROR_TILES;")
            body()
            out.line("return (int)(__atomic_load_n(call->error, __ATOMIC_RELAXED) & 0xff);")

    def _whole(self) -> None:
        """All phases in order, in shares between barriers (``mononn_sync.hpp``)."""
        out = self.out
        out.line("const uint32_t run = (uint32_t)__atomic_load_n(&call->epoch, __ATOMIC_ACQUIRE) - 1;")
        out.line(f"uint32_t target = run * {self.barriers + 1}u;")
        out.line(f"mn::Trace trace{{call, {self.executed}}};")
        share: list[str] = []  # what every worker does its part of before the next barrier
        ordinal = 0
        for item in self.program.body:
            if isinstance(item, Phase):
                share += self._calls((item,), str(ordinal))
                ordinal += 1
            elif isinstance(item, Barrier):
                self._share("together", share)
                share = []
            else:
                share = self._rounds(item, share, ordinal)
                ordinal += item.count * sum(isinstance(i, Phase) for i in item.body)
        self._share("finish", share)

    def _rounds(self, loop: Loop, before: list[str], ordinal: int) -> list[str]:
        """A loop behind what is left of the share ``before`` it; returns what is left of its own last share."""
        parts: list[list[Phase]] = [[]]  # between the barriers of a round
        for item in loop.body:
            if isinstance(item, Barrier):
                parts.append([])
            else:
                parts[-1].append(item)
        length = sum(map(len, parts))

        def calls(part: int, iteration: str) -> list[str]:
            first = ordinal + sum(map(len, parts[:part]))
            return self._calls(parts[part], f"{first} + ({iteration}) * {length}", loop, iteration)

        head = f"for (long {loop.var} = 0; {loop.var} < {loop.count}; ++{loop.var}) {{"
        if len(parts) == 1:
            return [*before, head, *calls(0, loop.var), "}"]
        last = len(parts) - 1
        if before or parts[last]:
            otherwise = calls(last, f"{loop.var} - 1")
            before = [f"if ({loop.var} == 0) {{", *before, "} else {", *otherwise, "}"]
        with self.out.block(head):
            self._share("together", [*before, *calls(0, loop.var)])
            for part in range(1, last):
                self._share("together", calls(part, loop.var))
        return calls(last, str(loop.count - 1))

    def _calls(self, phases: Iterable[Phase], ordinal: str, loop: Loop | None = None, iteration: str = "") -> list[str]:
        """Phases with their trace points, the first as executed phase ``ordinal``."""
        lines = []
        for i, phase in enumerate(phases):
            number = f"{ordinal} + {i}" if i else ordinal
            lines.append(f"trace.begin(worker, {number});")
            lines.append(self._call(phase, loop, iteration, "worker", number))
            lines.append(f"trace.end(worker, {number});")
        return lines

    def _call(self, phase: Phase, loop: Loop | None, iteration: str, worker: str, ordinal: str) -> str:
        """One worker's share of an executed phase."""
        name, more = self.shared.get(phase.id, function(phase)), ""
        if phase.id in self.shared:
            more = f", at_{function(phase)}[{iteration or 0}]"
        elif loop:
            more = f", {self._row(loop, iteration)}, {iteration}"
        return f"{name}(call, {worker}, {ordinal}{more});"

    def _share(self, how: str, lines: list[str]) -> None:
        self.out.line(f"mn::{how}(call, worker, ++target, trace,")
        with self.out.block("[&]([[maybe_unused]] int worker, [[maybe_unused]] mn::Trace &trace) {", "});"):
            for line in lines:
                self.out.line(line)

    def _row(self, loop: Loop, iteration: str) -> str:
        columns = next((t.columns for t in self.program.tables if t.id == loop.table), ())
        return f"table_{loop.table}[{iteration}]" if columns else "nullptr"

    def _executed(self) -> Iterator[tuple[Phase, Loop | None, str]]:
        """Every executed phase, with the loop that it is in and the round."""
        for item in self.program.body:
            if isinstance(item, Loop):
                for i in range(item.count):
                    yield from ((p, item, str(i)) for p in item.body if isinstance(p, Phase))
            elif isinstance(item, Phase):
                yield item, None, ""

    def _steps_table(self) -> None:
        wide = [str(int(not _alone(phase))) for phase, *_ in self._executed()]
        self.out.line()
        self.out.line("// Phases, and whether more than one worker has tasks in each.")
        values = ", ".join((str(self.executed), *wide))
        self.out.line(f"const uint32_t {STEPS}[] = {{{values}}};")

    def _one_phase(self) -> None:
        """The phase that the call names; one of a single owner is run by the caller, whoever owns it."""
        with self.out.block("switch (call->step) {"):
            for ordinal, (phase, loop, i) in enumerate(self._executed()):
                traced = f"mn::Trace trace{{call, {self.executed}}}; trace.begin(w, {ordinal}); "
                traced += f"{self._call(phase, loop, i, 'w', str(ordinal))} trace.end(w, {ordinal});"
                workers = "0; w < (int)call->workers" if _alone(phase) else "worker; w == worker"
                self.out.line(f"case {ordinal + 1}: for (int w = {workers}; ++w) {{ {traced} }} break;")


def _alone(phase: Phase) -> bool:
    """Whether one worker has all tasks of a phase."""
    return phase.tasks == 1 or (phase.assign.kind == "owned" and isinstance(phase.assign.owner, Const))


def comment_text(text: str) -> str:
    """A name out of a model, safe in a line comment: no line break, no backslash that would continue the line."""
    return repr(text)[1:-1].replace("\\", "/")


def function(phase: Phase) -> str:
    """The C name of a phase's function."""
    return "phase_" + "".join(ch if ch.isalnum() else "_" for ch in phase.id)
