"""From an artifact to the session of its target."""

from __future__ import annotations

from pathlib import Path

from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.base import BaseSession
from mononn_core.runtime.session import PRIVATE, Session


def load(path: str | Path, threads: int | None = None, verify: bool = True, weights: str = PRIVATE) -> BaseSession:
    """Loads a ``.mono`` file; needs neither ONNX nor a compiler.

    Args:
        path: written by :meth:`Session.save`. It holds machine code: load only what you would run as a program.
        threads: number of workers (on a GPU: of blocks); None for the number the artifact was balanced for.
        verify: compare the weights' digest as well (everything else is always compared).
        weights: "private" or "shared", see :class:`Session`; of no meaning on a GPU.

    Raises:
        ArtifactError: truncated, altered, of another version, or for another machine.
        DeviceError: the file is for a GPU, and none here can run it.
        OptionError: threads is no positive number, weights is neither word.
    """
    return open_session(Artifact.load(path, verify, later=True), threads, weights)


def open_session(artifact: Artifact, threads: int | None = None, weights: str = PRIVATE) -> BaseSession:
    """The session of the artifact's target, whose module alone is imported; arguments and errors are :func:`load`'s."""
    if artifact.target == "cuda":
        from mononn_core.runtime.cuda import CudaSession

        return CudaSession(artifact, threads)
    if artifact.target == "cuda-emulated":
        from mononn_core.runtime.emulated import EmulatedSession

        return EmulatedSession(artifact, threads)
    return Session(artifact, threads, weights)
