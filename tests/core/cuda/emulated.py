"""Runs a hand-written Case's printed source under the emulator."""

from __future__ import annotations

import numpy as np

from mononn_core.codegen.cuda import CudaSource, print_program
from mononn_core.emulate import Watch, build
from mononn_core.lower.shared import place
from mononn_core.program import abi
from mononn_core.program.ir import Program
from tests.core.build import Array, Case


def aligned(nbytes: int, value: int = 0) -> Array:
    """``nbytes`` bytes at a multiple of 128."""
    raw = np.full(nbytes + 128, value, np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + nbytes]


def packed_weights(program: Program, weights: dict[str, Array]) -> Array:
    """The weight space, every logical element where its layout puts it, zeros elsewhere."""
    space = aligned(max(program.weight_bytes, 16))
    for b in (b for b in program.buffers if b.space == "weight"):
        view = space[b.offset : b.offset + b.nbytes].view(np.asarray(weights[b.id]).dtype)
        view[b.layout.offsets(b.shape).reshape(-1)] = np.asarray(weights[b.id]).reshape(-1)
    return space


class Run:
    """One case, compiled for the emulator; ``run`` may be called again and again on the same memory. ``placed``: its
    Program says where shared memory lies."""

    def __init__(self, case: Case, threads: int = 256, launch: str = "once", placed: bool = False) -> None:
        program = self.program = case.program if placed else place(case.program, threads)
        self.source: CudaSource = print_program(program, threads, launch)
        self.threads = threads
        self.emulated = build(self.source.text)
        counters = sum(int(np.prod(c.shape)) for c in program.counters)
        self.arena = aligned(max(program.arena_bytes, 16), 0xCD)
        self.weights = packed_weights(program, dict(case.weights))
        self.sync, self.error = aligned(abi.gpu_sync_bytes(counters)), aligned(8)
        self.inputs = [aligned(max(program.buffer(n).nbytes, 16)) for n in program.inputs]
        for name, array in zip(program.inputs, self.inputs, strict=True):
            raw = np.ascontiguousarray(case.inputs[name]).view(np.uint8).reshape(-1)
            array[: raw.size] = raw
        self.outputs = [aligned(max(program.buffer(n).nbytes, 16), 0xCD) for n in program.outputs]

    def watches(self) -> list[Watch]:
        """Everything the kernels may touch; arena and outputs are unwritten before an inference."""

        def of(array: Array, name: str, **more: bool) -> Watch:
            return Watch(array.ctypes.data, array.nbytes, name, **more)

        return [
            of(self.arena, "arena", unwritten=True),
            of(self.weights, "weights", read_only=True),
            of(self.sync, "sync"),
            of(self.error, "error"),
            *(of(a, "input", read_only=True) for a in self.inputs),
            *(of(a, "output", unwritten=True) for a in self.outputs),
        ]

    def run(self, blocks: int = 3, schedule: str = "random:1", stamps: Array | None = None) -> dict[str, Array]:
        """One inference; outputs by name. ``stamps`` takes the trace."""
        addresses = [[a.ctypes.data for a in arrays] for arrays in (self.inputs, self.outputs)]
        places = (a.ctypes.data for a in (self.arena, self.weights, self.sync))
        trace = 0 if stamps is None else stamps.ctypes.data
        more = [] if stamps is None else [Watch(trace, stamps.nbytes, "trace")]
        words = abi.pack_gpu_call(*places, trace, self.error.ctypes.data, *addresses)
        self.emulated.reset()
        for kernel in self.source.kernels:
            self.report = self.emulated.launch(
                kernel.name, words, blocks, self.threads, self.source.shared_bytes,
                iteration=kernel.iteration, schedule=schedule, watch=[*self.watches(), *more],
            )  # fmt: skip
        found = {}
        for name, array in zip(self.program.outputs, self.outputs, strict=True):
            b = self.program.buffer(name)
            found[name] = array[: b.nbytes].view(np.dtype(b.dtype)).reshape(b.shape).copy()
        return found

    def trace(self, blocks: int, phases: int) -> Array:
        """Stamps [blocks][phases][3][3] of one inference."""
        stamps = aligned(blocks * phases * 72)
        self.run(blocks, stamps=stamps)
        return stamps.view(np.uint64).reshape(blocks, phases, 3, len(abi.GPU_STAMP))
