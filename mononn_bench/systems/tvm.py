"""TVM: the Relax importer, schedules found by MetaSchedule, one shared library loaded by the Relax virtual machine."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import Arrays, Built, System, Task, require_precision
from mononn_bench.systems.tvm_model import (
    SHIPPED,
    apply_database,
    compile_module,
    find_database,
    find_operators,
    import_model,
    machine_folder,
    make_target,
    summarise,
    why_undertuned,
)

LIBRARY = "model.so"
SLOW_S = 2.0
"""An undertuned build whose run takes longer is not measured any further."""

LACKS = {
    "bf16": "this adapter has no recipe for TVM in bf16",
    "int8": "this adapter has no recipe for TVM in int8",
}


class Tvm(System):
    """Schedules of the database for this kind of machine; a model it does not cover reads undertuned."""

    name: ClassVar[str] = "tvm"
    environment: ClassVar[str] = "tvm"
    family: ClassVar[str] = "tvm"
    cuda_environment: ClassVar[str] = "tvm-cuda"
    on_cuda: ClassVar[tuple[str, ...]] = ("tvm",)
    data: ClassVar[Path | None] = SHIPPED
    has_defaults: ClassVar[bool] = True

    def __init__(self) -> None:
        self._machine: Any = None
        self._main: Any = None
        self._device: Any = None
        self._on_gpu = False
        self._inputs: Arrays = {}
        self._arguments: Sequence[Any] = ()
        self._names: list[str] = []
        self._result: Any = None

    def probe(self) -> dict[str, str]:
        try:
            import tvm
            import tvm_ffi
        except ImportError as error:
            raise SystemUnavailableError(f"TVM cannot be imported: {error}") from error
        return {"apache-tvm": tvm.__version__, "apache-tvm-ffi": tvm_ffi.__version__}

    def options(self, task: Task) -> tuple[Option, ...]:
        if task.defaults:
            return ()
        return (
            Option("target", str(make_target(task.target, task.threads)), "TVM: Target, -mcpu"),
            Option("MetaScheduleApplyDatabase", "best of each task", "TVM: End-to-End Optimize Model"),
            Option("cpu_weight_prepack", "true", "TVM: relax.pipeline.static_shape_tuning_pipeline"),
            Option("TVM_NUM_THREADS", str(task.threads), "TVM: runtime threading backend"),
            Option("export_library", "Relax virtual machine", "TVM: Export and Load Relax Executables"),
        )

    def build(self, task: Task) -> Built:
        require_precision(task, self.name, LACKS)
        self._prepare(task)
        target = make_target(task.target, task.threads)
        module = import_model(task.onnx, target)
        module, built = self._scheduled(module, target, task)
        compile_module(module, target).export_library(str(task.build_folder / LIBRARY))
        return self._timed_once(task, built) if built.undertuned else built

    def _timed_once(self, task: Task, built: Built) -> Built:
        """`built` with the seconds of one run: operators without a schedule run as plain loops, for many seconds."""
        import tvm

        self.load(task)
        zeros = [np.zeros(tensor.shape, tensor.dtype) for tensor in task.model.inputs]
        self._arguments = [tvm.runtime.tensor(array, self._device) for array in zeros]
        started = time.perf_counter()
        self.run()
        seconds = time.perf_counter() - started
        if seconds <= SLOW_S:
            return built
        reason = f"{built.undertuned}; one run takes {seconds:.1f} s"
        return replace(built, undertuned=reason, details={**built.details, "left_out": True})

    def _scheduled(self, module: Any, target: Any, task: Task) -> tuple[Any, Built]:
        """`module` with the schedules of the database, and whether they match; by default there is no search."""
        if task.defaults:
            return module, Built(undertuned="TVM's own default is no search for schedules")
        found = find_database(target)
        if found is None:
            return module, Built(
                undertuned=f"no schedules for {machine_folder(target)} (workflows/suites/tvm-tune.yaml)"
            )
        shipped, reason = found
        with tempfile.TemporaryDirectory() as folder:
            database = shipped.unpack(Path(folder))
            operators = find_operators(module, target, database, shipped.budget.searches)
            module = apply_database(module, target, database)
        tuning = shipped.budget.spent_on(task.model.name)
        reason = reason or why_undertuned(operators, tuning.trials if tuning else 0)
        return module, Built(tuning, undertuned=reason, details=summarise(operators))

    def load(self, task: Task) -> None:
        self._prepare(task)
        import tvm
        from tvm import relax

        self._on_gpu = task.target == "cuda"
        self._device = tvm.device(task.target, 0)
        library = tvm.runtime.load_module(str(task.build_folder / LIBRARY))
        self._machine = relax.VirtualMachine(library, self._device)
        self._main = self._machine["main"]
        self._names = [tensor.name for tensor in task.model.outputs]

    def bind(self, inputs: Arrays) -> None:
        import tvm

        self._inputs = inputs
        if self._on_gpu:
            self._arguments = [tvm.runtime.tensor(array, self._device) for array in inputs.values()]
        else:
            self._arguments = [tvm.runtime.from_dlpack(array) for array in inputs.values()]

    def upload(self) -> None:
        if self._on_gpu:
            for array, tensor in zip(self._inputs.values(), self._arguments, strict=True):
                tensor.copyfrom(array)
            self._device.sync()

    def run(self) -> None:
        self._result = self._main(*self._arguments)
        if self._on_gpu:
            self._device.sync()

    def outputs(self) -> Arrays:
        results = [self._result] if hasattr(self._result, "numpy") else list(self._result)
        return {name: tensor.numpy() for name, tensor in zip(self._names, results, strict=True)}

    @staticmethod
    def _prepare(task: Task) -> None:
        os.environ["TVM_NUM_THREADS"] = str(task.threads)


class TvmUntuned(Tvm):
    """The same without a database, for suites that ask what tuning is worth."""

    name: ClassVar[str] = "tvm-untuned"
    on_cuda: ClassVar[tuple[str, ...]] = ("tvm-untuned",)

    def _scheduled(self, module: Any, target: Any, task: Task) -> tuple[Any, Built]:
        return module, Built()
