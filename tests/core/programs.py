"""Small Programs written by hand, each with inputs, weights and its answer in NumPy.

They exercise every part of the grammar: prefetch into a local slot, split contractions, counters, rolled loops over
tables, owned groups, worker-local temporaries, ragged tiles, blocked layouts and shared arena bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.core.build import Case
from tests.core.programs_data import local_rows, shared_arena, tokens_attention
from tests.core.programs_image import bordered_image
from tests.core.programs_order import (
    counter_hand_off,
    counter_loop,
    double_buffered_prefetch,
    owned_group,
    rolled_loop,
    split_k,
)

CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (
        double_buffered_prefetch,
        split_k,
        counter_hand_off,
        counter_loop,
        rolled_loop,
        owned_group,
        tokens_attention,
        shared_arena,
        local_rows,
        bordered_image,
    )
}
