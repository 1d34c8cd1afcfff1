"""PyTorch, operator by operator, in inference mode."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ctypes.util import find_library
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.models.zoo import get_model
from mononn_bench.record import Option
from mononn_bench.systems.base import BF16, Arrays, Built, DeviceCall, System, Task, require_module, require_precision
from mononn_bench.systems.torch_cuda import CapturedCall, exact_fp32

WEIGHTS = "weights.safetensors"
LACKS = {"int8": "what PT2E, PyTorch's own quantisation, makes of a module is fast through Inductor alone"}
AMP = "PyTorch: Automatic Mixed Precision package, CPU ops that can autocast to bfloat16"
BF16_OPTIONS = (
    Option("autocast", "bfloat16", AMP),
    Option("weights of products", "cast once", f"{AMP}: its cache of casts"),
)
CUDA_OPTIONS = (
    Option("CUDA graph", "one replay a run", "PyTorch: CUDA semantics, CUDA Graphs"),
    Option("allow_tf32", "false", "PyTorch: CUDA semantics, TensorFloat-32"),
    Option("cudnn.benchmark", "true", "PyTorch: Performance Tuning Guide, Enable cuDNN auto-tuner"),
)


TUNING_GUIDE = "PyTorch: Performance Tuning Guide, CPU specific optimizations"
TCMALLOC = "tcmalloc_minimal"
PRELOADED = {"tcmalloc": "libtcmalloc_minimal.so.4", "jemalloc": "libjemalloc.so.2"}


def tuning_guide(chosen: Mapping[str, str], *, defaults: bool) -> tuple[Option, ...]:
    """What the guide offers beyond `defaults`: tcmalloc where it is installed; more where a variant asks."""
    found = []
    if chosen.get("bind") == "on":
        found += [Option("OMP_PROC_BIND", "CLOSE", TUNING_GUIDE), Option("OMP_SCHEDULE", "STATIC", TUNING_GUIDE)]
    malloc = chosen.get("malloc", "tcmalloc" if find_library(TCMALLOC) and not defaults else "glibc")
    if malloc != "glibc":
        found.append(Option("LD_PRELOAD", PRELOADED[malloc], TUNING_GUIDE))
    return tuple(found)


def probe_torch() -> dict[str, str]:
    """Versions of PyTorch and transformers; SystemUnavailableError where either is missing, or an allocator is."""
    wanted = os.environ.get("LD_PRELOAD", "")
    if wanted in PRELOADED.values() and wanted not in Path("/proc/self/maps").read_text():
        raise SystemUnavailableError(f"{wanted} is not installed here")
    try:
        import torch

        return {"torch": torch.__version__, "transformers": version("transformers")}
    except (ImportError, PackageNotFoundError) as error:
        raise SystemUnavailableError(f"PyTorch cannot be imported: {error}") from error


def prepare_torch(task: Task, *, inference: bool = True) -> None:
    """Set the threads of the pool, exact arithmetic on a GPU, and leave autograd for good unless told otherwise.

    With defaults autograd alone is left, as every introduction does.
    """
    import torch

    if task.defaults:
        torch.set_grad_enabled(False)
        return
    torch.set_num_threads(task.threads)
    if task.target == "cuda":
        exact_fp32()
    if inference:
        torch.inference_mode().__enter__()


def make_module(task: Task, folder: Path) -> Any:
    """The module with the weights in `folder`, its attention by PyTorch's fused operator, in the task's precision."""
    from mononn_bench.models.modules import Bf16, load_module

    module = load_module(get_model(task.model.name), folder / WEIGHTS, attention="sdpa")
    return Bf16(module) if task.precision == BF16 else module


class TorchSystem(System):
    """What PyTorch's systems share: a call, made in place on a CPU and captured on a GPU. `load` sets `_call`."""

    name: ClassVar[str] = "torch"
    environment: ClassVar[str] = "torch"
    cuda_environment: ClassVar[str] = "torch-cuda"
    family: ClassVar[str] = "pytorch"
    huge_pages: ClassVar[tuple[Option, ...]] = (
        Option("THP_MEM_ALLOC_ENABLE", "1", "PyTorch: CPU allocator (c10/core/impl/alloc_cpu.cpp)"),
    )
    has_defaults: ClassVar[bool] = True
    load_only: ClassVar[frozenset[str]] = System.load_only | {"bind", "malloc", "layout"}
    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "bind": ("on", "off"),
        "malloc": ("glibc", "tcmalloc", "jemalloc"),
    }

    @classmethod
    def process_variables(cls, *, defaults: bool = False) -> tuple[Option, ...]:
        return (*super().process_variables(defaults=defaults), *tuning_guide(cls.chosen, defaults=defaults))

    def __init__(self) -> None:
        self._call: Any = None
        self._captured: CapturedCall | None = None
        self._on_gpu = False
        self._arguments: list[Any] = []
        self._names: list[str] = []
        self._result: Any = None

    def bind(self, inputs: Arrays) -> None:
        import torch

        if self._on_gpu:
            self._captured = CapturedCall(self._call, inputs)
            self._result = self._captured.result
            self.run = self._captured.run  # type: ignore[method-assign]
        else:
            self._arguments = [torch.from_numpy(array) for array in inputs.values()]

    def upload(self) -> None:
        if self._captured is not None:
            self._captured.upload()

    def run(self) -> None:
        self._result = self._call(*self._arguments)

    def device_call(self) -> DeviceCall | None:
        return self._captured.on_device() if self._captured is not None else None

    def outputs(self) -> Arrays:
        results = self._result if isinstance(self._result, tuple | list) else (self._result,)
        return {name: tensor.cpu().numpy() for name, tensor in zip(self._names, results, strict=True)}


class TorchEager(TorchSystem):
    """The module of the model folder, its attention by PyTorch's fused operator (the export writes it out)."""

    name: ClassVar[str] = "torch-eager"
    on_cuda: ClassVar[tuple[str, ...]] = ("torch-eager",)
    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **TorchSystem.variants, "layout": ("channels_last", "contiguous"),
    }  # fmt: skip

    def probe(self) -> dict[str, str]:
        versions = probe_torch()
        import_module("mononn_bench.models.modules")
        return versions

    def options(self, task: Task) -> tuple[Option, ...]:
        if task.defaults:
            return ()
        return (
            Option("inference_mode", "on", "PyTorch: inference_mode"),
            Option("set_num_threads", str(task.threads), "PyTorch: CPU threading and TorchScript inference"),
            Option("attn_implementation", "sdpa", "transformers: Attention backends"),
            *(CUDA_OPTIONS if task.target == "cuda" else ()),
            *(BF16_OPTIONS if task.precision == BF16 else ()),
        )

    def build(self, task: Task) -> Built:
        require_precision(task, self.name, LACKS)
        require_module(task, self.name)
        (task.build_folder / WEIGHTS).hardlink_to(task.model_folder / WEIGHTS)
        return Built()

    def load(self, task: Task) -> None:
        prepare_torch(task)
        self._on_gpu = task.target == "cuda"
        module = make_module(task, task.build_folder)
        if self.chosen.get("layout") == "channels_last":
            import torch

            module = module.to(memory_format=torch.channels_last)
        self._call = module.cuda() if self._on_gpu else module
        self._names = [tensor.name for tensor in task.model.outputs]
