"""ONNX Runtime on an NVIDIA GPU, by its CUDA and by its TensorRT execution provider, between device buffers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import Arrays, Built, System, Task
from mononn_bench.systems.cuda import require_cuda_task, require_gpu

DEVICE = "cuda"
Settings = Mapping[str, str]


class OnnxRuntimeCuda(System):
    """Kernels of cuBLAS, cuDNN and its own, captured as a CUDA graph."""

    name: ClassVar[str] = "onnxruntime-cuda"
    environment: ClassVar[str] = "driver"
    cuda_environment: ClassVar[str] = "onnxruntime-gpu"
    on_cuda: ClassVar[tuple[str, ...]] = ("onnxruntime-cuda",)
    family: ClassVar[str] = "onnxruntime"
    provider: ClassVar[str] = "CUDAExecutionProvider"

    def __init__(self) -> None:
        self._session: Any = None
        self._binding: Any = None
        self._task: Task | None = None
        self._inputs: Arrays = {}
        self._values: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    def probe(self) -> dict[str, str]:
        require_gpu()
        try:
            import onnxruntime
        except ImportError as error:
            raise SystemUnavailableError(f"onnxruntime cannot be imported: {error}") from error
        if self.provider not in onnxruntime.get_available_providers():
            raise SystemUnavailableError(f"this onnxruntime has no {self.provider}")
        onnxruntime.preload_dlls()
        return {"onnxruntime-gpu": onnxruntime.__version__}

    def settings(self, task: Task) -> Settings:
        """The provider's options."""
        return {
            "enable_cuda_graph": "1",
            "use_tf32": "0",
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            "cudnn_conv_use_max_workspace": "1",
        }

    def options(self, task: Task) -> tuple[Option, ...]:
        page = f"ONNX Runtime: {self.provider}"
        return (
            Option("graph_optimization_level", "ORT_ENABLE_ALL", "ONNX Runtime: Graph Optimizations in ONNX Runtime"),
            *(Option(name, value, page) for name, value in self.settings(task).items() if not name.endswith("path")),
            Option("run_with_iobinding", "device buffers", "ONNX Runtime: I/O Binding"),
        )

    def build(self, task: Task) -> Built:
        require_cuda_task(task, self.name)
        (task.build_folder / "model.onnx").write_bytes(task.onnx.read_bytes())
        self._open(task)
        return Built()

    def load(self, task: Task) -> None:
        self._task = task
        self._session = self._open(task)

    def _open(self, task: Task) -> Any:
        """A session over the build's file; the provider leaves there what it keeps between sessions."""
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        settings.log_severity_level = 3
        providers = [(self.provider, dict(self.settings(task))), *self._others()]
        session = onnxruntime.InferenceSession(str(task.build_folder / "model.onnx"), settings, providers=providers)
        if self.provider not in session.get_providers():
            raise SystemUnavailableError(f"{self.provider} could not start on this GPU; the log says why")
        return session

    def _others(self) -> list[str]:
        """The providers of operators that this one leaves."""
        return ["CPUExecutionProvider"]

    def bind(self, inputs: Arrays) -> None:
        import onnxruntime

        assert self._task is not None
        self._inputs = inputs
        self._binding = self._session.io_binding()
        for name, array in inputs.items():
            self._values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array, DEVICE, 0)
            self._binding.bind_ortvalue_input(name, self._values[name])
        for tensor in self._task.model.outputs:
            value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                list(tensor.shape), np.dtype(tensor.dtype).type, DEVICE, 0
            )
            self._results[tensor.name] = value
            self._binding.bind_ortvalue_output(tensor.name, value)

    def upload(self) -> None:
        for name, array in self._inputs.items():
            self._values[name].update_inplace(array)

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> Arrays:
        return {name: value.numpy() for name, value in self._results.items()}


class OnnxRuntimeTensorRt(OnnxRuntimeCuda):
    """Engines of TensorRT for all it takes, its engine cache in the build folder; CUDA for the rest."""

    name: ClassVar[str] = "onnxruntime-tensorrt"
    on_cuda: ClassVar[tuple[str, ...]] = ("onnxruntime-tensorrt",)
    family: ClassVar[str] = "tensorrt"
    tunes_by_timing: ClassVar[bool] = True
    provider: ClassVar[str] = "TensorrtExecutionProvider"

    def settings(self, task: Task) -> Settings:
        return {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(task.build_folder),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(task.build_folder),
            "trt_cuda_graph_enable": "1",
            "trt_builder_optimization_level": "5",
        }

    def _others(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]
