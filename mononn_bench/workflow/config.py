"""The checked configuration of a workflow run: a mapping from YAML becomes a frozen value, or one sentence of error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from mononn_bench.errors import BenchError
from mononn_bench.files import FILES
from mononn_bench.models.zoo import ZOO, get_model
from mononn_bench.systems import get_system
from mononn_bench.workflow.machine import ASKED, AUTO, settled

SCHEMA = FILES / "workflows" / "schemas" / "config.schema.yaml"
FP32, INT8 = "fp32", "int8"
DEFAULT, SUITES, RESULTS = FILES / "workflows" / "config.yaml", FILES / "workflows" / "suites", "results"


class ConfigError(BenchError):
    """A configuration says something that cannot be: the message names the key and the nearest right one."""


@dataclass(frozen=True)
class ModelChoice:
    """A model to measure: a catalogued one, or the user's own file at `path` with static `shapes`."""

    name: str
    weights: str = "seeded"
    path: str | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measuring:
    """How a case is measured: rounds, cycles, seconds of a block, whether caches are emptied before each run, starts of
    each system with warm and with cold files, a part of the seed of order, and how often the whole case is measured.
    """

    rounds: int
    cycles: int
    block_seconds: float
    seed: int
    cold: bool
    repeats: int
    starts: int


@dataclass(frozen=True)
class Limits:
    """Where a build or a worker is ended: seconds of a build, seconds without an answer, megabytes."""

    build_seconds: float
    answer_seconds: float
    memory_mb: int


@dataclass(frozen=True)
class StartChoice:
    """How first answers are measured: starts of each system with warm and with cold files, processes at once."""

    warm: int
    cold: int
    processes: int


@dataclass(frozen=True)
class Lengths:
    """How requests of many lengths are measured, as in ServingSettings; `memory_models` are those whose memory is read
    after `memory_requests` (all where there is none), `distribution` a file in place of the shipped one.
    """

    rounds: int
    cycles: int
    requests: int
    step: int
    memory_requests: int
    memory_models: tuple[str, ...]
    distribution: str
    seed: int


@dataclass(frozen=True)
class WorkflowConfig:
    """A whole configuration, defaults filled in, every name known, `auto` settled."""

    machine: str
    suite: str
    results: Path
    cache: Path
    models: tuple[ModelChoice, ...]
    systems: tuple[str, ...]
    precisions: tuple[str, ...]
    targets: tuple[str, ...]
    threads: int
    measuring: Measuring
    limits: Limits
    environments: Mapping[str, str]
    profile: bool
    bricks: tuple[int, ...]
    start: StartChoice | None
    lengths: Lengths | None
    defaults: bool
    tuning_seconds: float


def load_config(mapping: Mapping[str, Any]) -> WorkflowConfig:
    """Check `mapping` against the schema and the catalogues of models and systems, and settle what it leaves to this
    machine.

    Raises ConfigError for a key or value the schema refuses, UnknownNameError for an unknown model or system.
    """
    schema = yaml.safe_load(SCHEMA.read_text())
    errors = sorted(jsonschema.Draft202012Validator(schema).iter_errors(mapping), key=_depth)
    if errors:
        raise ConfigError(_sentence(errors[0]))
    filled = _with_defaults(mapping, schema)
    for name in filled["systems"]:
        get_system(name)
    for key, what in (("bricks", "Bricks"), ("start", "First answers"), ("lengths", "Requests")):
        if filled["defaults"] and filled.get(key, []) != []:
            raise ConfigError(f"{what} are measured with every system's options set: leave defaults or {key} out.")
    filled = settled(filled)
    return WorkflowConfig(
        machine=filled["machine"],
        suite=filled["suite"],
        results=Path(filled["results"]),
        cache=Path(filled["cache"]),
        models=_model_choices(filled["models"]),
        systems=tuple(filled["systems"]),
        precisions=tuple(filled["precisions"]),
        targets=tuple(filled["targets"]),
        threads=filled["threads"],
        measuring=Measuring(**filled["measuring"]),
        limits=Limits(**filled["limits"]),
        environments=filled["environments"],
        profile=filled["profile"],
        bricks=tuple(filled["bricks"]),
        start=StartChoice(**filled["start"]) if "start" in filled else None,
        lengths=_lengths(filled),
        defaults=filled["defaults"],
        tuning_seconds=filled["tuning"]["seconds"],
    )


def read_config(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ConfigError when the file is missing or is no mapping."""
    try:
        mapping = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"The configuration {path} is not YAML: {line}.") from error
    if not isinstance(mapping, dict):
        raise ConfigError(f"The configuration {path} is not a mapping; start from workflows/config.yaml.")
    return mapping


def named(mapping: Mapping[str, Any], files: Sequence[Path], said: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A configuration with the name of its folder, so that nothing but the default one writes the default's tables.

    `files` are those that `mapping` was read from, `said` what the command line put on top. A file that names neither
    `suite` nor `results` is a suite of the file's own name. Raises ConfigError where the tables of another comparison
    would be written over.
    """
    said = said or {}
    if "models" in said:
        raise ConfigError("--config models=... adds to a file's models, it does not choose among them: write a file.")
    placed = {"suite", "results"} & said.keys()
    own_machine = "machine" in said or mapping.get("machine", AUTO) == AUTO
    where = {"suite", "results", "cache", *(ASKED if own_machine else ())}
    if said.keys() - where and not placed:
        keys = ", ".join(sorted(said.keys() - where))
        raise ConfigError(f"--config changes {keys}, and the whole tables would be written over: add suite=NAME to it.")
    own = [path for path in files if path.resolve() != DEFAULT]
    if not own or "suite" in mapping or mapping.get("results", RESULTS) != RESULTS:
        return dict(mapping)
    name = re.sub(r"[^a-z0-9._-]+", "-", own[-1].stem.lower()).strip("-._")
    shipped = SUITES / f"{name}.yaml"
    if not name or (shipped.exists() and own[-1].resolve() != shipped):
        raise ConfigError(f"The configuration {own[-1]} would write over the suite {name!r}: give it another name.")
    return {**mapping, "suite": name}


def read_comparison(path: Path) -> dict[str, Any]:
    """The configuration in a file, with the name of its folder (see `named`)."""
    return named(read_config(path), [path])


def _model_choices(entries: Mapping[str, Any]) -> tuple[ModelChoice, ...]:
    choices = []
    for name, entry in entries.items():
        options = dict(entry or {})
        options["shapes"] = {k: tuple(v) for k, v in options.get("shapes", {}).items()}
        choice = ModelChoice(name, **options)
        if choice.path is None:
            _check_catalogued(choice)
        elif name in ZOO:
            raise ConfigError(f"Model {name!r} has a path, but the catalogue has a model of that name; rename yours.")
        elif not Path(choice.path).is_file():
            raise ConfigError(f"Model {name!r}: there is no file {choice.path}; correct its path in the configuration.")
        elif "weights" in options:
            raise ConfigError(f"Model {name!r} has a path, and so its own weights; remove the key weights.")
        choices.append(choice)
    return tuple(choices)


def _lengths(filled: Mapping[str, Any]) -> Lengths | None:
    if "lengths" not in filled:
        return None
    given = filled["lengths"]
    unknown = [name for name in given["memory_models"] if name not in filled["models"]]
    if unknown:
        raise ConfigError(f"lengths.memory_models names {unknown[0]!r}, which is none of the models: correct it.")
    return Lengths(**{**given, "memory_models": tuple(given["memory_models"])})


def _check_catalogued(choice: ModelChoice) -> None:
    hub = get_model(choice.name).hub
    if choice.shapes:
        raise ConfigError(f"Model {choice.name!r} is a catalogued one of fixed shapes; remove its shapes.")
    if choice.weights == "pretrained" and hub is None:
        raise ConfigError(f"Model {choice.name!r} has no published weights; write weights: seeded.")


def _with_defaults(mapping: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """`mapping` with the schema's defaults filled in, nested objects included."""
    filled = dict(mapping)
    for key, rule in schema.get("properties", {}).items():
        if key not in filled and "default" in rule:
            filled[key] = rule["default"]
        if rule.get("type") == "object" and "properties" in rule and key in filled:
            filled[key] = _with_defaults(filled[key], rule)
    return filled


def _depth(error: jsonschema.ValidationError) -> tuple[int, str]:
    unknown_first = 0 if error.validator == "additionalProperties" else 1
    return unknown_first, ".".join(map(str, error.absolute_path))


def _sentence(error: jsonschema.ValidationError) -> str:
    """One sentence for a schema error: the key, what is wrong with it, the nearest right one."""
    where = ".".join(str(part) for part in error.absolute_path)
    rule: Any = error.schema
    if error.validator == "additionalProperties":
        known = list(rule["properties"])
        instance: Any = error.instance
        key = next(k for k in instance if k not in known)
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
        name = f"{where}.{key}" if where else key
        return f"The configuration has an unknown key {name!r}: did you mean {near!r}? Known: {', '.join(known)}."
    if error.validator == "required":
        return f"The configuration lacks a key: {error.message}; workflows/config.yaml shows them all."
    cause = f"{error.instance!r} is not one of {', '.join(rule['enum'])}" if "enum" in rule else error.message
    return f"The configuration's {where or 'whole'} is wrong: {cause}; correct it and run again."
