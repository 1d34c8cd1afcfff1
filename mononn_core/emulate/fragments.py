"""Which element of a matrix each register of each lane holds, written down from the PTX ISA's figures.

The tables are typed from the figures of PTX ISA 8.x, "Warp Level Matrix Multiply-Accumulate Instructions": "Matrix
Fragments for mma.m16n8k16 with floating point type", "Matrix Fragments for mma.m16n8k8" (.tf32) and "ldmatrix". They
share nothing with the helpers that generated code uses, so an error there cannot cancel here. The C++ tables of the
emulator are printed from them (:func:`header`). No hardware has confirmed them yet: see conformance.py.
"""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[int, int]
"""(row, column) of an element."""
Table = dict[tuple[int, int], Place]
"""(lane, element index in the order of the ISA: a0, a1, ...) to its place."""

# The figures' 8 x 8 quarter of 16-bit elements: each lane holds two neighbours of a row ("T0:{a0,a1}").
PAIRS_IN_ROWS = """
 0  0  1  1  2  2  3  3
 4  4  5  5  6  6  7  7
 8  8  9  9 10 10 11 11
12 12 13 13 14 14 15 15
16 16 17 17 18 18 19 19
20 20 21 21 22 22 23 23
24 24 25 25 26 26 27 27
28 28 29 29 30 30 31 31
"""
# Figure of B: each lane holds two neighbours of a column.
PAIRS_IN_COLUMNS = """
 0  4  8 12 16 20 24 28
 0  4  8 12 16 20 24 28
 1  5  9 13 17 21 25 29
 1  5  9 13 17 21 25 29
 2  6 10 14 18 22 26 30
 2  6 10 14 18 22 26 30
 3  7 11 15 19 23 27 31
 3  7 11 15 19 23 27 31
"""
# Figures of m16n8k8 .tf32: 8 x 4 of A, one element a lane, and 4 x 8 of B.
SINGLE_IN_ROWS = """
 0  1  2  3
 4  5  6  7
 8  9 10 11
12 13 14 15
16 17 18 19
20 21 22 23
24 25 26 27
28 29 30 31
"""
SINGLE_IN_COLUMNS = """
 0  4  8 12 16 20 24 28
 1  5  9 13 17 21 25 29
 2  6 10 14 18 22 26 30
 3  7 11 15 19 23 27 31
"""


def _read(*parts: tuple[str, Place, Sequence[int]]) -> Table:
    """Joins parts of a figure: (lanes, place of its corner, elements that a lane holds there in reading order)."""
    table: Table = {}
    for figure, (top, left), elements in parts:
        seen: dict[int, int] = {}
        for row, line in enumerate(figure.split("\n")[1:-1]):
            for column, lane in enumerate(map(int, line.split())):
                table[lane, elements[seen.get(lane, 0)]] = (top + row, left + column)
                seen[lane] = seen.get(lane, 0) + 1
    return table


MMA_16_A = _read(
    (PAIRS_IN_ROWS, (0, 0), (0, 1)),
    (PAIRS_IN_ROWS, (8, 0), (2, 3)),
    (PAIRS_IN_ROWS, (0, 8), (4, 5)),
    (PAIRS_IN_ROWS, (8, 8), (6, 7)),
)
"""A of mma.m16n8k16, 16 x 16: a0..a7, two to a register."""
MMA_16_B = _read((PAIRS_IN_COLUMNS, (0, 0), (0, 1)), (PAIRS_IN_COLUMNS, (8, 0), (2, 3)))
"""B of mma.m16n8k16, 16 x 8: b0..b3, two to a register."""
MMA_C = _read((PAIRS_IN_ROWS, (0, 0), (0, 1)), (PAIRS_IN_ROWS, (8, 0), (2, 3)))
"""C and D of m16n8k16 and m16n8k8, 16 x 8: c0..c3, one float32 a register."""
MMA_TF32_A = _read(
    (SINGLE_IN_ROWS, (0, 0), (0,)),
    (SINGLE_IN_ROWS, (8, 0), (1,)),
    (SINGLE_IN_ROWS, (0, 4), (2,)),
    (SINGLE_IN_ROWS, (8, 4), (3,)),
)
"""A of mma.m16n8k8 .tf32, 16 x 8: a0..a3, one a register."""
MMA_TF32_B = _read((SINGLE_IN_COLUMNS, (0, 0), (0,)), (SINGLE_IN_COLUMNS, (4, 0), (1,)))
"""B of mma.m16n8k8 .tf32, 8 x 8: b0, b1, one a register."""
LDMATRIX = _read((PAIRS_IN_ROWS, (0, 0), (0, 1)))
"""One 8 x 8 matrix of 16-bit elements after ldmatrix: low and high half of the matrix's register."""
LDMATRIX_TRANS = _read((PAIRS_IN_COLUMNS, (0, 0), (0, 1)))
"""The same after ldmatrix with .trans."""

TABLES = {
    "mma_16_a": MMA_16_A,
    "mma_16_b": MMA_16_B,
    "mma_c": MMA_C,
    "mma_tf32_a": MMA_TF32_A,
    "mma_tf32_b": MMA_TF32_B,
    "ldmatrix": LDMATRIX,
    "ldmatrix_trans": LDMATRIX_TRANS,
}


def header() -> str:
    """Text of ``fragments.hpp``: ``NAME[lane][element]`` of {row, column}."""
    lines = ["// Printed from fragments.py.", "struct Place { unsigned char row, column; };"]
    for name, table in TABLES.items():
        elements = len(table) // 32
        rows = ", ".join(
            "{" + ", ".join(f"{{{table[lane, e][0]}, {table[lane, e][1]}}}" for e in range(elements)) + "}"
            for lane in range(32)
        )
        lines.append(f"static const Place {name}[32][{elements}] = {{{rows}}};")
    return "\n".join([*lines, ""])
