"""Adapters of NVIDIA GPUs where there is none: what they say, halves that run anywhere, and fakes for the rest."""

# ruff: noqa: N802, N815 (the fakes have the names of NVIDIA's interfaces)

import ctypes
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from bench.small_networks import check_adapter, convolutional, make_task, product

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.systems import cuda, get_system, onnxruntime_gpu
from mononn_bench.systems.tensorrt import EngineError, TensorRt, build_engine

GPU_SYSTEMS = ("tensorrt", "onnxruntime-cuda", "onnxruntime-tensorrt")


@pytest.mark.parametrize("name", GPU_SYSTEMS)
def test_without_a_gpu_the_row_says_so(name, monkeypatch):
    monkeypatch.setattr(cuda, "find_gpus", tuple)
    with pytest.raises(SystemUnavailableError, match=r"^no NVIDIA GPU$"):
        get_system(name)().probe()


@pytest.mark.parametrize("name", GPU_SYSTEMS)
def test_another_target_or_precision_is_refused(name, tmp_path):
    task = make_task(product(), tmp_path, target="cuda")
    for other in (replace(task, target="cpu"), replace(task, precision="fp16")):
        with pytest.raises(SystemUnavailableError, match="set up here for fp32 on an NVIDIA GPU"):
            get_system(name)().build(other)


@pytest.mark.parametrize("name", [*GPU_SYSTEMS, "torch-eager", "torch-inductor", "xla"])
def test_options_on_a_gpu_name_their_page(name, tmp_path):
    options = get_system(name)().options(make_task(product(), tmp_path, target="cuda"))
    assert options
    assert all(option.source for option in options)


def test_onnxruntime_s_device_buffers(tmp_path, monkeypatch):
    """The adapter's whole road, its provider and its device replaced by the CPU's."""

    class OnTheCpu(onnxruntime_gpu.OnnxRuntimeCuda):
        provider = "CPUExecutionProvider"

        def settings(self, task):
            return {}

        def _others(self):
            return []

    monkeypatch.setattr(onnxruntime_gpu, "DEVICE", "cpu")
    monkeypatch.setattr(cuda, "find_gpus", lambda: ("one",))
    check_adapter(OnTheCpu, make_task(convolutional(), tmp_path, target="cuda"))


def test_a_provider_that_does_not_start_is_unavailable(tmp_path):
    refused = pytest.raises(SystemUnavailableError, match="CUDAExecutionProvider could not start")
    with refused, pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        onnxruntime_gpu.OnnxRuntimeCuda().build(make_task(product(), tmp_path, target="cuda"))


class FakeRuntime(ModuleType):
    """cuda.bindings.runtime over host memory; what is enqueued while a stream captures runs at each launch."""

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self):
        super().__init__("runtime")
        self.memory, self.captured, self.capturing, self.launches = [], [], False, 0

    def cudaMalloc(self, size):
        self.memory.append(np.zeros(size, np.uint8))
        return 0, self.memory[-1].ctypes.data

    def cudaMemcpy(self, to, source, size, kind):
        ctypes.memmove(to, source, size)
        return (0,)

    def cudaStreamBeginCapture(self, stream, mode):
        self.capturing = True
        return (0,)

    def cudaStreamEndCapture(self, stream):
        self.capturing = False
        return 0, self.captured

    def cudaGraphInstantiate(self, graph, flags):
        return 0, graph

    def cudaGraphLaunch(self, graph, stream):
        self.launches += 1
        for work in graph:
            work()
        return (0,)

    def __getattr__(self, name):
        if name == "cudaStreamCreate":
            return lambda: (0, 7)
        if name == "cudaStreamSynchronize":
            return lambda *_: (0,)
        raise AttributeError(name)


class FakeTensorRt(ModuleType):
    """tensorrt whose every engine is relu(x w + b) of `product`, read from the ONNX file."""

    BuilderFlag = SimpleNamespace(TF32="tf32")

    class Logger:
        WARNING = 1

        def __init__(self, level):
            self.level = level

    def __init__(self, runtime):
        super().__init__("tensorrt")
        self.runtime, self.flags, self.profiles, self.readable = runtime, {"tf32"}, [], True

    def Builder(self, logger):
        config = SimpleNamespace(
            clear_flag=self.flags.discard, set_flag=self.flags.add, add_optimization_profile=self.profiles.append
        )
        shapes = {}
        return SimpleNamespace(
            create_network=lambda flags: {},
            create_builder_config=lambda: config,
            create_optimization_profile=lambda: SimpleNamespace(
                set_shape=lambda name, *bounds: shapes.update({name: bounds}), shapes=shapes
            ),
            build_serialized_network=lambda network, config: network["file"],
        )

    def OnnxParser(self, network, logger):
        def parse(path):
            network["file"] = path.encode()
            return self.readable

        return SimpleNamespace(parse_from_file=parse, num_errors=1, get_error=lambda i: "no importer for Foo")

    def Runtime(self, logger):
        return SimpleNamespace(deserialize_cuda_engine=self._engine)

    def _engine(self, data):
        from onnx.reference import ReferenceEvaluator

        evaluator, addresses = ReferenceEvaluator(data.decode()), {}

        def array(name):
            return np.ctypeslib.as_array((ctypes.c_float * 32).from_address(addresses[name])).reshape(1, 32)

        def compute():
            array("y")[...] = evaluator.run(None, {"x": array("x")})[0]

        def enqueue(stream):
            (self.runtime.captured.append if self.runtime.capturing else lambda work: work())(compute)
            return True

        context = SimpleNamespace(set_tensor_address=addresses.__setitem__, execute_async_v3=enqueue)
        return SimpleNamespace(create_execution_context=lambda: context)


@pytest.fixture
def tensorrt(monkeypatch):
    """Fakes of TensorRT and the CUDA runtime, where the adapter imports them from."""
    runtime = FakeRuntime()
    bindings = ModuleType("cuda.bindings")
    bindings.runtime = runtime
    fake = FakeTensorRt(runtime)
    for name, module in {"cuda": ModuleType("cuda"), "cuda.bindings": bindings, "tensorrt": fake}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return fake


def test_tensorrt_runs_one_captured_graph_between_device_buffers(tensorrt, tmp_path):
    task = make_task(product(), tmp_path, target="cuda")
    check_adapter(TensorRt, task)
    assert tensorrt.runtime.launches == 3
    assert len(tensorrt.runtime.captured) == 1
    assert tensorrt.flags == set()
    assert tensorrt.profiles[0].shapes == {"x": ((1, 32),) * 3}
    system = TensorRt()
    system.load(task)
    system.bind({"x": np.zeros((1, 32), np.float32)})
    call = system.device_call()
    call.enqueue()
    assert (call.stream, tensorrt.runtime.launches) == (7, 4)


def test_tf32_is_the_precision_s_choice(tensorrt, tmp_path):
    task = make_task(product(), tmp_path)
    build_engine(tensorrt, task.onnx, task.model.inputs, "tf32")
    assert tensorrt.flags == {"tf32"}


def test_a_model_that_tensorrt_cannot_read_says_why(tensorrt, tmp_path):
    tensorrt.readable = False
    task = make_task(product(), tmp_path)
    with pytest.raises(EngineError, match="no importer for Foo"):
        build_engine(tensorrt, task.onnx, task.model.inputs, "fp32")


def test_a_call_of_the_runtime_that_fails_is_named():
    failed = type("Status", (), {"name": "cudaErrorMemoryAllocation", "__int__": lambda self: 2})()
    with pytest.raises(cuda.CudaError, match=r"cudaErrorMemoryAllocation \(2\)"):
        cuda.checked((failed, None))


@pytest.mark.tensorrt
@pytest.mark.parametrize("network", [convolutional, product])
def test_the_build_half_on_a_real_builder(network, tmp_path):
    """TensorRT for RTX shares the interface, and its builder needs no GPU."""
    rtx = pytest.importorskip("tensorrt_rtx_bindings", reason="needs tensorrt_rtx_cu13_libs and its bindings")
    task = make_task(network(), tmp_path)

    def for_a_known_gpu(config):
        config.num_compute_capabilities = 1
        config.set_compute_capability(rtx.ComputeCapability.SM89, 0)
        assert not config.get_flag(rtx.BuilderFlag.TF32)
        assert config.num_optimization_profiles == 1

    assert len(build_engine(rtx, task.onnx, task.model.inputs, "fp32", for_a_known_gpu)) > 1000
    task.onnx.write_bytes(b"not a model")
    with pytest.raises(EngineError, match="cannot read model"):
        build_engine(rtx, task.onnx, task.model.inputs, "fp32")
