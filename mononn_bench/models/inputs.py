"""Seeded input sets. Sets of one model differ in content, in length and in padding mask."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mononn_bench.models.spec import InputSpec, Role
from mononn_bench.models.weights import generator

Arrays = dict[str, NDArray[Any]]

TIMED_SETS, UNSEEN_SETS = 4, 2
"""Input sets that rotate in blocks, and those only looked at after the last block."""
CALIBRATION_SEED, CALIBRATION_SETS = 1000, 16
"""Seed and number of the input sets that quantisation takes ranges of activations from; measured ones have another
seed.
"""
RESERVED_TOKENS = 4
"""Token 0 pads; contents start above the reserved ones."""
SEQUENCES: tuple[Role, ...] = ("tokens", "mask", "segments")
PATCHES = ((32, 0.55), (8, 0.5), (2, 0.35), (1, 0.2679))
"""Sizes in pixels (frames, samples) of what an image (a clip, sound) shows, and standard deviations; the squares sum to
0.75.
"""


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


def _image(spec: InputSpec, random: np.random.Generator) -> NDArray[Any]:
    """Random fields as images, clips and sound have them: large patches weigh more than small ones, and each channel
    has a mean; zero mean and a standard deviation of `spec.scale` over many, as preprocessing leaves real ones. Axes
    are batch, channels, and any number of those that patches extend along.
    """
    batch, channels, *axes = spec.shape
    total = random.standard_normal((batch, channels, *(1,) * len(axes))) * 0.5
    for size, weight in PATCHES:
        field = random.standard_normal((batch, channels, *(-(-length // size) for length in axes))) * weight
        for axis, length in enumerate(axes, start=2):
            field = field.repeat(size, axis=axis).take(range(length), axis=axis)
        total = total + field
    return (total * spec.scale).astype(spec.dtype)


def _make(spec: InputSpec, lengths: NDArray[np.int64], seed: int, index: int) -> NDArray[Any]:
    random = generator(seed, f"{spec.name}:{index}")
    if spec.role == "image":
        return _image(spec, random)
    if spec.role == "dense":
        if np.issubdtype(np.dtype(spec.dtype), np.floating):
            return random.standard_normal(spec.shape).astype(spec.dtype)
        return random.integers(0, spec.limit or 2, spec.shape).astype(spec.dtype)
    positions = np.broadcast_to(np.arange(spec.shape[-1]), spec.shape)
    rows = spec.shape[0] if len(spec.shape) > 1 else 1
    length = lengths[:rows].reshape(-1, *(1,) * (len(spec.shape) - 1))
    if spec.role == "mask":
        return (positions < length).astype(spec.dtype)
    if spec.role == "segments":
        border = random.integers(1, length + 1)
        return ((positions >= border) & (positions < length)).astype(spec.dtype)
    tokens = random.integers(min(RESERVED_TOKENS, spec.limit - 1), spec.limit, spec.shape)
    return np.where(positions < length, tokens, 0).astype(spec.dtype)


def make_inputs(specs: tuple[InputSpec, ...], *, sets: int, seed: int) -> list[Arrays]:
    """`sets` dictionaries of C-contiguous arrays, one entry a graph input; the same arguments give the same bits.
    Rows of a batch differ in length too.
    """
    result = []
    for index in range(sets):
        tokens = next((s.shape[-1] for s in specs if s.role in ("mask", "tokens")), 1)
        batch = max((s.shape[0] for s in specs if s.role in SEQUENCES and len(s.shape) > 1), default=1)
        lengths = np.array([valid_length(tokens, seed, index + row) for row in range(batch)])
        result.append({s.name: np.ascontiguousarray(_make(s, lengths, seed, index)) for s in specs})
    return result
