"""The road from an ONNX file to a Session, one visible step after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mononn_core import __version__
from mononn_core.codegen.cpu import print_program
from mononn_core.compiler.cuda import CudaStages, cuda_variants, fit_costs
from mononn_core.compiler.cuda import build as build_cuda
from mononn_core.compiler.cuda import lower_imported as lower_cuda
from mononn_core.compiler.packing import describe_program, pack_weights
from mononn_core.compiler.proof import prove
from mononn_core.decide.cpu import CpuScheduler
from mononn_core.errors import OptionError
from mononn_core.graph import Graph, TensorType
from mononn_core.graph.text import to_text as graph_text
from mononn_core.importer import load as import_model
from mononn_core.lower.cpu import lower as lower_groups
from mononn_core.lower.steps import Lowered
from mononn_core.machine import Machine
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program import abi
from mononn_core.program.ir import Program
from mononn_core.program.text import to_text as program_text
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.loading import open_session
from mononn_core.runtime.toolchain import compile_host, compile_shared
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.schedule import Schedule

if TYPE_CHECKING:
    from mononn_core.runtime.base import BaseSession
    from mononn_core.schedule.cuda.schedule import CudaSchedule
    from mononn_core.schedule.cuda.tiles import Variant

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stages:
    """Every value on the road: the imported and the optimised Graph, the Program with its constants, the source."""

    graph: Graph
    optimized: Graph
    lowered: Lowered[Schedule]
    source: str
    options: Options
    machine: Machine

    @property
    def program(self) -> Program:
        return self.lowered.program

    @property
    def manifest(self) -> dict[str, Any]:
        """What the artifact says about itself (see :class:`mononn_core.runtime.artifact.Artifact`)."""
        return manifest(self.program, self.optimized.types, self.options, self.machine)

    @property
    def texts(self) -> dict[str, str]:
        """Every value on the road as text, by name."""
        assert self.lowered.schedule is not None
        return {
            "graph": graph_text(self.optimized),
            "schedule": self.lowered.schedule.to_text(),
            "program": program_text(self.program),
            "source": self.source,
        }


def lower(
    model: str | Path | bytes,
    *,
    target: str = "cpu",
    shapes: Shapes | None = None,
    precision: str = "fp32",
    threads: int = 0,
    machine: Machine | None = None,
    fuse: bool = True,
    epilogues: bool = True,
    prefetch: bool = False,
    launch: str = "once",
    arch: tuple[str, ...] = (),
    gpu: str = "",
    variant: Variant | None = None,
    schedule: Schedule | CudaSchedule | None = None,
) -> Stages | CudaStages:
    """Everything but the machine code.

    Args:
        model: path of an ONNX file, or its bytes.
        target: "cpu", "cuda" or "cuda-emulated".
        shapes: static shape of every input that has a dynamic dimension.
        precision: "fp32"; on GPUs "fp16" and "bf16" too.
        threads: workers the schedule is balanced for; 0 for every core of this process.
        machine: the processor compiled for; this one by default.
        fuse, epilogues, prefetch, launch: switches for ablations, see :class:`mononn_core.options.Options`.
        arch, gpu: the GPU compiled for, see there.
        variant: for a GPU, what a search tries in place of the cost model's launch and tiles.
        schedule: of the target, in place of the one that the cost model would choose.

    Raises:
        ModelError, ShapeError, UnsupportedError: the model cannot be read or compiled; the message says why.
        OptionError: an option has a value that makes no sense, or the schedule is not legal for the network.
    """
    options = Options(target, precision, threads, fuse, epilogues, prefetch, launch, tuple(arch), gpu)
    graph = import_model(model, dict(shapes or {}))
    if options.on_gpu:
        if isinstance(schedule, Schedule):
            raise OptionError(f"this schedule is a CPU's, the target is {options.target}; give one of a GPU")
        return lower_cuda(graph, options, variant, schedule)
    if schedule is not None and not isinstance(schedule, Schedule):
        raise OptionError("this schedule is a GPU's, the target is cpu; give one of a CPU")
    if variant is not None:
        raise OptionError("a variant of launch and tiles is a GPU's; choose target cuda, or leave it out")
    return lower_imported(graph, options, machine or Machine.probe(), schedule)


def lower_imported(graph: Graph, options: Options, machine: Machine, schedule: Schedule | None = None) -> Stages:
    """From an imported Graph on: passes, schedule (or the one given), proof, source."""
    optimized = pipeline.run(graph)
    groups = CpuGroups(pipeline.prepare(optimized, options.target), options, machine)
    decided = CpuScheduler(groups).legal(schedule)
    lowered = lower_groups(groups, decided, options.prefetch)
    prove(lowered.program, schedule is not None)
    chosen = f"target {options.target}, precision {options.precision}, threads {options.threads}, {machine.level}"
    comment = f"mononn {__version__}, {chosen}"
    source = print_program(lowered.program, comment, options.launch)
    return Stages(graph, optimized, lowered, source, options, machine)


def compile(  # noqa: A001 (the name users expect)
    model: str | Path | bytes,
    *,
    target: str = "cpu",
    shapes: Shapes | None = None,
    precision: str = "fp32",
    threads: int = 0,
    machine: Machine | None = None,
    fuse: bool = True,
    epilogues: bool = True,
    prefetch: bool = False,
    launch: str = "once",
    arch: tuple[str, ...] = (),
    gpu: str = "",
) -> BaseSession:
    """Compile an ONNX model into one function and load it; the arguments and errors are :func:`lower`'s.

    Raises:
        ToolchainError: there is no C++ or CUDA compiler, or it refused the source.
        DeviceError: the target is "cuda" and no GPU here can run it.
    """
    stages = lower(
        model, target=target, shapes=shapes, precision=precision, threads=threads, machine=machine,
        fuse=fuse, epilogues=epilogues, prefetch=prefetch, launch=launch, arch=arch, gpu=gpu,
    )  # fmt: skip
    return open_session(build(stages))


def build(stages: Stages | CudaStages) -> Artifact:
    """Machine code and packed weights. The same stages give the same bytes."""
    if isinstance(stages, CudaStages):
        return build_cuda(stages)
    return assemble(stages.lowered, stages.source, stages.manifest, stages.machine, stages.texts)


def assemble(
    lowered: Lowered[Schedule], source: str, about: Mapping[str, Any], machine: Machine, texts: Mapping[str, str]
) -> Artifact:
    """Compile a Program's ``source`` and pack its constants; ``about`` is its :func:`manifest`."""
    flags = (f"-DMONONN_VECTOR_BYTES={machine.vector_bytes}",)
    compiled = compile_shared(source, machine=machine, extra_flags=flags)
    about = {**about, "compile_command": compiled.command}
    weights = pack_weights(lowered.program, lowered.weights)
    return Artifact(about, compiled.code, compile_host(machine).code, weights, texts)


def manifest(program: Program, types: Mapping[str, TensorType], options: Options, machine: Machine) -> dict[str, Any]:
    """What an artifact of ``program`` says about itself; ``types`` are those of its inputs and outputs."""
    return {
        **describe_program(program, types),
        "mononn_version": __version__,
        "abi_version": abi.ABI_VERSION,
        "target": options.target,
        "precision": options.precision,
        "machine": {
            "arch": machine.arch,
            "features": sorted(machine.features),
            "vector_bytes": machine.vector_bytes,
            "level": machine.level,
        },
        "threads": options.threads,
        "launch": options.launch,
        "scratch_bytes": program.scratch_bytes,
    }


__all__ = [
    "CudaStages", "Stages", "assemble", "build", "compile", "cuda_variants", "fit_costs", "lower", "lower_imported",
    "manifest",
]  # fmt: skip
