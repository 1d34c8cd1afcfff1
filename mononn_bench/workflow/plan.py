"""Which files a configuration leads to, each named by what it is made from."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mononn_bench.errors import BenchError
from mononn_bench.files import FILES, ROOT
from mononn_bench.models.zoo import get_model
from mononn_bench.report.names import PAGE, report_files
from mononn_bench.systems import built_as, get_system
from mononn_bench.systems.base import System
from mononn_bench.workflow.config import INT8, ConfigError, ModelChoice, WorkflowConfig, load_config, named
from mononn_bench.workflow.identity import (
    adapter_sources,
    digest,
    file_digest,
    holds_quantised,
    model_files,
    requirements_id,
    source_id,
)
from mononn_bench.workflow.lengths import LengthsPlan
from mononn_bench.workflow.machine import CUDA
from mononn_bench.workflow.parts import (
    Build,
    Case,
    Environment,
    Model,
    case_name,
    case_options,
    inputs_of,
    slug,
)

PACKAGE = ROOT / "mononn_bench"
RECORDS = tuple(PACKAGE / name for name in ("record.py", "profiled.py", "bricked.py", "started.py", "served.py"))
BRICK_SOURCES = tuple(
    PACKAGE / name
    for name in ("bricks", "measure/worker.py", "measure/sentinel.py", "models/arithmetic.py", "bricked.py")
)
DRIVER = "driver"
NOT_EXPORTING = ("zoo.py", "wide.py", "grouped.py", "quantise.py")
"""What of models/ makes no exported model: of the catalogue its entry counts, and an 8-bit file is made of what was
exported.
"""


class Plan:
    """All paths of one configuration. The same configuration, sources and Python make the same plan on any machine."""

    EXPORTER = "torch"
    QUANTISER = "quantise"

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
        names |= {self.EXPORTER, *([self.QUANTISER] if INT8 in self.config.precisions else [])}
        return {name: self._environment(name) for name in sorted(names)}

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
        """Every model as it is exported, by name."""
        made_by = [p for p in sorted((PACKAGE / "models").glob("*.py")) if p.name not in NOT_EXPORTING]
        sources = source_id(made_by, self.cache)
        return {choice.name: self._model(choice, sources) for choice in self.config.models}

    @cached_property
    def quantised(self) -> dict[str, Model]:
        """The 8-bit file of every model, by name; none where the configuration does not ask for int8."""
        if INT8 not in self.config.precisions:
            return {}
        models = {name: model for name, model in self.models.items() if name not in self.given_quantised}
        by = source_id([PACKAGE / "models" / "quantise.py"], self.cache), self.environments[self.QUANTISER].folder.name
        identities = {name: digest(*by, model.identity) for name, model in models.items()}
        return {
            name: Model(model.choice, identities[name], self.cache / "quantised" / f"{name}-{identities[name]}", model)
            for name, model in models.items()
        }

    @cached_property
    def given_quantised(self) -> dict[str, Model]:
        """The user's models whose files are quantised: measured as they are, in int8, whatever is configured."""
        files = {choice.name: Path(choice.path) for choice in self.config.models if choice.path is not None}
        return {name: self.models[name] for name, path in files.items() if holds_quantised(path, self.cache)}

    def _measured(self) -> Iterator[tuple[str, Model]]:
        """Every precision with each model that is measured in it."""
        for precision in self.config.precisions:
            models = self.quantised if precision == INT8 else self.models
            yield from ((precision, model) for name, model in models.items() if name not in self.given_quantised)
        yield from ((INT8, model) for model in self.given_quantised.values())

    @cached_property
    def builds(self) -> dict[tuple[str, str], Build]:
        """Every build, by the names of its model and of its folder there (see `slug`)."""
        return {
            (b.model.choice.name, slug(built_as(b.system), b.target, b.precision)): b
            for builds in self.groups.values()
            for b in builds
        }

    @cached_property
    def groups(self) -> dict[str, tuple[Build, ...]]:
        """The builds that are measured side by side, by the name of their model, their precision and their target."""
        made: dict[str, tuple[Build, ...]] = {}
        for target in self.config.targets:
            for precision, model in self._measured():
                name = case_name(model.choice.name, precision, target)
                if name in made:
                    raise ConfigError(f"Two cases would be called {name}: give a model of your own another name.")
                made[name] = tuple(self._build(model, s, precision, target) for s in self.systems(target))
        return {name: builds for name, builds in made.items() if builds}

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Every case by name: its group's, and a number where it is measured more than once."""
        protocol = source_id([PACKAGE / "measure", PACKAGE / "record.py", PACKAGE / "models" / "inputs.py"], self.cache)
        count = self.config.measuring.repeats if self.config.measuring.rounds else 0
        names = [""] if count == 1 else [f".{i + 1:0{len(str(count))}}" for i in range(count)]
        return {
            f"{group}{name}": self._case(group, builds, protocol, name, seed)
            for group, builds in self.groups.items()
            for seed, name in enumerate(names)
        }

    def inputs(self, group: str) -> list[Path]:
        """The files that a group is profiled from."""
        return inputs_of(self.groups[group])

    def profile_options(self, group: str) -> str:
        """How `mononn-bench profile` is told what to look into."""
        return shlex.join(case_options(self.groups[group]))

    @cached_property
    def report_identity(self) -> str:
        """What tables and figures are made by."""
        template = sorted(path for path in (PACKAGE / "report" / "page").iterdir() if path.is_file())
        return source_id([PACKAGE / "analysis", PACKAGE / "report", *RECORDS, *template], self.cache)

    @cached_property
    def profile_identity(self) -> str:
        """What profiles are made by."""
        beside = ("measure/worker.py", "measure/sentinel.py", "models/arithmetic.py")
        return source_id([PACKAGE / "profile", *(PACKAGE / name for name in beside), *RECORDS], self.cache)

    @property
    def report(self) -> list[Path]:
        """Everything the report leaves: tables, figures and the page."""
        studies = [name for name, paths in self.studies.items() if paths]
        files = report_files(list(self.cases), self.config.systems, bool(self.bricks), studies)
        return [self.results / name for name in files]

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
    def bricks(self) -> list[Path]:
        """What each model's bricks take; none where the configuration names no lengths, and none on a GPU."""
        wanted = self.config.bricks
        groups = [name for name, builds in self.groups.items() if wanted and builds[0].target != CUDA]
        return [self.results / "bricks" / f"{name}.json" for name in groups]

    @property
    def studies(self) -> dict[str, list[Path]]:
        """The records of what is measured beside cases and bricks, by the study's name (report/studies.py)."""
        return {"start": self.starts, "lengths": self.lengths.records}

    @property
    def starts(self) -> list[Path]:
        """Each model's first answers; none where the configuration does not ask for them, and none on a GPU."""
        wanted = self.config.start
        groups = [name for name, builds in self.groups.items() if wanted and builds[0].target != CUDA]
        return [self.results / "start" / f"{name}.json" for name in groups]

    def start_options(self, group: str) -> str:
        """How `mononn-bench start` is told what to start, and how often."""
        how = self.config.start
        assert how is not None
        counts = [f"--warm={how.warm}", f"--cold={how.cold}", f"--processes={how.processes}"]
        return shlex.join([*case_options(self.groups[group]), *counts, f"--seed={self.config.measuring.seed}"])

    @cached_property
    def start_identity(self) -> str:
        """What first answers are measured by."""
        return source_id([PACKAGE / "start", PACKAGE / "measure", PACKAGE / "started.py"], self.cache)

    @property
    def primitives(self) -> list[Path]:
        """What the machine gives, where bricks are measured: their bounds and advice rest on it."""
        return [self.machine_record.with_name("primitives.json")] if self.bricks else []

    @property
    def database(self) -> Path:
        """What is known of bricks on any machine that shares this cache."""
        return self.cache / "bricks"

    def brick_options(self, group: str) -> str:
        """How `mononn-bench bricks` is told what to cut and with what to measure it."""
        lengths = ",".join(map(str, self.config.bricks))
        options = [o for o in case_options(self.groups[group]) if not o.startswith("--build=")]
        return shlex.join([*options, f"--lengths={lengths}", f"--database={self.database}"])

    def brick_inputs(self, group: str) -> list[Path]:
        """The files that stand for what bricks are cut from and measured with."""
        builds = self.groups[group]
        return [builds[0].model.record, *dict.fromkeys(build.environment.stamp for build in builds)]

    @property
    def report_options(self) -> str:
        """How `mononn-bench report` is told of what stands outside the report's folder."""
        return shlex.join(f"--primitives={path}" for path in self.primitives)

    @cached_property
    def primitive_identity(self) -> str:
        """What the machine's primitives are measured by, and the numbers that stand beside them."""
        return source_id(
            [PACKAGE / "measure" / "machine.c", PACKAGE / "measure" / "primitives.py", RECORDS[1]], self.cache
        )

    @cached_property
    def brick_identity(self) -> str:
        """What bricks are cut and measured by."""
        return source_id(BRICK_SOURCES, self.cache)

    @cached_property
    def lengths(self) -> LengthsPlan:
        """What there is for requests of many lengths."""
        return LengthsPlan(self, self.config.lengths)

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
        requirements = FILES / "envs" / f"{name}.txt"
        if name == DRIVER or self.config.environments.get(name) == DRIVER:
            identity = digest(DRIVER, sys.executable, requirements_id(requirements))
            folder = self.cache / "environments" / f"{name}-{identity}"
            existing = shlex.join(["--existing", sys.executable])
            return Environment(name, requirements, folder, Path(sys.executable), existing)
        folder = self.cache / "environments" / f"{name}-{requirements_id(requirements)}"
        return Environment(name, requirements, folder, folder / "bin" / "python", "")

    def _model(self, choice: ModelChoice, sources: str) -> Model:
        files: tuple[Path, ...] = ()
        made_from: tuple[Any, ...]
        if choice.path is not None:
            files = model_files(Path(choice.path), self.cache)
            made_from = (*(file_digest(path, self.cache) for path in files), sorted(choice.shapes.items()))
        else:
            made_from = (repr(get_model(choice.name)), choice.weights)
        identity = digest(sources, self.environments[self.EXPORTER].folder.name, *made_from)
        return Model(choice, identity, self.cache / "models" / f"{choice.name}-{identity}", sources=files)

    @cached_property
    def _adapters(self) -> dict[str, str]:
        """The identity of what makes each system."""
        names = {system for target in self.config.targets for system in self.systems(target)}
        return {name: adapter_identity(get_system(name), self.cache) for name in names}

    def _build(self, model: Model, variant: str, precision: str, target: str) -> Build:
        system = built_as(variant)
        environment = self.environments[environment_of(system, target)]
        config = self.config
        identity = digest(
            self._adapters[system],
            environment.folder.name,
            model.identity,
            (precision, target, config.threads, config.defaults),
            (config.limits.build_seconds, config.limits.memory_mb),
            sorted(get_system(system).chosen.items()),
        )
        folder = (
            self.cache / "builds" / self.machine / model.choice.name / f"{slug(system, target, precision)}-{identity}"
        )
        return Build(model, variant, precision, target, identity, folder, environment, config)

    def _case(self, group: str, builds: tuple[Build, ...], protocol: str, number: str, later: int) -> Case:
        measuring = replace(self.config.measuring, repeats=1, seed=self.config.measuring.seed + later)
        identity = digest(protocol, [(b.system, b.identity) for b in builds], repr(measuring), repr(self.config.limits))
        record = self.results / "raw" / f"{group}{number}-{identity}.json"
        return Case(builds[0].model, builds, measuring, record)


def adapter_identity(system: type[System], cache: Path) -> str:
    """The identity of what makes a system (its adapter with its data and, for ours, the compiler); digests are
    remembered in `cache`.
    """
    sources = source_id(adapter_sources(system.__module__, ROOT), cache)
    data = sorted(path for path in system.data.rglob("*") if path.is_file()) if system.data else []
    return digest(sources, [file_digest(path, cache) for path in data]) if data else sources


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
    plan = Plan(load_config(mapping))
    _ = plan.groups  # which refuses two cases of one name
    return plan


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
