"""Session: a network compiled for a CPU with its workers and working memory, ready to run."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mononn_core.errors import OptionError
from mononn_core.options import MAX_THREADS
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.base import (
    STOPPED,
    BaseBinding,
    BaseSession,
    Specialisation,
    check_apart,
    readable,
    writable,
)
from mononn_core.runtime.cpu import BindingStruct, Code, Host

WEIGHTS = PRIVATE, SHARED = "private", "shared"


class Binding(BaseBinding):
    """Buffers in host memory."""

    def __init__(
        self,
        session: Session,
        host: Host,
        specialisation: Specialisation,
        inputs: dict[str, np.ndarray],
        outputs: dict[str, np.ndarray],
        trace: np.ndarray | None = None,
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._host = host
        self._explain = functools.partial(session.explain, ran=specialisation)
        self._keep = (_pointers(inputs.values()), _pointers(outputs.values()), trace)
        trace_address = trace.ctypes.data if trace is not None else None
        self._struct = BindingStruct(
            host.address, *map(ctypes.addressof, self._keep[:2]), trace_address, specialisation.index
        )
        self._call: Callable[[Any], int] = host.run
        self._argument = ctypes.byref(self._struct)

    def run(self) -> None:
        word = self._call(self._argument)
        if word:
            raise self._explain(word)


class PartBinding(BaseBinding):
    """Buffers of shorter inputs than ``whole`` computes: every run copies them to and from the first elements of its
    own, whose rest stays zero."""

    def __init__(self, whole: Binding, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
        self.whole, self.inputs, self.outputs = whole, inputs, outputs

    def run(self) -> None:
        for name, value in self.inputs.items():
            self.whole.inputs[name][_first(value)] = value
        self.whole.run()
        for name, value in self.outputs.items():
            value[...] = self.whole.outputs[name][_first(value)]


class Session(BaseSession):
    """A network on its workers: the calling thread and ``threads - 1`` persistent ones, with one arena.

    Use as a context manager, or :meth:`close` it, to end the workers early; they end with the last reference anyway.
    """

    def __init__(
        self, artifact: Artifact, threads: int | None = None, weights: str = PRIVATE, code: Code | None = None
    ) -> None:
        """
        Args:
            artifact: from :func:`mononn_core.runtime.artifact.Artifact.load` or the compiler.
            threads: number of workers; None for the number the artifact was balanced for. The bits of the answers do
                not depend on it.
            weights: "private": a copy in this process's own huge pages; "shared": read where the file is mapped, one
                copy in memory for all processes and sessions that load it so, and no time to copy it.
            code: an already loaded one (clones).

        Raises:
            OptionError: threads is no positive number, weights is neither word.
            ArtifactError: the machine code cannot be loaded.
        """
        workers = artifact.manifest["threads"] if threads is None else threads
        if type(workers) is not int or not 1 <= workers <= MAX_THREADS:
            raise OptionError(f"threads is {workers!r}; give a positive number up to {MAX_THREADS}, or None")
        if weights not in WEIGHTS:
            raise OptionError(f"weights is {weights!r}; give one of {', '.join(map(repr, WEIGHTS))}")
        super().__init__(artifact, workers)
        self.workers = workers
        self._weights = weights
        self._code = code or Code(artifact, weights == SHARED)
        self._host: Host | None = Host(self._code, workers)

    def bind(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, np.ndarray] | None = None,
        trace: np.ndarray | None = None,
    ) -> BaseBinding:
        given = dict(outputs or {})
        chosen = self.choose(inputs, given, trace)
        read = {name: readable(name, inputs[name], info) for name, info in chosen.inputs.items()}
        written = {
            name: writable(name, given[name], info) if name in given else np.empty(info.shape, info.dtype)
            for name, info in chosen.outputs.items()
        }
        check_apart(read, given)
        host = self._host  # which another thread may close
        if host is None:
            raise self.explain(STOPPED)
        whole = self.specialisations[chosen.index]
        if chosen is whole:
            return Binding(self, host, whole, read, written, trace)
        sent = {name: np.zeros(info.shape, info.dtype) for name, info in whole.inputs.items()}
        received = {name: np.empty(info.shape, info.dtype) for name, info in whole.outputs.items()}
        return PartBinding(Binding(self, host, whole, sent, received, trace), read, written)

    def clone(self, threads: int | None = None) -> Session:
        """Another session on the same code and weights, with workers and arena of its own; runs beside this one."""
        return Session(self.artifact, self.threads if threads is None else threads, self._weights, self._code)

    def close(self) -> None:
        """Waits for the run in progress and ends the workers. Bindings are refused from now on; twice is allowed."""
        host, self._host = self._host, None
        if host is not None:
            host.stop()


def _first(value: np.ndarray) -> tuple[slice, ...]:
    return tuple(map(slice, value.shape))


def _pointers(arrays: Any) -> Any:
    addresses = [array.ctypes.data for array in arrays]
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
