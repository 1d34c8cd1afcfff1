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

from mononn_bench.errors import BenchError
from mononn_bench.models.zoo import get_model
from mononn_bench.report.names import PAGE, report_files
from mononn_bench.systems import built_as, get_system
from mononn_bench.systems.base import System
from mononn_bench.workflow.config import ROOT, Measuring, ModelChoice, WorkflowConfig, load_config, named
from mononn_bench.workflow.identity import (
    adapter_sources,
    digest,
    file_digest,
    requirements_id,
    source_id,
)
from mononn_bench.workflow.machine import CUDA

PACKAGE = ROOT / "mononn_bench"
RECORDS = (PACKAGE / "record.py", PACKAGE / "profiled.py")
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
        """The record of the reference answers, which stand in reference.npz beside it."""
        return self.folder / "reference.json"

    @property
    def sources(self) -> list[Path]:
        """The user's own file; a catalogued model has none."""
        return [] if self.choice.path is None else [Path(self.choice.path)]

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
    """One system's build of one model for one target. Variants of a load alone share that of their system."""

    model: Model
    system: str
    target: str
    identity: str
    folder: Path
    environment: Environment
    config: WorkflowConfig

    @property
    def shares(self) -> int:
        """Of the machine's 1000 shares: half, or all where the system tunes by timing."""
        return 1000 if get_system(self.system).tunes_by_timing else 500

    @property
    def threads(self) -> int:
        """Cores of the workflow that the build takes, as it takes shares."""
        return max(1, self.config.threads * self.shares // 1000)

    @property
    def options(self) -> str:
        """How `mononn-bench build` is told what to build with what."""
        limits = self.config.limits
        return shlex.join(
            [
                f"--system={built_as(self.system)}",
                f"--model-folder={self.model.folder}",
                f"--environment={self.environment.folder}",
                f"--precision={self.config.precision}",
                f"--target={self.target}",
                f"--threads={self.config.threads}",
                f"--time-limit={limits.build_seconds}",
                f"--memory-limit={limits.memory_mb}",
                *(["--defaults"] if self.config.defaults else []),
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
    measuring: Measuring
    record: Path

    @property
    def inputs(self) -> list[Path]:
        """The files it is measured from."""
        return _inputs(self.builds)

    @property
    def options(self) -> str:
        """How `mononn-bench measure` is told what to measure, and how."""
        how = self.measuring
        options = [f"--rounds={how.rounds}", f"--cycles={how.cycles}", f"--block-seconds={how.block_seconds}"]
        options += [f"--seed={how.seed}", f"--starts={how.starts}", *(["--cold"] if how.cold else [])]
        return shlex.join([*_parts(self.builds), *options])


class Plan:
    """All paths of one configuration. The same configuration, sources and Python make the same plan on any machine."""

    EXPORTER = "torch"

    def __init__(self, config: WorkflowConfig) -> None:
        self.config = config
        self.cache = config.cache
        self.machine = config.machine
        self.results = config.results / self.machine
        self.machine_record = self.results / "machine.json"
        if config.suite:
            self.results = self.results / "suites" / config.suite

    @cached_property
    def environments(self) -> dict[str, Environment]:
        """Every environment the configuration needs, by name."""
        names = {environment_of(s, target) for target in self.config.targets for s in self.systems(target)}
        return {name: self._environment(name) for name in sorted(names | {self.EXPORTER})}

    def systems(self, target: str) -> tuple[str, ...]:
        """The systems of a case on `target`: on a GPU those that stand for the configuration's there.

        A system of GPUs alone has a row among the CPU's, which says that there is none, unless there is one.
        """
        names = self.config.systems
        if target == CUDA:
            return tuple(dict.fromkeys(there for name in names for there in get_system(name).on_cuda))
        if CUDA not in self.config.targets:
            return names
        return tuple(name for name in names if not gpu_only(name))

    @cached_property
    def models(self) -> dict[str, Model]:
        """Every model, by name."""
        sources = source_id(p for p in sorted((PACKAGE / "models").glob("*.py")) if p.name != "zoo.py")
        return {choice.name: self._model(choice, sources) for choice in self.config.models}

    @cached_property
    def builds(self) -> dict[tuple[str, str], Build]:
        """Every build, by the names of its model and of its folder there (see `slug`)."""
        return {
            (b.model.choice.name, slug(built_as(b.system), b.target)): b
            for builds in self.groups.values()
            for b in builds
        }

    @cached_property
    def groups(self) -> dict[str, tuple[Build, ...]]:
        """The builds that are measured side by side, by the name of their model, and of their target but the CPU."""
        made = {
            case_name(model.choice.name, target): tuple(self._build(model, s, target) for s in self.systems(target))
            for target in self.config.targets
            for model in self.models.values()
        }
        return {name: builds for name, builds in made.items() if builds}

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Every case by name: its group's, and a number where it is measured more than once."""
        protocol = source_id([PACKAGE / "measure", PACKAGE / "record.py", PACKAGE / "models" / "inputs.py"])
        count = self.config.measuring.repeats
        names = [""] if count == 1 else [f".{i + 1:0{len(str(count))}}" for i in range(count)]
        return {
            f"{group}{name}": self._case(group, builds, protocol, name, seed)
            for group, builds in self.groups.items()
            for seed, name in enumerate(names)
        }

    def inputs(self, group: str) -> list[Path]:
        """The files that a group is profiled from."""
        return _inputs(self.groups[group])

    def profile_options(self, group: str) -> str:
        """How `mononn-bench profile` is told what to look into."""
        return shlex.join(_parts(self.groups[group]))

    @cached_property
    def report_identity(self) -> str:
        """What tables and figures are made by."""
        template = sorted(path for path in (PACKAGE / "report" / "page").iterdir() if path.is_file())
        return source_id([PACKAGE / "analysis", PACKAGE / "report", *RECORDS, *template])

    @cached_property
    def profile_identity(self) -> str:
        """What profiles are made by."""
        return source_id([PACKAGE / "profile", PACKAGE / "measure" / "worker.py", *RECORDS])

    @property
    def report(self) -> list[Path]:
        """Everything the report leaves: tables, figures and the page."""
        return [self.results / name for name in report_files(list(self.cases), self.config.systems)]

    @property
    def page(self) -> Path:
        """The whole report on one page."""
        return self.results / PAGE

    @property
    def tables(self) -> list[Path]:
        """The report's tables, to be read as they are."""
        return self._reported(".csv", ".md")

    @property
    def figures(self) -> list[Path]:
        """The report's figures, to be looked at in a browser."""
        return self._reported(".svg")

    @property
    def prints(self) -> list[Path]:
        """The same tables and figures, for papers."""
        return self._reported(".tex", ".pdf", ".png")

    def _reported(self, *suffixes: str) -> list[Path]:
        return [path for path in self.report if path.suffix in suffixes]

    @property
    def profiles(self) -> list[Path]:
        """What each system's profiler found in each case, beside the timeline."""
        return [path.with_name(path.name.replace(".perfetto", "")) for path in self.timelines]

    @property
    def timelines(self) -> list[Path]:
        """A timeline of all systems for each case; none where the configuration wants no profiles."""
        wanted = self.config.profile
        return [self.results / "profiles" / f"{name}.perfetto.json" for name in self.groups if wanted]

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
        """The identity of what makes each system: its adapter with its data and, for ours, the compiler."""
        names = {system for target in self.config.targets for system in self.systems(target)}
        return {name: self._adapter(get_system(name)) for name in names}

    def _adapter(self, system: type[System]) -> str:
        sources = source_id(adapter_sources(system.__module__, ROOT))
        data = sorted(path for path in system.data.rglob("*") if path.is_file()) if system.data else []
        return digest(sources, [file_digest(path, self.cache) for path in data]) if data else sources

    def _build(self, model: Model, variant: str, target: str) -> Build:
        system = built_as(variant)
        environment = self.environments[environment_of(system, target)]
        config = self.config
        identity = digest(
            self._adapters[system],
            environment.folder.name,
            model.identity,
            (config.precision, target, config.threads, config.defaults),
            (config.limits.build_seconds, config.limits.memory_mb),
            sorted(get_system(system).chosen.items()),
        )
        folder = self.cache / "builds" / self.machine / model.choice.name / f"{slug(system, target)}-{identity}"
        return Build(model, variant, target, identity, folder, environment, config)

    def _case(self, group: str, builds: tuple[Build, ...], protocol: str, number: str, later: int) -> Case:
        measuring = replace(self.config.measuring, repeats=1, seed=self.config.measuring.seed + later)
        identity = digest(protocol, [(b.system, b.identity) for b in builds], repr(measuring), repr(self.config.limits))
        record = self.results / "raw" / f"{group}{number}-{identity}.json"
        return Case(builds[0].model, builds, measuring, record)


def _inputs(builds: Sequence[Build]) -> list[Path]:
    """The records that stand for what builds are run from; each is written when the rest of its folder is."""
    model = builds[0].model
    stamps = dict.fromkeys(build.environment.stamp for build in builds)
    answers = model.reference.with_suffix(".npz")
    return [*(build.record for build in builds), *stamps, model.record, model.reference, answers]


def _parts(builds: Sequence[Build]) -> list[str]:
    """The options that name a model, its builds and their environments."""
    config = builds[0].config
    parts = [f"--model-folder={builds[0].model.folder}", f"--threads={config.threads}", f"--target={builds[0].target}"]
    for build in builds:
        parts += [f"--build={build.system}={build.folder}"]
        parts += [f"--environment={build.system}={build.environment.folder}"]
    return [*parts, f"--answer-limit={config.limits.answer_seconds}", f"--memory-limit={config.limits.memory_mb}"]


def slug(system: str, target: str = "cpu") -> str:
    """A system's name as part of a path: `mononn[launch=phases]` becomes mononn.launch-phases; and its target."""
    name = re.sub(r"[\[,]", ".", system).replace("=", "-").rstrip("]")
    return name if target == "cpu" else f"{name}.{target}"


def case_name(model: str, target: str) -> str:
    """A model's name and, but for the CPU, its target."""
    return model if target == "cpu" else f"{model}-{target}"


def environment_of(system: str, target: str) -> str:
    """The name of the environment that a system runs in on a target."""
    found = get_system(system)
    return found.cuda_environment if target == CUDA else found.environment


def gpu_only(system: str) -> bool:
    """Whether a system can run on a GPU alone."""
    found = get_system(system)
    return found.environment == DRIVER and bool(found.cuda_environment)


def make_plan(mapping: Mapping[str, Any]) -> Plan:
    """The plan of a configuration as Snakemake read it; raises BenchError for one that cannot be."""
    return Plan(load_config(mapping))


def plan_of(mapping: Mapping[str, Any], files: Sequence[Path], said: Mapping[str, Any]) -> Plan:
    """The plan of what Snakemake read from `files`, with what its command line `said` on top.

    Where there is none, one sentence of why, and exit status 2.
    """
    try:
        return make_plan(named(mapping, files, said))
    except BenchError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def stale_tables(plan: Plan) -> list[str]:
    """One line for each part of the report that stands but is older than the records it should be made from."""
    standing = [path for path in plan.report if path.exists()]
    records = [case.record for case in plan.cases.values()]
    newest = max((r.stat().st_mtime for r in records if r.exists()), default=0.0)
    whole = all(r.exists() for r in records)
    return [f"Stale: {path} is of an earlier run." for path in standing if not whole or path.stat().st_mtime < newest]
