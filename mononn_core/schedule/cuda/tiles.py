"""Tiles, parts and warps of a product, and the launch they are chosen for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

from mononn_core.cost.cuda import Work, product_shared_bytes
from mononn_core.element import COMPUTE, PRECISIONS, itemsize
from mononn_core.gpu import Gpu
from mononn_core.program.tensor_core import WARP, filled_bytes, kind_of, product_bytes

ROWS = (16, 32, 48, 64, 96, 128)
COLUMNS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128)
PARTS = (1, 2, 3, 4, 6, 8)
STAGES = (8, 6, 4, 3, 2)
MOST_ACCUMULATORS = 64
"""Registers of a thread that may hold sums."""
GRIDS = ((256, 1), (128, 1), (128, 2))
"""(threads of a block, blocks of a multiprocessor) to choose from."""
RESERVED_SHARED_BYTES = 2048
"""Of a block's shared memory: what reductions of a whole block and the printer's own slots take."""


@dataclass(frozen=True)
class Target:
    """What the schedule is made for: ``kind`` of products, a launch of ``threads`` x ``blocks_per_sm`` on ``gpu``."""

    gpu: Gpu
    precision: str
    threads: int
    blocks_per_sm: int

    @property
    def kind(self) -> str:
        return kind_of(self.storage)

    @property
    def storage(self) -> str:
        """Dtype of stored activations and product weights."""
        return PRECISIONS[self.precision]

    @property
    def itemsize(self) -> int:
        return itemsize(self.storage)

    @property
    def multiple(self) -> int:
        """Elements in 16 bytes: what rows, and the first columns of views, are multiples of."""
        return 16 // self.itemsize

    @property
    def blocks(self) -> int:
        return self.gpu.sms * self.blocks_per_sm

    @property
    def shared_bytes(self) -> int:
        """Shared memory a block may use."""
        each = self.gpu.shared_per_sm // self.blocks_per_sm - 1024
        return min(self.gpu.shared_per_block, each) - RESERVED_SHARED_BYTES

    @property
    def staged(self) -> bool:
        """Whether a product's weights are brought in stages: where fragments of 16 bits are multiplied."""
        return self.itemsize == 2

    def step(self, stable: bool) -> int:
        """Terms of one stage of a main loop: 128 bytes, or twice that where one copy brings all of a weight's."""
        return (256 if self.staged and stable else 128) // self.itemsize

    @property
    def cut(self) -> int:
        """Parts of a product have multiples of so many terms."""
        return 128 // self.itemsize


@dataclass(frozen=True)
class BlockTile:
    """A product's task: ``rows`` x ``columns`` by ``warps``, one of ``parts`` of the terms, through ``stages``."""

    rows: int
    columns: int
    warps: tuple[int, int]
    stages: int
    parts: int = 1

    def params(self, kind: str) -> dict[str, Any]:
        return {"tile": (self.rows, self.columns), "warps": self.warps, "kind": kind}


@dataclass(frozen=True)
class Shape:
    """A product as the choice of its tile sees it. ``exact``: row tiles (or the whole of m) must end where m does.
    ``panels``: the same for columns. ``split``: it may be cut into parts. ``stable``: b is a weight. ``fill``: scalar
    instructions an element that a prologue spends on a, 0 where there is none (then a lies in the arena); it reads
    ``fill_bytes`` an element."""

    batch: int
    m: int
    n: int
    k: int
    exact: bool = False
    panels: bool = False
    split: bool = False
    stable: bool = True
    fill: float = 0.0
    fill_bytes: float = 0.0


def task_bytes(tile: BlockTile, shape: Shape, target: Target) -> int:
    """Shared memory of a product's task."""
    size, groups = target.itemsize, target.threads // (WARP * tile.warps[0] * tile.warps[1])
    filled, step, staged = shape.fill > 0, target.step(shape.stable), target.staged and shape.stable
    held = filled_bytes(tile.rows, shape.k, size) if filled else 0
    return held + product_bytes((tile.rows, tile.columns), step, tile.stages, groups, size, filled, staged)


def warps_of(rows: int, columns: int, threads: int) -> tuple[int, int]:
    """The arrangement of the block's warps over a tile of whole 16 x 8 fragments that reads least from shared memory.
    Warps that the tile has no room for share the terms of a stage (of four fragments)."""
    warps = threads // 32
    fits = [
        (m, n)
        for m in (1, 2, 4, 8)
        for n in (1, 2, 4, 8)
        if m * n <= warps <= 4 * m * n and rows % (16 * m) == 0 and columns % (8 * n) == 0
        if rows * columns <= MOST_ACCUMULATORS * 32 * m * n
    ]
    return min(fits, key=lambda w: (rows * w[1] + columns * w[0], -w[0]), default=(0, 0))


def work(shape: Shape, tile: BlockTile, target: Target) -> Work:
    """What the cost model is told of ``shape`` in tiles."""
    rows, columns, terms = min(tile.rows, shape.m), min(tile.columns, shape.n), ceil(shape.k / tile.parts)
    tasks = shape.batch * ceil(shape.m / tile.rows) * ceil(shape.n / tile.columns) * tile.parts
    weights = shape.k * shape.n * target.itemsize * (1 if shape.stable else 0)
    return Work(
        tasks,
        read_bytes=terms * (columns * target.itemsize + rows * (shape.fill_bytes or target.itemsize)),
        written_bytes=rows * columns * (itemsize(COMPUTE) if tile.parts > 1 else target.itemsize),
        shared_bytes=product_shared_bytes(tile.params(target.kind), terms),
        tensor_flops=2.0 * tile.rows * tile.columns * terms,
        kind=target.kind,
        operations=rows * terms * shape.fill,
        stream_bytes=weights,
        passes=3 if shape.fill else 1,
    )


def combine_seconds(shape: Shape, tile: BlockTile, target: Target) -> float:
    """What adding the parts costs the consumer beyond reading one value: float32 sums through the cache."""
    if tile.parts == 1:
        return 0.0
    nbytes = shape.batch * shape.m * shape.n * itemsize(COMPUTE) * tile.parts
    return nbytes / target.gpu.sms / target.gpu.l2_bytes_per_second_per_sm


def choose(shape: Shape, target: Target) -> tuple[BlockTile, float] | None:
    """The cheapest tile and its seconds; None where none fits."""
    found = ranked(shape, target)
    return (found[0], seconds(shape, found[0], target)) if found else None


def seconds(shape: Shape, tile: BlockTile, target: Target) -> float:
    """What a product takes in tiles, the adding of its parts included."""
    busy = work(shape, tile, target).seconds(target.gpu, target.threads, target.blocks_per_sm)
    return busy + combine_seconds(shape, tile, target)


@lru_cache(maxsize=4096)
def ranked(shape: Shape, target: Target) -> tuple[BlockTile, ...]:
    """All tiles, the cheapest first; ties go to fewer parts, then to what computes more, then to the smaller."""
    found: list[tuple[tuple[float, int, int, int], BlockTile]] = []
    for rows in ROWS:
        if (rows > 16 and rows >= 2 * shape.m) or (shape.exact and shape.m > rows and shape.m % rows):
            continue
        for columns in COLUMNS:
            if shape.panels and shape.n > columns and shape.n % columns:
                continue
            used = min(rows, shape.m) * min(columns, shape.n)
            for tile in _tiles(shape, rows, columns, target):
                order = (round(seconds(shape, tile, target), 9), tile.parts, -used, rows * columns)
                found.append((order, tile))
    return tuple(tile for _, tile in sorted(found, key=lambda candidate: candidate[0]))


def tile_problem(shape: Shape, tile: BlockTile, target: Target) -> str:
    """Why a tile is not legal for a product; "" where it is."""
    rows, columns = tile.rows, tile.columns
    if rows not in ROWS or columns not in COLUMNS or warps_of(rows, columns, target.threads) != tile.warps:
        return f"a tile of {rows} x {columns} is not one that {tile.warps[0]} x {tile.warps[1]} warps compute"
    if (rows > 16 and rows >= 2 * shape.m) or (shape.exact and shape.m > rows and shape.m % rows):
        return f"tiles of {rows} rows do not suit a product of {shape.m}"
    if shape.panels and shape.n > columns and shape.n % columns:
        return f"tiles of {columns} columns do not end where {shape.n} do"
    if tile.stages not in STAGES or task_bytes(tile, shape, target) > target.shared_bytes:
        return f"{tile.stages} stages of it do not fit the shared memory of a block of {target.gpu.name}"
    if tile.parts > 1 and (tile.parts not in PARTS or shape.k % (tile.parts * target.cut)):
        return f"{shape.k} terms are not cut into {tile.parts} parts"
    return ""


def _tiles(shape: Shape, rows: int, columns: int, target: Target) -> list[BlockTile]:
    """Legal tiles of these sizes: every number of parts, as many stages as fit."""
    warps = warps_of(rows, columns, target.threads)
    if warps == (0, 0):
        return []
    fits = [s for s in STAGES if task_bytes(BlockTile(rows, columns, warps, s), shape, target) <= target.shared_bytes]
    if not fits:
        return []
    parts = [p for p in PARTS if shape.k % (p * target.cut) == 0] if shape.split else [1]
    return [BlockTile(rows, columns, warps, _stages(fits, shape, p, target), p) for p in parts or [1]]


def _stages(fits: list[int], shape: Shape, parts: int, target: Target) -> int:
    """The most stages of those that fit, but no more than a task's terms fill."""
    filled = ceil(shape.k / parts / target.step(shape.stable))
    return min((s for s in fits if s >= filled), default=fits[0])
