"""Who writes a stored matrix, by boxes: the same answers as element by element."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core.schedule.boxes import NOBODY, Writers

ROWS, COLUMNS = 7, 9


def _ends(extent: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, extent + 2), st.integers(0, extent + 2))


box = st.tuples(_ends(ROWS), _ends(COLUMNS)).map(lambda ends: (*ends[0], *ends[1]))
boxes = st.lists(box, max_size=3).map(tuple)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), boxes), max_size=4), boxes, st.integers(0, 2))
def test_a_grid_knows_what_every_element_knows(written, asked, owner) -> None:  # type: ignore[no-untyped-def]
    writers = Writers((ROWS, COLUMNS), written)
    elements = np.full((ROWS, COLUMNS), NOBODY)
    for who, mine in written:
        for r0, r1, c0, c1 in mine:
            elements[r0:r1, c0:c1] = who
    inside = [elements[r0:r1, c0:c1] for r0, r1, c0, c1 in asked]
    assert writers.only(owner, asked) == all(((part == owner) | (part == NOBODY)).all() for part in inside)
    for part, one in zip(inside, asked, strict=True):
        assert writers.others(owner, one) == np.count_nonzero((part != owner) & (part != NOBODY))
    if (elements != NOBODY).any():
        counts = [np.count_nonzero(elements == who) for who in range(3)]
        assert writers.largest_share() == max(counts) / sum(counts)
    columns = writers.same_in_all_rows()
    assert columns.tolist() == elements.max(axis=0).tolist()
