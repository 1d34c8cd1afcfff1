"""MNN, which runs networks on phones and other devices: ONNX converted to .mnn, run through its module interface."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import Arrays, Built, System, Task, require_cpu

CONVERTED = "model.mnn"
WEIGHTS_MEANWHILE = ".__convert_external_data.bin"
"""What the converter leaves in its working folder."""
WINOGRAD_MEMORY_LEVEL = 3
"""Interpreter::HintMode in MNN's Interpreter.hpp, whose values the Python binding takes as numbers."""
SMALL_TILES = 2
"""The level above it lets 6x6 tiles in, whose answers on ResNet-50 are wrong by 2e-3, and is no faster."""
LACKS = {
    "bf16": "MNN's package computes in fp32 on this kind of processor, whatever its setting precision says",
    "int8": "MNN's converter does not read quantised ONNX files",
}


class ConversionError(Exception):
    """MNN's converter left no file; what it printed is in the worker's log."""


class Mnn(System):
    """fp32 stated, no frequency or memory saved, graph optimised for speed when it is converted."""

    name: ClassVar[str] = "mnn"
    environment: ClassVar[str] = "mnn"
    family: ClassVar[str] = "mnn"

    def __init__(self) -> None:
        self._runtime: Any = None
        self._module: Any = None
        self._inputs: list[Any] = []
        self._results: list[Any] = []
        self._names: list[str] = []
        self._arrays: Arrays = {}

    def probe(self) -> dict[str, str]:
        try:
            import MNN
        except ImportError as error:
            raise SystemUnavailableError(f"MNN cannot be imported: {error}") from error
        return {"MNN": MNN.version()}

    def options(self, task: Task) -> tuple[Option, ...]:
        settings = "MNN: pymnn, nn.create_runtime_manager"
        return (
            Option("optimizePrefer", "2 (fastest)", "MNN: MNNConvert"),
            *(Option(name, str(value), settings) for name, value in _settings(task).items()),
            Option("WINOGRAD_MEMORY_LEVEL", str(SMALL_TILES), "MNN: Interpreter.hpp, HintMode"),
            Option("shape_mutable", "false", "MNN: pymnn, nn.load_module_from_file"),
        )

    def build(self, task: Task) -> Built:
        require_cpu(task, self.name, LACKS)
        import _tools  # MNN.tools.mnnconvert, which wraps it, installs a package and reports to its makers

        converted, model = (task.build_folder / CONVERTED).resolve(), task.onnx.resolve()
        arguments = ["-f", "ONNX", "--modelFile", str(model), "--MNNModel", str(converted), "--bizCode", "MNN"]
        with chdir(task.build_folder):  # weights lie in its working folder meanwhile
            _tools.mnnconvert(["mnnconvert", *arguments, "--optimizePrefer", "2"])
            Path(WEIGHTS_MEANWHILE).unlink(missing_ok=True)
        if not converted.exists():
            raise ConversionError(f"MNN cannot convert {task.onnx.name}")
        return Built()

    def load(self, task: Task) -> None:
        from MNN import nn

        self._names = [tensor.name for tensor in task.model.outputs]
        self._runtime = nn.create_runtime_manager((_settings(task),))
        self._runtime.set_hint(WINOGRAD_MEMORY_LEVEL, SMALL_TILES)
        self._module = nn.load_module_from_file(
            str(task.build_folder / CONVERTED), [tensor.name for tensor in task.model.inputs], self._names,
            runtime_manager=self._runtime, shape_mutable=False,
        )  # fmt: skip

    def bind(self, inputs: Arrays) -> None:
        from MNN import expr

        kinds = {"float32": expr.float, "int64": expr.int}
        self._arrays = inputs
        self._inputs = [expr.placeholder(list(a.shape), expr.NCHW, kinds[a.dtype.name]) for a in inputs.values()]

    def run(self) -> None:
        for variable, array in zip(self._inputs, self._arrays.values(), strict=True):
            variable.write(array.astype(np.int32) if array.dtype == np.int64 else array)
        self._results = [variable.read() for variable in self._module.forward(self._inputs)]

    def outputs(self) -> Arrays:
        return dict(zip(self._names, self._results, strict=True))


def _settings(task: Task) -> dict[str, Any]:
    return {"backend": "CPU", "numThread": task.threads, "precision": "high", "power": "high", "memory": "high"}
