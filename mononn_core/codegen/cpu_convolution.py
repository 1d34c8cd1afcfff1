"""Prints calls of the convolution templates: geometry as compile-time constants, epilogues as for products."""

from __future__ import annotations

from mononn_core.codegen.cpu_storage import CpuStorage, template_base
from mononn_core.codegen.cstyle import Printer, varies
from mononn_core.codegen.loops import is_cheap, write_element
from mononn_core.codegen.storage import row_stride
from mononn_core.program.expr import Const, Load, minimum, op, walk
from mononn_core.program.ir import Operand, Phase, Result, Task
from mononn_core.program.simplify import simplify
from mononn_core.program.windows import Windows

HEADER = "mononn_winograd.hpp"


class CpuConvolution(CpuStorage):
    """Convolutions over the windows of an image."""

    def conv(self, phase: Phase, printer: Printer) -> None:
        """One call a number of image rows that a task may have."""
        task = phase.task
        windows = Windows.of(task.params)
        a, b = (next(o for o in task.operands if o.role == r) for r in ("a", "b"))
        pixels, pixels_text = self.extents(phase, a, 0, printer)
        columns, columns_text = self.extents(phase, b, 1, printer)
        result, panel = task.results[0], int(task.params["panel"])
        depthwise = task.template == "depthwise"
        y, x, n = result.axes
        inner = self.element_printer(printer, result.axes, (windows.rows, windows.width, panel))
        with self.out.block(f"auto element_ = [&](long {y}, long {x}, long {n}, auto v_) {{", "};"):
            write_element(self.out, result, inner)
        if not depthwise:
            self._ahead(result, inner)
        function = "element_"
        if columns != (panel,):
            function = "edge_"
            self.out.line(f"const long end_ = {columns_text};")
            edge = f"mn::ragged({y}, {n}, end_, v_, [&](long, long at_, auto w_) {{ element_({y}, {x}, at_, w_); }});"
            self.out.line(f"auto edge_ = [&](long {y}, long {x}, long {n}, auto v_) {{ {edge} }};")
        lda = row_stride(printer.pointers["a"].buffer)
        pairs = ", ".join(f"{v}, {h}" for v, h in (windows.kernel, windows.strides, windows.dilations))
        shape = f"{lda}, {windows.pitch}, {windows.width}, {pairs}"
        self.out.line(f"using Windows_ = mn::Windows<{a.box.size[1]}, {shape}>;")
        if "grouped" in task.params:
            self._one_group(task, a, b, shape, printer)
        corners = f"{self.corner(printer, a)}, {self.corner(printer, b)}"
        ldb, calls = row_stride(printer.pointers["b"].buffer), []
        for count in pixels:
            rows = windows.rows_in(count)
            if depthwise:
                call = f"mn::depthwise<Windows_, {rows}, {task.params.get('group', 1)}>({corners}, {ldb}, {function});"
            elif task.template == "winograd":
                call = self._winograd(rows, panel, corners, function)
            else:
                cheap = "true" if is_cheap(result) else "false"
                guard = "if (end_ > 0) " if min(columns) == 0 else ""
                call = f"mn::conv<Windows_, {rows}, {panel}, {cheap}>({corners}, {function}, ahead_);"
                if "grouped" in task.params:
                    skip = a.box.size[1] - task.params["grouped"][0]
                    first = f"{self.corner(printer, a)} + first_, {self.corner(printer, b)} + first_ * {panel}"
                    one = f"mn::conv<Group_, {rows}, {panel}, {cheap}, {skip}>({first}, {function}, ahead_);"
                    call = f"{{ if (alone_) {one} else {call} }}"
                call = guard + call
            if rows:
                calls.append((pixels_text, count, call))
        self.choose(calls, windows.rows_in(min(pixels)) == 0)

    def _one_group(self, task: Task, a: Operand, b: Operand, shape: str, printer: Printer) -> None:
        """Whether all of a panel's results are of one group, and which of the channels that are read are the group's:
        the others have zero weights, so that such a panel needs not read them."""
        mine, width, channels = task.params["grouped"]
        panel, column = task.params["panel"], b.box.offset[1]
        last = minimum(column + panel, Const(b.box.bound[1])) - 1
        group = column // width
        alone = simplify(op("eq", last // width, group), printer.ranges)
        first = simplify(op("max", group * mine - (channels - a.box.size[1]), Const(0)), printer.ranges)
        self.out.line(f"using Group_ = mn::Windows<{mine}, {shape}>;")
        self.out.line(f"const bool alone_ = {printer.index(alone)};")
        self.out.line(f"const long first_ = {printer.index(first)};")

    def _winograd(self, rows: int, panel: int, corners: str, function: str) -> str:
        """A call that transforms the windows unless they lie in local memory already."""
        kernel = f"mn::Winograd<Windows_, {rows}, {panel}>"
        self.out.line(f"static_assert({kernel}::FLOATS * 4 <= {self.scratch - template_base(self.program)});")
        return f"{kernel}::run({corners}, local_, transformed_, {function}, ahead_);"

    def _ahead(self, result: Result, printer: Printer) -> None:
        """A function that prefetches the line an epilogue stores to and those it reads of other images."""
        y, x, n = result.axes
        loads = [(e.operand, e.index) for e in walk(result.value) if isinstance(e, Load)]
        with self.out.block(f"auto ahead_ = [&](long {y}, long {x}, long {n}) {{", "};"):
            for operand, index in dict.fromkeys([(result.operand, result.index), *loads]):
                pointer = printer.pointers[operand]
                offset = pointer.address(index, printer.ranges)
                known = not any(isinstance(e, Load) for e in walk(offset))
                if known and (varies(offset, y) or varies(offset, x)):
                    function = "mn::prefetch_write" if operand == result.operand else "__builtin_prefetch"
                    self.out.line(f"{function}({pointer.name} + {printer.index(offset)});")
