"""zentorch, AMD's plug-in for PyTorch: Inductor's road ahead of time, its products replaced by ZenDNN's."""

from __future__ import annotations

from typing import Any, ClassVar

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import Built, Task, require_cpu_fp32
from mononn_bench.systems.torch_inductor import TorchInductor


class ZenTorch(TorchInductor):
    """Exported program, compiled with frozen weights and zentorch's graph passes, called through its C++ loader."""

    name: ClassVar[str] = "zentorch"
    environment: ClassVar[str] = "zentorch"
    cuda_environment: ClassVar[str] = ""
    on_cuda: ClassVar[tuple[str, ...]] = ()
    backend: ClassVar[str] = "zentorch"

    def probe(self) -> dict[str, str]:
        versions = super().probe()
        try:
            import zentorch
        except ImportError as error:
            raise SystemUnavailableError(f"zentorch cannot be imported: {error}") from error
        if not zentorch._C.is_avx512_supported():
            raise SystemUnavailableError("zentorch replaces no operator on a processor without AVX-512")
        return {"zentorch": zentorch.__version__, **versions}

    def options(self, task: Task) -> tuple[Option, ...]:
        if task.defaults:
            return ()
        passes = Option("joint_custom_post_pass", "export_optimize_pass", "zentorch: test/unittests/export_tests")
        return (passes, *super().options(task))

    def compiler_settings(self) -> dict[str, Any]:
        import zentorch

        return {**super().compiler_settings(), "joint_custom_post_pass": zentorch.export_optimize_pass}

    def build(self, task: Task) -> Built:
        require_cpu_fp32(task, self.name)
        return super().build(task)

    def load(self, task: Task) -> None:
        import zentorch  # noqa: F401 (its library holds what the package calls)

        super().load(task)
