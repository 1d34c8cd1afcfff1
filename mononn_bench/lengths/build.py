"""Contestants, and their networks built: each in a worker of its own, kept for another run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mononn_bench.codec import from_plain, read_record, write_record
from mononn_bench.errors import RecordError
from mononn_bench.lengths.serving import forms_of
from mononn_bench.measure.build import RECORD, keep_log, size_mb
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError
from mononn_bench.record import SCHEMA_VERSION, ModelRecord, Option
from mononn_bench.served import ServingSettings
from mononn_bench.systems import OURS

SERVER = "mononn_bench.lengths.worker"
TWIN = "@2"


@dataclass(frozen=True)
class Entry:
    """A contestant: a system in a form, its interpreter, and `identity` as in SystemBricks, of forms' sources too."""

    label: str
    system: str
    form: str
    python: Path
    identity: str

    @property
    def slug(self) -> str:
        """As part of a path."""
        return f"{self.system}-{self.form}{'-2' if self.twin else ''}"

    @property
    def twin(self) -> bool:
        """Whether it is measured a second time, for what no difference looks like."""
        return self.label.endswith(TWIN)


@dataclass(frozen=True)
class BuiltForm:
    """build.json beside what was built, or why there is nothing."""

    status: Literal["ok", "unavailable", "failed", "timeout"]
    reason: str
    version: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    options: tuple[Option, ...] = ()
    build_s: float | None = None
    artifact_mb: float | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def failure(self) -> WorkerFailedError | None:
        """Why it cannot take part."""
        return None if self.status == "ok" else WorkerFailedError(self.status, self.reason)


def entries_of(system: str, python: Path, identity: str) -> list[Entry]:
    """A system's contestants: one a form, and ours twice."""
    found = [Entry(f"{system}, {form}", system, form, python, identity) for form in forms_of(system)]
    if system != OURS:
        return found
    (form,) = forms_of(system)
    return [Entry(label, system, form, python, identity) for label in (OURS, OURS + TWIN)]


def build_forms(
    entries: Sequence[Entry], model_folder: Path, model: ModelRecord, grid: Sequence[int], settings: ServingSettings,
    cores: Sequence[int], builds: Path, say: Callable[[str], None],
) -> dict[str, tuple[BuiltForm, Path]]:  # fmt: skip
    """What was built for each contestant and where, by label; builds of the same model, grid and identity stand, those
    that failed are tried again. The caller holds the machine: some tune by timing.
    """
    built: dict[str, tuple[BuiltForm, Path]] = {}
    for entry in entries:
        asked = f"{grid[0]}-{grid[-1]}-{settings.step}"
        folder = builds.absolute() / f"{entry.system}-{entry.form}-{entry.identity}-{model.digest[:12]}-{asked}"
        try:
            found = read_record(BuiltForm, folder / RECORD)
        except RecordError:
            say(f"{model.name}: building {entry.label}")
            found = _built(entry, model_folder, folder, grid, settings, cores)
            if found.status == "ok":
                write_record(found, folder / RECORD)
        built[entry.label] = found, folder
    return built


def _built(
    entry: Entry, model_folder: Path, folder: Path, grid: Sequence[int], settings: ServingSettings,
    cores: Sequence[int],
) -> BuiltForm:  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    limits = Limits(settings.build_limit_s, settings.memory_limit_mb)
    try:
        with Worker(entry.system, entry.python, cores=cores, scratch=folder / "temporary", server=SERVER) as worker:
            versions = worker.ask("probe", limits)["versions"]
            built = worker.ask(
                "build_form", limits, form=entry.form, grid=list(grid), model_folder=str(model_folder.absolute()),
                build_folder=str(folder / "model"), threads=len(cores),
            )  # fmt: skip
    except WorkerFailedError as error:
        return BuiltForm(error.status, error.reason)
    finally:
        keep_log(folder / "temporary", entry.system, folder)
    return BuiltForm(
        "ok", "", version=next(iter(versions.values())), versions=versions,
        options=tuple(from_plain(Option, option) for option in built["options"]), build_s=built["build_s"],
        artifact_mb=size_mb(folder / "model"),
    )  # fmt: skip
