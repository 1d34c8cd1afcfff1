"""Direct convolution: a product whose left rows shift from tap to tap, accumulators in registers over all; no copies.

The sum over i, j, c of a[(y sh + i dh) pitch + x sw + j dw, c] b[(i KW + j) C + c, n]. A grouped convolution is cut
into panels that read the few input channels of their groups; a panel that spans several groups has zeros in its
weights where a group does not read a channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from mononn_core.codegen.cpu_storage import TILES, CpuStorage, is_narrow, write_tiles
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.loops import is_cheap
from mononn_core.codegen.storage import row_stride
from mononn_core.element import COMPUTE, itemsize
from mononn_core.ops.common import integers
from mononn_core.program.expr import Const, Expr, Var, minimum, op, wrap
from mononn_core.program.ir import Phase, Task
from mononn_core.program.simplify import simplify
from mononn_core.program.template import Array, Running, operand
from mononn_core.program.windows import Pair
from mononn_core.schedule.binder import BLOCK, OWNER, Matrix, TaskBuilder
from mononn_core.schedule.decisions import TILED_ROWS, exposed
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule
from mononn_core.schedule.stages import FusionGroup
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.windowed import Windowed, WindowParams, corners


@dataclass(frozen=True)
class ConvParams(WindowParams):
    """``together``: terms that lie side by side, so that each ``joined`` taps have whole groups of rows of b; these
    taps' channels are neighbours in a. ``grouped``: (input channels of a group, its output channels, all input
    channels) where a panel may span several groups: it promises zeros in b where n's group does not read c.
    ``tile_groups``: groups of terms multiplied together in tile registers (0: in vectors). ``seven_bits``: it promises
    bytes from -64 to 64 in b. ``inside``: (top, bottom, left, right), the rows and columns of the only image outside of
    which it promises zeros (all 0: none), and ``starts`` how many of its rows an owner and a block begin further on."""

    grouped: tuple[int, int, int] = (0, 0, 0)
    together: int = 1
    joined: int = 1
    seven_bits: bool = False
    tile_groups: int = 0
    inside: tuple[int, int, int, int] = (0, 0, 0, 0)
    starts: tuple[int, int] = (0, 0)


FAR_PANEL, SOME_TERMS, WAITING = 1 << 18, 1024, 1 << 13
"""Bytes of a panel from which on tiles pass over so many terms of it at a time, and sums that may wait meanwhile, as in
the headers."""
SPREAD = 1
"""Multiply-adds of vectors in whose time an input is read and spread over one, about (measured)."""


class Direct(Windowed[ConvParams]):
    """See the module."""

    name = "conv"
    parameters = ConvParams
    efficiency = 0.95

    def exposed(self, task: Task) -> float:
        params = self.params(task)
        return exposed(params.rows * params.width, params.at_once)

    def terms(self, task: Task, channels: Array) -> Array:
        params = self.params(task)
        return params.taps // params.joined * (-(-channels * params.joined // params.together) * params.together)

    def compute(self, task: Task, running: Running) -> Array:
        a, b, joined = running.matrix("a"), running.matrix("b"), self.params(task).joined
        taps, (channels, columns) = self.windows(task).taps_of(a), (a.shape[1], b.shape[1])
        runs = len(taps) // joined
        rows = b.reshape(runs, b.shape[0] // runs, columns)[:, : channels * joined]
        parts = rows.reshape(len(taps), channels, columns)  # a panel past the last has no columns
        return np.asarray(sum(np.matmul(tap, part) for tap, part in zip(taps, parts, strict=True)))

    def most_rows(self, conv: Conv, panel: int, row_bytes: int, builder: PhaseBuilder) -> int:
        """More of a product with long sums, whose tiles pass over some terms at a time: as many as sums may wait."""
        most, terms = super().most_rows(conv, panel, row_bytes, builder), self.reads(conv, panel)
        if conv.taps > 1 or conv.dtype != COMPUTE or terms * panel * itemsize(COMPUTE) < FAR_PANEL:
            return most
        near = super().most_rows(conv, panel, ceil(row_bytes * SOME_TERMS / terms), builder)
        return max(most, min(near, WAITING // (panel * conv.out[2])))

    def panels(self, conv: Conv, lanes: int) -> tuple[int, ...]:
        """Two vectors of output channels, or one where there are no two; three of eight floats where channels fill
        them. Of groups, whichever takes less: panels that span two multiply zeros.
        """
        if conv.lanewise(lanes):
            return ()
        panels = (2 * lanes, lanes) if conv.channels > lanes else (lanes,)
        if conv.group == 1:
            three = conv.dtype == COMPUTE and lanes == 8 and conv.channels % (3 * lanes) == 0
            return (3 * lanes, *panels) if three else panels
        return tuple(sorted(panels, key=lambda n: (sum(_groups_read(conv, n)) * (n // lanes + SPREAD), n)))

    def reads(self, conv: Conv, panel: int) -> int:
        return max(_groups_read(conv, panel)) * conv.of_group[0]

    def first_channel(self, conv: Conv, panel: int, column: Expr) -> Expr:
        if conv.group == 1:
            return Const(0)
        mine, width = conv.of_group
        return minimum(column // width * mine, Const(conv.x[3] - self.reads(conv, panel)))

    def weight_matrix(self, conv: Conv, panel: int, w: np.ndarray) -> tuple[Pair, Matrix]:
        """[taps * what a panel reads, M]."""
        runs = conv.taps // conv.joined
        reads = w.size // (runs * conv.channels) if conv.group == 1 else self.reads(conv, panel)
        rows = runs * ceil(reads / conv.together) * conv.together
        return (rows, conv.channels), lambda: self._matrix(conv, panel, w)

    def _matrix(self, conv: Conv, panel: int, w: np.ndarray) -> np.ndarray:
        (mine, width), channels, reads = conv.of_group, conv.channels, self.reads(conv, panel)
        if conv.group == 1:
            runs = w.reshape(conv.taps // conv.joined, -1, channels)
            return np.pad(runs, ((0, 0), (0, -runs.shape[1] % conv.together), (0, 0))).reshape(-1, channels)
        missing = -reads % conv.together
        n = np.arange(channels)
        first = np.minimum(n // panel * panel // width * mine, conv.x[3] - reads)
        rows = n // width * mine - first
        wide = np.zeros((conv.taps, reads + missing, channels), w.dtype)
        for c in range(mine):
            wide[:, rows + c, n] = w.reshape(conv.taps, mine, channels)[:, c, :]
        return wide.reshape(-1, channels)

    def tag(self, conv: Conv) -> str:
        return "@groups" if conv.group > 1 else "@joined" if conv.joined > 1 else ""

    def more_params(self, conv: Conv, panel: int) -> dict[str, object]:
        if conv.together > 1:
            small = {"seven_bits": True} if conv.seven_bits else {}
            step = conv.step(self.reads(conv, panel))
            tiled = {"tile_groups": step} if step else {}
            return {"together": conv.together, "joined": conv.joined, **tiled, **small}
        spans = conv.group > 1 and self.reads(conv, panel) > conv.of_group[0]
        return {"grouped": (*conv.of_group, conv.x[3])} if spans else {}

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        phase, inside, tile = super().build(builder, stage, decided, name), _inside(builder, stage), decided.tile
        if not inside or decided.partition.kind == "batch":
            return phase
        assert tile is not None
        rows = tile.rows * self.params(phase.task).strides[0]
        starts = (rows * tile.blocks if decided.partition.kind == "rows" else 0, rows)
        return replace(
            phase, task=replace(phase.task, params={**phase.task.params, "inside": inside, "starts": starts})
        )

    def write_more(self, phase: Phase, shape: str, printer: Printer, code: CpuStorage) -> None:
        """Whether all of a panel's results are of one group, and which of the channels that are read are the group's:
        the others have zero weights, so that such a panel needs not read them."""
        task, params = phase.task, self.params(phase.task)
        mine, width, channels = params.grouped
        if mine == 0:
            return
        a, b = operand(task, "a"), operand(task, "b")
        column = b.box.offset[1]
        last = minimum(column + params.panel, Const(b.box.bound[1])) - 1
        group = column // width
        alone = simplify(op("eq", last // width, group), printer.ranges)
        first = simplify(op("max", group * mine - (channels - a.box.size[1]), Const(0)), printer.ranges)
        code.out.line(f"using Group_ = mn::Windows<{mine}, {shape}>;")
        code.out.line(f"const bool alone_ = {printer.index(alone)};")
        code.out.line(f"const long first_ = {printer.index(first)};")

    def headers(self, phase: Phase, code: CpuStorage) -> tuple[str, ...]:
        if self.params(phase.task).tile_groups:
            return (TILES,)
        return ("mononn_dot.hpp",) if is_narrow(phase, code) else super().headers(phase, code)

    def write_state(self, phase: Phase, code: CpuStorage) -> None:
        write_tiles(self.params(phase.task).tile_groups, code)

    def most_at_once(self, conv: Conv, panel: int, builder: PhaseBuilder) -> int:
        if conv.step(self.reads(conv, panel)):
            return TILED_ROWS
        return super().most_at_once(conv, panel, builder)

    def in_vectors(self, phase: Phase, columns: tuple[int, ...], code: CpuStorage) -> str:
        """Of a half panel the kernel computes that half alone."""
        half, panel = self.params(phase.task).panel // 2, self.params(phase.task).panel
        known = not is_narrow(phase, code) and set(columns) <= {0, half, panel}
        return f"{half} % mn::W == 0" if known else ""

    def call(self, phase: Phase, rows: int, function: str, printer: Printer, code: CpuStorage) -> str:
        task, params = phase.task, self.params(phase.task)
        panel, cheap = params.panel, "true" if is_cheap(task.results[0]) else "false"
        tile = f"{rows}, {panel}, {params.at_once}, {cheap}"
        if is_narrow(phase, code):
            kernel, tile = "mn::dot_conv", f"{tile}, {'true' if params.joined > 1 else 'false'}"
        else:
            kernel = "mn::conv"
        a, b = operand(task, "a"), operand(task, "b")
        if params.tile_groups:
            how = f"{rows}, {panel}, {params.at_once}, {params.tile_groups}, {'true' if params.joined > 1 else 'false'}"
            return f"mn::tile_conv<Windows_, {how}>(tiles_, {corners(phase, printer, code)}, {function});"
        right = code.corner(printer, b)
        right = f"mn::seven_bits({right})" if params.seven_bits else right
        end = ""
        if kernel == "mn::conv" and any(0 < n <= panel // 2 for n in code.extents(b, 1, printer)[0]):
            kernel, end = "mn::conv_ragged", "end_, "
        where = ""
        if any(params.inside):
            row, domain = wrap(0), {axis.var for axis in phase.domain}
            for var, rows_apart in zip((OWNER, BLOCK), params.starts, strict=True):
                if var in domain:
                    row = row + Var(var) * rows_apart
            where = f", mn::Inside<{', '.join(map(str, params.inside))}>{{{printer.index(row)}}}"
        apart = "" if b.stable else f", 0, {row_stride(printer.pointers['b'].buffer)}"
        call = f"{kernel}<Windows_, {tile}{apart}>({code.corner(printer, a)}, {right}, {end}{function}, ahead_{where});"
        if params.grouped[0] == 0:
            return call
        skip = a.box.size[1] - params.grouped[0]
        first = f"{code.corner(printer, a)} + first_, {code.corner(printer, b)} + first_ * {panel}"
        one = f"{kernel}<Group_, {tile}, {skip}>({first}, {end}{function}, ahead_);"
        return f"{{ if (alone_) {one} else {call} }}"


def _inside(builder: TaskBuilder, stage: FusionGroup) -> tuple[int, ...]:
    """Where a dilated convolution's only image is no border of zeros; nothing where that is not known or is little."""
    assert stage.root is not None
    conv, name = Conv.of(stage, builder), stage.root.inputs[0]
    pad = builder.views.graph.producers().get(name) if max(conv.dilations) > 1 else None
    known = pad is not None and pad.op == "pad" and pad.attrs["mode"] == "constant" and pad.attrs["value"] == 0.0
    if not known or conv.x[0] != 1 or conv.together > 1 or conv.group > 1:
        return ()
    assert pad is not None
    (_, top, left, _), (_, below, right, _) = (integers(pad.attrs, key) for key in ("before", "after"))
    return (top, conv.x[1] - below, left, conv.x[2] - right) if min(top, left, below, right) >= 0 else ()


def _groups_read(conv: Conv, panel: int) -> list[int]:
    """Groups whose channels each panel multiplies: those that it spans; of terms side by side, as many for all."""
    width, channels = conv.of_group[1], conv.channels
    ends = ((n, min(n + panel, channels) - 1) for n in range(0, channels, panel))
    spans = [last // width - first // width + 1 for first, last in ends]
    return spans if conv.together == 1 else [max(spans)] * len(spans)


TEMPLATE = Direct()
