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


def _reach(mine: tuple[tuple[int, int, int, int], ...], at: tuple[int, ...]) -> bool:
    return any(r0 <= at[0] < r1 and c0 <= at[1] < c1 for r0, r1, c0, c1 in mine)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), boxes), max_size=4), boxes, st.integers(0, 2))
def test_a_grid_knows_what_every_element_knows(written, asked, owner) -> None:  # type: ignore[no-untyped-def]
    writers = Writers((ROWS, COLUMNS), written)
    elements, foreign = np.full((ROWS, COLUMNS), NOBODY), np.zeros((ROWS, COLUMNS), bool)
    for who, mine in written:
        for r0, r1, c0, c1 in mine:
            elements[r0:r1, c0:c1] = who
            foreign[r0:r1, c0:c1] |= who != owner
    inside = [foreign[r0:r1, c0:c1] for r0, r1, c0, c1 in asked]
    written_by_one = all(
        len({who for who, mine in written if _reach(mine, at)}) < 2 for at in np.ndindex(ROWS, COLUMNS)
    )
    if written_by_one:
        assert not writers.several.any()
    assert writers.only(owner, asked) == (not any(part.any() for part in inside))
    for part, one in zip(inside, asked, strict=True):
        assert writers.others(owner, one) == np.count_nonzero(part)
    if (elements != NOBODY).any():
        counts = [np.count_nonzero(elements == who) for who in range(3)]
        assert writers.largest_share() == max(counts) / sum(counts)
    columns = writers.same_in_all_rows()
    assert columns.tolist() == elements.max(axis=0).tolist()
