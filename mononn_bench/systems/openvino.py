"""OpenVINO on its CPU device, one infer request over shared host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import INT8, Arrays, Built, System, Task, require_cpu

PRECISIONS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}
"""The plugin takes 8 bits where the file says so; the hint is for what the file leaves in float32. The plugin's own
choice there, bf16, can be as far from the file's answers as quantisation is from the model's.
"""


class OpenVino(System):
    """Static shapes, latency hint, precision stated (the plugin would pick bf16 by itself), compiled model in its
    cache.
    """

    name: ClassVar[str] = "openvino"
    environment: ClassVar[str] = "openvino"
    family: ClassVar[str] = "openvino"
    has_defaults: ClassVar[bool] = True
    load_only: ClassVar[frozenset[str]] = System.load_only | {"pinning", "denormals"}
    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pinning": ("on", "off", "default"),
        "mmap": ("on", "off"),
        "denormals": ("kept", "flushed"),
    }

    def __init__(self) -> None:
        self._compiled: Any = None
        self._request: Any = None
        self._outputs: Arrays = {}
        self._fed: dict[Any, Any] | None = None
        self._results: list[Any] = []
        self._defaults = False

    def probe(self) -> dict[str, str]:
        try:
            import openvino
        except ImportError as error:
            raise SystemUnavailableError(f"openvino cannot be imported: {error}") from error
        if "CPU" not in openvino.Core().available_devices:
            raise SystemUnavailableError("openvino finds no CPU device here")
        return {"openvino": openvino.__version__.partition("-")[0]}

    def options(self, task: Task) -> tuple[Option, ...]:
        if task.defaults:
            return ()
        return (
            Option("PERFORMANCE_HINT", "LATENCY", "OpenVINO: High-level Performance Hints"),
            Option("INFERENCE_NUM_THREADS", str(task.threads), "OpenVINO: Performance Hints and Thread Scheduling"),
            Option("INFERENCE_PRECISION_HINT", HINTS[task.precision], "OpenVINO: Precision Control"),
            Option("CACHE_DIR", "the build folder", "OpenVINO: Model Caching Overview"),
            Option("share_inputs, share_outputs", "true", "OpenVINO: OpenVINO Runtime Python API Advanced Inference"),
        )

    def _compile(self, task: Task) -> Any:
        import openvino

        if task.defaults:
            return openvino.compile_model(str(task.onnx), "CPU")
        settings: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": task.threads,
            "INFERENCE_PRECISION_HINT": HINTS[task.precision],
            "CACHE_DIR": str(task.build_folder),
        }
        if self.chosen.get("pinning", "default") != "default":
            settings["ENABLE_CPU_PINNING"] = self.chosen["pinning"] == "on"
        if self.chosen.get("mmap") == "off":
            settings["ENABLE_MMAP"] = False
        if self.chosen.get("denormals") == "flushed":
            settings["CPU_DENORMALS_OPTIMIZATION"] = True
        return openvino.Core().compile_model(str(task.onnx), "CPU", settings)

    def build(self, task: Task) -> Built:
        require_cpu(task, self.name, {})
        compiled = self._compile(task)
        precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        return Built(details={} if task.precision == INT8 else {"precision": PRECISIONS.get(precision, precision)})

    def load(self, task: Task) -> None:
        self._compiled = self._compile(task)
        self._defaults = task.defaults
        self._request = self._compiled.create_infer_request()
        for tensor in task.model.outputs:
            self._outputs[tensor.name] = np.zeros(tensor.shape, tensor.dtype)

    def bind(self, inputs: Arrays) -> None:
        import openvino

        if self._defaults:
            self._fed = dict(zip(_named(self._compiled.inputs, inputs), inputs.values(), strict=True))
            self._results = _named(self._compiled.outputs, self._outputs)
            return
        ends = ((self._compiled.inputs, inputs), (self._compiled.outputs, self._outputs))
        for ports, arrays in ends:
            for port, array in zip(_named(ports, arrays), arrays.values(), strict=True):
                self._request.set_tensor(port, openvino.Tensor(array, shared_memory=True))

    def run(self) -> None:
        if self._fed is None:
            self._request.infer(share_outputs=True)
        else:
            results = self._compiled(self._fed)
            self._outputs = {name: results[port] for name, port in zip(self._outputs, self._results, strict=True)}

    def outputs(self) -> Arrays:
        return self._outputs


def _named(ports: Sequence[Any], names: Iterable[str]) -> list[Any]:
    """The port of each name; the one in its place where none has it: beside a Dropout that it takes out, OpenVINO keeps
    one name of two.
    """
    known = {name: port for port in ports for name in port.names}
    return [known.get(name, port) for name, port in zip(names, ports, strict=True)]
