"""The emulator as a target: generated CUDA code on host threads, checked for races on the way. Slow; for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mononn_core.emulate import Emulated, Watch
from mononn_core.emulate import build as build_emulated
from mononn_core.errors import OptionError
from mononn_core.program import abi
from mononn_core.runtime.artifact import INCLUDED, Artifact
from mononn_core.runtime.base import BaseBinding, check_apart, readable, writable
from mononn_core.runtime.gpu_session import GpuSession, aligned_copy, aligned_zeros, on_one_clock

BLOCKS = 4
"""What a run has unless told otherwise: nothing in the code may depend on it but the dealing of tasks."""
MAX_BLOCKS = 1024
PRIMITIVES = "mononn_ptx.cuh"


def vocabulary(artifact: Artifact) -> dict[str, str]:
    """The headers that the artifact's source was printed for; of the primitives the emulator has its own."""
    headers = {n.removeprefix(INCLUDED): text for n, text in artifact.texts.items() if n.startswith(INCLUDED)}
    return {name: text for name, text in headers.items() if name != PRIMITIVES}


class EmulatedBinding(BaseBinding):
    """Host buffers of an emulated run."""

    def __init__(
        self, session: EmulatedSession, inputs: dict[str, Any], outputs: dict[str, Any], trace: np.ndarray | None
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._session = session
        self._trace = trace
        self._stamps = np.zeros((*trace.shape, len(abi.GPU_STAMP)) if trace is not None else 0, np.uint64)
        self._error = np.zeros(1, np.uint64)
        read_only = {"weights": session.weights, **inputs}
        unwritten = {"arena": session.arena, **outputs}
        others = {"sync": session.sync, "error": self._error, "trace": self._stamps}
        self._watch = [
            Watch(array.ctypes.data, array.nbytes, name, read_only=name in read_only, unwritten=name in unwritten)
            for name, array in {**read_only, **unwritten, **others}.items()
            if array.nbytes
        ]
        self._words = abi.pack_gpu_call(
            session.arena.ctypes.data, session.weights.ctypes.data, session.sync.ctypes.data,
            self._stamps.ctypes.data if trace is not None else 0, self._error.ctypes.data,
            [a.ctypes.data for a in inputs.values()], [a.ctypes.data for a in outputs.values()],
        )  # fmt: skip

    def run(self) -> None:
        session = self._session
        session.check_open()
        self._error[0] = 0
        manifest = session.artifact.manifest
        session.emulated.reset()
        for launch in session.launches:
            session.emulated.launch(
                launch.kernel, self._words, session.workers, session.threads, manifest["shared_bytes"],
                iteration=launch.iteration, schedule=session.schedule, watch=self._watch,
            )  # fmt: skip
        if self._error[0]:
            raise session.explain(int(self._error[0]))
        if self._trace is not None:
            self._trace[...] = on_one_clock(self._stamps)


class EmulatedSession(GpuSession):
    """A network on the emulator."""

    def __init__(
        self,
        artifact: Artifact,
        blocks: int | None = None,
        schedule: str = "random:0",
        sanitize: bool = True,
        emulated: Emulated | None = None,
    ) -> None:
        """
        Args:
            artifact: of either GPU target; its source is compiled for this machine's processor.
            blocks: of the launch; None for ``BLOCKS``. The bits of the answers do not depend on it.
            schedule: in which order threads get on: "random:SEED", "block-first", "reversed" or "starve:N".
            sanitize: look for races, poison and strays in every run; off, a run is faster.
            emulated: an already built one (clones).

        Raises:
            OptionError: blocks is no positive number.
            ToolchainError: there is no host compiler, or it refused the source.
        """
        super().__init__(artifact)
        self.workers = BLOCKS if blocks is None else blocks
        if type(self.workers) is not int or not 1 <= self.workers <= MAX_BLOCKS:
            raise OptionError(f"the number of blocks is {blocks!r}; give one from 1 to {MAX_BLOCKS}, or None")
        self.schedule = schedule
        self.emulated = emulated or build_emulated(
            artifact.texts["source"], headers=vocabulary(artifact), sanitize=sanitize
        )
        self.arena = aligned_zeros(artifact.manifest["arena_bytes"])
        self.weights = aligned_zeros(len(artifact.weights))
        self.weights[: len(artifact.weights)] = np.frombuffer(artifact.weights, np.uint8)
        self.sync = aligned_zeros(self.sync_bytes)

    def bind(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None, trace: np.ndarray | None = None
    ) -> EmulatedBinding:
        self.check_open()
        given = dict(outputs or {})
        self.choose(inputs, given, trace)
        read = {name: aligned_copy(readable(name, inputs[name], info)) for name, info in self.inputs.items()}
        written = {
            name: writable(name, given[name], info) if name in given else aligned_copy(np.empty(info.shape, info.dtype))
            for name, info in self.outputs.items()
        }
        check_apart(read, given)
        return EmulatedBinding(self, read, written, trace)

    def clone(self) -> EmulatedSession:
        return EmulatedSession(self.artifact, self.workers, self.schedule, self.emulated.sanitize, self.emulated)
