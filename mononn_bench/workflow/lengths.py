"""What a plan has for requests of many lengths: encoders with an open axis, and how each is measured."""

from __future__ import annotations

import shlex
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mononn_bench.files import ROOT
from mononn_bench.lengths.distribution import SQUAD
from mononn_bench.lengths.export import encoder_inputs
from mononn_bench.models.zoo import get_model
from mononn_bench.systems import get_system
from mononn_bench.workflow.config import Lengths
from mononn_bench.workflow.identity import digest, file_digest, source_id

if TYPE_CHECKING:
    from mononn_bench.workflow.plan import Plan

PACKAGE = ROOT / "mononn_bench"
EXPORTING = ("lengths/export.py", "lengths/requests.py", "lengths/distribution.py")
CPU = "cpu"


class LengthsPlan:
    """The part of a plan that measures requests of many lengths; empty where the configuration has no key lengths.

    `distribution` is the file of how often a request has which length.
    """

    def __init__(self, plan: Plan, settings: Lengths | None, distribution: Path | None = None) -> None:
        self._plan, self._settings = plan, settings
        named = settings.distribution if settings else ""
        self.distribution = distribution or (Path(named) if named else SQUAD)

    @property
    def models(self) -> list[str]:
        """The networks whose encoders are asked; none on a GPU alone."""
        return list(self._plan.models) if self._settings and CPU in self._plan.config.targets else []

    @property
    def records(self) -> list[Path]:
        """What each network's requests took."""
        return [self._plan.results / "lengths" / f"{name}.json" for name in self.models]

    @property
    def builds(self) -> Path:
        """Where builds are kept for another run."""
        return self._plan.cache / "lengths" / self._plan.machine

    def encoder(self, model: str) -> Path:
        """The folder of a network's encoder, which its sources, its entry and the longest request decide."""
        identity = digest(
            source_id(
                [*sorted((PACKAGE / "models").glob("*.py")), *(PACKAGE / name for name in EXPORTING)], self._plan.cache
            ),
            self._plan.environments[self._plan.EXPORTER].folder.name,
            repr(get_model(model)),
            file_digest(self.distribution, self._plan.cache),
        )
        return self._plan.cache / "encoders" / f"{model}-{identity}"

    def encoder_options(self, model: str) -> str:
        """How `mononn-bench encoder` is told what to export."""
        encoder_inputs(model)
        options = [f"--model={model}", f"--distribution={self.distribution}"]
        return shlex.join([*options, f"--output={self.encoder(model)}"])

    def options(self, model: str) -> str:
        """How `mononn-bench lengths` is told what to measure, and how."""
        assert self._settings is not None
        config, how = self._plan.config, self._settings
        memory = how.memory_requests if model in (how.memory_models or self.models) else 0
        options = [f"--model-folder={self.encoder(model)}", f"--distribution={self.distribution}"]
        options += [f"--threads={config.threads}", f"--builds={self.builds}", f"--rounds={how.rounds}"]
        options += [f"--cycles={how.cycles}", f"--requests={how.requests}", f"--step={how.step}", f"--seed={how.seed}"]
        options += [f"--memory-requests={memory}", f"--answer-limit={config.limits.answer_seconds}"]
        options += [f"--memory-limit={config.limits.memory_mb}", f"--build-limit={config.limits.build_seconds}"]
        options += [f"--environment={name}={path.parent}" for name, path in self._stamps.items()]
        return shlex.join(options)

    def inputs(self, model: str) -> list[Path]:
        """The files that stand for what is measured and with what."""
        return [self.encoder(model) / "model.json", *dict.fromkeys(self._stamps.values())]

    @property
    def _stamps(self) -> dict[str, Path]:
        return {s: self._plan.environments[get_system(s).environment].stamp for s in self._plan.systems(CPU)}

    @cached_property
    def identity(self) -> str:
        """What requests are measured by."""
        sources = [PACKAGE / "lengths", PACKAGE / "served.py", PACKAGE / "measure" / "worker.py"]
        return source_id(sources, self._plan.cache)
