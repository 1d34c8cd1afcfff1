"""What takes part in the comparison, each between device buffers of its own: ours as monolith and as graph, and rivals.

A contender has the methods of :class:`mononn_bench.systems.base.System` that the harness calls after a build. In a
rehearsal the same code runs on the CPU, where it has such a form.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.gpu_suite import ours
from mononn_bench.gpu_suite.case import Case, link_weights, read_model, source_digest
from mononn_bench.systems.base import Arrays, DeviceCall, System, Task
from mononn_bench.systems.cuda import require_gpu
from mononn_bench.systems.mononn import Launch
from mononn_bench.systems.torch_cuda import current_stream, wait_for_stream


class Contender(ABC):
    """One system on one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.on_gpu = case.target == "cuda"

    @abstractmethod
    def probe(self) -> dict[str, str]:
        """Import the library; versions. Raises SystemUnavailableError."""

    @abstractmethod
    def prepare(self) -> dict[str, Any]:
        """Build and load; what there is to say of the build."""

    @abstractmethod
    def bind(self, inputs: Arrays) -> None:
        """Take host arrays, whose values the harness rewrites; `upload` brings them to the device."""

    @abstractmethod
    def upload(self) -> None:
        """Bring the arrays' present values to the device; finished on return."""

    @abstractmethod
    def run(self) -> None:
        """One inference between device buffers, finished on return."""

    def device_call(self) -> DeviceCall | None:
        """How a run is put on a stream; None on a CPU, and where the library hides it."""
        return None

    @abstractmethod
    def outputs(self) -> Arrays:
        """Outputs of the last run in host memory."""


class Ours(Contender):
    """Our kernel: launch "once" (the monolith) or "graph"."""

    launch = "once"

    def probe(self) -> dict[str, str]:
        if self.on_gpu:
            require_gpu()
        return {"mononn": ours.version()}

    def prepare(self) -> dict[str, Any]:
        mono = mono_path(self.case, self.launch)
        about = {}
        if not mono.exists():
            about = compile_ours(self.case, self.launch)
        self._session = ours.load(mono)
        return about

    def bind(self, inputs: Arrays) -> None:
        self._binding = self._session.bind(inputs)
        self._launch = Launch(self._binding) if self.on_gpu else None

    def upload(self) -> None:
        if self.on_gpu:
            self._binding.upload()

    def run(self) -> None:
        (self._launch or self._binding).run()

    def device_call(self) -> DeviceCall | None:
        return self._launch.on_device() if self._launch else None

    def outputs(self) -> Arrays:
        return {name: np.asarray(array) for name, array in self._binding.results().items()}


class OursGraph(Ours):
    """The same phases as kernels of a CUDA graph."""

    launch = "graph"


class TorchEager(Contender):
    """PyTorch, operator by operator."""

    compiled, captured = False, False

    def probe(self) -> dict[str, str]:
        try:
            import torch
        except ImportError as error:
            raise SystemUnavailableError(f"PyTorch cannot be imported: {error}") from error
        if self.on_gpu and not torch.cuda.is_available():
            raise SystemUnavailableError("this PyTorch finds no GPU")
        if self.captured and not self.compiled and not self.on_gpu:
            raise SystemUnavailableError("a CUDA graph needs a GPU")
        return {"torch": torch.__version__}

    def prepare(self) -> dict[str, Any]:
        import torch

        from mononn_bench.gpu_suite.torch_network import Network
        from mononn_bench.systems.torch_cuda import exact_fp32

        if self.on_gpu:
            exact_fp32()
        torch.set_grad_enabled(False)
        with np.load(self.case.tensors) as stored:
            tensors = {name: stored[name] for name in stored.files}
        network = Network(self.case.spec, tensors, self.case.precision)
        self._call: Callable[..., Any] = network.cuda() if self.on_gpu else network
        if self.compiled:
            self._call = self._compile(network)
        return {}

    def _compile(self, network: Any) -> Callable[..., Any]:
        import torch
        from torch._inductor import config

        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(self.case.work) / "inductor-cache")
        config.freezing = True
        mode = "max-autotune-no-cudagraphs" if self.on_gpu else "default"
        compiled: Callable[..., Any] = torch.compile(network, fullgraph=True, mode=mode)
        return compiled

    def bind(self, inputs: Arrays) -> None:
        import torch

        from mononn_bench.systems.torch_cuda import CapturedCall

        self._inputs = [torch.from_numpy(array) for array in inputs.values()]
        if self.on_gpu and self.captured:
            self._capture = CapturedCall(self._call, inputs)
        else:
            self._arguments = [tensor.cuda() for tensor in self._inputs] if self.on_gpu else self._inputs

    def upload(self) -> None:
        if self.on_gpu and self.captured:
            self._capture.upload()
        elif self.on_gpu:
            import torch

            for argument, host in zip(self._arguments, self._inputs, strict=True):
                argument.copy_(host)
            torch.cuda.synchronize()

    def run(self) -> None:
        if self.on_gpu and self.captured:
            self._capture.run()
            return
        self._enqueue()
        if self.on_gpu:
            wait_for_stream()

    def _enqueue(self) -> None:
        self._result = self._call(*self._arguments)

    def device_call(self) -> DeviceCall | None:
        if not self.on_gpu:
            return None
        return self._capture.on_device() if self.captured else DeviceCall(current_stream(), self._enqueue)

    def outputs(self) -> Arrays:
        result = self._capture.result if self.on_gpu and self.captured else self._result
        return {name: tensor.cpu().numpy() for name, tensor in zip(self.case.spec.outputs, result, strict=True)}


class TorchGraph(TorchEager):
    """PyTorch's operators captured as one CUDA graph."""

    captured = True


class TorchInductor(TorchEager):
    """torch.compile with max-autotune and frozen weights, captured as one CUDA graph."""

    compiled, captured = True, True


class Adapted(Contender):
    """An adapter of the suite for CPUs and GPUs. It is handed the model in the case's own precision, so that what it
    says of itself, fp32, means: as the file says."""

    def __init__(self, case: Case, system: Callable[[], System]) -> None:
        super().__init__(case)
        self._system = system()

    def probe(self) -> dict[str, str]:
        return self._system.probe()

    def prepare(self) -> dict[str, Any]:
        folder = self.case.build_folder(self._system.name)
        folder.mkdir(parents=True, exist_ok=True)
        link_weights(self.case, folder)
        cores = len(os.sched_getaffinity(0))
        task = Task(read_model(self.case), self.case.folder, folder, cores, "fp32", self.case.target)
        started = time.perf_counter()
        built = self._system.build(task)
        seconds = time.perf_counter() - started
        self._system.load(task)
        options = {option.name: option.value for option in self._system.options(task)}
        return {"build_s": seconds, "options": options, "undertuned": built.undertuned}

    def bind(self, inputs: Arrays) -> None:
        self._system.bind(inputs)

    def run(self) -> None:
        self._system.run()

    def upload(self) -> None:
        self._system.upload()

    def device_call(self) -> DeviceCall | None:
        return self._system.device_call()

    def outputs(self) -> Arrays:
        return self._system.outputs()


def _onnxruntime(case: Case) -> Contender:
    from mononn_bench.systems.onnxruntime import OnnxRuntime
    from mononn_bench.systems.onnxruntime_gpu import OnnxRuntimeCuda

    return Adapted(case, OnnxRuntimeCuda if case.target == "cuda" else OnnxRuntime)


def _xla(case: Case) -> Contender:
    from mononn_bench.systems.xla import Xla

    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return Adapted(case, Xla)


def _tvm(case: Case) -> Contender:
    from mononn_bench.systems.tvm import Tvm

    return Adapted(case, Tvm)


def _tensorrt(case: Case) -> Contender:
    from mononn_bench.systems.tensorrt import TensorRt

    return Adapted(case, TensorRt)


CONTENDERS: dict[str, Callable[[Case], Contender]] = {
    "mononn": Ours,
    "mononn-graph": OursGraph,
    "torch-eager": TorchEager,
    "torch-graph": TorchGraph,
    "torch-inductor": TorchInductor,
    "xla": _xla,
    "onnxruntime-cuda": _onnxruntime,
    "tvm": _tvm,
    "tensorrt": _tensorrt,
}
"""Ours first."""
OURS = ("mononn", "mononn-graph")


def mono_path(case: Case, launch: str) -> Path:
    """Where our file of the case lies, as today's compiler makes it; `launch` as in `compile_ours`."""
    return case.build_folder("mononn") / source_digest("mononn_core") / f"{launch.replace(':', '-')}.mono"


def compile_ours(case: Case, launch: str, gpu: str = "") -> dict[str, Any]:
    """Compile the case; `launch` is "once" or "graph", or one of these, a colon and a name of `ours.variants`. For a
    `gpu` that is not here only machine code is made and kept, and no file.
    """
    return ours.compile_model(
        fp32_model(case), None if gpu else mono_path(case, launch), target=target_of(case), precision=case.precision,
        launch=launch, gpu=gpu,
    )  # fmt: skip


def fp32_model(case: Case) -> Path:
    """What ours is compiled from, whatever precision is asked for."""
    return Case(case.work, case.model, case.batch, "fp32", case.target).folder / "model.onnx"


def target_of(case: Case) -> str:
    """The compiler's name for where the case runs."""
    return "cuda" if case.target == "cuda" else "cuda-emulated"
