"""Winograd's F(2x2, 3x3): a 3x3 convolution of stride 1 in tiles of 2 x 2 pixels, 16 multiplications instead of 36. A
dilated one is that of every image that pixels so far apart make.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.1.

The rounding error is about four times a direct convolution's: transforms of weights and windows only add, subtract and
halve. An infinite pixel makes every output of the tiles that read it NaN (infinity minus infinity).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from mononn_core.codegen.cpu_storage import CpuStorage
from mononn_core.codegen.cstyle import Printer
from mononn_core.element import COMPUTE, WIDE, itemsize
from mononn_core.machine import Machine
from mononn_core.program.expr import Const, Expr, minimum
from mononn_core.program.ir import Phase, Task
from mononn_core.program.template import Running, operand
from mononn_core.program.windows import Windows
from mononn_core.schedule.fuse import FusionGroup
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.windowed import Windowed, WindowParams, corners

Array = np.ndarray[Any, Any]

INPUT = np.array([[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, -1.0, 1.0, 0.0], [0.0, 1.0, 0.0, -1.0]])
OUTPUT = np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, -1.0, -1.0]])
FEWEST = 8
"""Channels of a group, in and out, from which on the transforms pay."""
PRODUCTS = 16
"""Matrix products a tile takes part in."""


def parts(extent: int, apart: int) -> list[int]:
    """Lengths of the runs of elements that lie ``apart`` from one another."""
    return [-(-(extent - first) // apart) for first in range(min(apart, extent))]


def tiles(rows: int, width: int, apart: int = 1) -> int:
    """Tiles of ``rows`` x ``width`` pixels, 2 x 2 that lie ``apart`` each; the last of a row or column may be half
    empty."""
    tall, wide = (sum(-(-n // 2) for n in parts(extent, apart)) for extent in (rows, width))
    return tall * wide


def applies(windows: Windows) -> bool:
    """Any equal dilations: pixels so far apart are an image of their own."""
    down, across = windows.dilations
    return (windows.kernel, windows.strides) == ((3, 3), (1, 1)) and down == across


def transformed_weights(w: Array) -> Array:
    """The weights [3, 3, C, M] as the matrix [16 C, M] that the template reads, of w's dtype."""
    wide = w.astype(WIDE)
    for axis in (0, 1):
        a, b, c = np.moveaxis(wide, axis, 0)
        wide = np.stack([a, (a + b + c) / 2, (a - b + c) / 2, c], axis)
    return wide.reshape(PRODUCTS * w.shape[2], w.shape[3]).astype(w.dtype)


def convolve(windows: Windows, pixels: Array, weights: Array) -> Array:
    """[rows, width, M] of ``pixels`` [count, C], a pixel a row, and ``weights`` from :func:`transformed_weights`."""
    rows, width, apart = windows.rows_in(len(pixels)), windows.width, windows.dilations[0]
    out = np.zeros((rows, width, weights.shape[1]), pixels.dtype)
    places = np.arange(rows + 2 * apart)[:, None] * windows.pitch + np.arange(width + 2 * apart)[None, :]
    for y in range(min(apart, rows)):
        for x in range(min(apart, width)):
            out[y::apart, x::apart] = _plain(pixels[places[y::apart, x::apart]], weights)
    return out


def _plain(image: Array, weights: Array) -> Array:
    """The convolution of an image [rows + 2, width + 2, C] whose windows lie without gaps."""
    (rows, width), channels, results = (n - 2 for n in image.shape[:2]), image.shape[2], weights.shape[1]
    high, wide = -(-rows // 2), -(-width // 2)
    whole = np.zeros((2 * high + 2, 2 * wide + 2, channels), image.dtype)
    whole[: rows + 2, : width + 2] = image
    seen = np.array([[whole[i : i + 2 * high : 2, j : j + 2 * wide : 2] for j in range(4)] for i in range(4)])
    windowed = np.einsum("ia,jb,abyxc->ijyxc", INPUT, INPUT, seen, optimize=True)
    products = np.matmul(windowed.reshape(PRODUCTS, high * wide, -1), weights.reshape(PRODUCTS, channels, results))
    stacked = products.reshape(4, 4, high, wide, results)
    out = np.einsum("pi,qj,ijyxm->ypxqm", OUTPUT, OUTPUT, stacked, optimize=True)
    return np.asarray(out.reshape(2 * high, 2 * wide, results)[:rows, :width])


class Winograd(Windowed[WindowParams]):
    """See the module; b [16 C, N] holds :func:`transformed_weights`."""

    name = "winograd"
    header = "mononn_winograd.hpp"
    parameters = WindowParams
    efficiency = 0.85 * 36 / 16
    row_step = 2

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        windows = self.windows(task)
        return super().mismatch(task) or (
            "" if applies(windows) else f"has other windows than 3 x 3 pixels, equally far apart: {windows}"
        )

    def terms(self, task: Task, channels: Array) -> Array:
        return PRODUCTS * channels

    def compute(self, task: Task, running: Running) -> Array:
        return convolve(self.windows(task), running.matrix("a"), running.matrix("b"))

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        conv = Conv.of(stage, builder)
        return (1 if _pays(conv, builder.machine) else -1) if self.panels(conv, builder.lanes) else None

    def panels(self, conv: Conv, lanes: int) -> tuple[int, ...]:
        """Two vectors of output channels, or one where there are no two; of one group, whose input channels fill
        vectors."""
        if conv.dtype != COMPUTE or not applies(conv.windows(conv.x[2], conv.out[1])):
            return ()
        mine, width = conv.of_group
        if conv.group > 1:
            return tuple(panel for panel in (2 * lanes, lanes) if width % panel == mine % lanes == 0)
        return (2 * lanes, lanes) if width > lanes else (lanes,)

    def reads(self, conv: Conv, panel: int) -> int:
        return conv.of_group[0]

    def first_channel(self, conv: Conv, panel: int, column: Expr) -> Expr:
        mine, width = conv.of_group
        return minimum(column // width * mine, Const(conv.x[3] - mine))

    def weight_matrix(self, conv: Conv, panel: int, w: Array) -> Array:
        return transformed_weights(w)

    def tag(self, conv: Conv) -> str:
        return "@winograd"

    def block(self, conv: Conv, panel: int, share: int, pitch: int, builder: PhaseBuilder) -> tuple[int, int]:
        """Rows of tiles whose transformed windows stay in half of the second-level cache."""
        most, whole = _most_rows(conv, builder.machine), 2 * conv.dilations[0]
        if share <= most:
            return share, 1
        found = [r for r in range(1, most + 1) if share % r == 0 or conv.out[0] == 1]
        rows = max(found, key=lambda r: (r % whole == 0, share % r == 0, r))
        return rows, ceil(share / rows)

    def ordered(self, phase: Phase) -> Phase:
        """All panels of a block of rows follow one another: the windows are transformed once."""
        extents = {a.var for a in phase.domain}
        return replace(phase, assign=replace(phase.assign, order=tuple(a for a in "obrp" if a in extents)))

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """Transformed windows, and the products of a register tile."""
        params, channels = self.params(task), operand(task, "a").box.size[1]
        apart = params.dilations[0]
        each = [tiles(r, w) for r in parts(params.rows, apart) for w in parts(params.width, apart)]
        return PRODUCTS * sum(n * (channels + 16) + params.at_once * params.panel for n in each)

    def write_state(self, phase: Phase, code: CpuStorage) -> None:
        code.write_scratch(phase)
        code.out.line("const float *transformed_ = nullptr;  // the windows that lie in local_")

    def call(self, phase: Phase, rows: int, function: str, printer: Printer, code: CpuStorage) -> str:
        params = self.params(phase.task)
        form = "Winograd" if params.dilations[0] == 1 else "DilatedWinograd"
        kernel = f"mn::{form}<Windows_, {rows}, {params.panel}, {params.at_once}>"
        code.assert_fits(phase, kernel)
        return f"{kernel}::run({corners(phase, printer, code)}, local_, transformed_, {function}, ahead_);"


def _most_rows(conv: Conv, machine: Machine) -> int:
    """Image rows whose transformed windows stay in half of the second-level cache."""
    pair_bytes = PRODUCTS * ceil(conv.out[2] / 2) * conv.of_group[0] * itemsize(COMPUTE)
    return max(2, machine.l2_bytes // 2 // pair_bytes * 2)


def _pays(conv: Conv, machine: Machine) -> bool:
    """Whether it is faster in tiles: whole vectors of channels, enough of them to pay for the transforms, few
    half-empty tiles."""
    _, height, width, _ = conv.out
    lanes, apart, (mine, results) = machine.lanes(COMPUTE), conv.dilations[0], conv.of_group
    rows = min(height, _most_rows(conv, machine)) if apart > 1 else height
    products = PRODUCTS * tiles(rows, width, apart)
    enough = mine % lanes == 0 and min(mine, results) >= max(lanes, FEWEST)
    return enough and products * 4 <= 9 * rows * width * 3


TEMPLATE = Winograd()
