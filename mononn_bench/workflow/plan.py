"""Which files a configuration leads to, each named by what it is made from."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mononn_bench.models.zoo import get_model
from mononn_bench.report.names import report_files
from mononn_bench.systems import get_system
from mononn_bench.workflow.config import ROOT, Measuring, ModelChoice, WorkflowConfig, load_config
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
        options = ["--model", self.choice.name, "--weights", self.choice.weights]
        if self.choice.path is not None:
            options = ["--model", self.choice.name, "--path", str(Path(self.choice.path).resolve())]
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
                f"--system={self.system}",
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
    """One case: its builds, how it is measured, and the record that leaves."""

    model: Model
    builds: tuple[Build, ...]
    machine: str
    measuring: Measuring
    record: Path

    @property
    def options(self) -> str:
        """How `mononn-bench measure` is told what to measure, and how."""
        how = self.measuring
        options = [f"--rounds={how.rounds}", f"--cycles={how.cycles}", f"--block-seconds={how.block_seconds}"]
        options += [f"--seed={how.seed}", *(["--cold"] if how.cold else [])]
        return shlex.join([*_parts(self.builds, self.machine), *options])


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
        if config.suite:
            self.results = self.results / "suites" / config.suite

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
    def builds(self) -> dict[tuple[str, str], Build]:
        """Every build, by the names of its model and of its folder there (see `slug`)."""
        made = (self._build(model, system) for model in self.models.values() for system in self.config.systems)
        return {(build.model.choice.name, slug(build.system)): build for build in made}

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Every case by name: its model's, and a number where it is measured more than once."""
        protocol = source_id([PACKAGE / "measure", PACKAGE / "record.py", PACKAGE / "models" / "inputs.py"])
        count = self.config.measuring.repeats
        names = [""] if count == 1 else [f".{i + 1:0{len(str(count))}}" for i in range(count)]
        return {
            f"{model.choice.name}{name}": self._case(model, protocol, name, seed)
            for model in self.models.values()
            for seed, name in enumerate(names)
        }

    def profile_options(self, model: str) -> str:
        """How `mononn-bench profile` is told what to look into."""
        return shlex.join(_parts(self.builds_of(model), self.machine))

    def builds_of(self, model: str) -> tuple[Build, ...]:
        """All builds of a model, in the configuration's order of systems."""
        return tuple(self.builds[model, slug(system)] for system in self.config.systems)

    @cached_property
    def report_identity(self) -> str:
        """What tables and figures are made by."""
        return source_id([PACKAGE / "analysis", PACKAGE / "report", PACKAGE / "record.py"])

    @cached_property
    def profile_identity(self) -> str:
        """What profiles are made by."""
        return source_id([PACKAGE / "profile", PACKAGE / "measure" / "worker.py", PACKAGE / "record.py"])

    @property
    def report(self) -> list[Path]:
        """Everything the report leaves: tables, figures and the page."""
        return [self.results / name for name in report_files(list(self.cases), self.config.systems)]

    @property
    def timelines(self) -> list[Path]:
        """A timeline of all systems for each case; none where the configuration wants no profiles."""
        wanted = self.config.profile
        return [self.results / "profiles" / f"{name}.perfetto.json" for name in self.models if wanted]

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
            made_from = (repr(get_model(choice.name)), choice.weights)
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
            sorted(get_system(system).chosen.items()),
        )
        folder = self.cache / "builds" / self.machine / model.choice.name / f"{slug(system)}-{identity}"
        return Build(model, system, identity, folder, environment, config)

    def _case(self, model: Model, protocol: str, number: str, later: int) -> Case:
        builds = self.builds_of(model.choice.name)
        measuring = replace(self.config.measuring, repeats=1, seed=self.config.measuring.seed + later)
        identity = digest(protocol, [b.identity for b in builds], repr(measuring), repr(self.config.limits))
        record = self.results / "raw" / f"{model.choice.name}{number}-{identity}.json"
        return Case(model, builds, self.machine, measuring, record)


def _parts(builds: Sequence[Build], machine: str) -> list[str]:
    """The options that name a model, its builds and their environments."""
    config = builds[0].config
    parts = [f"--model-folder={builds[0].model.folder}", f"--machine={machine}", f"--threads={config.threads}"]
    for build in builds:
        parts += [f"--build={build.system}={build.folder}"]
        parts += [f"--environment={build.system}={build.environment.folder}"]
    return [*parts, f"--answer-limit={config.limits.answer_seconds}", f"--memory-limit={config.limits.memory_mb}"]


def slug(system: str) -> str:
    """A system's name as part of a path: `mononn[launch=phases]` becomes mononn.launch-phases."""
    return re.sub(r"[\[,]", ".", system).replace("=", "-").rstrip("]")


def make_plan(mapping: Mapping[str, Any]) -> Plan:
    """The plan of a configuration as Snakemake read it; raises BenchError for one that cannot be."""
    return Plan(load_config(mapping))


def stale_tables(plan: Plan) -> list[str]:
    """One line for each part of the report that stands but is older than the records it should be made from."""
    standing = [path for path in plan.report if path.exists()]
    records = [case.record for case in plan.cases.values()]
    newest = max((r.stat().st_mtime for r in records if r.exists()), default=0.0)
    whole = all(r.exists() for r in records)
    return [f"Stale: {path} is of an earlier run." for path in standing if not whole or path.stat().st_mtime < newest]
