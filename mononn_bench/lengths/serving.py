"""Systems in the forms in which they answer requests of any length, with the options that their adapters set.

- dynamic: the network has an open axis, and a request goes in at its own length.
- bucketed: the same, and every request is padded to the next length of a grid. What is bound to a length is kept.
- static: bucketed, with a network of its own compiled for each length of the grid.
- family: bucketed, one artifact compiled for all lengths of the grid, its weights stored once.

Adapters are imported here and nowhere else in this folder; libraries are imported inside methods, as in adapters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.lengths.requests import shapes_at
from mononn_bench.record import Option
from mononn_bench.systems import OURS, get_system
from mononn_bench.systems import openvino as openvino_adapter
from mononn_bench.systems import torch_inductor as inductor
from mononn_bench.systems.base import Arrays, Built, System, Task
from mononn_bench.systems.onnxruntime import PROVIDERS, OnnxRuntime
from mononn_bench.systems.openvino import HINTS, OpenVino
from mononn_bench.systems.torch_eager import prepare_torch
from mononn_bench.systems.torch_inductor import TorchInductor

DYNAMIC, BUCKETED, STATIC, FAMILY = "dynamic", "bucketed", "static", "family"
DRIVER = "driver"
"""The environment of systems for tests."""
Run = Callable[[], Arrays]


class Serving:
    """A system that answers requests of any length: its adapter, and what differs from a network of one shape.

    `grid` are the lengths that are padded to, the last one that of the longest request.
    """

    def __init__(self, system: System, grid: Sequence[int]) -> None:
        self.system: Any = system
        self.grid = tuple(grid)

    def build(self, task: Task) -> Built:
        """As the adapter's `build`."""
        built: Built = self.system.build(task)
        return built

    def options(self, task: Task) -> tuple[Option, ...]:
        """As the adapter's `options`."""
        found: tuple[Option, ...] = self.system.options(task)
        return found

    def load(self, task: Task) -> None:
        """As the adapter's `load`."""
        self.system.load(task)

    def bind(self, inputs: Arrays, outputs: Arrays) -> Run:
        """What answers a request that lies in `inputs`, into `outputs` where the system can, and returns the answers by
        name. The arrays are those of one length.
        """
        self.system.bind(inputs)

        def run() -> Arrays:
            self.system.run()
            answers: Arrays = self.system.outputs()
            return answers

        return run


class ServedMononn(Serving):
    """A family: a specialisation for each length of the grid."""

    def build(self, task: Task) -> Built:
        import mononn_core as mononn

        shapes = [shapes_at(task.model.inputs, length) for length in self.grid]
        session = mononn.compile(str(task.onnx), shapes=shapes, precision=task.precision, threads=task.threads)
        session.save(str(task.build_folder / "model.mono"))
        return Built(details={"specialisations": len(shapes), "weight_bytes": session.info["weight_bytes"]})

    def load(self, task: Task) -> None:
        import mononn_core as mononn

        self._session: Any = mononn.load(str(task.build_folder / "model.mono"), threads=task.threads)

    def bind(self, inputs: Arrays, outputs: Arrays) -> Run:
        binding = self._session.bind(inputs, outputs)

        def run() -> Arrays:
            binding.run()
            return outputs

        return run


class ServedOnnxRuntime(Serving):
    """One session, a binding for the length asked for."""

    def load(self, task: Task) -> None:
        import onnxruntime

        settings = self.system._settings(task.threads, optimise=False)
        path = str(task.build_folder / "model.onnx")
        self._session: Any = onnxruntime.InferenceSession(path, settings, providers=PROVIDERS)

    def bind(self, inputs: Arrays, outputs: Arrays) -> Run:
        import onnxruntime

        binding, make = self._session.io_binding(), onnxruntime.OrtValue.ortvalue_from_numpy
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, make(array, "cpu", 0))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, make(array, "cpu", 0))

        def run() -> Arrays:
            self._session.run_with_iobinding(binding)
            return outputs

        return run


class ServedOpenVino(Serving):
    """One compiled model with an open axis and one infer request, its tensors set for the length asked for."""

    def load(self, task: Task) -> None:
        self._compiled: Any = self.system._compile(task)
        self._request: Any = self._compiled.create_infer_request()

    def _of(self, inputs: Arrays) -> tuple[Any, Any]:
        """The compiled model and its infer request for these arrays."""
        return self._compiled, self._request

    def bind(self, inputs: Arrays, outputs: Arrays) -> Run:
        import openvino

        compiled, request = self._of(inputs)
        tensors = [
            (port, openvino.Tensor(array, shared_memory=True))
            for ports, arrays in ((compiled.inputs, inputs), (compiled.outputs, outputs))
            for port, array in zip(openvino_adapter._named(ports, arrays), arrays.values(), strict=True)
        ]

        def run() -> Arrays:
            for port, tensor in tensors:
                request.set_tensor(port, tensor)
            request.infer(share_outputs=True)
            return outputs

        return run


class StaticOpenVino(ServedOpenVino):
    """A compiled model for each length of the grid. They are compiled when they are loaded, all from one model that is
    read once, so that they share its constants: from a cache each would come with constants of its own. What a compiled
    model packs of its weights is its own in both.
    """

    def build(self, task: Task) -> Built:
        return Built()

    def options(self, task: Task) -> tuple[Option, ...]:
        return tuple(option for option in super().options(task) if option.name != "CACHE_DIR")

    def load(self, task: Task) -> None:
        import openvino

        core = openvino.Core()
        model, self._by_length = core.read_model(str(task.onnx)), {}
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": task.threads,
            "INFERENCE_PRECISION_HINT": HINTS[task.precision],
        }
        for length in self.grid:
            model.reshape(shapes_at(task.model.inputs, length))
            compiled = core.compile_model(model, "CPU", settings)
            self._by_length[length] = compiled, compiled.create_infer_request()

    def _of(self, inputs: Arrays) -> tuple[Any, Any]:
        found: tuple[Any, Any] = self._by_length[next(iter(inputs.values())).shape[1]]
        return found


class ServedInductor(Serving):
    """The exported program with an open axis, compiled ahead of time with the adapter's settings."""

    def build(self, task: Task) -> Built:
        import torch

        from mononn_bench.lengths.export import example, load_encoder, open_axes

        inductor._begin_cache(task)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(inductor._cache_folder(task))
        prepare_torch(task, inference=False)
        module = load_encoder(task.model.name, task.model_folder, "sdpa")
        with torch.no_grad():
            arguments = example(task.model.name, self.grid[len(self.grid) // 2])
            program = torch.export.export(module, arguments, dynamic_shapes=open_axes(arguments, self.grid[-1]))
            inductor._compile_ahead(task, program, self.system.compiler_settings())
        inductor._drop_weights(inductor._cache_folder(task))
        return Built()

    def load(self, task: Task) -> None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(inductor._cache_folder(task))
        prepare_torch(task)
        self._names = [tensor.name for tensor in task.model.outputs]
        self._call = inductor._load_package(task)

    def bind(self, inputs: Arrays, outputs: Arrays) -> Run:
        import torch

        arguments = [torch.from_numpy(array) for array in inputs.values()]
        return lambda: dict(zip(self._names, (t.numpy() for t in self._call(arguments)), strict=True))


FORMS: Mapping[str, Mapping[str, type[Serving]]] = {
    OURS: {FAMILY: ServedMononn},
    OnnxRuntime.name: {DYNAMIC: ServedOnnxRuntime, BUCKETED: ServedOnnxRuntime},
    OpenVino.name: {DYNAMIC: ServedOpenVino, BUCKETED: ServedOpenVino, STATIC: StaticOpenVino},
    TorchInductor.name: {DYNAMIC: ServedInductor},
}
"""The forms of each system that has any here, each a contestant of its own."""


def forms_of(system: str) -> tuple[str, ...]:
    """The forms that a system takes part in; `dynamic` of one that has none here, and a row that says so."""
    return tuple(FORMS.get(system, (DYNAMIC,)))


def make_serving(system: str, form: str, grid: Sequence[int]) -> Serving:
    """A system in a form. Raises SystemUnavailableError where it has none here."""
    adapter = get_system(system)
    if system in FORMS:
        return FORMS[system][form](adapter(), grid)
    if adapter.environment != DRIVER:
        raise SystemUnavailableError(f"{system} has no form for requests of many lengths here")
    return Serving(adapter(), grid)


def pads(form: str) -> bool:
    """Whether requests are padded to a grid in this form."""
    return form != DYNAMIC
