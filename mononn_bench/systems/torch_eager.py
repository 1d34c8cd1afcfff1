"""PyTorch, operator by operator, in inference mode."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.models.zoo import get_model
from mononn_bench.record import Option
from mononn_bench.systems.base import Arrays, Built, System, Task, require_cpu_fp32, require_module

WEIGHTS = "weights.safetensors"


def probe_torch() -> dict[str, str]:
    """Versions of PyTorch and transformers; SystemUnavailableError where either cannot be imported."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise SystemUnavailableError(f"PyTorch cannot be imported: {error}") from error
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def prepare_torch(threads: int) -> None:
    """Set the threads of the pool and leave autograd for good."""
    import torch

    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()


class TorchEager(System):
    """The module of the model folder, its attention by PyTorch's fused operator (the export writes it out)."""

    name: ClassVar[str] = "torch-eager"
    environment: ClassVar[str] = "torch"
    family: ClassVar[str] = "pytorch"

    def __init__(self) -> None:
        self._module: Any = None
        self._arguments: list[Any] = []
        self._names: list[str] = []
        self._result: Any = None

    def probe(self) -> dict[str, str]:
        versions = probe_torch()
        import_module("mononn_bench.models.modules")
        return versions

    def options(self, task: Task) -> tuple[Option, ...]:
        return (
            Option("inference_mode", "on", "PyTorch: inference_mode"),
            Option("set_num_threads", str(task.threads), "PyTorch: CPU threading and TorchScript inference"),
            Option("attn_implementation", "sdpa", "transformers: Attention backends"),
        )

    def build(self, task: Task) -> Built:
        require_cpu_fp32(task, self.name)
        require_module(task, self.name)
        (task.build_folder / WEIGHTS).hardlink_to(task.model_folder / WEIGHTS)
        return Built()

    def load(self, task: Task) -> None:
        from mononn_bench.models.modules import load_module

        prepare_torch(task.threads)
        self._module = load_module(get_model(task.model.name), task.build_folder / WEIGHTS, attention="sdpa")
        self._names = [tensor.name for tensor in task.model.outputs]

    def bind(self, inputs: Arrays) -> None:
        import torch

        self._arguments = [torch.from_numpy(array) for array in inputs.values()]

    def run(self) -> None:
        self._result = self._module(*self._arguments)

    def outputs(self) -> Arrays:
        results = self._result if isinstance(self._result, tuple | list) else (self._result,)
        return {name: tensor.numpy() for name, tensor in zip(self._names, results, strict=True)}
