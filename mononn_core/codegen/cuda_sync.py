"""Prints counters, early copies and cache hints of CUDA code."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mononn_core.codegen.cuda_expressions import CudaPrinter
from mononn_core.codegen.cuda_storage import CudaStorage, cuda_template
from mononn_core.program.ir import Barrier, Loop, Phase, Prefetch, Signal, Wait
from mononn_core.program.template import operand

HINT_BYTES = 65536
"""Most that a cache hint asks for."""


@dataclass(frozen=True)
class Next:
    """Where an early copy is taken up: the phase and its loop, C text of the iteration there, the condition that it
    comes, executed phases until then, and whether a barrier stands in between; ``before``: phases that take tasks
    between that barrier (or here) and it. ``free``: no stages would come between those of the early copy."""

    phase: Phase
    loop: Loop | None
    row: str
    guard: str
    distance: int
    joined: bool
    before: tuple[Phase, ...]
    free: bool


class CudaSync(CudaStorage):
    """Waits, signals and early fetches."""

    def wait(self, wait: Wait, printer: CudaPrinter) -> None:
        at = self.counter_index(wait.counter, wait.index, printer)
        self.out.line(f"mn::wait(sync_, {at}, {printer.index(wait.at_least)});")

    def signal(self, signal: Signal, printer: CudaPrinter) -> None:
        self.out.line(f"mn::signal(sync_, {self.counter_index(signal.counter, signal.index, printer)}, {signal.add});")

    def fetch(self, prefetch: Prefetch, phase: Phase, loop: Loop | None, whole: bool) -> None:
        """Ask for the operand of this block's first task in the next run of a phase: its first stages in shared memory
        where one kernel runs both (``whole``) and a product takes them up there, else a hint to the cache."""
        target = self.next_run(prefetch.phase, phase, loop)
        if target is None:
            return
        self.out.line(f"// fetch {prefetch.role} of the next {target.phase.task.template}")
        with self.out.block(f"if ({target.guard}) {{" if target.guard else "{"):
            if target.joined or not whole:
                self.out.line("int task_ = mn::block();")
            else:
                self.out.line("int task_ = now_.task;")
            for before in target.before:
                self.out.line(f"task_ = mn::after(task_, {before.tasks});")
            with self.out.block(f"if (task_ < {target.phase.tasks}) {{"):
                self._fetch(prefetch, target, whole, whole and self.arrives(phase))

    def arrives(self, phase: Phase) -> bool:
        """Whether blocks arrive at a barrier before they fetch early behind ``phase``: one follows its every run."""
        if not phase.prefetches:
            return False
        items = [item for item, _ in self.program.trace()]
        after = [*items[1:], phase]
        return all(isinstance(b, Barrier) for a, b in zip(items, after, strict=True) if a is phase)

    def _fetch(self, prefetch: Prefetch, target: Next, whole: bool, arrived: bool) -> None:
        source = operand(target.phase.task, prefetch.role)
        self.decode(target.phase, "task_")
        pointer = self.pointer(source, target.phase, target.loop, "f_", target.row)
        ranges = {a.var: (0, a.extent - 1) for a in target.phase.domain}
        printer = CudaPrinter({source.role: pointer}, ranges)
        corner = self.corner(printer, source)
        template = cuda_template(target.phase)
        if whole and template.early == prefetch.role and target.free:
            if not arrived:
                self.out.line("mn::stage_fence();")
                self.out.line("mn::sync_block();  // what lies there has been read")
            template.write_fetch(target.phase, printer, self)
            self.out.line(f"now_.fetched = ordinal + {target.distance};")
        else:
            rows = self.extent(source, len(source.box.size) - 2, printer)
            steps, *inner = pointer.buffer.layout.dims[-2]
            size = f"({rows}) * {steps[1] // prod(f for f, _ in inner) * pointer.buffer.itemsize}"
            self.out.line(f"mn::hint({corner}, mn::min({size}, {HINT_BYTES}));")

    def decode(self, phase: Phase, task: str) -> None:
        """Declare the domain's variables of a task number."""
        extents = {a.var: a.extent for a in phase.domain}
        step = phase.tasks
        for position, var in enumerate(phase.assign.order or tuple(extents)):
            step //= extents[var]
            text = task + (f" / {step}" if step > 1 else "") + (f" % {extents[var]}" if position else "")
            self.out.line(f"[[maybe_unused]] const int {var} = {text};")

    def next_run(self, name: str, phase: Phase, loop: Loop | None) -> Next | None:
        """The next run of the phase ``name`` after a run of ``phase``; None where there is none."""
        owner = next((i for i in self.program.body if isinstance(i, Loop) and any(p is phase for p in i.body)), None)
        home = next(
            (i for i in self.program.body if isinstance(i, Loop) and any(getattr(p, "id", "") == name for p in i.body)),
            None,
        )
        trace = list(self.program.trace())
        here = next(n for n, (item, _) in enumerate(trace) if item is phase)
        ahead = range(here + 1, len(trace))
        there = next((n for n in ahead if getattr(trace[n][0], "id", None) == name), None)
        if there is None or (owner is not None and home is not owner):
            return None  # it does not come after every run of this phase
        found, values = trace[there]
        assert isinstance(found, Phase)
        between = [item for item, _ in trace[here + 1 : there]]
        last = max((n for n, item in enumerate(between) if isinstance(item, Barrier)), default=-1)
        before = tuple(item for item in between[last + 1 :] if isinstance(item, Phase))
        distance = 1 + sum(isinstance(item, Phase) for item in between)
        row, guard = "", ""
        if home is not None:
            row = str(values[home.var])
            if home is owner:
                later = values[home.var] - trace[here][1][home.var]
                row = f"{home.var} + {later}" if later else home.var
                guard = f"{home.var} + {later} < {home.count}" if later else ""
        staged = [cuda_template(item).stages(item, self) for item in (*between, found) if isinstance(item, Phase)]
        return Next(found, home, row, guard, distance, last >= 0, before, not staged[-1] or not any(staged[:-1]))
