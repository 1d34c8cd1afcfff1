"""The fragment tables, typed from the ISA's figures, against its formulas and against cells read off the figures."""

import pytest

from mononn_core.emulate import fragments

SHAPES = {
    "mma_16_a": (16, 16),
    "mma_16_b": (16, 8),
    "mma_c": (16, 8),
    "mma_tf32_a": (16, 8),
    "mma_tf32_b": (8, 8),
    "ldmatrix": (8, 8),
    "ldmatrix_trans": (8, 8),
}

# PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", "... mma.m16n8k8" and "ldmatrix", in formulas:
# g is laneid >> 2 (groupID), t is laneid % 4 (threadID_in_group), i the element.
FORMULAS = {
    "mma_16_a": lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (8 if i >= 4 else 0)),
    "mma_16_b": lambda g, t, i: (t * 2 + (i & 1) + (8 if i >= 2 else 0), g),
    "mma_c": lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    "mma_tf32_a": lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    "mma_tf32_b": lambda g, t, i: (t if i == 0 else t + 4, g),
    "ldmatrix": lambda g, t, i: (g, t * 2 + i),
    "ldmatrix_trans": lambda g, t, i: (t * 2 + i, g),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_element_is_held_once(name):
    rows, columns = SHAPES[name]
    table = fragments.TABLES[name]
    assert sorted(table.values()) == [(r, c) for r in range(rows) for c in range(columns)]
    assert sorted(table) == [(lane, e) for lane in range(32) for e in range(rows * columns // 32)]


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_figures_and_formulas_of_the_isa_agree(name):
    for (lane, element), place in fragments.TABLES[name].items():
        assert place == FORMULAS[name](lane >> 2, lane % 4, element), (lane, element)


@pytest.mark.parametrize(
    ("name", "lane", "element", "place"),
    [
        ("mma_16_a", 0, 0, (0, 0)),
        ("mma_16_a", 0, 2, (8, 0)),
        ("mma_16_a", 0, 4, (0, 8)),
        ("mma_16_a", 31, 7, (15, 15)),
        ("mma_16_a", 5, 3, (9, 3)),
        ("mma_16_b", 1, 0, (2, 0)),
        ("mma_16_b", 4, 3, (9, 1)),
        ("mma_16_b", 31, 3, (15, 7)),
        ("mma_c", 6, 1, (1, 5)),
        ("mma_c", 6, 2, (9, 4)),
        ("mma_tf32_a", 1, 1, (8, 1)),
        ("mma_tf32_a", 1, 2, (0, 5)),
        ("mma_tf32_b", 29, 1, (5, 7)),
        ("ldmatrix", 9, 1, (2, 3)),
        ("ldmatrix_trans", 9, 1, (3, 2)),
    ],
)
def test_cells_read_off_the_figures(name, lane, element, place):
    assert fragments.TABLES[name][lane, element] == place


def test_the_runtime_gets_the_same_tables():
    text = fragments.header()
    assert all(f"static const Place {name}[32][" in text for name in SHAPES)
    assert text.count("{15, 15}") == 1  # of mma_16_a alone
