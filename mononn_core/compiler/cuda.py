"""The road to an NVIDIA GPU: the same Graph and passes, a schedule for one GPU, one source, a cubin an architecture."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mononn_core import __version__
from mononn_core.compiler.packing import describe_program, pack_weights
from mononn_core.compiler.proof import prove
from mononn_core.errors import OptionError, ToolchainError
from mononn_core.gpu import NAMED, Gpu
from mononn_core.graph import Graph
from mononn_core.graph.text import to_text as graph_text
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program import abi
from mononn_core.program.ir import Program
from mononn_core.program.text import to_text as program_text
from mononn_core.runtime.artifact import INCLUDED, Artifact
from mononn_core.runtime.cuda_device import present_gpu

if TYPE_CHECKING:
    from mononn_core.codegen.cuda import CudaSource
    from mononn_core.lower.steps import Lowered
    from mononn_core.runtime.cuda_toolchain import Cubin
    from mononn_core.schedule.cuda.schedule import CudaSchedule
    from mononn_core.schedule.cuda.tiles import Variant

EMULATED_ARCH = "sm_80"
"""What the schedule is made for where nothing is said and nothing is run on a GPU."""
REGISTER_UNIT, WARP, RESERVED_SHARED = 256, 32, 1024
"""Registers are given to a warp in units of 256, and a block holds 1 KiB of shared memory that it does not ask for
(CUDA C++ Programming Guide, Compute Capabilities)."""


@dataclass(frozen=True)
class CudaStages:
    """Every value on the road: the imported and the optimised Graph, the Program with its constants, the source.

    ``seconds`` holds what each step took.
    """

    graph: Graph
    optimized: Graph
    lowered: Lowered[CudaSchedule]
    printed: CudaSource
    options: Options
    gpu: Gpu
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        return self.lowered.program

    @property
    def schedule(self) -> CudaSchedule:
        assert self.lowered.schedule is not None
        return self.lowered.schedule

    @property
    def source(self) -> str:
        return self.printed.text

    @property
    def texts(self) -> dict[str, str]:
        """Every value on the road that has a text, by name."""
        return {
            "graph": graph_text(self.optimized),
            "schedule": self.schedule.to_text(),
            "program": program_text(self.program),
            "source": self.source,
        }

    @property
    def manifest(self) -> dict[str, Any]:
        """What the artifact says about itself (see :class:`mononn_core.runtime.artifact.Artifact`)."""
        printed, options = self.printed, self.options
        kernels = [{"name": k.name, "ordinals": list(k.ordinals), "iteration": k.iteration} for k in printed.kernels]
        return {
            **describe_program(self.program, self.optimized.types),
            "mononn_version": __version__,
            "abi_version": abi.ABI_VERSION,
            "target": options.target,
            "precision": options.precision,
            "machine": {"arch": self.gpu.arch, "name": self.gpu.name},
            "threads": self.schedule.threads,
            "blocks_per_sm": self.schedule.blocks_per_sm,
            "shared_bytes": printed.shared_bytes,
            "scratch_bytes": 0,
            "launch": options.launch,
            "kernels": kernels,
            "predicted": predictions(self),
        }


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


def lower_imported(
    graph: Graph, options: Options, variant: Variant | None = None, schedule: CudaSchedule | None = None
) -> CudaStages:
    """From an imported Graph on: passes, schedule, proof, source; ``variant`` or ``schedule`` in place of the cost
    model's choice."""
    from mononn_core.codegen.cuda import print_program
    from mononn_core.decide.cuda import CudaScheduler
    from mononn_core.lower.cuda import lower as lower_groups
    from mononn_core.schedule.cuda.groups import CudaGroups

    gpu, _ = target_gpu(options)
    clock = [time.perf_counter()]
    seconds = {}

    def lap(step: str) -> None:
        clock.append(time.perf_counter())
        seconds[step] = clock[-1] - clock[-2]

    optimized = pipeline.run(graph)
    prepared = pipeline.prepare(optimized, options.target)
    lap("passes")
    groups = CudaGroups(prepared, options, gpu)
    decided = CudaScheduler(groups).legal(schedule, variant)
    lowered = lower_groups(groups, decided)
    lap("schedule")
    prove(lowered.program, schedule is not None)
    lap("proof")
    chosen = f"target {options.target}, precision {options.precision}, {gpu.name} ({gpu.arch}), launch {options.launch}"
    printed = print_program(lowered.program, decided.threads, options.launch, f"mononn {__version__}, {chosen}")
    lap("print")
    return CudaStages(graph, optimized, lowered, printed, options, gpu, seconds)


def build(stages: CudaStages) -> Artifact:
    """Cubins and packed weights; for the emulator the source is all the code there is."""
    cubins: dict[str, Cubin] = {}
    if stages.options.target == "cuda":
        from mononn_core.runtime.cuda_toolchain import compile_cubin

        for arch in target_gpu(stages.options)[1]:
            cubins[arch] = compile_cubin(stages.source, headers(), arch)
    about = {**stages.manifest, "cubins": {arch: _usage(stages, arch, cubin) for arch, cubin in cubins.items()}}
    texts = stages.texts | {f"{INCLUDED}{name}": text for name, text in headers().items()}
    weights = pack_weights(stages.program, stages.lowered.weights)
    return Artifact(about, b"", b"", weights, texts, {arch: cubin.code for arch, cubin in cubins.items()})


def headers() -> Mapping[str, str]:
    """The vocabulary that generated code includes: file name to text."""
    from mononn_core.codegen.cuda import headers as vocabulary

    return vocabulary()


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
    shared, threads = stages.printed.shared_bytes, stages.schedule.threads
    kernels = {}
    for name, usage in sorted(cubin.kernels.items()):
        resident = resident_blocks(gpu, max(usage.registers, 1), shared + usage.shared_static, threads)
        if resident < stages.schedule.blocks_per_sm:
            raise ToolchainError(
                f"{name} takes {usage.registers} registers a thread and {shared} bytes of shared memory a block, so an "
                f"SM of {gpu.name} ({arch}) holds {resident} blocks where the schedule counts on "
                f"{stages.schedule.blocks_per_sm}; compile for that architecture alone"
            )
        kernels[name] = {
            "registers": usage.registers,
            "spills": usage.spills,
            "stack": usage.stack,
            "shared_bytes": shared + usage.shared_static,
            "blocks_per_sm": resident,
        }
    return {
        "kernels": kernels,
        "bytes": len(cubin.code),
        "command": cubin.command,
    }


def cuda_variants(ranks: int) -> list[Variant]:
    """What :func:`mononn_core.compiler.lower` can be told to try: every launch, with the ``ranks`` cheapest tiles."""
    from mononn_core.schedule.cuda.tiles import LAUNCHES, Variant

    return [Variant(*launch, rank) for launch in LAUNCHES for rank in range(ranks)]


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
        launch = stages.schedule.threads, stages.schedule.blocks_per_sm
        try:
            seen += fit.observations(stages.program, stages.gpu, *launch, rows)
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


def predictions(stages: CudaStages) -> dict[str, dict[str, float]]:
    """Floor and predicted seconds of one inference on every shipped GPU: of the cost model, never measured."""
    from mononn_core.cost.cuda import predict

    launch = stages.schedule.blocks_per_sm, stages.schedule.threads
    return {name: dict(predict(stages.program, gpu, *launch)) for name, gpu in NAMED.items()}
