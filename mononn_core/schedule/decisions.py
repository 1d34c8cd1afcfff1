"""Tile sizes that suit a machine's caches and registers.

A *partition* gives every element that a stage writes to one of ``owners`` owners. Two stages whose partitions fit (each
owner reads only what it wrote itself) need no barrier between them; finding such runs of stages is
:mod:`mononn_core.schedule.ownership`'s work.
"""

from __future__ import annotations

from math import ceil

from mononn_core.machine import Machine
from mononn_core.schedule.schedule import Tile

SMALLEST_BLOCK = 16
"""Rows of a product's task, at least."""
L2_SHARE = 0.8
"""Share of the second-level cache that a task's rows of the left operand may take."""


def panel_vectors(rows: int) -> int:
    """Vectors of columns a register tile spans: two where rows fill the registers, more where they are few."""
    return 8 if rows <= 3 else 4 if rows <= 6 else 2


def matmul_tile(m: int, n: int, k: int, owners_m: int, owners_n: int, machine: Machine) -> Tile:
    """Row block and panel for a product of [m, k] by [k, n] cut among ``owners_m`` x ``owners_n`` owners."""
    lanes = machine.vector_bytes // 4
    share = ceil(m / owners_m)
    blocks = max(1, ceil(share * k * 4 / (L2_SHARE * machine.l2_bytes)))
    blocks = min(blocks, max(1, share // SMALLEST_BLOCK))
    if owners_m > 1:  # blocks that end where the owner's rows do, so that its rows are the same in every stage
        blocks = next((n for n in range(blocks, share // SMALLEST_BLOCK + 1) if share % n == 0), blocks)
    rows = ceil(share / blocks)
    vectors = panel_vectors(rows)
    while vectors > 1 and vectors * lanes * owners_n > max(n, lanes):
        vectors //= 2
    return Tile(rows, blocks, vectors * lanes)


def image_rows(height: int, pixel_bytes: int, row_pixels: int, exact: bool, machine: Machine) -> tuple[int, int]:
    """(image rows of a task, tasks) for ``height`` output image rows of an owner, each of which reads ``row_pixels``
    new pixels: the pixels of a task stay in the second-level cache while all its panels pass. ``exact``: the tasks
    must divide the height."""
    most = max(1, int(L2_SHARE * machine.l2_bytes) // max(1, row_pixels * pixel_bytes))
    tasks = ceil(height / most)
    while exact and height % tasks:
        tasks += 1
    return ceil(height / tasks), tasks


def winograd_pays(channels: int, out: tuple[int, ...], lanes: int) -> bool:
    """Whether a 3x3 convolution of ``channels`` to ``out`` [N, H, W, M] is faster in Winograd's tiles: whole vectors of
    channels, enough of them to pay for the transforms, few half-empty tiles."""
    _, height, width, results = out
    products = 16 * ceil(height / 2) * ceil(width / 2)
    return channels % lanes == 0 and min(channels, results) >= 32 and products * 4 <= 9 * height * width * 3


def tile_rows(height: int, pair_bytes: int, exact: bool, machine: Machine) -> tuple[int, int]:
    """(image rows of a task, tasks) for ``height`` image rows in tiles of two, whose transformed windows take
    ``pair_bytes``: they stay in half of the second-level cache. ``exact``: the tasks must divide the height."""
    most = max(2, machine.l2_bytes // 2 // pair_bytes * 2)
    if height <= most:
        return height, 1
    found = [r for r in range(1, most + 1) if height % r == 0 or not exact]
    rows = max(found, key=lambda r: (r % 2 == 0, height % r == 0, r))
    return rows, ceil(height / rows)


def row_stride(columns: int, machine: Machine) -> int:
    """Elements between rows of a stored matrix: whole panels, and never a multiple of 1 KiB, so that the rows of a
    register tile do not fall into the same few sets of the first-level cache. Short rows (a picture's three channels)
    lie without gaps."""
    lanes = machine.vector_bytes // 4
    if columns <= lanes // 2:
        return columns
    stride = ceil(columns / (2 * lanes)) * 2 * lanes
    if columns >= 256 and stride % 256 == 0:
        stride += 16
    return stride
