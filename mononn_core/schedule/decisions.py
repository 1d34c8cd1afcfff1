"""What tiles of every template have in common: the caches they are made for, and how rows are cut into blocks."""

from __future__ import annotations

from math import ceil

from mononn_core.element import COMPUTE, HALF_WORD, itemsize, together
from mononn_core.machine import TILE_BYTES, TILE_ROWS, Machine
from mononn_core.schedule.schedule import Tile

TILED_ROWS = 2 * TILE_ROWS
"""Rows of a left operand that tile registers hold: two tiles, beside two of a right one and four of sums."""
L2_SHARE = 0.8
"""Share of the second-level cache that a task's rows of the left operand may take."""


def exposed(rows: int, at_once: int) -> float:
    """Share of the fetching of weights that products of ``rows`` rows, ``at_once`` together, do not hide: of their
    passes over the weights the first (measured)."""
    return 1 / ceil(rows / max(at_once, 1))


def most_at_once(vectors: int, machine: Machine, dtype: str = COMPUTE) -> int:
    """Rows of a register tile of ``vectors`` columns whose sums fill the vector registers, beside what a step of the
    kernel for left operands of ``dtype`` holds: a row of b or a column of a, whichever is shorter, and a value of the
    other; two registers each, and constants, where none multiplies groups of terms; beside words, their sums."""
    registers = machine.vector_registers
    if dtype == COMPUTE:
        spare = 1 if (machine.vector_bytes, vectors) == (32, 3) else 2  # four rows of three fill all sixteen
        return max(1, (registers - spare - (vectors if vectors <= 4 else 1)) // vectors)
    each, others = (1, 1) if machine.product(dtype) is not None else (1, 4) if dtype == HALF_WORD else (2, 5)
    fits = (rows for rows in range(1, registers) if rows * vectors + each * min(rows, vectors) + others <= registers)
    return max(fits, default=1)


def tile_step(terms: int, dtype: str, machine: Machine) -> int:
    """Groups of terms that tile registers multiply together where ``terms`` lie side by side: as many in each step if
    that makes at most twice as many steps as there must be, else fewer in the last. 0: the machine has none for
    ``dtype``."""
    if machine.tiles(dtype) is None:
        return 0
    word = together(dtype)
    groups, most = ceil(terms / word), TILE_BYTES // (word * itemsize(dtype))
    least = ceil(groups / most)
    evenly = (groups // n for n in range(least, 2 * least + 1) if groups % n == 0)
    return next(evenly, ceil(groups / least))


def fewer_at_once(most: int) -> tuple[int, ...]:
    """Rows of a register tile worth a try: the most, and half as many."""
    return tuple(dict.fromkeys((most, ceil(most / 2))))


def rows_problem(share: int, tile: Tile) -> str:
    """Why a tile's blocks do not cut the ``share`` rows of an owner; "" where they do."""
    if tile.rows < 1 or tile.blocks < 1 or tile.rows * tile.blocks < share:
        return f"{tile.blocks} blocks of {tile.rows} rows do not hold the {share} of an owner"
    if tile.rows * (tile.blocks - 1) >= share or tile.rows >= share + max(tile.at_once, 1):
        return f"{tile.blocks} blocks of {tile.rows} rows are more than the {share} of an owner"
    return ""


def registers_problem(tile: Tile, most: int) -> str:
    """Why a tile's register tile does not fit the registers, which hold ``most`` rows; "" where it does."""
    if 1 <= tile.at_once <= most:
        return ""
    return f"{tile.at_once} rows at once of a panel of {tile.panel} columns are not 1 to {most}, which registers hold"


def padded_stride(columns: int, dtype: str, machine: Machine) -> int:
    """Elements of ``dtype`` between rows of a stored matrix: whole panels, and never a multiple of 1 KiB, so that the
    rows of a register tile do not fall into the same few sets of the first-level cache. Short rows (a picture's three
    channels) lie without gaps."""
    lanes, kibibyte = machine.lanes(COMPUTE), 1024 // itemsize(dtype)
    if columns <= lanes // 2:
        return columns
    stride = ceil(columns / (2 * lanes)) * 2 * lanes
    if stride % kibibyte == 0:
        stride += 64 // itemsize(dtype)
    return stride
