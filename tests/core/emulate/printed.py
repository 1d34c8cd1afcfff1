"""Runs a printed CUDA Program on the emulator: buffers as a session lays them out, answers against the case's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mononn_core.codegen.cuda import CudaSource
from mononn_core.compiler.packing import pack_weights
from mononn_core.emulate import Emulated, Report, Watch
from mononn_core.program import abi
from tests.core.build import Case

THREADS = 256


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy at an address that is a multiple of 128."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 128
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


class Run:
    """A case's Program with its buffers.

    Args:
        case: Program and answers.
        source: as printed.
    """

    def __init__(self, case: Case, source: CudaSource) -> None:
        self.case, self.source = case, source
        program = case.program
        buffers = program.buffer_map
        self.inputs = [aligned(np.ascontiguousarray(case.inputs[name])) for name in program.inputs]
        self.outputs = [aligned(np.zeros(buffers[n].shape, np.dtype(buffers[n].dtype))) for n in program.outputs]
        self.weights = aligned(np.frombuffer(pack_weights(program, case.weights).in_memory(), np.uint8))
        self.arena = aligned(np.zeros(max(program.arena_bytes, 1), np.uint8))
        self.sync = aligned(
            np.zeros(abi.gpu_sync_bytes(sum(int(np.prod(c.shape)) for c in program.counters)), np.uint8)
        )
        self.error = aligned(np.zeros(1, np.uint64))

    def launch(
        self, emulated: Emulated, schedule: str, blocks: int = 4, **options: Any
    ) -> tuple[list[Report], Mapping[str, np.ndarray]]:
        """One inference on fresh memory: the reports of its kernels, and what it answered."""
        fixed = {"weights": self.weights} | {f"input {i}": array for i, array in enumerate(self.inputs)}
        fresh = {"arena": self.arena} | {f"output {i}": array for i, array in enumerate(self.outputs)}
        self.sync[...] = 0
        for array in fresh.values():
            array.view(np.uint8)[...] = 0xFF
        watch = [
            Watch(array.ctypes.data, array.nbytes, name, read_only=name in fixed, unwritten=name in fresh)
            for name, array in {**fixed, **fresh, "sync": self.sync, "error": self.error}.items()
            if array.nbytes
        ]
        words = abi.pack_gpu_call(
            *(a.ctypes.data for a in (self.arena, self.weights, self.sync)), 0, self.error.ctypes.data,
            [a.ctypes.data for a in self.inputs], [a.ctypes.data for a in self.outputs],
        )  # fmt: skip
        emulated.reset()
        reports = [
            emulated.launch(
                kernel.name, words, blocks, THREADS, self.source.shared_bytes,
                iteration=kernel.iteration, schedule=schedule, watch=watch, **options,
            )
            for kernel in self.source.kernels
        ]  # fmt: skip
        return reports, dict(zip(self.case.program.outputs, self.outputs, strict=True))

    def right(self, outputs: Mapping[str, np.ndarray], tolerance: float) -> bool:
        """Whether the answers are the case's, to ``tolerance`` of the largest."""
        for name, expected in self.case.expected.items():
            got = outputs[name].astype(np.float64).reshape(expected.shape)
            if not np.abs(got - expected).max() <= tolerance * max(1.0, np.abs(expected).max()):
                return False
        return True
