"""Which files a configuration leads to, each named by what it is made from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mononn_bench.models.zoo import ZOO
from mononn_bench.systems import SYSTEMS
from mononn_bench.workflow.config import ROOT, ModelChoice, WorkflowConfig, load_config
from mononn_bench.workflow.identity import digest, file_digest, machine_name, requirements_id, source_id

PACKAGE = ROOT / "mononn_bench"
EXPORTER = "torch"
TABLES = ("cells.csv", "speedup.md")
FIGURES = ("speedup.pdf", "speedup.png")


@dataclass(frozen=True)
class Environment:
    """A virtual environment: where it stands, what it is made from, and its interpreter."""

    name: str
    requirements: Path
    identity: str
    folder: Path
    python: Path

    @property
    def stamp(self) -> Path:
        """The JSON that says how the environment came out."""
        return self.folder / "environment.json"


@dataclass(frozen=True)
class Model:
    """A model as files: `folder` holds model.onnx, model.json and the reference."""

    choice: ModelChoice
    identity: str
    folder: Path

    @property
    def record(self) -> Path:
        """The model's own record: digest, arithmetic, bytes, kind of weights."""
        return self.folder / "model.json"


@dataclass(frozen=True)
class Build:
    """One system's build of one model."""

    model: Model
    system: str
    identity: str
    folder: Path
    environment: Environment

    @property
    def record(self) -> Path:
        """The build's record: status and reason, seconds, versions, options."""
        return self.folder / "build.json"


@dataclass(frozen=True)
class Case:
    """One case: its builds, and the record its measurement leaves."""

    model: Model
    builds: tuple[Build, ...]
    identity: str
    record: Path


class Plan:
    """All paths of one configuration on this machine."""

    def __init__(self, config: WorkflowConfig) -> None:
        self.config = config
        if config.machine == "auto":
            self.machine = machine_name(Path("/proc/cpuinfo").read_text(), config.threads)
        else:
            self.machine = config.machine
        self.results = config.results / self.machine

    @cached_property
    def environments(self) -> dict[str, Environment]:
        """Every environment the configuration needs, by name."""
        names = {SYSTEMS[s].environment for s in self.config.systems} | {EXPORTER}
        return {name: self._environment(name) for name in sorted(names)}

    @cached_property
    def models(self) -> dict[str, Model]:
        """Every model, by name."""
        sources = source_id(p for p in sorted((PACKAGE / "models").glob("*.py")) if p.name != "zoo.py")
        return {choice.name: self._model(choice, sources) for choice in self.config.models}

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Every case, by its model's name."""
        protocol = source_id([PACKAGE / "measure", PACKAGE / "record.py"])
        return {name: self._case(model, protocol) for name, model in self.models.items()}

    @cached_property
    def builds(self) -> dict[tuple[str, str], Build]:
        """Every build, by model and system."""
        return {(b.model.choice.name, b.system): b for case in self.cases.values() for b in case.builds}

    @cached_property
    def report_identity(self) -> str:
        """What tables and figures are made by."""
        return source_id([PACKAGE / "analysis", PACKAGE / "report", PACKAGE / "record.py"])

    @property
    def tables(self) -> list[Path]:
        """The tables, one for all models and one for each."""
        return [self.results / "tables" / name for name in (*TABLES, *(f"{m}.md" for m in self.models))]

    @property
    def figures(self) -> list[Path]:
        """The figures."""
        return [self.results / "figures" / name for name in FIGURES]

    def _environment(self, name: str) -> Environment:
        requirements = ROOT / "envs" / f"{name}.txt"
        if self.config.environments.get(name) == "driver":
            python = Path(sys.executable)
            identity = digest("driver", str(python), requirements_id(requirements))
            folder = self.config.cache / "environments" / f"{name}-driver-{identity}"
            return Environment(name, requirements, identity, folder, python)
        identity = requirements_id(requirements)
        folder = self.config.cache / "environments" / f"{name}-{identity}"
        return Environment(name, requirements, identity, folder, folder / "bin" / "python")

    def _model(self, choice: ModelChoice, sources: str) -> Model:
        made_from: tuple[Any, ...]
        if choice.path is not None:
            made_from = (file_digest(Path(choice.path), self.config.cache), sorted(choice.shapes.items()))
        else:
            made_from = (repr(ZOO[choice.name]), choice.weights)
        identity = digest(sources, self.environments[EXPORTER].identity, *made_from)
        return Model(choice, identity, self.config.cache / "models" / f"{choice.name}-{identity}")

    def _build(self, model: Model, system: str) -> Build:
        environment = self.environments[SYSTEMS[system].environment]
        config = self.config
        identity = digest(
            source_id(SYSTEMS[system].sources),
            environment.identity,
            model.identity,
            (config.precision, config.target, config.threads),
            (config.limits.build_seconds, config.limits.memory_mb),
        )
        folder = config.cache / "builds" / self.machine / model.choice.name / f"{system}-{identity}"
        return Build(model, system, identity, folder, environment)

    def _case(self, model: Model, protocol: str) -> Case:
        builds = tuple(self._build(model, system) for system in self.config.systems)
        identity = digest(protocol, [b.identity for b in builds], repr(self.config.measuring), repr(self.config.limits))
        return Case(model, builds, identity, self.results / "raw" / f"{model.choice.name}-{identity}.json")


def make_plan(mapping: Mapping[str, Any]) -> Plan:
    """The plan of a configuration as Snakemake read it; raises BenchError for one that cannot be."""
    return Plan(load_config(mapping, models=ZOO, systems=SYSTEMS))
