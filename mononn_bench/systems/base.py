"""What every adapter promises.

The harness calls, in a process of its own: probe, build; then in fresh ones: probe, load, bind, warm_up, and run as
often as it likes, reading outputs when it is not timing.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import ModelRecord, Option, Tuning

Arrays = dict[str, NDArray[Any]]

FP32, BF16, INT8 = "fp32", "bf16", "int8"
"""What a task's `precision` may be on a CPU. In int8 the model's file is the 8-bit one (models/quantise.py)."""
HUGE_PAGES = Option("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", "GNU C Library: Memory Allocation Tunables")
"""Has malloc ask for transparent huge pages where the kernel gives them on request (`madvise`)."""
COMMON_VARIANTS: Mapping[str, tuple[str, ...]] = {"pages": ("huge", "small")}
"""What every system may be varied in: with huge pages, as it is measured, or without asking for any."""


@dataclass(frozen=True)
class Task:
    """One model for one system: what to build or load, in which precision and with how many threads.

    `defaults`: as the system's users find it, in a few lines from its own introduction, with no option set.
    """

    model: ModelRecord
    model_folder: Path
    build_folder: Path
    threads: int
    precision: str
    target: str
    defaults: bool = False
    kept: Path | None = None
    """A folder of the environment's that outlives the build, for what a compiler finds out once a machine."""

    @property
    def onnx(self) -> Path:
        """The ONNX file every graph-importing system starts from."""
        return self.model_folder / "model.onnx"


@dataclass(frozen=True)
class Built:
    """What a build says of itself beside the files it leaves in the build folder.

    `undertuned` says why the system's tuning does not match this model or machine; empty where it does. `details` may
    name the `precision` that a system computes in where that is its own choice, such as "own int8" of one that does not
    read the 8-bit file but quantises the model by itself.
    """

    tuning: Tuning | None = None
    undertuned: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceCall:
    """A CUDA stream, as the driver's handle, and what enqueues one run on it without waiting."""

    stream: int
    enqueue: Callable[[], object]


class System(ABC):
    """An adapter. It imports its library inside its methods only, so that every adapter can be listed anywhere.

    `environment` names the file under envs/; `family` is the code base behind its numbers: a system is independent of a
    reference of another family.
    """

    name: ClassVar[str]
    environment: ClassVar[str]
    family: ClassVar[str]
    cuda_environment: ClassVar[str] = ""
    """The file under envs/ for an NVIDIA GPU."""
    on_cuda: ClassVar[tuple[str, ...]] = ()
    """The systems that stand in a case on an NVIDIA GPU where a configuration names this one."""
    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What may stand in brackets after the name (see `get_system`), and its values: for ablations, and for options that
    were tried on a rival. What is not chosen is as it is measured."""
    has_defaults: ClassVar[bool] = False
    """Whether the adapter serves a task that asks for the system's defaults."""
    load_only: ClassVar[frozenset[str]] = frozenset({"pages"})
    """Variants that change how a build is run and not the build: they share one."""
    chosen: ClassVar[Mapping[str, str]] = {}
    """The variant's values; empty for the system as it is."""
    tunes_by_timing: ClassVar[bool] = False
    """Whether a build times what it chooses from: then nothing else may run on the machine."""
    variables: ClassVar[tuple[Option, ...]] = ()
    """Environment variables of this system's processes, each with the vendor's page that recommends it."""
    huge_pages: ClassVar[tuple[Option, ...]] = ()
    """Variables by which this system's own allocator asks for huge pages, beside malloc's (`HUGE_PAGES`)."""
    more_sources: ClassVar[tuple[Path, ...]] = ()
    data: ClassVar[Path | None] = None
    """A folder of files that a build reads, whose change makes it stale."""
    sources: ClassVar[tuple[Path, ...]] = ()
    """Files and folders whose change makes a build stale; filled in from where a class is written."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        own = sys.modules[cls.__module__].__file__
        cls.sources = (Path(__file__), Path(own or __file__), *cls.more_sources)

    @classmethod
    def process_variables(cls, *, defaults: bool = False) -> tuple[Option, ...]:
        """The environment variables of every process of this system or variant; `defaults` as in Task."""
        pages = () if cls.chosen.get("pages") == "small" else (HUGE_PAGES, *cls.huge_pages)
        return (*pages, *cls.variables)

    @abstractmethod
    def probe(self) -> dict[str, str]:
        """Import the library; versions by distribution name, this system's first. Raises SystemUnavailableError."""

    @abstractmethod
    def options(self, task: Task) -> tuple[Option, ...]:
        """Each option it sets, and the vendor's page that recommends it."""

    @abstractmethod
    def build(self, task: Task) -> Built:
        """Everything that can be done ahead of time, left as files in the task's build folder."""

    @abstractmethod
    def load(self, task: Task) -> None:
        """Make the build ready to run."""

    @abstractmethod
    def bind(self, inputs: Arrays) -> None:
        """Take host arrays, one a graph input, whose values the harness rewrites between runs.

        They are C-contiguous and begin on a cache line.
        """

    def upload(self) -> None:  # noqa: B027 (most systems have nothing to do)
        """Bring the bound arrays' present values to the device, untimed. Nothing to do where they are read in place."""

    def warm_up(self) -> None:
        """The first run; also the place for what a system does once before it can be timed."""
        self.run()

    @abstractmethod
    def run(self) -> None:
        """One inference, finished when it returns. This, and nothing else, is timed.

        On a CPU from the bound arrays to arrays in host memory; on a GPU between device buffers.
        """

    def device_call(self) -> DeviceCall | None:
        """How a bound run is put on a GPU's stream; None on a CPU, and where the library hides it."""
        return None

    @abstractmethod
    def outputs(self) -> Arrays:
        """Outputs of the last run by graph output name; the arrays may be overwritten by the next run."""


def require_cpu(task: Task, system: str, lacks: Mapping[str, str]) -> None:
    """Raises SystemUnavailableError unless the task is for a CPU, and in a precision that the adapter does not lack;
    `lacks` has a sentence for each that it does.
    """
    if task.target != "cpu":
        raise SystemUnavailableError(
            f"{system} is set up here for fp32 on a CPU, not {task.precision} on {task.target}"
        )
    require_precision(task, system, lacks)


def require_precision(task: Task, system: str, lacks: Mapping[str, str]) -> None:
    """As `require_cpu`, where fp32 is served on any target."""
    if task.precision != FP32 and task.target != "cpu":
        raise SystemUnavailableError(f"{system} is set up here for fp32, not {task.precision}")
    if task.precision in lacks:
        raise SystemUnavailableError(lacks[task.precision])


def require_defaults(task: Task, system: System) -> None:
    """Raises SystemUnavailableError where a task asks for defaults and the adapter has none for its target."""
    if task.defaults and not (system.has_defaults and task.target == "cpu"):
        raise SystemUnavailableError(f"{system.name} has no view of its defaults on {task.target} here")


def require_module(task: Task, system: str) -> None:
    """Raises SystemUnavailableError where the model is an ONNX file without a PyTorch module behind it."""
    if not (task.model_folder / "weights.safetensors").exists():
        raise SystemUnavailableError(f"{system} needs a PyTorch module; this model is an ONNX file alone")
