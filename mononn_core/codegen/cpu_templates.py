"""Prints calls of the hand-written CPU templates with their generated epilogues."""

from __future__ import annotations

from mononn_core.codegen.cpu_storage import CpuStorage, template_base
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.loops import is_cheap, score_text, write_element
from mononn_core.codegen.storage import row_stride
from mononn_core.program.expr import Var
from mononn_core.program.ir import Operand, Phase


class CpuTemplates(CpuStorage):
    """Products and attention."""

    def matmul(self, phase: Phase, printer: Printer) -> None:
        task = phase.task
        a, b = (next(o for o in task.operands if o.role == r) for r in ("a", "b"))
        if "panel" not in task.params:
            self._product(phase, a, b, printer)
            return
        rows, rows_text = self.extents(phase, a, 0, printer)
        columns, columns_text = self.extents(phase, b, 1, printer)
        panel = int(task.params["panel"])
        result = task.results[0]
        inner = self.element_printer(printer, result.axes, (a.box.size[0], panel))
        ragged = columns != (panel,)
        if ragged:
            self.out.line(f"const long end_ = {columns_text};")
        with self.out.block(f"auto element_ = [&](long {result.axes[0]}, long {result.axes[1]}, auto v_) {{", "};"):
            write_element(self.out, result, inner)
        cheap = "true" if is_cheap(result) else "false"
        lda, ldb = (row_stride(printer.pointers[o.role].buffer) for o in (a, b))
        places = f"{self.corner(printer, a)}, {lda}, {self.corner(printer, b)}, {ldb}"
        operands = f"{places}, {a.box.size[1]}"
        function_text = "element_"
        outside = ragged and not self._may_overread(b, printer)
        if outside:  # a register tile would read past the caller's array (or the file) in the last panel
            edge = f"mn::product({rows_text}, end_, {a.box.size[1]}, {places}, element_);"
            self.out.line(f"if (end_ < {panel}) {edge}")
        elif ragged:
            m, n = result.axes
            self.out.line(
                f"auto edge_ = [&](long {m}, long {n}, auto v_) {{ mn::ragged({m}, {n}, end_, v_, element_); }};"
            )
            function_text = "edge_"
        guard = f"if (end_ == {panel}) " if outside else "if (end_ > 0) " if min(columns) == 0 else ""
        call = f"{panel}, {cheap}>({operands}, {function_text});"
        calls = [(rows_text, r, f"{guard}mn::matmul<{r}, {call}") for r in rows if r > 0]
        self.choose(calls, 0 in rows)

    def _may_overread(self, b: Operand, printer: Printer) -> bool:
        """Whether the elements after the last column may be read: packed panels are padded, the arena has a margin."""
        buffer = printer.pointers[b.role].buffer
        return buffer.space == "arena" or len(buffer.layout.dims[1]) > 1

    def _product(self, phase: Phase, a: Operand, b: Operand, printer: Printer) -> None:
        """A product in tiles no register tile fits; its first right-hand side may lie in a fetched slot."""
        result = phase.task.results[0]
        inner = self.element_printer(printer, result.axes, (a.box.size[0], b.box.size[1]))
        with self.out.block(f"auto element_ = [&](long {result.axes[0]}, long {result.axes[1]}, auto v_) {{", "};"):
            write_element(self.out, result, inner)
        corner, stride = self.corner(printer, b), str(row_stride(printer.pointers["b"].buffer))
        slot = self.slots().get((phase.id, "b"))
        if slot:
            local = self.buffers[slot]
            self.out.line(f"const bool fetched_ = {self._is_first(phase)};")
            corner = f"fetched_ ? (const float *){self.base(slot, local)} : {corner}"
            stride = f"fetched_ ? {row_stride(local)} : {stride}"
        (_, m), (_, k), (_, n) = (self.extents(phase, o, d, printer) for o, d in ((a, 0), (b, 0), (b, 1)))
        left = f"{self.corner(printer, a)}, {row_stride(printer.pointers['a'].buffer)}"
        self.out.line(f"mn::product({m}, {n}, {k}, {left}, {corner}, {stride}, element_);")

    def _is_first(self, phase: Phase) -> str:
        """Whether the task at hand is this worker's first in the phase."""
        if phase.assign.kind != "owned":
            return "task_ == first_"
        owner = phase.assign.owner
        conditions = [f"{v} == {'first_' if owner == Var(v) else '0'}" for v in phase.assign.order]
        return " && ".join(conditions) or "true"

    def attention(self, phase: Phase, printer: Printer) -> None:
        task = phase.task
        q, k, v = (next(o for o in task.operands if o.role == r) for r in "qkv")
        result = task.results[0]
        inner = self.element_printer(printer, result.axes, (q.box.size[0], v.box.size[1]))
        scores = self.element_printer(printer, ("i", "j"), (q.box.size[0], k.box.size[0]))
        self.out.line(self.local_floats())
        with self.out.block("auto score_ = [&](long i, long j, auto v_) {", "};"):
            self.out.line("using T = decltype(v_);")
            self.out.line("(void)i, (void)j;")
            self.out.line(f"return T({score_text(task.prologue['score'], scores)});")
        with self.out.block(f"auto element_ = [&](long {result.axes[0]}, long {result.axes[1]}, auto v_) {{", "};"):
            write_element(self.out, result, inner)
        rows, rows_text = self.extents(phase, q, 0, printer)
        parts = []
        for operand in (q, k, v):
            parts += [self.corner(printer, operand), str(row_stride(printer.pointers[operand.role].buffer))]
        calls = []
        for r in (r for r in rows if r > 0):
            guard = "true" if task.params.get("guard") else "false"
            shape = f"mn::Attention<{r}, {k.box.size[0]}, {q.box.size[1]}, {v.box.size[1]}, {guard}>"
            self.out.line(f"static_assert({shape}::FLOATS * 4 <= {self.scratch - template_base(self.program)});")
            calls.append((rows_text, r, f"{shape}::run({', '.join(parts)}, local_, score_, element_);"))
        self.choose(calls, 0 in rows)
