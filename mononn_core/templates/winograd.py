"""Winograd's F(2x2, 3x3) and F(4x4, 3x3): a 3x3 convolution of stride 1 in tiles of 2 x 2 pixels, 16 multiplications
instead of 36, or of 4 x 4, 36 instead of 144. A dilated one is that of every image that pixels so far apart make.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016. The rounding error is about twice a
direct convolution's, or five times with 4 x 4 pixels (points 0, 5/8, -5/8, 3/2, -3/2 and infinity; with 1, -1, 2, -2 it
is eleven times). An infinite pixel makes every output of the tiles that read it NaN (infinity minus infinity).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any, ClassVar

import numpy as np

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cpu_storage import CpuStorage
from mononn_core.codegen.cstyle import Printer
from mononn_core.element import COMPUTE, HALF_WORD, WIDE, itemsize, together
from mononn_core.machine import LINE_BYTES, Machine
from mononn_core.program.expr import Const, Expr, minimum
from mononn_core.program.ir import Phase, Task
from mononn_core.program.template import Running, operand
from mononn_core.program.windows import Pair, Windows
from mononn_core.schedule.binder import Matrix
from mononn_core.schedule.decisions import exposed, most_at_once
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.toom import Toom, toom_cook
from mononn_core.templates.windowed import Windowed, WindowParams, corners, rows_of

Array = np.ndarray[Any, Any]

FEWEST = 8
"""Channels of a group, in and out, from which on the transforms pay."""
TRANSFORMED = {COMPUTE: COMPUTE, "uint8": HALF_WORD, HALF_WORD: HALF_WORD}
"""Type of an image's elements -> of its windows' transforms and of the weights'."""
RATE = {COMPUTE: 1.0, HALF_WORD: 1.6}
"""Type of transforms -> their products in the time of one of float32 (measured)."""
STREAMED = 0.7
"""Share of the rate at which cores can read weights that they reach while they multiply by them (measured)."""
NEAR = 1 << 17
"""Bytes of products that wait for their transform, as in the header."""
INTO, OUT_OF = 28, 32
"""Operations that a core could do in the time of a transform: of a window's pixel of a channel, of an output (7 and 8
cycles a vector, from traces)."""


def parts(extent: int, apart: int) -> list[int]:
    """Lengths of the runs of elements that lie ``apart`` from one another."""
    return [-(-(extent - first) // apart) for first in range(min(apart, extent))]


def tiles(rows: int, width: int, step: int, apart: int = 1) -> int:
    """Tiles of ``rows`` x ``width`` pixels, step x step that lie ``apart`` each; the last of a row or column may be
    partly empty."""
    tall, wide = (sum(-(-n // step) for n in parts(extent, apart)) for extent in (rows, width))
    return tall * wide


def applies(windows: Windows) -> bool:
    """Any equal dilations: pixels so far apart are an image of their own."""
    down, across = windows.dilations
    return (windows.kernel, windows.strides) == ((3, 3), (1, 1)) and down == across


def transformed_weights(w: Array, toom: Toom) -> Array:
    """The weights [3, 3, C, M] as the matrix [products * C, M] that the template reads, of w's dtype."""
    wide = np.kron(toom.filters, toom.filters) @ w.astype(WIDE).reshape(9, -1)
    return wide.reshape(toom.products * w.shape[2], w.shape[3]).astype(w.dtype)


def convolve(windows: Windows, pixels: Array, weights: Array, toom: Toom) -> Array:
    """[rows, width, M] of ``pixels`` [count, C], a pixel a row, and ``weights`` from :func:`transformed_weights`."""
    rows, width, apart = windows.rows_in(len(pixels)), windows.width, windows.dilations[0]
    out = np.zeros((rows, width, weights.shape[1]), pixels.dtype)
    places = np.arange(rows + 2 * apart)[:, None] * windows.pitch + np.arange(width + 2 * apart)[None, :]
    for y in range(min(apart, rows)):
        for x in range(min(apart, width)):
            out[y::apart, x::apart] = _plain(pixels[places[y::apart, x::apart]], weights, toom)
    return out


def _plain(image: Array, weights: Array, toom: Toom) -> Array:
    """The convolution of an image [rows + 2, width + 2, C] whose windows lie without gaps."""
    (rows, width), channels, results = (n - 2 for n in image.shape[:2]), image.shape[2], weights.shape[1]
    step, terms = toom.step, toom.terms
    high, wide = -(-rows // step), -(-width // step)
    whole = np.zeros((step * high + 2, step * wide + 2, channels), image.dtype)
    whole[: rows + 2, : width + 2] = image
    down, across = ([slice(i, i + step * n, step) for i in range(terms)] for n in (high, wide))
    seen = np.array([[whole[i, j] for j in across] for i in down])
    windowed = np.einsum("ia,jb,abyxc->ijyxc", toom.inputs, toom.inputs, seen, optimize=True)
    products = np.matmul(windowed.reshape(terms**2, high * wide, -1), weights.reshape(terms**2, channels, results))
    stacked = products.reshape(terms, terms, high, wide, results)
    out = np.einsum("pi,qj,ijyxm->ypxqm", toom.outputs, toom.outputs, stacked, optimize=True)
    return np.asarray(out.reshape(step * high, step * wide, results)[:rows, :width])


class Winograd(Windowed[WindowParams]):
    """See the module; b [products C, N] holds :func:`transformed_weights`.

    Attributes:
        toom: what it transforms by.
        transformed: the type of its transforms.
    """

    name = "winograd"
    header = "mononn_winograd.hpp"
    parameters = WindowParams
    efficiency = 0.9
    toom: ClassVar[Toom] = toom_cook(0, 1, -1)
    transformed: ClassVar[str] = COMPUTE
    row_step = 2

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        windows = self.windows(task)
        return super().mismatch(task) or (
            "" if applies(windows) else f"has other windows than 3 x 3 pixels, equally far apart: {windows}"
        )

    def terms(self, task: Task, channels: Array) -> Array:
        return self.toom.products * channels

    def compute(self, task: Task, running: Running) -> Array:
        return convolve(self.windows(task), running.matrix("a"), running.matrix("b"), self.toom)

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        """Where it pays, and its larger weights are read in less time than is saved."""
        conv, machine = Conv.of(stage, builder), builder.machine
        if not self.panels(conv, builder.lanes):
            return None
        constants = sum(c.nbytes for c in builder.views.graph.constants.values())
        fast = seconds(conv, self.toom, machine, constants) < self.direct_seconds(conv, machine)
        return 1 if fast and pays(conv, self.toom, machine) else -1

    def direct_seconds(self, conv: Conv, machine: Machine) -> float:
        """Of all cores: what a direct convolution takes."""
        reached = share_of_peak(conv.out[1] * conv.out[2], rows_at_once(conv, machine))
        return conv.flops / (reached * machine.peak_flops_per_core * machine.cores)

    def panels(self, conv: Conv, lanes: int) -> tuple[int, ...]:
        """Two vectors of output channels, or one where there are no two; of input channels that are as many as a vector
        has. Of words, whose products are added up, and of groups they fill vectors."""
        fits = applies(conv.windows(conv.x[2], conv.out[1])) and not conv.computed
        if TRANSFORMED.get(conv.dtype) != self.transformed or not fits:
            return ()
        mine, width = conv.of_group
        terms = together(self.transformed)
        filled = lanes * terms
        if mine < filled or (terms > 1 and mine % filled):
            return ()
        if conv.group > 1:
            return tuple(panel for panel in (2 * lanes, lanes) if width % panel == mine % filled == 0)
        return (2 * lanes, lanes) if width > lanes else (lanes,)

    def reads(self, conv: Conv, panel: int) -> int:
        return conv.of_group[0]

    def first_channel(self, conv: Conv, panel: int, column: Expr) -> Expr:
        mine, width = conv.of_group
        return minimum(column // width * mine, Const(conv.x[3] - mine))

    def weight_matrix(self, conv: Conv, panel: int, w: Array) -> tuple[Pair, Matrix]:
        return (self.toom.products * w.shape[2], w.shape[3]), lambda: transformed_weights(w, self.toom)

    def weight_type(self, conv: Conv) -> str:
        return self.transformed

    def tag(self, conv: Conv) -> str:
        return f"@{self.name}"

    def block(self, conv: Conv, panel: int, partition: Partition, row_bytes: int, builder: PhaseBuilder) -> Pair:
        """Rows of tiles whose transformed windows stay in half of the second-level cache; an owner's whole share where
        reading its windows from the last cache takes less than reading weights once more for every block, unless these
        stay in the second-level cache as well."""
        share, most = rows_of(conv, partition), most_rows(conv, self.toom, builder.machine)
        if share <= most:
            return share, 1
        whole = self.toom.step * conv.dilations[0]
        found = [r for r in range(1, most + 1) if share % r == 0 or conv.out[0] == 1]
        rows = max(found, key=lambda r: (r % whole == 0, share % r == 0, r))
        blocks = ceil(share / rows)
        among = partition.owners if partition.kind == "columns" else 1
        far = window_bytes(conv, self.toom, share) - builder.machine.l2_bytes // 2
        windows = far * ceil(conv.of_group[1] / panel / among)
        weights = weight_bytes(conv, self.toom) // among
        near = window_bytes(conv, self.toom, rows) + weights + NEAR <= builder.machine.l2_bytes
        return (rows, blocks) if near or windows >= weights * (blocks - 1) else (share, 1)

    def rate(self, phase: Phase) -> float:
        """Of products and transforms; tiles with few rows load more than they compute."""
        params, (channels, columns) = self.params(phase.task), (operand(phase.task, role).box for role in self.roles)
        count = tiles(params.rows, params.width, self.toom.step, params.dilations[0])
        c, m, share = channels.size[1], params.panel, params.panel / columns.bound[1]
        products = 2 * count * self.toom.products * c * m / share_of_peak(count, params.at_once)
        products /= RATE[self.transformed]
        return 2 * 9 * params.rows * params.width * c * m / (products + transforms(count, c * share, m, self.toom))

    def exposed(self, task: Task) -> float:
        params = self.params(task)
        return exposed(tiles(params.rows, params.width, self.toom.step, params.dilations[0]), params.at_once)

    def ordered(self, phase: Phase) -> Phase:
        """All panels of a block of rows follow one another: the windows are transformed once."""
        extents = {a.var for a in phase.domain}
        return replace(phase, assign=replace(phase.assign, order=tuple(a for a in "obrp" if a in extents)))

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """Transformed windows, and the products that wait for their transform; both with what fills lines."""
        params, channels = self.params(task), operand(task, "a").box.size[1]
        apart, terms, size = params.dilations[0], self.toom.products, itemsize(self.transformed)
        each = [tiles(r, w, self.toom.step) for r in parts(params.rows, apart) for w in parts(params.width, apart)]
        waiting = NEAR // itemsize(COMPUTE) + terms * params.at_once * params.panel
        lines = ceil(channels * size / LINE_BYTES)
        row = LINE_BYTES * (lines if lines % 16 else lines + 1)
        windows = [terms * (n * row + LINE_BYTES) // itemsize(COMPUTE) for n in each]
        return sum(windows) + sum(min(waiting, terms * n * params.panel) for n in each)

    def write_state(self, phase: Phase, code: CpuStorage) -> None:
        code.write_scratch(phase)
        image = c_type(code.buffer(operand(phase.task, "a").buffer).dtype)
        code.out.line(f"const {image} *transformed_ = nullptr;  // the windows that lie in local_")

    def call(self, phase: Phase, rows: int, function: str, printer: Printer, code: CpuStorage) -> str:
        params = self.params(phase.task)
        form = "Winograd" if params.dilations[0] == 1 else "DilatedWinograd"
        image = c_type(code.buffer(operand(phase.task, "a").buffer).dtype)
        kernel = f"mn::{form}<{image}, Windows_, {rows}, {params.panel}, {params.at_once}, {self.toom.step}>"
        code.assert_fits(phase, kernel)
        return f"{kernel}::run({corners(phase, printer, code)}, local_, transformed_, {function}, ahead_);"


def window_bytes(conv: Conv, toom: Toom, rows: int) -> int:
    """Of a group's transformed windows of so many image rows."""
    size = itemsize(TRANSFORMED[conv.dtype])
    return toom.products * ceil(rows / toom.step) * ceil(conv.out[2] / toom.step) * conv.of_group[0] * size


def weight_bytes(conv: Conv, toom: Toom) -> int:
    """Of a convolution's transformed weights."""
    return toom.products * conv.of_group[0] * conv.channels * itemsize(TRANSFORMED[conv.dtype])


def transforms(count: int, channels: float, results: float, toom: Toom) -> float:
    """Operations that a core could do in the time in which it transforms the windows and outputs of ``count`` tiles."""
    return count * toom.step**2 * (INTO * channels + OUT_OF * results)


def most_rows(conv: Conv, toom: Toom, machine: Machine) -> int:
    """Image rows whose transformed windows stay in half of the second-level cache."""
    return toom.step * max(1, machine.l2_bytes // 2 // window_bytes(conv, toom, 1))


def pays(conv: Conv, toom: Toom, machine: Machine) -> bool:
    """Whether it is faster than a direct convolution: channels that pay for the transforms, few half-empty tiles."""
    _, height, width, _ = conv.out
    lanes, apart, (mine, results) = machine.lanes(TRANSFORMED[conv.dtype]), conv.dilations[0], conv.of_group
    rows = min(height, most_rows(conv, toom, machine)) if apart > 1 else height
    products = toom.products * tiles(rows, width, toom.step, apart)
    return min(mine, results) >= max(lanes, FEWEST) and products * 4 <= 9 * rows * width * 3


def seconds(conv: Conv, toom: Toom, machine: Machine, constants: int) -> float:
    """Of all cores: products and transforms, and the weights: once from where they lie in a network of so many bytes of
    constants, and once more for every further image and block of rows."""
    n, height, width, channels = conv.out
    rows = min(height, most_rows(conv, toom, machine)) if conv.dilations[0] > 1 else height
    blocks = n * ceil(height / rows)
    count = tiles(rows, width, toom.step, conv.dilations[0])
    most = rows_at_once(conv, machine)
    reached = RATE[TRANSFORMED[conv.dtype]] * share_of_peak(count, most)
    products = 2 * blocks * count * toom.products * conv.of_group[0] * channels / reached
    work = products + transforms(blocks * count, conv.x[3], channels, toom)
    each = weight_bytes(conv, toom)
    rates = (machine.bandwidth_within(held, machine.cores) for held in (constants, each))
    first, again = (each / (STREAMED * rate) for rate in rates)
    compute, fetching = work / (machine.peak_flops_per_core * machine.cores), first + (blocks - 1) * again
    return max(compute + exposed(count, most) * fetching, fetching)


def rows_at_once(conv: Conv, machine: Machine) -> int:
    """Of a register tile with the panels that the convolution has."""
    return most_at_once(2 if conv.of_group[1] > machine.lanes(COMPUTE) else 1, machine)


def share_of_peak(count: int, most: int) -> float:
    """What products of ``count`` tiles reach, ``most`` at once: with few of them there is more to load than to do."""
    return min(Winograd.efficiency, 0.2 * count / ceil(count / most))


TEMPLATE = Winograd()
