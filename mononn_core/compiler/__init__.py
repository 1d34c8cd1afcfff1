"""The road from an ONNX file to a Session, one visible step after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from mononn_core.compiler.cpu import CpuStages, assemble, lower_imported, manifest
from mononn_core.compiler.cuda import CudaStages, cuda_variants, fit_costs, variant_names
from mononn_core.compiler.cuda import lower_imported as lower_cuda
from mononn_core.compiler.family import build_family as build_imported_family
from mononn_core.compiler.stages import Stages
from mononn_core.errors import OptionError
from mononn_core.importer import Imported
from mononn_core.importer import load as import_model
from mononn_core.importer.reader import Values
from mononn_core.machine import Machine
from mononn_core.options import Given, Options
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.base import BaseSession
from mononn_core.runtime.loading import open_session
from mononn_core.schedule.schedule import Schedule

if TYPE_CHECKING:
    from mononn_core.schedule.cuda.schedule import CudaSchedule

Shapes = Mapping[str, tuple[int, ...]]


def lower(
    model: str | Path | bytes,
    *,
    shapes: Shapes | None = None,
    values: Values | None = None,
    machine: Machine | None = None,
    schedule: Schedule | CudaSchedule | None = None,
    compiler: Executor | None = None,
    **options: Unpack[Given],
) -> Stages:
    """Everything but the machine code.

    Args:
        model: path of an ONNX file, or its bytes. A file's large constants are read when they are packed: it must not
            be overwritten before.
        shapes: static shape of every input that has a dynamic dimension.
        values: of inputs that become constants, and are inputs no more, as what decides shapes or branches has to; a
            number stands for all elements.
        machine: the processor compiled for; this one by default.
        schedule: of the target, in place of the one that the cost model would choose.
        compiler: for a CPU, begins to compile the source while the Program is proven; :func:`build` then takes that.
        options: target, precision, activations, threads, fuse, epilogues, prefetch, launch, arch and gpu, see
            :class:`mononn_core.options.Options`.

    Raises:
        ModelError, ShapeError, UnsupportedError: the model cannot be read or compiled; the message says why.
        InputError: shapes or values are given for an input that is none, or a value that it does not hold.
        OptionError: an option has a value that makes no sense, or the schedule is not legal for the network.
    """
    chosen = Options(**options)
    graph = import_model(model, dict(shapes or {}), values)
    if chosen.on_gpu:
        if isinstance(schedule, Schedule):
            raise OptionError(f"this schedule is a CPU's, the target is {chosen.target}; give one of a GPU")
        return lower_cuda(graph, chosen, schedule)
    if schedule is not None and not isinstance(schedule, Schedule):
        raise OptionError("this schedule is a GPU's, the target is cpu; give one of a CPU")
    return lower_imported(graph, chosen, machine or Machine.probe(), schedule, compiler=compiler)


def compile(  # noqa: A001 (the name users expect)
    model: str | Path | bytes,
    *,
    shapes: Shapes | Sequence[Shapes] | None = None,
    values: Values | None = None,
    machine: Machine | None = None,
    **options: Unpack[Given],
) -> BaseSession:
    """Compile an ONNX model into one function and load it; the arguments and errors are :func:`lower`'s.

    Of several ``shapes`` there is a function for each, see :func:`build_family`; a run takes the one for the shapes of
    its inputs.

    Raises:
        ToolchainError: there is no C++ or CUDA compiler, or it refused the source.
        DeviceError: the target is "cuda" and no GPU here can run it.
    """
    if isinstance(shapes, Sequence):
        return open_session(build_family(model, shapes, values=values, machine=machine, **options))
    with ThreadPoolExecutor(1) as compiler:
        stages = lower(model, shapes=shapes, values=values, machine=machine, compiler=compiler, **options)
        return open_session(build(stages))


def build_family(
    model: str | Path | bytes,
    shapes: Sequence[Shapes],
    *,
    values: Values | None = None,
    machine: Machine | None = None,
    **options: Unpack[Given],
) -> Artifact:
    """Compile an ONNX model for several shapes into one artifact: a function for each, one copy of what is equal among
    their packed weights, memory for the largest. The arguments are otherwise :func:`lower`'s; for a CPU only.

    Raises:
        OptionError: no shapes, too many, or the same twice.
        ModelError, ShapeError, UnsupportedError: the model cannot be compiled for one of them; the message says which.
        ToolchainError: there is no C++ compiler, or it refused the source.
    """
    return build_imported_family(Imported(model, values), shapes, Options(**options), machine or Machine.probe())


def build(stages: Stages) -> Artifact:
    """Machine code and packed weights; see :meth:`Stages.build`."""
    return stages.build()


__all__ = [
    "CpuStages", "CudaStages", "Stages", "assemble", "build", "build_family", "compile", "cuda_variants", "fit_costs",
    "lower", "lower_imported", "manifest", "variant_names",
]  # fmt: skip
