"""PyTorch compiled ahead of time by Inductor (AOTInductor), the road it documents for deployment.

A build has a cache beside it, where a load finds what the compiler was asked about the processor. PyTorch asks that
once a machine and user; here the first build's answers are kept, and each later build begins with them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mononn_bench.models.inputs import CALIBRATION_SEED, CALIBRATION_SETS, make_inputs
from mononn_bench.models.zoo import IDENTITY, InputSpec, get_model
from mononn_bench.record import Option, Tuning
from mononn_bench.systems.base import BF16, Built, Task, require_module, require_precision
from mononn_bench.systems.torch_eager import (
    BF16_OPTIONS,
    CUDA_OPTIONS,
    TorchSystem,
    make_module,
    prepare_torch,
    probe_torch,
)

PACKAGE = "model.pt2"
INT8, OWN_INT8 = "int8", "own int8"
PT2E = "torchao: PyTorch 2 Export Quantization with X86 Backend through Inductor"
INT8_OPTIONS = (
    Option("quantizer", "X86InductorQuantizer, its default configuration", PT2E),
    Option("calibration", f"{CALIBRATION_SETS} input sets, those of the 8-bit file", PT2E),
)
TRIED_SETS, FARTHEST_INT8 = 3, 0.5
"""Inputs on which a package must agree with its module, and the relative L2 distance within which it does in int8:
beyond what single steps of quantisation, taken another way here and there, make of a deep network.
"""
LARGE_BYTES = 1_000_000

Answer = Callable[[dict[str, np.ndarray]], Iterable[np.ndarray]]


class TorchInductor(TorchSystem):
    """Exported program, compiled with frozen weights and autotuned products, called through its C++ loader."""

    name: ClassVar[str] = "torch-inductor"
    on_cuda: ClassVar[tuple[str, ...]] = ("torch-inductor",)

    tunes_by_timing: ClassVar[bool] = True
    backend: ClassVar[str] = "inductor"
    """Of `torch.compile`, by default."""
    _at_first_call = False

    def probe(self) -> dict[str, str]:
        versions = probe_torch()
        import_module("torch._inductor.package")
        return versions

    def options(self, task: Task) -> tuple[Option, ...]:
        if task.defaults:
            return ()
        ahead = "PyTorch: AOTInductor: Ahead-Of-Time Compilation for Torch.Export-ed Models"
        return (
            Option("aoti_compile_and_package", "C++ loader", ahead),
            Option("freezing", "true", "PyTorch: torch.compile, inference on CPU: freezing (torch._inductor.config)"),
            Option("max_autotune", "true", "PyTorch: Using Max-Autotune Compilation on CPU for Better Performance"),
            Option("set_num_threads", str(task.threads), "PyTorch: CPU threading and TorchScript inference"),
            Option("attn_implementation", "sdpa", "transformers: Attention backends"),
            *(CUDA_OPTIONS if task.target == "cuda" else ()),
            *(BF16_OPTIONS if task.precision == BF16 else ()),
            *(INT8_OPTIONS if task.precision == INT8 else ()),
        )

    def compiler_settings(self) -> dict[str, Any]:
        """What differs from torch._inductor.config. Headers precompiled for one build take longer than they save."""
        return {"freezing": True, "max_autotune": True, "aot_inductor.precompile_headers": False}

    def build(self, task: Task) -> Built:
        require_precision(task, self.name, {INT8: "int8 is no default of PyTorch"} if task.defaults else {})
        require_module(task, self.name)
        _begin_cache(task)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_cache_folder(task))
        if task.defaults:
            self._compile_once(task)
            _keep_cache(task)
            return Built()
        import torch
        from torch._inductor.select_algorithm import add_feedback_saver

        trials: list[int] = []
        add_feedback_saver(lambda timings, *_: trials.append(len(timings)))
        prepare_torch(task, inference=False)
        spec = get_model(f"{task.model.name}-b{task.model.batch}")
        module = make_module(task, task.model_folder).to(task.target)
        example = make_inputs(spec.inputs, sets=2, seed=0)[1]
        arguments = tuple(torch.from_numpy(array).to(task.target) for array in example.values())
        with torch.no_grad():
            if task.precision == INT8:
                module = quantised(module, spec.inputs, arguments)
            program = torch.export.export(module, arguments)
            started = time.perf_counter()
            _compile_ahead(task, program, self.compiler_settings())
            details = {"precision": OWN_INT8} if task.precision == INT8 else {}
            if task.precision == INT8 and not agrees(_answers(task), module, spec.inputs, FARTHEST_INT8):
                _compile_ahead(task, program, {**self.compiler_settings(), "max_autotune": False})
                details["note"] = "without max_autotune: with it the package's answers are not those of its module"
        seconds = time.perf_counter() - started
        _drop_weights(_cache_folder(task))
        _keep_cache(task)
        return Built(tuning=Tuning(seconds, task.threads, sum(trials)) if trials else None, details=details)

    def load(self, task: Task) -> None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_cache_folder(task))
        prepare_torch(task)
        self._names = [tensor.name for tensor in task.model.outputs]
        if task.defaults:
            self._compile_at_first_call(task)
            return
        self._on_gpu = task.target == "cuda"
        package = _load_package(task)
        self._call = (lambda *arguments: package(list(arguments))) if self._on_gpu else package

    def run(self) -> None:
        self._result = self._call(*self._arguments) if self._at_first_call else self._call(self._arguments)

    def _compile_at_first_call(self, task: Task) -> None:
        """What `torch.compile` makes of the module, in place of a package."""
        import torch

        self._call = torch.compile(make_module(task, task.model_folder), backend=self.backend)
        self._at_first_call = True

    def _compile_once(self, task: Task) -> None:
        """Make that first call; what it leaves in the cache later processes find."""
        self.load(task)
        self.bind(make_inputs(get_model(f"{task.model.name}-b{task.model.batch}").inputs, sets=1, seed=0)[0])
        self.run()


def quantised(module: Any, inputs: tuple[InputSpec, ...], arguments: tuple[Any, ...]) -> Any:
    """The float module as PT2E quantises it for Inductor on x86, calibrated with what the 8-bit file is calibrated
    with. `arguments` are an example. Importing the quantizer registers Inductor's passes for what it makes.
    """
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(module, arguments).module(), quantizer)
    for given in make_inputs(inputs, sets=CALIBRATION_SETS, seed=CALIBRATION_SEED):
        prepared(*(torch.from_numpy(array) for array in given.values()))
    return convert_pt2e(prepared)


def _compile_ahead(task: Task, program: Any, settings: Mapping[str, Any]) -> None:
    """Leave a package of the exported program in the build folder."""
    import torch

    path = str(task.build_folder / PACKAGE)
    torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=dict(settings))


def _load_package(task: Task) -> Any:
    import torch

    return torch._inductor.aoti_load_package(str(task.build_folder / PACKAGE)).loader.run


def _answers(task: Task) -> Answer:
    """What the package of the build folder answers."""
    import torch

    package = _load_package(task)
    return lambda given: [one.numpy() for one in package([torch.from_numpy(array) for array in given.values()])]


def agrees(answer: Answer, module: Any, inputs: tuple[InputSpec, ...], farthest: float) -> bool:
    """Whether `answer` gives each output of the module within a relative L2 distance, on several inputs in turn."""
    import torch

    for given in make_inputs(inputs, sets=TRIED_SETS, seed=0):
        exact = module(*(torch.from_numpy(array) for array in given.values()))
        wanted = exact if isinstance(exact, tuple | list) else (exact,)
        if any(_distance(*pair) > farthest for pair in zip(answer(given), map(np.asarray, wanted), strict=True)):
            return False
    return True


def _distance(given: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(given - exact) / np.linalg.norm(exact))


def _cache_folder(task: Task) -> Path:
    return task.build_folder.parent / "inductor-cache"


def _begin_cache(task: Task) -> None:
    """Copy what the first build of the one-node model, which comes before any other, left for later ones."""
    cache = _cache_folder(task)
    if task.kept and not cache.exists() and (task.kept / cache.name).exists():
        shutil.copytree(task.kept / cache.name, cache)


def _keep_cache(task: Task) -> None:
    """Leave the cache for later builds, unless another one has."""
    cache = _cache_folder(task)
    if task.kept and task.model.name == IDENTITY.name and not (task.kept / cache.name).exists():
        task.kept.mkdir(parents=True, exist_ok=True)
        copy = Path(tempfile.mkdtemp(dir=task.kept))
        shutil.copytree(cache, copy, dirs_exist_ok=True)
        try:
            copy.rename(task.kept / cache.name)
        except OSError:
            shutil.rmtree(copy)


def _drop_weights(cache: Path) -> None:
    """Remove the cache's copy of the weights, which the package holds too."""
    for path in cache.rglob("*"):
        if path.is_file() and path.stat().st_size > LARGE_BYTES:
            path.unlink()
