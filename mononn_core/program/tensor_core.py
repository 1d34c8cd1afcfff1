"""Products on a GPU's tensor cores: their kinds, and what they take of a block's shared memory.

The one place, beside the vocabulary (``mononn_matmul.cuh``, ``mononn_attention.cuh``), that knows how their operands
lie there: the choice of tiles and the printer ask it, and the generated code asserts that it says no less than the
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from mononn_core.element import BF16, COMPUTE, F16, F32, itemsize
from mononn_core.program.ir import Buffer

KINDS = {"f16": F16, "bf16": BF16, "tf32x3": F32}
"""Kind of a product -> the type of its operands. "tf32x3": three products of tf32 halves of float32 operands."""
WARP = 32
FRAGMENT = (16, 8)
"""Rows and columns of a warp's accumulators in one instruction."""


def kind_of(dtype: str) -> str:
    """The kind of products of ``dtype``; "tf32x3" for whatever has none."""
    return next((kind for kind, operands in KINDS.items() if operands == dtype), "tf32x3")


def in_fragments(buffer: Buffer) -> bool:
    """Whether a right-hand side lies in fragments of 16 x 8, as its stages are read: see ``fragment_buffer``."""
    return buffer.space == "weight" and len(buffer.layout.dims[-1]) == 3


def bank_stride(columns: int, size: int) -> int:
    """Elements of ``size`` bytes from row to row, so that eight rows lie in different banks."""
    return columns + (0 if columns * size // 16 % 2 else 16 // size)


def sum_stride(columns: int) -> int:
    """The same for sums, and for operands of four bytes along their columns."""
    wide = ceil(columns / 8) * 8
    return wide if wide % 16 == 8 else wide + 8


def filled_bytes(rows: int, k: int, size: int) -> int:
    """A left side of ``rows`` x ``k`` that a task fills: whole steps, rows in different banks."""
    return rows * (ceil(k / 64) * 64 * size + 16)


def product_bytes(
    tile: tuple[int, int], step: int, stages: int, groups: int, size: int, filled: bool, staged: bool
) -> int:
    """A product's task of ``tile`` rows and columns: ``stages`` of ``step`` terms, or the sums of ``groups`` of warps
    that share a tile's terms, whichever is larger. A ``filled`` left side lies beside them; a ``staged`` right side
    lies in fragments, without gaps."""
    rows, columns = tile
    b_row = columns if staged else bank_stride(columns, size) if size == 2 else sum_stride(columns)
    a_size = 0 if filled else rows * bank_stride(step, size)
    ring = stages * (a_size + step * b_row) * size
    return max(ring, groups * rows * sum_stride(columns) * itemsize(COMPUTE))


@dataclass(frozen=True)
class AttentionShape:
    """How a block of ``warps`` computes ``rows`` of an attention over ``keys`` keys: ``strips`` of 16 rows at a time,
    each shared by equally many warps, and ``step`` keys at a time. ``depth``, ``width``: columns of k and of v;
    ``size``: bytes of their elements."""

    rows: int
    keys: int
    depth: int
    width: int
    strips: int
    step: int
    warps: int
    size: int

    @staticmethod
    def of(rows: int, keys: int, wanted: int, depth: int, width: int, warps: int, size: int) -> AttentionShape:
        """``wanted``: keys in one step, rounded up to what the warps share evenly."""
        strips = 1
        while strips * 2 <= min(warps, ceil(rows / 16)):
            strips *= 2
        each = 16 * (warps // strips)
        return AttentionShape(rows, keys, depth, width, strips, ceil(min(keys, wanted) / each) * each, warps, size)

    @property
    def fragments(self) -> int:
        """Fragments of 8 keys that a warp has in a step."""
        return self.step // (self.warps // self.strips) // 8

    @property
    def whole(self) -> bool:
        """Whether all keys lie in shared memory at once."""
        return self.step >= self.keys

    @property
    def bytes(self) -> int:
        """Shared memory: q's strips, steps of k and v, and the sums of the warps."""
        depth, width = (ceil(n / 16) * 16 for n in (self.depth, self.width))
        pair = bank_stride(depth, self.size) + bank_stride(width, self.size)
        tiles = self.strips * 16 * bank_stride(depth, self.size) + (1 if self.whole else 2) * self.step * pair
        sums = self.warps // self.strips * self.strips * 16 * (sum_stride(width) + 2)
        return tiles * self.size + sums * itemsize(COMPUTE)
