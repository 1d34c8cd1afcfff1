"""Requests: inputs at a length of their own, seeded, the same for every system; padded, and answers cut to size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mononn_bench.models.inputs import RESERVED_TOKENS
from mononn_bench.models.spec import InputSpec
from mononn_bench.models.weights import generator
from mononn_bench.record import Tensor
from mononn_bench.served import OPEN

Arrays = dict[str, NDArray[Any]]
POOL = 8192
"""Token numbers that requests are slices of, so that many requests take little memory."""


@dataclass(frozen=True)
class Requests:
    """Requests by number: of each its length, where its tokens begin in the pool of token numbers (int64), and how many
    of them are of the first segment.
    """

    lengths: NDArray[np.int64]
    starts: NDArray[np.int64]
    borders: NDArray[np.int64]
    pool: NDArray[np.int64]

    def write(self, path: Path) -> None:
        """As npz, for workers to read."""
        np.savez(path, lengths=self.lengths, starts=self.starts, borders=self.borders, pool=self.pool)

    @staticmethod
    def read(path: Path) -> Requests:
        """What `write` wrote."""
        with np.load(path) as stored:
            return Requests(**{name: stored[name] for name in ("lengths", "starts", "borders", "pool")})

    def inputs(self, number: int, specs: Sequence[InputSpec]) -> Arrays:
        """The inputs [1, length] of one request: nothing in it is padding."""
        length, start = int(self.lengths[number]), int(self.starts[number])
        positions = np.arange(length)
        values = {
            "tokens": self.pool[start : start + length],
            "mask": np.ones(length, np.int64),
            "segments": positions >= self.borders[number],
        }
        return {spec.name: values[spec.role].astype(spec.dtype).reshape(1, length) for spec in specs}


def make_requests(specs: Sequence[InputSpec], lengths: Sequence[int], seed: int) -> Requests:
    """Requests of these lengths; the same arguments give the same ones."""
    limit = next(spec.limit for spec in specs if spec.role == "tokens")
    random = generator(seed, "requests")
    pool = random.integers(min(RESERVED_TOKENS, limit - 1), limit, POOL + max(lengths))
    found = np.asarray(lengths, np.int64)
    return Requests(found, random.integers(POOL, size=len(found)), random.integers(1, found + 1), pool)


class Buffers:
    """Room for one request of any length: arrays [1, length, ...] at the start of memory that is as large as the
    longest one needs, so that what is bound to one length stays where it is when another is asked for.
    """

    def __init__(self, tensors: Sequence[Tensor], longest: int) -> None:
        self._tensors = tensors
        longest_shapes = shapes_at(tensors, longest)
        self._room = {t.name: _aligned(longest_shapes[t.name], t.dtype) for t in tensors}

    def at(self, length: int) -> Arrays:
        """The arrays of a request of `length`, C-contiguous."""
        shapes = shapes_at(self._tensors, length)
        return {name: self._room[name][: int(np.prod(shape))].reshape(shape) for name, shape in shapes.items()}


def shapes_at(tensors: Sequence[Tensor], length: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a request's tensors by name."""
    return {t.name: tuple(length if size == OPEN else size for size in t.shape) for t in tensors}


def fill_padded(arrays: Mapping[str, NDArray[Any]], request: Mapping[str, NDArray[Any]]) -> None:
    """Write a request [1, n] into arrays [1, m], zeros behind it: a mask's padding, and the padding token."""
    for name, given in request.items():
        length = given.shape[1]
        arrays[name][:, :length] = given
        arrays[name][:, length:] = 0


def cut_answers(answers: Mapping[str, NDArray[Any]], outputs: Sequence[Tensor], length: int) -> Arrays:
    """Views of the answers without what belongs to padding."""
    cut = {t.name: tuple(slice(length if size == OPEN else None) for size in t.shape) for t in outputs}
    return {name: answers[name][where] for name, where in cut.items()}


def _aligned(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Zeros in one row that begin on a cache line."""
    size, line = int(np.prod(shape)) * np.dtype(dtype).itemsize, 64
    room = np.zeros(size + line, np.uint8)
    start = -room.ctypes.data % line
    return room[start : start + size].view(dtype)
