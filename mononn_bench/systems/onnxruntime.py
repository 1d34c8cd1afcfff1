"""ONNX Runtime with its CPU execution provider, through an IO binding to preallocated arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import INT8, Arrays, Built, System, Task, require_cpu

PROVIDERS = ["CPUExecutionProvider"]
LACKS = {"bf16": "ONNX Runtime has no bf16 kernels for CPUs"}
JOINED = "MatMulAddFusion"
"""A step that makes a float32 Gemm of a MatMul and the addition behind it before quantised products are looked for:
their weights would be dequantised in every run.
"""


class OnnxRuntime(System):
    """Graph optimised and saved ahead of time; thread pool with its default spinning."""

    name: ClassVar[str] = "onnxruntime"
    environment: ClassVar[str] = "onnxruntime"
    on_cuda: ClassVar[tuple[str, ...]] = ("onnxruntime-cuda", "onnxruntime-tensorrt")
    family: ClassVar[str] = "onnxruntime"
    has_defaults: ClassVar[bool] = True
    load_only: ClassVar[frozenset[str]] = System.load_only | {"affinity", "blocks"}
    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "affinity": ("on", "off"),
        "blocks": ("dynamic", "even"),
    }

    def __init__(self) -> None:
        self._session: Any = None
        self._binding: Any = None
        self._outputs: Arrays = {}
        self._kept: list[Any] = []
        self._fed: Arrays | None = None
        self._names: list[str] = []

    def probe(self) -> dict[str, str]:
        try:
            import onnxruntime
        except ImportError as error:
            raise SystemUnavailableError(f"onnxruntime cannot be imported: {error}") from error
        return {"onnxruntime": onnxruntime.__version__}

    def options(self, task: Task) -> tuple[Option, ...]:
        if task.defaults:
            return ()
        apart = Option("disabled_optimizers", JOINED, "ONNX Runtime: Python API, InferenceSession")
        return (
            *([apart] if task.precision == INT8 else []),
            Option("graph_optimization_level", "ORT_ENABLE_ALL", "ONNX Runtime: Graph Optimizations in ONNX Runtime"),
            Option("optimized_model_filepath", "offline mode", "ONNX Runtime: Graph Optimizations in ONNX Runtime"),
            Option("intra_op_num_threads", str(task.threads), "ONNX Runtime: Thread management"),
            Option("run_with_iobinding", "preallocated OrtValues", "ONNX Runtime: I/O Binding"),
        )

    def _settings(self, threads: int, *, optimise: bool) -> Any:
        import onnxruntime

        level = onnxruntime.GraphOptimizationLevel
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
        settings.log_severity_level = 3
        if self.chosen.get("affinity") == "on" and threads > 1:
            cores = sorted(os.sched_getaffinity(0))[1:threads]  # the calling thread is the first
            settings.add_session_config_entry(
                "session.intra_op_thread_affinities", ";".join(str(core + 1) for core in cores)
            )
        if self.chosen.get("blocks") == "dynamic":
            settings.add_session_config_entry("session.dynamic_block_base", "4")
        return settings

    def build(self, task: Task) -> Built:
        import onnxruntime

        require_cpu(task, self.name, LACKS)
        if task.defaults:
            onnxruntime.InferenceSession(str(task.onnx))
            return Built()
        settings = self._settings(task.threads, optimise=True)
        settings.optimized_model_filepath = str(task.build_folder / "model.onnx")
        if task.model.weight_bytes > 1_500_000_000:  # one protobuf message holds 2 GiB
            settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        disabled = [JOINED] if task.precision == INT8 else []
        onnxruntime.InferenceSession(str(task.onnx), settings, providers=PROVIDERS, disabled_optimizers=disabled)
        return Built()

    def load(self, task: Task) -> None:
        import onnxruntime

        if task.defaults:
            self._session = onnxruntime.InferenceSession(str(task.onnx))
            self._names = [tensor.name for tensor in task.model.outputs]
            return
        settings = self._settings(task.threads, optimise=False)
        path = str(task.build_folder / "model.onnx")
        self._session = onnxruntime.InferenceSession(path, settings, providers=PROVIDERS)
        for tensor in task.model.outputs:
            self._outputs[tensor.name] = np.zeros(tensor.shape, tensor.dtype)

    def bind(self, inputs: Arrays) -> None:
        import onnxruntime

        if self._names:
            self._fed = inputs
            return
        binding = self._session.io_binding()
        for name, array in inputs.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu", 0)
            binding.bind_ortvalue_input(name, value)
            self._kept.append(value)
        for name, array in self._outputs.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu", 0)
            binding.bind_ortvalue_output(name, value)
            self._kept.append(value)
        self._binding = binding

    def run(self) -> None:
        if self._fed is None:
            self._session.run_with_iobinding(self._binding)
        else:
            self._outputs = dict(zip(self._names, self._session.run(None, self._fed), strict=True))

    def outputs(self) -> Arrays:
        return self._outputs
