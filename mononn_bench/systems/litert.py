"""LiteRT with XNNPACK: the PyTorch module converted to .tflite by litert-torch, run by its interpreter."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, ClassVar

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.zoo import get_model
from mononn_bench.record import Option
from mononn_bench.systems.base import Arrays, Built, System, Task, require_cpu, require_module

WEIGHTS = "weights.safetensors"
CONVERTED = "model.tflite"
LACKS = {
    "bf16": "this adapter has no recipe for LiteRT in bf16",
    "int8": "LiteRT quantises by a tool of its own, for which this adapter has no recipe",
}


class LiteRt(System):
    """The converter's own graph; XNNPACK, which the interpreter chooses by itself on a CPU."""

    name: ClassVar[str] = "litert"
    environment: ClassVar[str] = "litert"
    family: ClassVar[str] = "litert"

    def __init__(self) -> None:
        self._interpreter: Any = None
        self._inputs: list[tuple[int, Any, Any]] = []
        self._results: list[tuple[str, int]] = []

    def probe(self) -> dict[str, str]:
        try:
            import ai_edge_litert.interpreter  # noqa: F401
        except ImportError as error:
            raise SystemUnavailableError(f"LiteRT cannot be imported: {error}") from error
        return {name: version(name) for name in ("ai-edge-litert", "litert-torch")}

    def options(self, task: Task) -> tuple[Option, ...]:
        return (
            Option("num_threads", str(task.threads), "LiteRT: XNNPACK delegate, multi-threading"),
            Option("litert_torch.convert", "from the PyTorch module", "LiteRT: Convert PyTorch models"),
        )

    def build(self, task: Task) -> Built:
        require_cpu(task, self.name, LACKS)
        require_module(task, self.name)
        import litert_torch
        import torch

        from mononn_bench.models.modules import load_module

        spec = get_model(f"{task.model.name}-b{task.model.batch}")
        module = load_module(spec, task.model_folder / WEIGHTS, attention="sdpa")
        example = make_inputs(spec.inputs, sets=2, seed=0)[1]
        converted = litert_torch.convert(module, tuple(torch.from_numpy(array) for array in example.values()))
        converted.export(str(task.build_folder / CONVERTED))
        return Built()

    def load(self, task: Task) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._interpreter = Interpreter(str(task.build_folder / CONVERTED), num_threads=task.threads)
        self._interpreter.allocate_tensors()
        found = [details["index"] for details in self._interpreter.get_output_details()]
        self._results = [(tensor.name, index) for tensor, index in zip(task.model.outputs, found, strict=True)]

    def bind(self, inputs: Arrays) -> None:
        details = self._interpreter.get_input_details()
        found: list[tuple[int, Any]] = [(one["index"], one["dtype"]) for one in details]
        self._inputs = [(*place, array) for place, array in zip(found, inputs.values(), strict=True)]

    def run(self) -> None:
        for index, dtype, array in self._inputs:  # its converter makes int32 of int64
            self._interpreter.set_tensor(index, array.astype(dtype, casting="same_kind", copy=False))
        self._interpreter.invoke()

    def outputs(self) -> Arrays:
        return {name: self._interpreter.get_tensor(index) for name, index in self._results}
