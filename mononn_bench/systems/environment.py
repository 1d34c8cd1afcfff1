"""Virtual environments of compared systems: built once with venv and pip, described by environment.json.

A system that cannot be had here (no release for this Python or machine) is a row in the tables. A download that broke
off is an error, so that the next try can do better.
"""

from __future__ import annotations

import fcntl
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mononn_bench.codec import read_record, write_record
from mononn_bench.errors import EnvironmentBuildError, RecordError
from mononn_bench.record import EnvironmentRecord

RECORD = "environment.json"
UNRESOLVED = (
    "No matching distribution found",
    "ResolutionImpossible",
    "requires a different Python",
    "is not a supported",
)
BROKEN_OFF = ("Retrying (", "NewConnectionError", "ReadTimeout", "Connection broken", "No space left", "HASHES")
PIP = ("-m", "pip", "--disable-pip-version-check")
RETRIES = ("--retries", "1", "--timeout", "20")


def requirement_lines(path: Path) -> tuple[str, ...]:
    """The meaningful lines of a requirements file."""
    lines = (line.partition(" #")[0].strip() for line in path.read_text().splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def make_environment(requirements: Path, folder: Path) -> EnvironmentRecord:
    """Build a virtual environment in `folder` and write its record last; one that stands is left as it is.

    Raises EnvironmentBuildError when a download broke off or the disk is full. A lock beside the folder keeps two
    processes from building it at once.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return read_record(EnvironmentRecord, folder / RECORD)
        except RecordError:
            shutil.rmtree(folder, ignore_errors=True)
        started = time.perf_counter()
        _run([sys.executable, "-m", "venv", str(folder)], "making a virtual environment")
        python = folder / "bin" / "python"
        reason = _install(python, requirements)
        record = _describe(python, requirement_lines(requirements), time.perf_counter() - started, reason)
        write_record(record, folder / RECORD)
        return record


def adopt_environment(python: Path, requirements: Path, folder: Path) -> EnvironmentRecord:
    """Write the record of an interpreter that stands already; nothing is installed."""
    record = _describe(python.absolute(), requirement_lines(requirements), 0.0, "")
    write_record(record, folder / RECORD)
    return record


def _install(python: Path, requirements: Path) -> str:
    """Install; an empty string, or pip's reason why it cannot be resolved. Raises EnvironmentBuildError otherwise."""
    command = [str(python), *PIP, "install", "--quiet", *RETRIES, "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["ERROR: pip failed"]
    said = errors[-1].removeprefix("ERROR: ")
    if any(sign in done.stderr for sign in BROKEN_OFF) or not any(sign in done.stderr for sign in UNRESOLVED):
        raise EnvironmentBuildError(f"Installing {requirements.name} failed ({said}): check the network and run again.")
    return said


def _describe(python: Path, requirements: Sequence[str], seconds: float, reason: str) -> EnvironmentRecord:
    packages: dict[str, str] = {}
    if not reason:
        listed = json.loads(_run([str(python), *PIP, "list", "--format=json"], "listing packages"))
        packages = {package["name"]: package["version"] for package in listed}
    return EnvironmentRecord(
        interpreter=str(python),
        status="unavailable" if reason else "ok",
        reason=reason,
        requirements=tuple(requirements),
        python=platform.python_version(),
        packages=packages,
        seconds=seconds,
    )


def _run(command: Sequence[str], doing: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise EnvironmentBuildError(f"{doing.capitalize()} failed ({last[0]}): correct that and run again.")
    return done.stdout
