"""Session: a compiled network with its workers and working memory, ready to run."""

from __future__ import annotations

import ctypes
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from mononn_core.errors import InputError, MononnError, OptionError
from mononn_core.program import abi
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.cpu import FORKED, STOPPED, BindingStruct, Code, Host

if TYPE_CHECKING:
    from mononn_core.runtime.gpu_session import GpuSession

MAX_THREADS = 4096


@dataclass(frozen=True)
class TensorInfo:
    """An input or output.

    Attributes:
        dtype: NumPy's name ("float32", "int64", "bool").
        shape: extents; () for a scalar.
    """

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{'x'.join(map(str, self.shape))}]"


class Binding:
    """Buffers bound to a session once and run many times. Made by :meth:`Session.bind`.

    Attributes:
        inputs: the arrays the network reads; rewrite their values in place between runs.
        outputs: the arrays every run overwrites.
    """

    def __init__(
        self,
        session: Session,
        host: Host,
        inputs: dict[str, np.ndarray],
        outputs: dict[str, np.ndarray],
        trace: np.ndarray | None = None,
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._host = host
        self._explain = session.explain
        self._keep = (_pointers(inputs.values()), _pointers(outputs.values()), trace)
        trace_address = trace.ctypes.data if trace is not None else None
        self._struct = BindingStruct(
            host.address, ctypes.addressof(self._keep[0]), ctypes.addressof(self._keep[1]), trace_address
        )
        self._call: Callable[[Any], int] = host.run
        self._argument = ctypes.byref(self._struct)

    def run(self) -> None:
        """One inference. Concurrent calls on one session take turns.

        Raises:
            InputError: an index taken from an input is out of range.
            MononnError: the session is closed, or belongs to the process this one was forked from.
        """
        word = self._call(self._argument)
        if word:
            raise self._explain(word)

    def results(self) -> dict[str, np.ndarray]:
        """The outputs."""
        return self.outputs


class Session:
    """A network on its workers: the calling thread and ``threads - 1`` persistent ones, with one arena.

    Use as a context manager, or :meth:`close` it, to end the workers early; they end with the last reference anyway.
    """

    def __init__(
        self, artifact: Artifact, threads: int | None = None, share_weights: bool = False, code: Code | None = None
    ) -> None:
        """
        Args:
            artifact: from :func:`mononn_core.runtime.artifact.Artifact.load` or the compiler.
            threads: number of workers; None for the number the artifact was balanced for. The bits of the answers do
                not depend on it.
            share_weights: read the weights where the file is mapped, shared with other processes, instead of from a
                copy in this process's own huge pages: a little slower, half the memory.
            code: an already loaded one (clones).

        Raises:
            OptionError: threads is no positive number.
            ArtifactError: the machine code cannot be loaded.
        """
        manifest = artifact.manifest
        workers = manifest["threads"] if threads is None else threads
        if type(workers) is not int or not 1 <= workers <= MAX_THREADS:
            raise OptionError(f"threads is {threads!r}; give a positive number, or None for the compiled one")
        self.threads: int = workers
        self.inputs = {t["name"]: TensorInfo(t["dtype"], tuple(t["shape"])) for t in manifest["inputs"]}
        self.outputs = {t["name"]: TensorInfo(t["dtype"], tuple(t["shape"])) for t in manifest["outputs"]}
        self._artifact = artifact
        self._share_weights = share_weights
        self._code = code or Code(artifact, share_weights)
        self._host: Host | None = Host(self._code, workers)

    @property
    def info(self) -> dict[str, Any]:
        """A copy of the manifest: phases, barriers, flops, bytes, arena_bytes, weight_bytes, ..."""
        return dict(self._artifact.manifest)

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """One inference.

        Args:
            inputs: a value for every name in ``self.inputs``: an array, or anything with ``__dlpack__`` in host memory,
                of exactly that dtype and shape.
            outputs: buffers to write to, as in :meth:`bind`; the others are allocated.

        Returns:
            Every output by name.

        Raises:
            InputError: an input is missing, unknown, of another dtype or shape, or holds an index out of range.
        """
        binding = self.bind(inputs, outputs)
        binding.run()
        return binding.outputs

    def bind(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, np.ndarray] | None = None,
        trace: np.ndarray | None = None,
    ) -> Binding:
        """Binds buffers for many runs. C-contiguous inputs are read in place, others are copied once, now.

        Args:
            inputs: as in :meth:`run`.
            outputs: name to a writable C-contiguous array of the output's dtype and shape; the others are allocated.
            trace: uint64 array of shape (threads, executed phases, 3) for time stamps in nanoseconds.

        Raises:
            InputError: a value or buffer does not fit.
        """
        given = dict(outputs or {})
        check_names("input", inputs, self.inputs, complete=True)
        check_names("output", given, self.outputs, complete=False)
        read = {name: readable(name, inputs[name], info) for name, info in self.inputs.items()}
        written = {
            name: writable(name, given[name], info) if name in given else np.empty(info.shape, info.dtype)
            for name, info in self.outputs.items()
        }
        check_apart(read, {name: written[name] for name in given})
        if trace is not None:
            stamps = (self.threads, len(self._artifact.manifest["phases"]), len(abi.TRACE_POINTS))
            writable("trace", trace, TensorInfo("uint64", stamps))
        return Binding(self, self._alive(), read, written, trace)

    def save(self, path: str | Path) -> None:
        """Writes the ``.mono`` file (see :meth:`Artifact.save`)."""
        self._artifact.save(path)

    def clone(self, threads: int | None = None) -> Session:
        """Another session on the same code and weights, with workers and arena of its own; runs beside this one."""
        return Session(self._artifact, threads or self.threads, self._share_weights, self._code)

    def close(self) -> None:
        """Waits for the run in progress and ends the workers. Bindings are refused from now on; twice is allowed."""
        if self._host is not None:
            self._host.stop()
            self._host = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def workers(self) -> int:
        """How many take part in a run: its threads."""
        return self.threads

    def explain(self, word: int) -> MononnError:
        """The error that a run's error word stands for."""
        return explain(word, self._artifact.manifest["phases"])

    def _alive(self) -> Host:
        if self._host is None:
            raise self.explain(STOPPED)
        return self._host


def load(
    path: str | Path, threads: int | None = None, verify: bool = True, share_weights: bool = False
) -> Session | GpuSession:
    """Loads a ``.mono`` file; needs neither ONNX nor a compiler.

    Args:
        path: written by :meth:`Session.save`. It holds machine code: load only what you would run as a program.
        threads: number of workers (on a GPU: of blocks); None for the number the artifact was balanced for.
        verify: compare the weights' digest as well (everything else is always compared).
        share_weights: see :class:`Session`; of no meaning on a GPU.

    Raises:
        ArtifactError: truncated, altered, of another version, or for another machine.
        DeviceError: the file is for a GPU, and none here can run it.
        OptionError: threads is no positive number.
    """
    return open_session(Artifact.load(path, verify, later=True), threads, share_weights)


def open_session(artifact: Artifact, threads: int | None = None, share_weights: bool = False) -> Session | GpuSession:
    """The session of the artifact's target; arguments and errors are :func:`load`'s."""
    if artifact.target == "cuda":
        from mononn_core.runtime.cuda import CudaSession

        return CudaSession(artifact, threads)
    if artifact.target == "cuda-emulated":
        from mononn_core.runtime.emulated import EmulatedSession

        return EmulatedSession(artifact, threads)
    return Session(artifact, threads, share_weights)


def explain(word: int, phases: Sequence[Mapping[str, Any]]) -> MononnError:
    """The error that a run's error word stands for; ``phases`` are the manifest's."""
    code, phase, value = abi.decode_error(word)
    if code == FORKED:
        return MononnError("this session belongs to the process that made it; clone() it after the fork")
    if code == STOPPED:
        return MononnError("this session is closed; load or compile the model again")
    where = phases[phase] if phase < len(phases) else {}
    text = abi.ERROR_TEXT.get(code, f"the compiled function reported error {code}")
    place = f" in {where.get('origin') or where.get('id')}" if where else ""
    if code == abi.ERROR_INDEX:
        return InputError(f"{text}{place} (it is {value}); check the values of the inputs")
    return MononnError(f"{text}{place}; compile the model again")


def _pointers(arrays: Any) -> Any:
    addresses = [array.ctypes.data for array in arrays]
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)


def check_names(kind: str, given: Mapping[str, Any], known: Mapping[str, TensorInfo], complete: bool) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"this network has {', '.join(known)}"
            raise InputError(f"{kind} {name!r} is unknown; {hint}")
    missing = [name for name in known if name not in given]
    if complete and missing:
        raise InputError(f"{kind} {missing[0]!r} is missing; give {known[missing[0]]}")


def readable(name: str, value: Any, info: TensorInfo) -> np.ndarray:
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"input {name!r} cannot be read through DLPack ({error}); give a plain host array"
            ) from error
    array = np.asarray(value)
    check_type("input", name, array, info)
    in_place = array.flags.c_contiguous and array.flags.aligned
    return array if in_place else np.array(array, order="C")


def writable(name: str, array: Any, info: TensorInfo) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise InputError(f"output {name!r} is a {type(array).__name__}; give a NumPy array to write to")
    check_type("output", name, array, info)
    if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
        raise InputError(f"output {name!r} is not a writable C-contiguous array; give one, or leave it out")
    return array


def check_type(kind: str, name: str, array: np.ndarray, info: TensorInfo) -> None:
    if array.dtype != np.dtype(info.dtype) or array.shape != info.shape:
        order = "" if array.dtype.isnative else " in another byte order"
        given = f"{TensorInfo(array.dtype.name, array.shape)}{order}"
        raise InputError(f"{kind} {name!r} is {given} but the network takes {info}; convert it first")


def check_apart(inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
    """Outputs are written while inputs are still read, so no two buffers may share memory."""
    names = list(outputs)
    for position, name in enumerate(names):
        others = {**inputs, **{other: outputs[other] for other in names[:position]}}
        for other, array in others.items():
            if np.may_share_memory(outputs[name], array):
                raise InputError(f"output {name!r} shares memory with {other!r}; give it a buffer of its own")
