"""TensorRT: an engine built from the ONNX file, run between device buffers as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mononn_bench.errors import BenchError, SystemUnavailableError
from mononn_bench.record import Option, Tensor
from mononn_bench.systems.base import Arrays, Built, System, Task
from mononn_bench.systems.cuda import Device, require_cuda_task, require_gpu

ENGINE = "model.engine"
OPTIMIZATION_LEVEL = 5


class EngineError(BenchError):
    """TensorRT could not read a model or build its engine."""


class TensorRt(System):
    """The vendor's own compiler; its builder measures its kernels on the GPU it will run on."""

    name: ClassVar[str] = "tensorrt"
    environment: ClassVar[str] = "driver"
    cuda_environment: ClassVar[str] = "tensorrt"
    on_cuda: ClassVar[tuple[str, ...]] = ("tensorrt",)
    family: ClassVar[str] = "tensorrt"
    tunes_by_timing: ClassVar[bool] = True

    def __init__(self) -> None:
        self._device: Device | None = None
        self._context: Any = None
        self._inputs: Arrays = {}
        self._outputs: Arrays = {}

    def probe(self) -> dict[str, str]:
        require_gpu()
        try:
            import tensorrt
        except ImportError as error:
            raise SystemUnavailableError(f"TensorRT cannot be imported: {error}") from error
        return {"tensorrt": tensorrt.__version__}

    def options(self, task: Task) -> tuple[Option, ...]:
        guide = "TensorRT: Developer Guide, Best Practices"
        return (
            Option("optimization_profile", "the static shapes", "TensorRT: Working with Dynamic Shapes"),
            Option("builder_optimization_level", str(OPTIMIZATION_LEVEL), f"{guide}, Builder Optimization Level"),
            Option("TF32", "off" if task.precision == "fp32" else "on", "TensorRT: Reduced Precision, TF32"),
            Option("CUDA graph", "one launch a run", f"{guide}, CUDA Graphs"),
        )

    def build(self, task: Task) -> Built:
        require_cuda_task(task, self.name)
        import tensorrt

        engine = build_engine(tensorrt, task.onnx, task.model.inputs, task.precision)
        (task.build_folder / ENGINE).write_bytes(engine)
        return Built()

    def load(self, task: Task) -> None:
        import tensorrt

        runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING))
        engine = runtime.deserialize_cuda_engine((task.build_folder / ENGINE).read_bytes())
        if engine is None:
            raise EngineError(f"TensorRT cannot read {ENGINE}: build it again on this GPU; its log says why.")
        self._context = engine.create_execution_context()
        self._device = Device()
        for tensor in task.model.inputs:
            self._allocate(tensor)
        self._outputs = {t.name: self._allocate(t) for t in task.model.outputs}

    def _allocate(self, tensor: Tensor) -> Any:
        """A device buffer for `tensor`, and a host array of its shape."""
        assert self._device is not None
        array = np.zeros(tensor.shape, tensor.dtype)
        self._context.set_tensor_address(tensor.name, self._device.allocate(tensor.name, array.nbytes))
        return array

    def bind(self, inputs: Arrays) -> None:
        assert self._device is not None
        device, self._inputs = self._device, inputs
        self.upload()
        self._enqueue()
        device.wait()
        device.capture(self._enqueue)
        self.run = device.launch  # type: ignore[method-assign]
        self.device_call = device.on_device  # type: ignore[method-assign]

    def _enqueue(self) -> None:
        assert self._device is not None
        if not self._context.execute_async_v3(int(self._device.stream)):
            raise EngineError("TensorRT could not enqueue the network; its log says why.")

    def upload(self) -> None:
        assert self._device is not None
        for name, array in self._inputs.items():
            self._device.upload(name, array)

    def run(self) -> None:
        raise AssertionError("bind puts the captured graph in this place")

    def outputs(self) -> Arrays:
        assert self._device is not None
        for name, array in self._outputs.items():
            self._device.download(name, array)
        return self._outputs


def build_engine(
    trt: Any, onnx_path: Path, inputs: tuple[Tensor, ...], precision: str, adjust: Callable[[Any], None] | None = None
) -> bytes:
    """The serialised engine of an ONNX file with static shapes; EngineError with the parser's or builder's reason.

    `trt` is the module tensorrt, or another with its interface; `adjust` may change the builder's configuration.
    """
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx_path)):
        reasons = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise EngineError(f"TensorRT cannot read {onnx_path.name}: {reasons}; another opset may help.")
    config = builder.create_builder_config()
    config.builder_optimization_level = OPTIMIZATION_LEVEL
    (config.clear_flag if precision == "fp32" else config.set_flag)(trt.BuilderFlag.TF32)
    profile = builder.create_optimization_profile()
    for tensor in inputs:
        profile.set_shape(tensor.name, tensor.shape, tensor.shape, tensor.shape)
    config.add_optimization_profile(profile)
    if adjust is not None:
        adjust(config)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise EngineError(f"TensorRT cannot build {onnx_path.name}: its log says which layer.")
    return bytes(engine)
