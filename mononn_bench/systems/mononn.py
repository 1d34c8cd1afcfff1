"""The project's own compiler, by its public functions only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import BF16, FP32, INT8, Arrays, Built, DeviceCall, System, Task

REFUSALS = ("OptionError", "UnsupportedError")
"""Errors by which the compiler says that it does not have what is asked for."""

ALGORITHMS = {"Winograd": {"winograd", "winograd4"}, "Strassen": {"strassen"}}
"""What saves arithmetic, and templates by it."""


class Mononn(System):
    """One function for the whole network, bound to the caller's buffers."""

    name: ClassVar[str] = "mononn"
    environment: ClassVar[str] = "mononn"
    cuda_environment: ClassVar[str] = "mononn-cuda"
    on_cuda: ClassVar[tuple[str, ...]] = ("mononn", "mononn[launch=graph]")
    family: ClassVar[str] = "mononn"
    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "launch": ("once", "phases", "graph"),
        "fuse": ("on", "off"),
        "epilogues": ("on", "off"),
        "prefetch": ("on", "off"),
        "activations": ("auto", "int8", "int16", "fp32"),
    }
    has_defaults: ClassVar[bool] = True
    more_sources: ClassVar[tuple[Path, ...]] = (Path(__file__).parents[2] / "mononn_core",)

    def __init__(self) -> None:
        self._session: Any = None
        self._on_gpu = False
        self._binding: Any = None

    def probe(self) -> dict[str, str]:
        try:
            import mononn_core
        except ImportError as error:
            raise SystemUnavailableError(f"mononn_core cannot be imported: {error}") from error
        return {"mononn": mononn_core.__version__}

    def options(self, task: Task) -> tuple[Option, ...]:
        if task.defaults:
            return ()
        source = "mononn: README, Python interface"
        on_gpu = task.target == "cuda"
        return (
            Option("precision", _precision(task), source),
            *(() if on_gpu else (Option("threads", str(task.threads), source),)),
            Option("bind", "caller's buffers, no copies", source),
            *(Option(key, value, "mononn: Options") for key, value in self.chosen.items()),
        )

    def build(self, task: Task) -> Built:
        switches: dict[str, Any] = {
            key: {"on": True, "off": False}.get(value, value) for key, value in self.chosen.items()
        }
        common: dict[str, Any] = {"target": task.target, "precision": _precision(task), "threads": task.threads}
        if task.defaults:
            common = {} if _precision(task) == FP32 else {"precision": task.precision}
        session = self._compiled(task, {**common, **switches})
        session.save(str(task.build_folder / "model.mono"))
        info = session.info
        kept = ("phases", "barriers", "flops", "bytes", "arena_bytes", "weight_bytes")
        details = {key: info[key] for key in kept if isinstance(info.get(key), int | float)}
        templates = {phase["template"] for phase in info["phases"]}
        on_cpu, multiplied = task.target == "cpu", {phase["multiplies"] for phase in info["phases"]}
        if on_cpu and task.precision == BF16 and "bfloat16" not in multiplied:
            details["note"] = "products multiply float32, as bf16 is no faster on this processor"
        saving = [name for name, those in ALGORITHMS.items() if templates & those]
        return Built(details={**details, "algorithm": " and ".join(saving)})

    @staticmethod
    def _compiled(task: Task, options: Mapping[str, Any]) -> Any:
        """The session; SystemUnavailableError where the compiler does not have the precision on this target."""
        import mononn_core as mononn

        try:
            return mononn.compile(str(task.onnx), **options)
        except mononn.MononnError as error:
            if _precision(task) == FP32 or type(error).__name__ not in REFUSALS:
                raise
            raise SystemUnavailableError(str(error)) from error

    def load(self, task: Task) -> None:
        import mononn_core as mononn

        on_gpu = task.target == "cuda"
        threads = None if on_gpu or task.defaults else task.threads
        self._session = mononn.load(str(task.build_folder / "model.mono"), threads=threads)
        self._on_gpu = on_gpu

    def bind(self, inputs: Arrays) -> None:
        self._binding = self._session.bind(inputs)
        if self._on_gpu:
            launch = Launch(self._binding)
            self.run = launch.run  # type: ignore[method-assign]
            self.upload = self._binding.upload  # type: ignore[method-assign]
            self.device_call = launch.on_device  # type: ignore[method-assign]
        else:
            self.run = self._binding.run  # type: ignore[method-assign]

    def warm_up(self) -> None:
        self._binding.run()  # on a GPU this run alone looks at errors and at a watchdog

    def run(self) -> None:
        self._binding.run()

    def outputs(self) -> Arrays:
        return dict(self._binding.results())


def _precision(task: Task) -> str:
    """The compiler's option: an 8-bit file says by its own types what is to be 8 bits."""
    return FP32 if task.precision == INT8 else task.precision


class Launch:
    """A binding's launch on a GPU, on the current stream."""

    def __init__(self, binding: Any) -> None:
        import cupy

        self._binding, self._stream = binding, cupy.cuda.get_current_stream()

    def run(self) -> None:
        """One inference between device buffers, finished on return."""
        self._binding.launch(self._stream)
        self._stream.synchronize()

    def on_device(self) -> DeviceCall:
        """The stream, and the launch without its end."""
        return DeviceCall(int(self._stream.ptr), lambda: self._binding.launch(self._stream))
