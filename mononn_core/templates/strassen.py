"""Products by a constant with seven eighths of the multiplications: a [M, K] times b [K, N], result axes (m, n).

Strassen's algorithm ("Gaussian elimination is not optimal", Numerische Mathematik 13, 1969) in Winograd's form ("On
multiplication of 2 x 2 matrices", Linear Algebra and its Applications 4, 1971), one level deep: a task cuts its rows,
its panel and each run of terms into halves. Of the seven right sides b holds four, which lie where the panel's
quadrants would (see :func:`transformed`); the others are sums of two of them, made as they are loaded: an alternative
basis as in Karstadt and Schwartz, "Matrix multiplication, a little faster", SPAA 2017. The seven left sides are made
once for all panels of a block of rows, in the worker's memory.

Rounding errors are about twice those of the plain product, and those of a row are relative to the larger one of it and
the row that it is paired with. Where rows are not all finite, or so large that sums might overflow, their block is
multiplied plainly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod
from typing import ClassVar

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.epilogues import write_element
from mononn_core.codegen.loops import is_cheap
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE, itemsize
from mononn_core.graph import Node
from mononn_core.program.expr import Expr
from mononn_core.program.ir import Box, Phase, Task
from mononn_core.program.template import Array, Running, operand
from mononn_core.schedule.binder import OWNER, PANEL, SEGMENT, OperandBinder
from mononn_core.schedule.decisions import exposed, most_at_once
from mononn_core.schedule.operands import Product
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition, Tile
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import Ways
from mononn_core.templates.product import ProductTemplate, product_of
from mononn_core.templates.product_tiles import TiledProduct, nearly_fill, owners_along, row_blocks

RUN, TERMS, LINE = 1024, 32, 16
"""Terms of a run, at most; how many of them a run has a multiple of; floats of a cache line: as in the headers."""
MOST_WEIGHT = 2.0**20
"""Of b, whose sums with the largest left sides do not overflow (see ``MOST_LEFT`` in the header)."""
SAVED, LEFT, SUMS = 0.09, 10.0, 14.0
"""Share of the plain product's time that is saved, and what is lost of it again: for the left sides over the columns,
for the sums of products over the terms (measured: AMD family 25 model 17)."""
LEAST = 0.045
"""Share saved, at least, where it is preferred."""
FEWEST = 48
"""Rows, at least, of all specialisations that share weights: fewer read them more slowly (measured)."""
LEFT_SIDES = 7
"""Bytes of left sides for each element of a."""


class Strassen(ProductTemplate, CpuTemplate, TiledProduct):
    """See the module."""

    name = "strassen"
    op = "matmul"
    filled = ""
    header = "mononn_strassen.hpp"
    panel_vectors: ClassVar[tuple[int, ...]] = (4, 6)

    def compute(self, task: Task, running: Running) -> Array:
        b, panel = running.matrix("b"), self.params(task).panel
        return np.asarray(running.matrix("a") @ (plain(b, panel) if b.size else b))

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        """Where it saves time, on processors on which that was measured."""
        if not _able(stage, builder):
            return None
        p = product_of(stage, builder)
        many = builder.smallest == 1 or p.m * builder.smallest >= FEWEST
        return 1 if builder.machine.strassen and many and saved(p.m, p.n, p.k) >= LEAST else -1

    def most(self, stage: FusionGroup, panel: int, builder: PhaseBuilder) -> int:
        return most_at_once(panel // builder.lanes // 2, builder.machine)

    def rate(self, phase: Phase) -> float:
        (rows, terms), panel = operand(phase.task, "a").box.size, self.params(phase.task).panel
        panels = prod(axis.extent for axis in phase.domain if axis.var in (SEGMENT, PANEL))
        return self.efficiency / (1 - saved(rows, panels * panel, terms))

    def exposed(self, task: Task) -> float:
        return exposed(ceil(operand(task, "a").box.size[0] / 2), self.params(task).at_once)

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        found = super().ways(stage, builder, owners)
        return replace(found, partitions=tuple(way for way in found.partitions if _panels(stage, builder, way)))

    def tile(self, stage: FusionGroup, builder: PhaseBuilder, partition: Partition) -> Tile:
        p, by_rows = product_of(stage, builder), owners_along(partition)[0]
        again = (itemsize(COMPUTE) * p.k * p.n, p.n // _parts(partition) // (4 * builder.lanes))
        rows, blocks = row_blocks(ceil(p.m / by_rows), LEFT_SIDES * p.k, again, by_rows, builder.machine)
        panel, *wider = _panels(stage, builder, partition)
        if wider and nearly_fill(ceil(rows / 2), 3, builder.machine):
            panel = wider[0]
        return Tile(rows, blocks, panel, self.most(stage, panel, builder))

    def problem(self, stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> str:
        known, tile = super().problem(stage, builder, group), group.tile
        if known or tile is None or tile.panel in _panels(stage, builder, group.partition):
            return known
        return f"panels of {tile.panel} columns do not fill what an owner has"

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        """All panels of a block of an owner's rows follow one another: left sides are made once."""
        phase = super().build(builder, stage, decided, name)
        order = sorted(phase.assign.order, key=lambda var: var != OWNER)
        return replace(phase, assign=replace(phase.assign, order=tuple(order)))

    def right(
        self, builder: PhaseBuilder, root: Node, size: tuple[int, int], binder: OperandBinder, at: tuple[Expr, ...]
    ) -> dict[str, object]:
        b, p, (terms, panel), (_, k0, n0) = root.inputs[1], Product.of(root, builder.types), size, at
        matrix = builder.views.graph.constants[b].reshape(builder.types[b].shape[-2:])
        w = matrix.T if p.transpose_b else matrix
        name = f"{b}@strassen" + ("^T" if p.transpose_b else "")
        packed = builder.pack(root, name, panel, (p.k, p.n), lambda: transformed(w, panel), COMPUTE)
        binder.add("b", packed.id, Box((k0, n0), (terms, panel), (p.k, p.n)), packed=True)
        return {}

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """Left sides of all runs, with what fills lines, and the sums of the runs before one."""
        (rows, terms), panel = operand(task, "a").box.size, self.params(task).panel
        cut, pairs = runs(terms), ceil(rows / 2)
        half = cut[0][1]
        stride = half if half % 256 else half + LINE
        return LEFT_SIDES * len(cut) * pairs * stride + (2 * pairs * panel if len(cut) > 1 else 0)

    def write_state(self, phase: Phase, code: CpuStorage) -> None:
        code.write_scratch(phase)
        code.out.line("mn::LeftSides left_;")

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        task, params = phase.task, self.params(phase.task)
        a, b = (operand(task, role) for role in self.roles)
        rows, rows_text = code.extents(a, 0, printer)
        result = task.results[0]
        write_element(code.out, result, code.element_printer(printer, result.axes, (a.box.size[0], params.panel)))
        code.out.line(f"const float *const a_ = {code.corner(printer, a)};")
        at = f"[&](long m_) {{ return a_ + m_ * {row_stride(printer.pointers['a'].buffer)}; }}"
        given = f"a_, {at}, {code.corner(printer, b)}, local_, left_, element_"
        calls = []
        for r in (r for r in rows if r > 0):
            kernel = f"mn::Strassen<{r}, {a.box.size[1]}, {params.panel}, {params.at_once}>"
            code.assert_fits(phase, kernel)
            calls.append((rows_text, r, f"{kernel}::run<{str(is_cheap(result)).lower()}>({given});"))
        code.choose(calls, 0 in rows)


def saved(rows: int, columns: int, terms: int) -> float:
    """Share of the plain product's time that is saved."""
    return SAVED - LEFT / columns - SUMS / terms - rows % 2 / rows


def runs(terms: int) -> list[tuple[int, int]]:
    """(first term, half of the terms) of each run."""
    each = ceil(terms / TERMS / ceil(terms / RUN)) * TERMS
    return [(first, min(each, terms - first) // 2) for first in range(0, terms, each)]


def transformed(w: Array, panel: int) -> Array:
    """[K, N] as the kernel reads it, N whole panels: where the quadrants B11, B12, B21 and B22 of a run's part of a
    panel would lie, it has T3, -T1, B21 and -T2; T1 = B12 - B11, T2 = B22 - T1, T3 = B22 - B12."""
    found = np.empty(w.shape, w.dtype)
    for (b11, b12, b21, b22), (t3, t1, own, t2) in zip(_quadrants(w, panel), _quadrants(found, panel), strict=True):
        np.subtract(b22, b12, out=t3)
        np.subtract(b11, b12, out=t1)
        own[...] = b21
        np.negative(b22 + t1, out=t2)
    return found


def plain(b: Array, panel: int) -> Array:
    """What :func:`transformed` was made of."""
    found = np.empty(b.shape, b.dtype)
    for (t3, t1, own, t2), (b11, b12, b21, b22) in zip(_quadrants(b, panel), _quadrants(found, panel), strict=True):
        np.negative(t3 + t2, out=b11)
        np.negative(t1 + t2, out=b22)
        np.subtract(b11, t1, out=b12)
        b21[...] = own
    return found


def _quadrants(w: Array, panel: int) -> Iterator[tuple[Array, Array, Array, Array]]:
    """[half of a run, panels, half a panel] of [K, N]: all upper left, upper right, lower left and lower right ones."""
    for first, half in runs(len(w)):
        above, below = (w[k : k + half].reshape(half, -1, 2, panel // 2) for k in (first, first + half))
        yield above[:, :, 0], above[:, :, 1], below[:, :, 0], below[:, :, 1]


def _parts(partition: Partition) -> int:
    """Into how many its columns are cut."""
    return partition.segments * owners_along(partition)[1]


def _panels(stage: FusionGroup, builder: PhaseBuilder, partition: Partition) -> list[int]:
    """Columns of panels that fill an owner's, the fewest first; those of another specialisation where that has packed
    them."""
    assert stage.root is not None
    n, packed = product_of(stage, builder).n, builder.panels.get(stage.root.inputs[1])
    panels = [vectors * builder.lanes for vectors in Strassen.panel_vectors]
    fill = [panel for panel in panels if n % (panel * _parts(partition)) == 0]
    return fill if packed is None else [panel for panel in fill if panel == packed.columns]


def _able(stage: FusionGroup, builder: PhaseBuilder) -> bool:
    """Of floats by a constant, in whole panels and halves of whole vectors, which no other specialisation of the
    network has packed for another template."""
    root = stage.root
    assert root is not None
    p, (a, b) = Product.of(root, builder.types), root.inputs[:2]
    floats = builder.multiplied(root) == COMPUTE == builder.storage.get(a, builder.types[a].dtype)
    if not floats or not p.batch == 1 <= p.k or p.k % TERMS or not builder.views.graph.is_constant(b):
        return False
    packed = builder.panels.get(b)
    free = not builder.half(root) if packed is None else packed.template == Strassen.name
    return free and bool(_panels(stage, builder, Partition("single", 1))) and builder.largest(b) <= MOST_WEIGHT


TEMPLATE = Strassen()
