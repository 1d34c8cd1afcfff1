"""The road to an NVIDIA GPU: the same Graph and passes, a schedule for one GPU, one source, a cubin an architecture."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mononn_core.compiler.packing import describe_program, pack_weights
from mononn_core.compiler.proof import prove
from mononn_core.compiler.stages import Stages
from mononn_core.element import PRECISIONS, itemsize
from mononn_core.errors import OptionError, ToolchainError
from mononn_core.gpu import NAMED, Gpu
from mononn_core.graph import Graph
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program.tensor_core import WARP
from mononn_core.runtime.artifact import INCLUDED, Artifact
from mononn_core.runtime.cuda_device import present_gpu
from mononn_core.schedule.cuda.schedule import CudaSchedule
from mononn_core.version import VERSION
from mononn_core.vocabulary import cuda_headers

if TYPE_CHECKING:
    from mononn_core.codegen.cuda import Kernel
    from mononn_core.runtime.cuda_toolchain import Cubin

EMULATED_ARCH = "sm_80"
"""What the schedule is made for where nothing is said and nothing is run on a GPU."""
REGISTER_UNIT, RESERVED_SHARED = 256, 1024
"""Registers are given to a warp in units of 256, and a block holds 1 KiB of shared memory that it does not ask for
(CUDA C++ Programming Guide, Compute Capabilities)."""


@dataclass(frozen=True)
class CudaStages(Stages[CudaSchedule]):
    """The road to ``gpu``: dynamic shared memory of every launch, the launches in order, seconds of each step."""

    gpu: Gpu
    shared_bytes: int
    kernels: tuple[Kernel, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def manifest(self) -> dict[str, Any]:
        """The base's; "predicted" are each shipped GPU's floor and seconds by the cost model, never measured."""
        from mononn_core.cost.cuda import predict

        schedule = self.lowered.schedule
        launch = schedule.blocks_per_sm, schedule.threads
        kernels = [{"name": k.name, "ordinals": list(k.ordinals), "iteration": k.iteration} for k in self.kernels]
        return {
            **describe_program(self.program, self.optimized.types, self.options),
            "machine": {"arch": self.gpu.arch, "name": self.gpu.name},
            "threads": schedule.threads,
            "blocks_per_sm": schedule.blocks_per_sm,
            "shared_bytes": self.shared_bytes,
            "scratch_bytes": 0,
            "kernels": kernels,
            "predicted": {name: dict(predict(self.program, gpu, *launch)) for name, gpu in NAMED.items()},
        }

    def build(self) -> Artifact:
        """Cubins and packed weights; for the emulator the source is all the code there is."""
        from mononn_core.runtime.cuda_toolchain import compile_cubin

        arches = target_gpu(self.options)[1] if self.options.target == "cuda" else ()
        cubins = {arch: compile_cubin(self.source, cuda_headers(), arch) for arch in arches}
        about = {**self.manifest, "cubins": {arch: _usage(self, arch, cubin) for arch, cubin in cubins.items()}}
        texts = self.texts | {f"{INCLUDED}{name}": text for name, text in cuda_headers().items()}
        weights = pack_weights(self.program, self.lowered.weights)
        return Artifact(about, b"", b"", weights, texts, {arch: cubin.code for arch, cubin in cubins.items()})


def target_gpu(options: Options) -> tuple[Gpu, tuple[str, ...]]:
    """The GPU the schedule is made for, and the architectures code is made for.

    Raises:
        OptionError: nothing says for which GPU, or the GPU's name is unknown.
    """
    arches = options.arch
    if options.gpu:
        gpu = Gpu.named(options.gpu)
        return gpu, arches or (gpu.arch,)
    if not arches:
        here = present_gpu()
        if here is None and options.target == "cuda":
            raise OptionError("no GPU is here to compile for; name an architecture, as --arch sm_90a")
        if here is not None and options.target == "cuda":
            known = [gpu for name, gpu in NAMED.items() if name in here.name and gpu.arch == here.arch]
            return max(known, key=lambda gpu: len(gpu.name), default=Gpu.for_arch(here.arch)), (here.arch,)
        arches = (EMULATED_ARCH,)
    return Gpu.for_arch(arches[0]), arches


def lower_imported(graph: Graph, options: Options, schedule: CudaSchedule | None = None) -> CudaStages:
    """From an imported Graph on: passes, schedule (or the one given), proof, source."""
    from mononn_core.codegen.cuda import print_program
    from mononn_core.decide.cuda import CudaScheduler
    from mononn_core.lower.cuda import lower
    from mononn_core.schedule.cuda.groups import CudaGroups

    gpu, _ = target_gpu(options)
    clock = [time.perf_counter()]
    seconds = {}

    def lap(step: str) -> None:
        clock.append(time.perf_counter())
        seconds[step] = clock[-1] - clock[-2]

    optimized = pipeline.run(graph, options.target)
    prepared = pipeline.prepare(optimized, options.target)
    lap("passes")
    groups = CudaGroups(prepared, options, gpu)
    decided = CudaScheduler(groups).legal(schedule)
    lowered = lower(groups, decided)
    lap("schedule")
    prove(lowered.program, schedule is not None)
    lap("proof")
    chosen = f"target {options.target}, precision {options.precision}, {gpu.name} ({gpu.arch}), launch {options.launch}"
    rounded = itemsize(PRECISIONS[options.precision]) == 2
    made = f"mononn {VERSION}, {chosen}"
    printed = print_program(lowered.program, decided.threads, options.launch, made, rounded)
    lap("print")
    return CudaStages(
        graph, optimized, lowered, printed.text, options, gpu, printed.shared_bytes, printed.kernels, seconds
    )


def resident_blocks(gpu: Gpu, registers: int, shared_bytes: int, threads: int) -> int:
    """Blocks of ``threads`` threads that one SM holds at once, by registers a thread and shared memory a block."""
    warps = -(-threads // WARP)
    by_registers = gpu.registers_per_sm // (-(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT * warps)
    by_shared = gpu.shared_per_sm // (shared_bytes + RESERVED_SHARED)
    return min(by_registers, by_shared, gpu.threads_per_sm // (warps * WARP))


def _usage(stages: CudaStages, arch: str, cubin: Cubin) -> dict[str, Any]:
    """What the compiler says of its kernels, and the resident wave they allow.

    Raises:
        ToolchainError: fewer blocks fit an SM than the schedule counts on.
    """
    gpu = stages.gpu if stages.gpu.arch == arch else Gpu.for_arch(arch)
    shared, threads = stages.shared_bytes, stages.lowered.schedule.threads
    kernels = {}
    for name, usage in sorted(cubin.kernels.items()):
        resident = resident_blocks(gpu, max(usage.registers, 1), shared + usage.shared_static, threads)
        if resident < stages.lowered.schedule.blocks_per_sm:
            raise ToolchainError(
                f"{name} takes {usage.registers} registers a thread and {shared} bytes of shared memory a block, so an "
                f"SM of {gpu.name} ({arch}) holds {resident} blocks where the schedule counts on "
                f"{stages.lowered.schedule.blocks_per_sm}; compile for that architecture alone"
            )
        kernels[name] = {
            "registers": usage.registers,
            "spills": usage.spills,
            "stack": usage.stack,
            "shared_bytes": shared + usage.shared_static,
            "blocks_per_sm": resident,
        }
    return {"kernels": kernels, "bytes": len(cubin.code), "command": cubin.command}


def cuda_variants(stages: CudaStages, ranks: int) -> dict[str, CudaSchedule]:
    """Schedules that :func:`mononn_core.compiler.lower` can be given to try, by name (:func:`variant_names`): every
    launch that suits the network, with the ``ranks`` cheapest tiles of each product."""
    from mononn_core.decide.cuda import CudaScheduler
    from mononn_core.schedule.cuda.groups import CudaGroups

    prepared = pipeline.prepare(stages.optimized, stages.options.target)
    return CudaScheduler(CudaGroups(prepared, stages.options, stages.gpu)).variants(ranks)


def variant_names(ranks: int) -> list[str]:
    """What :func:`cuda_variants` finds for a network that every launch suits."""
    from mononn_core.decide.cuda import variant_name
    from mononn_core.schedule.cuda.tiles import GRIDS

    return [variant_name(*launch, rank) for launch in GRIDS for rank in range(ranks)]


def fit_costs(traced: Sequence[tuple[CudaStages, Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    """The cost model's constants from traces, beside those it has.

    Args:
        traced: networks as scheduled, each with the rows of its :func:`mononn_core.trace_report`.

    Returns:
        "estimated" and "fitted": each "constants" and "error" (:attr:`mononn_core.cost.fit.Fit.error`); "phases": one
        row an executed phase with "measured", "estimated" and "fitted" seconds.

    Raises:
        OptionError: no phase was traced, or rows are of another network.
    """
    from mononn_core.cost import fit
    from mononn_core.cost.cuda import ESTIMATED

    seen: list[fit.Observation] = []
    for stages, rows in traced:
        schedule = stages.lowered.schedule
        try:
            seen += fit.observations(stages.program, stages.gpu, schedule.threads, schedule.blocks_per_sm, rows)
        except ValueError as error:
            raise OptionError(f"these rows are no trace of {stages.program.name}: {error}") from error
    if not seen:
        raise OptionError("no phase was traced; there is nothing to fit the cost model to")
    found = fit.fit(seen)
    return {
        "estimated": {"constants": asdict(ESTIMATED), "error": fit.error(seen, ESTIMATED)},
        "fitted": {"constants": asdict(found.constants), "error": found.error},
        "phases": [
            {
                "phase": o.phase,
                "measured": o.seconds,
                "estimated": o.predicted(ESTIMATED),
                "fitted": o.predicted(found.constants),
            }
            for o in seen
        ],
    }
