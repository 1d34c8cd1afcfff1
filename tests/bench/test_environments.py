"""Environments are built once; what cannot be resolved is a record, what broke off is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mononn_bench.codec import read_record
from mononn_bench.errors import EnvironmentBuildError
from mononn_bench.measure.build import build_system
from mononn_bench.measure.process import Limits
from mononn_bench.record import EnvironmentRecord
from mononn_bench.systems import SYSTEMS
from mononn_bench.systems import environment as environments
from tests.bench.conftest import ROOT


@pytest.mark.slow
def test_an_environment_is_built_once_and_described(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("# nothing\n\n")
    folder = tmp_path / "folder"
    record = environments.make_environment(empty, folder)
    assert record.status == "ok"
    assert "pip" in record.packages
    assert Path(record.interpreter).is_file()
    assert read_record(EnvironmentRecord, folder / "environment.json") == record
    assert environments.make_environment(empty, folder) == record
    (folder / "environment.json").unlink()
    assert environments.make_environment(empty, folder).packages == record.packages


def pip_that_says(text: str, folder: Path) -> Path:
    """An interpreter whose pip fails with this message."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit 1\n")
    script.chmod(0o755)
    return script


def test_what_cannot_be_resolved_is_a_reason_and_what_broke_off_an_error(tmp_path: Path) -> None:
    requirements = tmp_path / "it.txt"
    requirements.write_text("it==1\n")
    unresolved = "ERROR: No matching distribution found for it==1"
    python = pip_that_says(unresolved, tmp_path)
    assert environments._install(python, requirements) == "No matching distribution found for it==1"
    broken = f"WARNING: Retrying (Retry(total=0)) after connection broken\n{unresolved}"
    with pytest.raises(EnvironmentBuildError, match="check the network"):
        environments._install(pip_that_says(broken, tmp_path), requirements)
    with pytest.raises(EnvironmentBuildError, match="something else"):
        environments._install(pip_that_says("ERROR: something else", tmp_path), requirements)


def test_a_build_in_an_unavailable_environment_is_a_row(linear_folder: Path, tmp_path: Path) -> None:
    record = environments._describe(Path(sys.executable), ["it==1"], 1.0, "No matching distribution found for it==1")
    environments.write_record(record, tmp_path / "environment" / "environment.json")
    built = build_system(
        "fake-ok",
        environment=tmp_path / "environment",
        model_folder=linear_folder,
        output=tmp_path / "build",
        threads=1,
        precision="fp32",
        target="cpu",
        limits=Limits(20, 1000),
        lock=tmp_path / "lock",
    )
    assert (built.status, built.reason) == ("unavailable", "No matching distribution found for it==1")


def test_every_compared_system_has_pinned_requirements() -> None:
    for name, system in SYSTEMS.items():
        if system.environment == "driver":
            continue
        lines = environments.requirement_lines(ROOT / "envs" / f"{system.environment}.txt")
        pins = [line for line in lines if not line.startswith("--")]
        assert pins, name
        assert all("==" in pin for pin in pins), name
        assert all(path.exists() for path in system.sources), name
