"""Lengths of requests as a published data set has them, drawn with a seed; and the lengths that are padded to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mononn_bench.codec import read_record
from mononn_bench.errors import RecordError
from mononn_bench.models.weights import generator
from mononn_bench.served import Distribution

SQUAD = Path(__file__).with_name("squad-1.1.json")
"""The distribution of a configuration that names none."""


def read_distribution(path: Path = SQUAD) -> Distribution:
    """The distribution in a file. Raises RecordError where it is none, or none of lengths from 1 on."""
    found = read_record(Distribution, path)
    if found.first < 1 or not found.counts or min(found.counts) < 0 or sum(found.counts) == 0:
        raise RecordError(f"{path} has no lengths from 1 on with counts from 0 on: correct the file.")
    return found


def draw_lengths(distribution: Distribution, count: int, seed: int) -> list[int]:
    """`count` lengths in tokens, each drawn alone; the same arguments give the same ones, and fewer are their start."""
    whole = np.cumsum(distribution.counts)
    chances = generator(seed, f"lengths:{distribution.name}").integers(int(whole[-1]), size=count)
    return [distribution.first + int(place) for place in np.searchsorted(whole, chances, side="right")]


def quantile(distribution: Distribution, share: float) -> int:
    """The least length that at least `share` of all requests do not exceed; of 0 the shortest there is."""
    whole = np.cumsum(distribution.counts)
    return distribution.first + int(np.searchsorted(whole, max(1, share * int(whole[-1])), side="left"))


def mean_length(distribution: Distribution) -> float:
    """The mean length in tokens."""
    lengths = np.arange(distribution.first, distribution.first + len(distribution.counts))
    return float(np.average(lengths, weights=distribution.counts))


def make_grid(distribution: Distribution, step: int) -> tuple[int, ...]:
    """The multiples of `step` that requests are padded to, the last one no longer than the longest request."""
    shortest, longest = quantile(distribution, 0.0), quantile(distribution, 1.0)
    return tuple(min(end, longest) for end in range(-(-shortest // step) * step, longest + step, step))


def padded_length(length: int, grid: Sequence[int]) -> int:
    """The least length of the grid that a request fits in. Raises ValueError where it fits in none."""
    for end in grid:
        if length <= end:
            return end
    raise ValueError(f"{length} tokens are more than the {grid[-1]} of the longest request")
