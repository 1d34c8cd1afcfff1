"""The parts of a plan: environments, models, builds and cases, each with the files it leaves and the options of the
command that makes them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mononn_bench.models.spec import file_options
from mononn_bench.systems import built_as, get_system
from mononn_bench.workflow.config import FP32, Measuring, ModelChoice, WorkflowConfig


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
    """A model as files: `folder` holds model.onnx, model.json and the reference.

    `unquantised` is the model that an 8-bit file was made of; None of a model as it is exported. `sources` are a user's
    own file and those of its weights.
    """

    choice: ModelChoice
    identity: str
    folder: Path
    unquantised: Model | None = None
    sources: tuple[Path, ...] = ()

    @property
    def record(self) -> Path:
        """The model's own record: digest, arithmetic, bytes, kind of weights."""
        return self.folder / "model.json"

    @property
    def reference(self) -> Path:
        """The record of the reference answers, which stand in reference.npz beside it."""
        return self.folder / "reference.json"

    @property
    def file_options(self) -> list[str]:
        """How a command is told of the user's own file; nothing of a catalogued model."""
        path = self.choice.path
        return [] if path is None else file_options(str(Path(path).resolve()), self.choice.shapes)

    @property
    def export_options(self) -> str:
        """How `mononn-bench export` is told which model this is."""
        whose = ["--weights", self.choice.weights] if self.choice.path is None else self.file_options
        return shlex.join(["--model", self.choice.name, *whose])

    @property
    def reference_options(self) -> str:
        """How `mononn-bench reference` is told whose right answers these are."""
        options = ["--model-folder", str(self.folder)]
        return shlex.join([*options, *(["--unquantised", str(self.unquantised.folder)] if self.unquantised else [])])


@dataclass(frozen=True)
class Build:
    """One system's build of one model in one precision for one target. Variants of a load alone share that of their
    system.
    """

    model: Model
    system: str
    precision: str
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
                f"--precision={self.precision}",
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
        return inputs_of(self.builds)

    @property
    def options(self) -> str:
        """How `mononn-bench measure` is told what to measure, and how."""
        how = self.measuring
        options = [f"--rounds={how.rounds}", f"--cycles={how.cycles}", f"--block-seconds={how.block_seconds}"]
        options += [f"--seed={how.seed}", f"--starts={how.starts}", *(["--cold"] if how.cold else [])]
        return shlex.join([*case_options(self.builds), *options])


def inputs_of(builds: Sequence[Build]) -> list[Path]:
    """The records that stand for what builds are run from; each is written when the rest of its folder is."""
    model = builds[0].model
    stamps = dict.fromkeys(build.environment.stamp for build in builds)
    answers = model.reference.with_suffix(".npz")
    return [*(build.record for build in builds), *stamps, model.record, model.reference, answers]


def case_options(builds: Sequence[Build]) -> list[str]:
    """The options that name a model, its builds and their environments."""
    first, config = builds[0], builds[0].config
    parts = [f"--model-folder={first.model.folder}", f"--threads={config.threads}", f"--target={first.target}"]
    parts += [] if first.precision == FP32 else [f"--precision={first.precision}"]
    parts += first.model.file_options
    for build in builds:
        parts += [f"--build={build.system}={build.folder}"]
        parts += [f"--environment={build.system}={build.environment.folder}"]
    return [*parts, f"--answer-limit={config.limits.answer_seconds}", f"--memory-limit={config.limits.memory_mb}"]


def slug(system: str, target: str = "cpu", precision: str = FP32) -> str:
    """A system's name as part of a path: `mononn[launch=phases]` becomes mononn.launch-phases; and its precision and
    target.
    """
    name = re.sub(r"[\[,]", ".", system).replace("=", "-").rstrip("]")
    return ".".join([name, *_unusual(precision, target)])


def case_name(model: str, precision: str, target: str) -> str:
    """A model's name and, but for fp32 and the CPU, its precision and target."""
    return "-".join([model, *_unusual(precision, target)])


def _unusual(precision: str, target: str) -> list[str]:
    return [part for part, usual in ((precision, FP32), (target, "cpu")) if part != usual]
