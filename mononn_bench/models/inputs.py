"""Seeded input sets. Sets of one model differ in content, in length and in padding mask."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mononn_bench.models.weights import generator
from mononn_bench.models.zoo import InputSpec

Arrays = dict[str, NDArray[Any]]

TIMED_SETS, UNSEEN_SETS = 4, 2
"""Input sets that rotate in blocks, and those only looked at after the last block."""
RESERVED_TOKENS = 4
"""Token 0 pads; contents start above the reserved ones."""


def valid_length(tokens: int, seed: int, index: int) -> int:
    """Unpadded tokens of set `index`: the first set is full, later ones keep between 40 % and 95 %, none alike in a
    row.
    """
    if index == 0:
        return tokens
    low, high = max(1, int(0.4 * tokens)), max(2, int(0.95 * tokens))
    span = high - low + 1
    start = int(generator(seed, "length").integers(span))
    return low + (start + index * max(1, int(0.38 * span))) % span


def _make(spec: InputSpec, length: int, seed: int, index: int) -> NDArray[Any]:
    random = generator(seed, f"{spec.name}:{index}")
    if spec.role == "dense":
        if np.issubdtype(np.dtype(spec.dtype), np.floating):
            return random.standard_normal(spec.shape).astype(spec.dtype)
        return random.integers(0, spec.limit or 2, spec.shape).astype(spec.dtype)
    positions = np.broadcast_to(np.arange(spec.shape[-1]), spec.shape)
    if spec.role == "mask":
        return (positions < length).astype(spec.dtype)
    if spec.role == "segments":
        border = int(random.integers(1, length + 1))
        return ((positions >= border) & (positions < length)).astype(spec.dtype)
    tokens = random.integers(min(RESERVED_TOKENS, spec.limit - 1), spec.limit, spec.shape)
    return np.where(positions < length, tokens, 0).astype(spec.dtype)


def make_inputs(specs: tuple[InputSpec, ...], *, sets: int, seed: int) -> list[Arrays]:
    """`sets` dictionaries of C-contiguous arrays, one entry a graph input; the same arguments give the same bits."""
    result = []
    for index in range(sets):
        tokens = next((s.shape[-1] for s in specs if s.role in ("mask", "tokens")), 1)
        length = valid_length(tokens, seed, index)
        result.append({s.name: np.ascontiguousarray(_make(s, length, seed, index)) for s in specs})
    return result
