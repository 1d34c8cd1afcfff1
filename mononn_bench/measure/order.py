"""The order of blocks: each system in each place, and after each other, equally often (rule 22 of the measuring rules).

E. J. Williams, Experimental designs balanced for the estimation of residual effects of treatments, Australian Journal
of Scientific Research A 2 (1949), 149-168.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def williams_square(count: int) -> list[tuple[int, ...]]:
    """Orders of 0 to `count` - 1 in which each follows each other equally often and has each place equally often.

    `count` orders where it is even, and each ordered pair once; twice as many where it is odd, and each pair twice.
    """
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(count)]
    square = [tuple((start + step) % count for step in zigzag) for start in range(count)]
    return square if count % 2 == 0 else [order for row in square for order in (row, row[::-1])]


def balanced_orders(items: Sequence[str], count: int, seed: str) -> list[tuple[str, ...]]:
    """`count` orders of `items`: rows of Williams squares in random succession, each square with its items shuffled.

    Within a square no two ordered pairs of neighbours differ by more than one in how often they occur where the number
    of items is even, by two where it is odd; whole squares are balanced exactly.
    """
    chance = random.Random(seed)
    orders: list[tuple[str, ...]] = []
    while len(orders) < count:
        names = chance.sample(list(items), len(items))
        square = williams_square(len(items))
        orders += [tuple(names[i] for i in row) for row in chance.sample(square, len(square))]
    return orders[:count]
