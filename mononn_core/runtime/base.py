"""What the sessions of all targets share: tensors, checks of what is given, a run's errors."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from mononn_core.errors import InputError, MononnError
from mononn_core.program import abi
from mononn_core.runtime.artifact import Artifact

FORKED, STOPPED = 0xFE, 0xFF
"""Error codes of host/mononn_host.h, beside the generated function's."""
CLOSED = "this session is closed; load or compile the model again"


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


@dataclass(frozen=True)
class Shorter:
    """What may be given in place of a specialisation's inputs: the first elements of those, whose rest is then zero.

    Attributes:
        inputs, outputs: by name, the axes that are shorter.
        length, least: those axes' extent, and down to which it may be shorter.
    """

    inputs: Mapping[str, Sequence[int]]
    outputs: Mapping[str, Sequence[int]]
    length: int
    least: int

    def __str__(self) -> str:
        batch = all(axis == 0 for axes in self.inputs.values() for axis in axes)
        return f"{'a batch' if batch else 'a length'} from {self.least} on"


@dataclass(frozen=True)
class Specialisation:
    """A network at one set of shapes.

    Attributes:
        index: among those that the network was compiled for.
        inputs, outputs: by name, in the order of the call.
        phases: the manifest's.
        shorter: what may be given in place of the inputs.
    """

    index: int
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    phases: Sequence[Mapping[str, Any]]
    shorter: Sequence[Shorter] = ()

    @staticmethod
    def of(index: int, manifest: Mapping[str, Any]) -> Specialisation:
        """What a manifest says of one."""
        inputs, outputs = (
            {t["name"]: TensorInfo(t["dtype"], tuple(t["shape"])) for t in manifest[kind]}
            for kind in ("inputs", "outputs")
        )
        shorter = tuple(Shorter(**about) for about in manifest.get("shorter", ()))
        return Specialisation(index, inputs, outputs, manifest["phases"], shorter)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs, by name."""
        return {name: info.shape for name, info in self.inputs.items()}

    def fitted(self, shapes: Mapping[str, Sequence[int]]) -> Specialisation | None:
        """This one where inputs of ``shapes`` (of some or all, by name) are its own, or the same of the shorter length
        that they have; None where they do not fit."""
        if shapes.items() <= self.shapes.items():
            return self
        for shorter in self.shorter:
            extents = {s[a] for n, s in shapes.items() for a in shorter.inputs.get(n, ()) if a < len(s)}
            few = extents.pop() if len(extents) == 1 else 0
            if shorter.least <= few < shorter.length:
                inputs = _cut(self.inputs, shorter.inputs, few)
                smaller = Specialisation(self.index, inputs, _cut(self.outputs, shorter.outputs, few), self.phases)
                if shapes.items() <= smaller.shapes.items():
                    return smaller
        return None

    def __str__(self) -> str:
        return words_of(self.shapes) + (f" (or {', or '.join(map(str, self.shorter))})" if self.shorter else "")


def _cut(ends: Mapping[str, TensorInfo], axes: Mapping[str, Sequence[int]], few: int) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(info.dtype, tuple(few if a in axes.get(name, ()) else n for a, n in enumerate(info.shape)))
        for name, info in ends.items()
    }


def fitting(specialisations: Sequence[Specialisation], shapes: Mapping[str, Sequence[int]]) -> Specialisation:
    """What runs inputs of ``shapes``: the first that is of these, else the smallest that they fit when padded, at their
    own length. Raises InputError where there is none."""
    found = [
        (elements_of(one.shapes) if fits is not one else 0, fits)
        for one in specialisations
        if (fits := one.fitted(shapes))
    ]
    if not found:
        there = ", or ".join(map(str, specialisations))
        raise InputError(f"the network was not compiled for {words_of(shapes)}; give {there}")
    return min(found, key=lambda pair: pair[0])[1]


def elements_of(shapes: Mapping[str, Sequence[int]]) -> int:
    """Of all tensors of these shapes together."""
    return sum(prod(shape) for shape in shapes.values())


def words_of(shapes: Mapping[str, Sequence[int]]) -> str:
    """Shapes as a command line has them: "input_ids=1x128 attention_mask=1x128"."""
    return " ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items())


class BaseBinding(ABC):
    """Buffers bound to a session once and run many times. Made by :meth:`BaseSession.bind`.

    Attributes:
        inputs: the arrays the network reads; rewrite their values in place between runs.
        outputs: the arrays every run overwrites.
    """

    inputs: dict[str, Any]
    outputs: dict[str, Any]

    @abstractmethod
    def run(self) -> None:
        """One inference, finished and checked when it returns. Concurrent calls on one CPU session take turns.

        Raises:
            InputError: an index taken from an input is out of range.
            DeviceError: the GPU refused or ended the kernel, or (DeviceHangError) it did not end in time.
            MononnError: the session is closed, or belongs to the process this one was forked from.
        """

    def results(self) -> dict[str, Any]:
        """The outputs where the caller's inputs were: in host memory, or on the device."""
        return self.outputs


class BaseSession(ABC):
    """A compiled network with its working memory, ready to run. Use as a context manager, or :meth:`close` it.

    Attributes:
        artifact: what was compiled.
        threads: on a CPU the workers, on a GPU the threads of a block.
        workers: how many take part in a run: on a CPU its threads, on a GPU the blocks of the launch.
        inputs, outputs: by name, in the order of the call; of a network compiled for several shapes the first's.
        specialisations: what it was compiled for, one or more.
    """

    workers: int

    def __init__(self, artifact: Artifact, threads: int) -> None:
        self.artifact, self.threads = artifact, threads
        self.specialisations = tuple(Specialisation.of(i, m) for i, m in enumerate(artifact.specialisations))
        self.inputs, self.outputs = self.specialisations[0].inputs, self.specialisations[0].outputs

    @property
    def info(self) -> dict[str, Any]:
        """A copy of the first specialisation's manifest (phases, barriers, flops, bytes, weight_bytes, ...)."""
        return dict(self.artifact.manifest)

    @abstractmethod
    def bind(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None, trace: np.ndarray | None = None
    ) -> BaseBinding:
        """Binds buffers for many runs.

        Args:
            inputs: a value for every name in ``self.inputs``, of exactly the dtype and shape there, or in another of
                ``self.specialisations``: an array, or anything with ``__dlpack__``; on a CPU C-contiguous ones are
                read in place, others are copied once, now.
            outputs: name to a writable C-contiguous array of the output's dtype and shape; the others are allocated.
            trace: uint64 NumPy array of shape (workers, executed phases, 3) for time stamps in nanoseconds.

        Raises:
            InputError: a value or buffer does not fit.
        """

    @abstractmethod
    def clone(self) -> BaseSession:
        """Another session on the same code and weights, with working memory of its own."""

    @abstractmethod
    def close(self) -> None:
        """Bindings are refused from now on; twice is allowed."""

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One inference; every output by name. Arguments and errors are those of :meth:`bind` and of its run."""
        binding = self.bind(inputs, outputs)
        binding.run()
        return binding.results()

    def run_into(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """One inference into the caller's buffers, one for every output; nothing is allocated for tensors. Arguments
        and errors are otherwise those of :meth:`run`. Buffers that stay the same are better bound once (:meth:`bind`).
        """
        missing = [name for name in self.outputs if name not in outputs]
        if missing:
            raise InputError(f"output {missing[0]!r} has no buffer; give one for each of {', '.join(self.outputs)}")
        self.run(inputs, outputs)

    def submit(
        self, executor: Executor, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
    ) -> Future[dict[str, Any]]:
        """One inference on a thread of the caller's executor, such as a ThreadPoolExecutor.

        What was given is checked and bound before this returns, so that its errors are raised here; those of the run
        are the future's. Until it is done, the inputs may not be changed. Runs of one session take turns: clones run
        side by side. In asyncio: ``await asyncio.wrap_future(session.submit(executor, inputs))``.
        """
        binding = self.bind(inputs, outputs)

        def run() -> dict[str, Any]:
            binding.run()
            return binding.results()

        return executor.submit(run)

    def save(self, path: str | Path) -> None:
        """Writes the ``.mono`` file (see :meth:`Artifact.save`)."""
        self.artifact.save(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def choose(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None, trace: np.ndarray | None = None
    ) -> Specialisation:
        """The specialisation that takes inputs of these shapes, as of their length where they are shorter. Raises
        InputError where there is none, a name given to :meth:`bind` is wrong or missing, or the trace does not fit."""
        _check_names("input", inputs, self.inputs)
        _check_names("output", outputs or {}, self.outputs)
        missing = [name for name in self.inputs if name not in inputs]
        if missing:
            raise InputError(f"input {missing[0]!r} is missing; give {self.inputs[missing[0]]}")
        chosen = self._chosen(inputs)
        if trace is not None:
            stamps = (self.workers, len(chosen.phases), len(abi.TRACE_POINTS))
            writable("trace", trace, TensorInfo("uint64", stamps))
        return chosen

    def _chosen(self, inputs: Mapping[str, Any]) -> Specialisation:
        only = self.specialisations[0]
        if len(self.specialisations) == 1 and not only.shorter:  # what does not fit it is told input by input
            return only
        return fitting(self.specialisations, {name: tuple(np.shape(inputs[name])) for name in self.inputs})

    def explain(self, word: int, ran: Specialisation | None = None) -> MononnError:
        """The error that the error word of a run stands for, of the first specialisation unless ``ran`` says which."""
        code, phase, value = abi.decode_error(word)
        if code == FORKED:
            return MononnError("this session belongs to the process that made it; clone() it after the fork")
        if code == STOPPED:
            return MononnError(CLOSED)
        phases = (ran or self.specialisations[0]).phases
        where = phases[phase] if phase < len(phases) else {}
        text = abi.ERROR_TEXT.get(code, f"the compiled function reported error {code}")
        place = f" in {where.get('origin') or where.get('id')}" if where else ""
        if code == abi.ERROR_INDEX:
            return InputError(f"{text}{place} (it is {value}); check the values of the inputs")
        return MononnError(f"{text}{place}; compile the model again")


def _check_names(kind: str, given: Mapping[str, Any], known: Mapping[str, TensorInfo]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"this network has {', '.join(known)}"
            raise InputError(f"{kind} {name!r} is unknown; {hint}")


def readable(name: str, value: Any, info: TensorInfo) -> np.ndarray:
    """An input in host memory as a C-contiguous array, copied only where it is none; InputError where it is no
    ``info``."""
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
    """``array``, or InputError where a run cannot write ``info`` to it."""
    if not isinstance(array, np.ndarray):
        raise InputError(f"output {name!r} is a {type(array).__name__}; give a NumPy array to write to")
    check_type("output", name, array, info)
    if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
        raise InputError(f"output {name!r} is not a writable C-contiguous array; give one, or leave it out")
    return array


def check_type(kind: str, name: str, array: Any, info: TensorInfo) -> None:
    """Raises InputError unless the array (NumPy's or CuPy's) has ``info``'s dtype and shape."""
    if array.dtype != np.dtype(info.dtype) or array.shape != info.shape:
        order = "" if array.dtype.isnative else " in another byte order"
        given = f"{TensorInfo(array.dtype.name, array.shape)}{order}"
        raise InputError(f"{kind} {name!r} is {given} but the network takes {info}; convert it first")


def check_apart(
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    overlap: Callable[[Any, Any], bool] = np.may_share_memory,
) -> None:
    """Outputs are written while inputs are still read, so no two buffers may share memory; InputError where they do."""
    before = dict(inputs)
    for name, array in outputs.items():
        for other, earlier in before.items():
            if overlap(array, earlier):
                raise InputError(f"output {name!r} shares memory with {other!r}; give it a buffer of its own")
        before[name] = array
