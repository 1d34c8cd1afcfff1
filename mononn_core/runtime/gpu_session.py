"""What sessions on a GPU and on its emulator share: tensors, the call's words, one kernel or a list of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mononn_core.errors import MononnError
from mononn_core.program import abi
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.session import TensorInfo, explain

ALIGNMENT = 128


@dataclass(frozen=True)
class Launch:
    """One kernel of a run: its name, and the iteration of the rolled loop it stands in."""

    kernel: str
    iteration: int


class GpuBinding(ABC):
    """Buffers bound to a session once and run many times. Made by ``bind``.

    Attributes:
        inputs: the arrays the kernel reads; rewrite their values in place between runs.
        outputs: the arrays every run overwrites.
    """

    inputs: dict[str, Any]
    outputs: dict[str, Any]

    @abstractmethod
    def run(self) -> None:
        """One inference, finished and checked when it returns.

        Raises:
            InputError: an index taken from an input is out of range.
            DeviceError: the GPU refused or ended the kernel, or (DeviceHangError) it did not end in time.
            MononnError: the session is closed.
        """

    @abstractmethod
    def results(self) -> dict[str, Any]:
        """The outputs where the caller's inputs were: in host memory, or on the device."""


class GpuSession(ABC):
    """A network compiled for a GPU, with its arena and weights. Use as a context manager, or :meth:`close` it.

    Attributes:
        inputs, outputs: by name, in the order of the call.
        workers: blocks of the launch.
    """

    workers: int

    def __init__(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        self.inputs = {t["name"]: TensorInfo(t["dtype"], tuple(t["shape"])) for t in manifest["inputs"]}
        self.outputs = {t["name"]: TensorInfo(t["dtype"], tuple(t["shape"])) for t in manifest["outputs"]}
        self.launches = tuple(Launch(k["name"], k["iteration"]) for k in manifest["kernels"])
        self.artifact = artifact
        self.closed = False

    @property
    def info(self) -> dict[str, Any]:
        """A copy of the manifest: phases, barriers, flops, bytes, arena_bytes, weight_bytes, ..."""
        return dict(self.artifact.manifest)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return int(self.artifact.manifest["threads"])

    @property
    def sync_bytes(self) -> int:
        """Of the barrier and the counters; zeroed once."""
        return abi.gpu_sync_bytes(int(self.artifact.manifest["counters"]))

    @abstractmethod
    def bind(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None, trace: np.ndarray | None = None
    ) -> GpuBinding:
        """Binds buffers for many runs.

        Args:
            inputs: a value for every name in ``self.inputs``, of exactly that dtype and shape.
            outputs: name to a C-contiguous array of the output's dtype and shape; the others are allocated.
            trace: uint64 NumPy array of shape (workers, executed phases, 3) for time stamps in nanoseconds.

        Raises:
            InputError: a value or buffer does not fit.
        """

    @abstractmethod
    def clone(self) -> GpuSession:
        """Another session on the same code and weights, with an arena of its own."""

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One inference; every output by name. Arguments and errors are those of :meth:`bind` and of its run."""
        binding = self.bind(inputs, outputs)
        binding.run()
        return binding.results()

    def save(self, path: str | Path) -> None:
        """Writes the ``.mono`` file (see :meth:`Artifact.save`)."""
        self.artifact.save(path)

    def close(self) -> None:
        """Bindings are refused from now on, and the session's memory is given back with the last of them."""
        self.closed = True

    def check_open(self) -> None:
        """Raises MononnError when the session is closed."""
        if self.closed:
            raise MononnError("this session is closed; load or compile the model again")

    def explain(self, word: int) -> MononnError:
        """The error that a run's error word stands for."""
        return explain(word, self.artifact.manifest["phases"])

    def __enter__(self) -> GpuSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
