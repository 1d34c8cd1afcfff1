"""Prints counters and prefetches."""

from __future__ import annotations

from itertools import product as cartesian

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cpu_storage import CpuStorage
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.storage import row_stride
from mononn_core.program.expr import Var, evaluate_index
from mononn_core.program.ir import Loop, Operand, Phase, Prefetch, Signal, Wait

HINT_BYTES = 16384
"""What a cache hint asks for: more than a barrier's wait brings in would delay the worker that comes last."""


class CpuSync(CpuStorage):
    """Waits, signals and early fetches."""

    def wait(self, wait: Wait, printer: Printer) -> None:
        total = self._arrivals(wait.counter)
        at = self.counter_index(wait.counter, wait.index, printer)
        self.out.line(f"mn::wait(call, {at}, (call->epoch - 1) * {total} + {printer.index(wait.at_least)});")

    def signal(self, signal: Signal, printer: Printer) -> None:
        self.out.line(f"mn::signal(call, {self.counter_index(signal.counter, signal.index, printer)}, {signal.add});")

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

    def prefetch(self, prefetch: Prefetch, phase: Phase, loop: Loop | None) -> None:
        """Fetch the operand of this worker's first task in the next run of a phase: into a local slot, or its first
        ``HINT_BYTES`` into the cache."""
        target, row, guard = self._next_run(prefetch.phase, phase, loop)
        operand = next(o for o in target.task.operands if o.role == prefetch.role)
        count = target.assign.owners if target.assign.kind == "owned" else target.tasks
        guard = " && ".join(filter(None, (guard, "task_ < mn::first_of({count}, worker + 1, call->workers)")))
        self.out.line(f"// fetch {prefetch.role} of {target.id}")
        with self.out.block("{"):
            self.out.line(f"const long task_ = mn::first_of({count}, worker, call->workers);")
            with self.out.block(f"if ({guard.format(count=count)}) {{"):
                self._fetch(prefetch, target, operand, row)

    def _next_run(self, name: str, phase: Phase, loop: Loop | None) -> tuple[Phase, str, str]:
        """(the phase ``name`` that runs next after ``phase``, C text of its table row, condition that it comes)."""
        for item in self.program.body:
            for found in item.body if isinstance(item, Loop) else (item,):
                if not isinstance(found, Phase) or found.id != name:
                    continue
                if not isinstance(item, Loop):
                    return found, "", ""
                if item is not loop:
                    return found, f"table_{item.table}[0]", ""
                ids = [p.id for p in item.body if isinstance(p, Phase)]
                if ids.index(name) > ids.index(phase.id):
                    return found, "row_", ""
                width = len(next(t for t in self.program.tables if t.id == item.table).columns)
                return found, f"(row_ + {width})", f"{item.var} + 1 < {item.count}"
        raise AssertionError(f"phase {name!r} is not in the program")

    def _fetch(self, prefetch: Prefetch, target: Phase, operand: Operand, row: str) -> None:
        pointer = self.pointer(operand, "f_", row)
        owned = isinstance(target.assign.owner, Var) and target.assign.kind == "owned"
        step = target.tasks
        for var in target.assign.order or tuple(a.var for a in target.domain):
            extent = next(a.extent for a in target.domain if a.var == var)
            step //= extent
            is_owner = owned and target.assign.owner == Var(var)
            value = "task_" if is_owner else "0" if owned else f"task_ / {step} % {extent}"
            self.out.line(f"[[maybe_unused]] const long {var} = {value};")
        printer = Printer({operand.role: pointer}, {a.var: (0, a.extent - 1) for a in target.domain})
        rows, columns = (self.extents(operand, d, printer)[1] for d in (0, 1))
        with self.out.block(f"for (long line_ = 0; line_ < {rows}; ++line_) {{"):
            source = f"{self.corner(printer, operand)} + line_ * {row_stride(pointer.buffer)}"
            width = f"({columns}) * {pointer.buffer.itemsize}"
            if not prefetch.into:
                self.out.line(f"if (line_ * ({width}) >= {HINT_BYTES}) break;")
                self.out.line(f"mn::touch({source}, {width});")
            else:
                local = self.buffers[prefetch.into]
                place = f"({c_type(local.dtype)} *){self.base(local.id, local)} + line_ * {row_stride(local)}"
                self.out.line(f"__builtin_memcpy({place}, {source}, {width});")
