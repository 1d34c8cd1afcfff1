"""Prints a Program as CUDA kernels: one cooperative kernel, or one kernel for every interval between barriers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from mononn_core.codegen.cpu import comment_text, function
from mononn_core.codegen.cuda_expressions import CudaPrinter
from mononn_core.codegen.cuda_functions import Function, Functions
from mononn_core.codegen.cuda_storage import cuda_template
from mononn_core.codegen.cuda_sync import CudaSync
from mononn_core.codegen.writer import Writer
from mononn_core.errors import UnsupportedError
from mononn_core.program.abi import ENTRY, gpu_header
from mononn_core.program.ir import Barrier, Loop, Phase, Program, Table

PART = "mononn_part"
_PARAMETERS = (
    "unsigned char *arena_, const unsigned char *weights_, uint32_t *sync_, const mononn_gpu_call &call, "
    "mn::Turn now_, int ordinal"
)


@dataclass(frozen=True)
class Kernel:
    """A launch: the kernel's name, the executed phases it runs (by ordinal), and its ``iteration`` argument (kernels of
    a whole run take none)."""

    name: str
    ordinals: tuple[int, ...]
    iteration: int = 0


@dataclass(frozen=True)
class CudaSource:
    """Generated CUDA C++.

    Attributes:
        text: the source; what it includes is :mod:`mononn_core.vocabulary`.
        shared_bytes: dynamic shared memory of every launch.
        kernels: the launches of one inference, in order.
    """

    text: str
    shared_bytes: int
    kernels: tuple[Kernel, ...]


def print_program(
    program: Program, threads: int, launch: str = "once", comment: str = "", rounded: bool = False
) -> CudaSource:
    """CUDA C++ of ``program`` for blocks of ``threads`` threads.

    Args:
        program: a verified Program whose phases are dealt in strides.
        threads: a multiple of 32, at most 1024.
        launch: "once": the kernel ``mononn_run``, to be launched cooperatively in one resident wave of any number of
            blocks; "graph": a kernel for every interval between barriers, launched in order.
        comment: how it was made; goes into the opening comment, after the model's name, phases, barriers and memory.
        rounded: whether results are stored in 16 bits, so that elementary functions may be off by 6e-7.

    Raises:
        UnsupportedError: a phase whose tile the block cannot cover, or an element type or template without a form.
    """
    return _CudaPrinter(program, threads).source(launch, comment, rounded)


def arrival(phase: Phase) -> str:
    """The name of the function in which a block arrives at the barrier behind ``phase``, and fetches early."""
    return function(phase).replace("phase_", "arrive_", 1)


class _CudaPrinter(CudaSync):
    def __init__(self, program: Program, threads: int) -> None:
        super().__init__(program, threads)
        owned = next((p for p in program.phases() if p.assign.kind != "strided"), None)
        if owned is not None:
            raise UnsupportedError(f"phase {owned.id!r} is dealt to owners, which blocks are not; deal it in strides")
        self.executed = sum(isinstance(i, Phase) for i, _ in program.trace())
        self.counters = sum(prod(c.shape) for c in program.counters)
        self.shared_bytes = program.scratch_bytes
        self.printed: list[Function] = []

    def source(self, launch: str, comment: str, rounded: bool) -> CudaSource:
        whole = launch == "once"
        self._heading(comment)
        self.out.line(f"#define MONONN_THREADS {self.threads}")
        if rounded:
            self.out.line("#define MONONN_ROUNDED")
        for line in gpu_header(len(self.program.inputs), len(self.program.outputs)).splitlines():
            self.out.line(line)
        self.out.line('#include "mononn_attention.cuh"')
        for header in dict.fromkeys(cuda_template(p).cuda_header for p in self.program.phases()):
            if header:
                self.out.line(f'#include "{header}"')
        for table in self.program.tables:
            self._table(table)
        for item in self.program.body:
            for phase in item.body if isinstance(item, Loop) else (item,):
                if isinstance(phase, Phase):
                    self._phase(phase, item if isinstance(item, Loop) else None, whole)
        self.functions = Functions(self.printed)
        self.functions.write(self.out, "MN_PHASE mn::Turn", _PARAMETERS)
        kernels = self._whole() if whole else self._parts()
        return CudaSource(self.out.text(), self.shared_bytes, kernels)

    def _heading(self, comment: str) -> None:
        p, line = self.program, self.out.line
        barriers = sum(isinstance(i, Barrier) for i, _ in p.trace())
        line(f"// {comment_text(p.name)}: {self.executed} phases, {barriers} barriers, {self.counters} counters.")
        line(
            f"// Arena {p.arena_bytes} bytes, weights {p.weight_bytes} bytes, shared {self.shared_bytes} bytes a block."
        )
        for b in p.buffers:
            if b.space == "arena":
                line(f"//   {b.offset:>10} {b.nbytes:>10}  {comment_text(b.id)} {b.dtype}{list(b.shape)}")
        for text in comment.splitlines():
            line(f"// {text}")

    def _table(self, table: Table) -> None:
        columns = self.uneven(table)
        if not columns:
            return
        values = zip(*(self.offsets(table, c) for c in columns), strict=True)
        self.out.line()
        with self.out.block(f"MN_CONSTANT int64_t table_{table.id}[{len(table.rows)}][{len(columns)}] = {{", "};"):
            for row in values:
                self.out.line("{" + ", ".join(map(str, row)) + "},")

    # -- phases -----------------------------------------------------------------------------------------------------

    def _phase(self, phase: Phase, loop: Loop | None, whole: bool) -> None:
        origin = comment_text(", ".join(map(str, phase.origin[:4])))
        arrives = whole and self.arrives(phase)
        with self._function(function(phase), f"{comment_text(phase.id)}: {phase.tasks} tasks; {origin}", loop) as out:
            pointers = {o.role: self.pointer(o, phase, loop) for o in phase.task.operands}
            ranges = {a.var: (0, a.extent - 1) for a in phase.domain}
            if loop:
                ranges[loop.var] = (0, loop.count - 1)
            printer = CudaPrinter(pointers, ranges)
            if cuda_template(phase).early:
                out.line("bool early_ = now_.fetched == ordinal;")
            with out.block(f"for (; now_.task < {phase.tasks}; now_.task += mn::blocks()) {{"):
                self.decode(phase, "now_.task")
                self._task(phase, printer)
            out.line(f"now_.task -= {phase.tasks};")
            if not arrives:
                self._fetches(phase, loop, whole)
        if arrives:
            with self._function(arrival(phase), f"behind {comment_text(phase.id)}", loop) as out:
                out.line("now_.arrive(sync_);")
                self._fetches(phase, loop, whole)

    @contextmanager
    def _function(self, name: str, comment: str, loop: Loop | None) -> Iterator[Writer]:
        """Prints what is written meanwhile as a phase's function, or as one that runs after it."""
        outer, self.out, self.places = self.out, Writer(), []
        self.out.line("(void)arena_, (void)weights_, (void)sync_, (void)call, (void)ordinal;")
        yield self.out
        self.out.line("return now_;")
        made = Function(name, comment, self.out.lines, tuple(self.places), loop.var if loop else "")
        self.printed.append(made)
        self.out = outer

    def _fetches(self, phase: Phase, loop: Loop | None, whole: bool) -> None:
        for prefetch in phase.prefetches:
            self.fetch(prefetch, phase, loop, whole)

    def _task(self, phase: Phase, printer: CudaPrinter) -> None:
        for wait in phase.waits:
            self.wait(wait, printer)
        cuda_template(phase).write_cuda(phase, printer, self)
        for signal in phase.signals:
            self.signal(signal, printer)

    # -- kernels ----------------------------------------------------------------------------------------------------

    def _whole(self) -> tuple[Kernel, ...]:
        """All phases in one kernel."""
        out = self.out
        out.line()
        with out.block(self._opening(ENTRY, "")):
            self._begin(list(self.program.phases()))
            out.line("int ordinal = 0;")
            out.line(f"mn::Trace trace{{call.trace, {self.executed}}};")
            for item in self.program.body:
                if isinstance(item, Loop):
                    with out.block(f"MN_NOUNROLL for (int {item.var} = 0; {item.var} < {item.count}; ++{item.var}) {{"):
                        self._steps(item.body, True)
                else:
                    self._steps((item,), True)
            self._leave()
        return (Kernel(ENTRY, tuple(range(self.executed))),)

    def _opening(self, name: str, more: str) -> str:
        bounds = f"__launch_bounds__({self.threads}, 1)"
        return f'extern "C" __global__ void {bounds} {name}(const __grid_constant__ mononn_gpu_call call{more}) {{'

    def _begin(self, phases: Sequence[Phase]) -> None:
        if any(cuda_template(p).stages(p, self) for p in phases):
            self.out.line("mn::open_stages();")
        self.out.line("mn::Turn now_{mn::block(), -1};")

    def _leave(self) -> None:
        if self.counters:
            self.out.line(f"mn::leave(call.sync, {self.counters});")

    def _steps(self, items: tuple[Phase | Barrier, ...], whole: bool) -> None:
        """Barriers and phases with their trace points; a barrier's wait counts for the phase after it."""
        for item in items:
            if isinstance(item, Barrier):
                self.out.line("trace.barrier(ordinal);")
                self.out.line("now_.barrier(call.sync);")
            else:
                self.out.line("trace.begin(ordinal);")
                self._call(function(item))
                self.out.line("trace.end(ordinal);")
                if whole and self.arrives(item):
                    self._call(arrival(item))
                self.out.line("++ordinal;")

    def _call(self, name: str) -> None:
        found, more = self.functions.call(name)
        self.out.line(f"now_ = {found}(call.arena, call.weights, call.sync, call, now_, ordinal{more});")

    def _parts(self) -> tuple[Kernel, ...]:
        """A kernel for every interval as written; a loop begins and ends intervals."""
        launches: list[Kernel] = []
        names = ordinal = 0
        for loop, intervals in self._intervals():
            firsts = []
            for interval in intervals:
                firsts.append(ordinal)
                ordinal += len(interval)
            each = ordinal - firsts[0]
            for iteration in range(loop.count if loop else 1):
                for number, (interval, first) in enumerate(zip(intervals, firsts, strict=True)):
                    start = first + iteration * each
                    ordinals = tuple(range(start, start + len(interval)))
                    launches.append(Kernel(f"{PART}_{names + number}", ordinals, iteration))
            ordinal += each * (loop.count - 1) if loop else 0
            for interval, first in zip(intervals, firsts, strict=True):
                last = ordinal == self.executed and interval is intervals[-1]
                self._part(f"{PART}_{names}", interval, loop, f"{first} + (int)iteration * {each}", last)
                names += 1
        return tuple(launches)

    def _part(self, name: str, interval: list[Phase], loop: Loop | None, ordinal: str, last: bool) -> None:
        out = self.out
        out.line()
        with out.block(self._opening(name, ", uint32_t iteration")):
            self._begin(interval)
            out.line(f"int ordinal = {ordinal};")
            out.line(f"mn::Trace trace{{call.trace, {self.executed}}};")
            if loop:
                out.line(f"const int {loop.var} = (int)iteration;")
            self._steps(tuple(interval), False)
            if last and loop and self.counters:
                with out.block(f"if ({loop.var} == {loop.count - 1}) {{"):
                    self._leave()
            elif last:
                self._leave()

    def _intervals(self) -> list[tuple[Loop | None, list[list[Phase]]]]:
        """Phases between barriers, as written; those outside loops stand alone."""
        found: list[tuple[Loop | None, list[list[Phase]]]] = []
        opened = False
        for item in self.program.body:
            if isinstance(item, Loop):
                groups: list[list[Phase]] = [[]]
                for inner in item.body:
                    if isinstance(inner, Phase):
                        groups[-1].append(inner)
                    elif groups[-1]:
                        groups.append([])
                found.append((item, [g for g in groups if g]))
            elif isinstance(item, Phase):
                if opened:
                    found[-1][1][-1].append(item)
                else:
                    found.append((None, [[item]]))
            opened = isinstance(item, Phase)
        return found
