"""What sessions on a GPU and on its emulator share: tensors, the call's words, one kernel or a list of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mononn_core.errors import MononnError
from mononn_core.program import abi
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.base import CLOSED, BaseSession

ALIGNMENT = 128


@dataclass(frozen=True)
class Launch:
    """One kernel of a run: its name, and the iteration of the rolled loop it stands in."""

    kernel: str
    iteration: int


class GpuSession(BaseSession):
    """A network compiled for a GPU, with its arena and weights."""

    def __init__(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        super().__init__(artifact, int(manifest["threads"]))
        self.launches = tuple(Launch(k["name"], k["iteration"]) for k in manifest["kernels"])
        self.closed = False

    @property
    def sync_bytes(self) -> int:
        """Of the barrier and the counters; zeroed once."""
        return abi.gpu_sync_bytes(int(self.artifact.manifest["counters"]))

    def close(self) -> None:
        """Bindings are refused from now on, and the session's memory is given back with the last of them."""
        self.closed = True

    def check_open(self) -> None:
        """Raises MononnError when the session is closed."""
        if self.closed:
            raise MononnError(CLOSED)


def on_one_clock(stamps: np.ndarray) -> np.ndarray:
    """Stamps of a run in nanoseconds of one clock.

    The clock that all blocks share may tick once a microsecond; a multiprocessor's cycles are fine but begin anywhere.
    One rate for all and one origin for each multiprocessor, by least squares over all its stamps, put cycles on the
    common clock.

    Args:
        stamps: uint64 of shape (blocks, executed phases, 3, 3), the last being ``abi.GPU_STAMP``.

    Returns:
        uint64 of shape (blocks, executed phases, 3).
    """
    shared, cycles, owners = (stamps[..., word].reshape(-1) for word in range(len(abi.GPU_STAMP)))
    first = shared.min()
    _, owner = np.unique(owners, return_inverse=True)
    origin = np.full(owner.max() + 1, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(origin, owner, cycles)
    fine, coarse = (cycles - origin[owner]).astype(np.float64), (shared - first).astype(np.float64)
    count = np.bincount(owner)
    fine -= (np.bincount(owner, fine) / count)[owner]
    middle = (np.bincount(owner, coarse) / count)[owner]
    spread = float(fine @ fine)
    times = middle + fine * (float(fine @ coarse) / spread if spread else 0.0)
    return (first + np.rint(times - times.min()).astype(np.uint64)).reshape(stamps.shape[:-1])


def aligned_zeros(nbytes: int) -> np.ndarray:
    """uint8 zeros on a 128-byte boundary; at least one line, so that there always is an address."""
    nbytes = max(nbytes, ALIGNMENT)
    room = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + nbytes]


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """``array`` itself where it begins on a boundary that kernels ask for, else a copy that does."""
    if array.ctypes.data % abi.GPU_ALIGN == 0:
        return array
    copy = aligned_zeros(array.nbytes)[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
