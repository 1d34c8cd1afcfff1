"""Which files a configuration leads to, each named by what it is made from."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mononn_bench.models.zoo import ZOO
from mononn_bench.systems import get_system
from mononn_bench.workflow.config import ROOT, ModelChoice, WorkflowConfig, load_config
from mononn_bench.workflow.identity import (
    adapter_sources,
    digest,
    file_digest,
    machine_name,
    requirements_id,
    source_id,
)

PACKAGE = ROOT / "mononn_bench"
DRIVER = "driver"
TABLES = ("cells.csv", "speedup.md")
FIGURES = ("speedup.pdf", "speedup.png")


@dataclass(frozen=True)
class Environment:
    """A virtual environment: where it stands, what it is made from, and its interpreter.

    `existing` holds the option that takes an interpreter as it is; empty where the environment is built.
    """

    name: str
    requirements: Path
    folder: Path
    python: Path
    existing: str

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

    @property
    def reference(self) -> Path:
        """The record of the reference answers."""
        return self.folder / "reference.json"

    @property
    def export_options(self) -> str:
        """How `mononn-bench export` is told which model this is."""
        options = ["--weights", self.choice.weights]
        if self.choice.path is not None:
            options = ["--path", str(Path(self.choice.path).resolve())]
        for name, shape in self.choice.shapes.items():
            options += ["--shape", f"{name}={'x'.join(map(str, shape))}"]
        return shlex.join(options)


@dataclass(frozen=True)
class Build:
    """One system's build of one model."""

    model: Model
    system: str
    identity: str
    folder: Path
    environment: Environment
    config: WorkflowConfig

    @property
    def options(self) -> str:
        """How `mononn-bench build` is told what to build with what."""
        limits = self.config.limits
        return shlex.join(
            [
                f"--model-folder={self.model.folder}",
                f"--environment={self.environment.folder}",
                f"--precision={self.config.precision}",
                f"--threads={self.config.threads}",
                f"--time-limit={limits.build_seconds}",
                f"--memory-limit={limits.memory_mb}",
            ]
        )

    @property
    def record(self) -> Path:
        """The build's record: status and reason, seconds, versions, options."""
        return self.folder / "build.json"


@dataclass(frozen=True)
class Case:
    """One case: its builds, and the record its measurement leaves."""

    model: Model
    builds: tuple[Build, ...]
    machine: str
    record: Path

    @property
    def options(self) -> str:
        """How `mononn-bench measure` is told what to measure, and how."""
        config = self.builds[0].config
        options = [f"--model-folder={self.model.folder}", f"--machine={self.machine}"]
        for build in self.builds:
            options += [f"--build={build.system}={build.folder}"]
            options += [f"--environment={build.system}={build.environment.folder}"]
        options += [f"--threads={config.threads}", f"--rounds={config.measuring.rounds}"]
        options += [f"--cycles={config.measuring.cycles}", f"--block-seconds={config.measuring.block_seconds}"]
        options += [f"--seed={config.measuring.seed}", f"--answer-limit={config.limits.answer_seconds}"]
        return shlex.join([*options, f"--memory-limit={config.limits.memory_mb}"])


class Plan:
    """All paths of one configuration on this machine."""

    EXPORTER = "torch"

    def __init__(self, config: WorkflowConfig) -> None:
        self.config = config
        self.cache = config.cache
        if config.machine == "auto":
            self.machine = machine_name(Path("/proc/cpuinfo").read_text(), config.threads)
        else:
            self.machine = config.machine
        self.results = config.results / self.machine

    @cached_property
    def environments(self) -> dict[str, Environment]:
        """Every environment the configuration needs, by name."""
        names = {get_system(s).environment for s in self.config.systems} | {self.EXPORTER}
        return {name: self._environment(name) for name in sorted(names)}

    @cached_property
    def models(self) -> dict[str, Model]:
        """Every model, by name."""
        sources = source_id(p for p in sorted((PACKAGE / "models").glob("*.py")) if p.name != "zoo.py")
        return {choice.name: self._model(choice, sources) for choice in self.config.models}

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Every case, by its model's name."""
        protocol = source_id([PACKAGE / "measure", PACKAGE / "record.py", PACKAGE / "models" / "inputs.py"])
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
        if name == DRIVER or self.config.environments.get(name) == DRIVER:
            identity = digest(DRIVER, sys.executable, requirements_id(requirements))
            folder = self.cache / "environments" / f"{name}-{identity}"
            existing = shlex.join(["--existing", sys.executable])
            return Environment(name, requirements, folder, Path(sys.executable), existing)
        folder = self.cache / "environments" / f"{name}-{requirements_id(requirements)}"
        return Environment(name, requirements, folder, folder / "bin" / "python", "")

    def _model(self, choice: ModelChoice, sources: str) -> Model:
        made_from: tuple[Any, ...]
        if choice.path is not None:
            made_from = (file_digest(Path(choice.path), self.cache), sorted(choice.shapes.items()))
        else:
            made_from = (repr(ZOO[choice.name]), choice.weights)
        identity = digest(sources, self.environments[self.EXPORTER].folder.name, *made_from)
        return Model(choice, identity, self.cache / "models" / f"{choice.name}-{identity}")

    @cached_property
    def _adapters(self) -> dict[str, str]:
        """The identity of what makes each system: its adapter and, for ours, the compiler."""
        adapters = {system: get_system(system).__module__ for system in self.config.systems}
        return {system: source_id(adapter_sources(module, ROOT)) for system, module in adapters.items()}

    def _build(self, model: Model, system: str) -> Build:
        environment = self.environments[get_system(system).environment]
        config = self.config
        identity = digest(
            self._adapters[system],
            environment.folder.name,
            model.identity,
            (config.precision, config.target, config.threads),
            (config.limits.build_seconds, config.limits.memory_mb),
        )
        folder = self.cache / "builds" / self.machine / model.choice.name / f"{system}-{identity}"
        return Build(model, system, identity, folder, environment, config)

    def _case(self, model: Model, protocol: str) -> Case:
        builds = tuple(self._build(model, system) for system in self.config.systems)
        identity = digest(protocol, [b.identity for b in builds], repr(self.config.measuring), repr(self.config.limits))
        record = self.results / "raw" / f"{model.choice.name}-{identity}.json"
        return Case(model, builds, self.machine, record)


def make_plan(mapping: Mapping[str, Any]) -> Plan:
    """The plan of a configuration as Snakemake read it; raises BenchError for one that cannot be."""
    return Plan(load_config(mapping))


def stale_tables(plan: Plan) -> list[str]:
    """One line for each table and figure that stands but is older than the records it should be made from."""
    standing = [path for path in (*plan.tables, *plan.figures) if path.exists()]
    records = [case.record for case in plan.cases.values()]
    newest = max((r.stat().st_mtime for r in records if r.exists()), default=0.0)
    whole = all(r.exists() for r in records)
    return [f"Stale: {path} is of an earlier run." for path in standing if not whole or path.stat().st_mtime < newest]
