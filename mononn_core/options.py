"""What a user chooses. (What is decided for a network is its :class:`mononn_core.schedule.schedule.Schedule`.)"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypedDict

from mononn_core import element
from mononn_core.errors import OptionError

TARGETS = ("cpu", "cuda", "cuda-emulated")
PRECISIONS = tuple(element.PRECISIONS)
ACTIVATIONS = ("auto", "fp32", "int16", "int8")
LAUNCHES = ("once", "phases", "graph")
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
MAX_THREADS = 4096
ON_GPU = ("cuda", "cuda-emulated")
FORMS = ("shared", "static", "object", "source", "wheel")
"""What a compiled network can be written as beside a .mono file."""


@dataclass(frozen=True)
class Options:
    """Options of one compilation.

    Attributes:
        target: "cpu"; "cuda": an NVIDIA GPU; "cuda-emulated": the same CUDA source on host threads, slowly.
        precision: of products, activations and weights: "fp32", "bf16" or, on GPUs, "fp16"; the latter are only stored
            and multiplied: sums and all other arithmetic are float32, inputs and outputs keep the model's types. On a
            CPU whose products of bf16 are no faster, float32 is multiplied, by weights in bf16 where few rows wait for
            their bytes.
        activations: what a product by quantised weights rounds its left side to where the model has it real, with a
            scale for each run of up to 64 terms (of int16 256): "int8", "int16", or "fp32": it is not rounded. "auto":
            int8, but int16 where the model has quantised that side to 16 bits and for the states of a recurrence, and
            fp32 on processors without an instruction for products of bytes. A model that says it itself
            (``accuracy_level`` of MatMulNBits; by "auto" a DynamicQuantizeLSTM of its states) is followed. On a CPU; a
            GPU multiplies reals.
        threads: workers the schedule is balanced for (a run may use another number, with the same output bits); of no
            meaning on GPUs, where the schedule chooses the threads of a block.
        fuse: fuse elementwise chains, movements and epilogues (off: one phase an operator; for ablations).
        epilogues: finish a product or an attention with the elementwise chain after it (off: that chain is a phase of
            its own, fused with nothing but itself; for ablations).
        prefetch: ask for the first weights of the phase after a barrier before waiting there. Off: on two cores no
            network ran measurably faster or slower with it. (On a GPU the first weights are always fetched ahead; a
            Schedule that is given says it itself.)
        launch: "once": every worker enters the function once a run, and barriers stand between its phases; "phases":
            the host's worker pool is woken and joined for every phase, as a runtime of separate kernels does (for
            ablations; the same kernels, the same phases, the same bits), on a CPU; "graph": the same phases as kernels
            of their own in one CUDA graph, on a GPU.
        arch: GPU architectures to compile for ("sm_90a", ...); the schedule is made for the first.
        gpu: name of the GPU the schedule is made for ("H100", ...); "" for the default of the first architecture.
    """

    target: str = "cpu"
    precision: str = "fp32"
    activations: str = "auto"
    threads: int = 0
    fuse: bool = True
    epilogues: bool = True
    prefetch: bool = False
    launch: str = "once"
    arch: tuple[str, ...] = ()
    gpu: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arch", tuple(self.arch))
        if self.target not in TARGETS:
            raise OptionError(f"target {self.target!r} is unknown; choose one of {', '.join(TARGETS)}")
        if self.precision not in PRECISIONS:
            raise OptionError(f"precision {self.precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
        if self.activations not in ACTIVATIONS:
            raise OptionError(f"activations {self.activations!r} is unknown; choose one of {', '.join(ACTIVATIONS)}")
        if self.launch not in LAUNCHES:
            raise OptionError(f"launch {self.launch!r} is unknown; choose one of {', '.join(LAUNCHES)}")
        self._check_target()
        if type(self.threads) is not int or not 0 <= self.threads <= MAX_THREADS:
            raise OptionError(f"threads is {self.threads!r}; give a number up to {MAX_THREADS}, or 0 for all cores")
        if self.threads == 0:
            object.__setattr__(self, "threads", len(os.sched_getaffinity(0)))

    @property
    def on_gpu(self) -> bool:
        """Whether the code is CUDA's, run or emulated."""
        return self.target in ON_GPU

    def _check_target(self) -> None:
        """Raises OptionError for what another target only can do."""
        unknown = [arch for arch in self.arch if arch not in ARCHITECTURES]
        if unknown:
            raise OptionError(f"architecture {unknown[0]!r} is unknown; choose of {', '.join(ARCHITECTURES)}")
        if self.on_gpu:
            if self.activations.startswith("int"):
                raise OptionError(f"activations {self.activations!r} is a CPU's; on a GPU leave it out")
            if self.launch == "phases":
                raise OptionError('launch "phases" is a CPU\'s; on a GPU choose "once" or "graph"')
            return
        if self.precision == "fp16":
            raise OptionError("precision 'fp16' is a GPU's; choose fp32 or bf16, or target cuda")
        if self.launch == "graph":
            raise OptionError('launch "graph" is a GPU\'s; on a CPU choose "once" or "phases"')
        if self.arch or self.gpu:
            raise OptionError("an architecture or GPU is given for target cpu; choose target cuda, or leave it out")


class Given(TypedDict, total=False):
    """:class:`Options` as the keywords of a function."""

    target: str
    precision: str
    activations: str
    threads: int
    fuse: bool
    epilogues: bool
    prefetch: bool
    launch: str
    arch: tuple[str, ...]
    gpu: str
