"""zentorch, AMD's plug-in for PyTorch: Inductor's road ahead of time, its products replaced by ZenDNN's.

ZenDNN keeps weights in its own layout by their address. In a package compiled ahead of time it can take an activation
for a weight, and answers after the first input are wrong. So a build compares its package with the module; where they
differ, the system runs as its README documents, through `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.models.zoo import get_model
from mononn_bench.record import Option
from mononn_bench.systems.base import BF16, Built, Task, require_cpu
from mononn_bench.systems.torch_eager import make_module
from mononn_bench.systems.torch_inductor import PACKAGE, TorchInductor, agrees

LACKS = {"int8": "zentorch quantises by torchao, and by AMD Quark's files, neither of which this environment has"}
FARTHEST, FARTHEST_BF16 = 1e-3, 2e-2
"""The relative L2 distance within which a package agrees with its module, in fp32 and in bf16."""


class ZenTorch(TorchInductor):
    """Exported program, compiled with frozen weights and zentorch's graph passes, called through its C++ loader.

    Autotuning would find nothing to choose from: the passes have replaced the products.
    """

    name: ClassVar[str] = "zentorch"
    environment: ClassVar[str] = "zentorch"
    cuda_environment: ClassVar[str] = ""
    on_cuda: ClassVar[tuple[str, ...]] = ()
    backend: ClassVar[str] = "zentorch"
    tunes_by_timing: ClassVar[bool] = False

    def probe(self) -> dict[str, str]:
        versions = super().probe()
        try:
            import zentorch
        except ImportError as error:
            raise SystemUnavailableError(f"zentorch cannot be imported: {error}") from error
        if not zentorch._C.is_avx512_supported():
            raise SystemUnavailableError(
                "zentorch finds not all that it asks of AVX-512 in this processor, and replaces no operator"
            )
        return {"zentorch": zentorch.__version__, **versions}

    def options(self, task: Task) -> tuple[Option, ...]:
        if task.defaults:
            return ()
        passes = Option("joint_custom_post_pass", "export_optimize_pass", "zentorch: test/unittests/export_tests")
        return (passes, *(option for option in super().options(task) if option.name != "max_autotune"))

    def compiler_settings(self) -> dict[str, Any]:
        import zentorch

        passes = {"joint_custom_post_pass": zentorch.export_optimize_pass}
        return {**super().compiler_settings(), "max_autotune": False, **passes}

    def build(self, task: Task) -> Built:
        require_cpu(task, self.name, LACKS)
        built = super().build(task)
        if task.defaults or self._agrees(task):
            return built
        (task.build_folder / PACKAGE).unlink()
        self._compile_once(task)
        note = "torch.compile with freezing: its package compiled ahead of time answers wrongly after the first input"
        return replace(built, details={**built.details, "note": note})

    def load(self, task: Task) -> None:
        import zentorch  # noqa: F401 (its library holds what the package calls)

        if task.defaults or (task.build_folder / PACKAGE).exists():
            super().load(task)
            return
        import torch._inductor.config

        torch.set_num_threads(task.threads)
        torch._inductor.config.freezing = True
        super().load(replace(task, defaults=True))

    def _agrees(self, task: Task) -> bool:
        """Whether the package answers as the module does, on several inputs one after another."""
        spec = get_model(f"{task.model.name}-b{task.model.batch}")
        self.load(task)
        module = make_module(task, task.model_folder)
        return agrees(self._answer, module, spec.inputs, FARTHEST_BF16 if task.precision == BF16 else FARTHEST)

    def _answer(self, given: dict[str, np.ndarray]) -> Iterable[np.ndarray]:
        self.bind(given)
        self.run()
        return self.outputs().values()
