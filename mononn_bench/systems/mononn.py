"""The project's own compiler, by its public functions only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import Arrays, Built, System, Task


class Mononn(System):
    """One function for the whole network, bound to the caller's buffers."""

    name: ClassVar[str] = "mononn"
    environment: ClassVar[str] = "mononn"
    family: ClassVar[str] = "mononn"
    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "launch": ("once", "phases"),
        "fuse": ("on", "off"),
        "epilogues": ("on", "off"),
        "prefetch": ("on", "off"),
    }
    more_sources: ClassVar[tuple[Path, ...]] = (Path(__file__).parents[2] / "mononn_core",)

    def __init__(self) -> None:
        self._session: Any = None
        self._binding: Any = None

    def probe(self) -> dict[str, str]:
        try:
            import mononn_core
        except ImportError as error:
            raise SystemUnavailableError(f"mononn_core cannot be imported: {error}") from error
        return {"mononn": mononn_core.__version__}

    def options(self, task: Task) -> tuple[Option, ...]:
        source = "mononn: README, Python interface"
        return (
            Option("precision", task.precision, source),
            Option("threads", str(task.threads), source),
            Option("bind", "caller's buffers, no copies", source),
            *(Option(key, value, "mononn: Options") for key, value in self.chosen.items()),
        )

    def build(self, task: Task) -> Built:
        import mononn_core as mononn

        switches: dict[str, Any] = {
            key: value if key == "launch" else value == "on" for key, value in self.chosen.items()
        }
        common: dict[str, Any] = {"target": task.target, "precision": task.precision, "threads": task.threads}
        session = mononn.compile(str(task.onnx), **common, **switches)
        session.save(str(task.build_folder / "model.mono"))
        info = session.info
        kept = ("phases", "barriers", "flops", "bytes", "arena_bytes", "weight_bytes")
        details = {key: info[key] for key in kept if isinstance(info.get(key), int | float)}
        templates = {phase["template"] for phase in info["phases"]}
        return Built(details={**details, "algorithm": "Winograd" if "winograd" in templates else ""})

    def load(self, task: Task) -> None:
        import mononn_core as mononn

        self._session = mononn.load(str(task.build_folder / "model.mono"), threads=task.threads)

    def bind(self, inputs: Arrays) -> None:
        self._binding = self._session.bind(inputs)
        self.run = self._binding.run  # type: ignore[method-assign]

    def run(self) -> None:
        self._binding.run()

    def outputs(self) -> Arrays:
        return dict(self._binding.outputs)
