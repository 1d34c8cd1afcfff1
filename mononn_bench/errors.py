"""Errors of the suite. Each message is one sentence that says what happened and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BenchError(Exception):
    """Base of every error the suite raises on purpose; the command line prints it and exits with `exit_status`."""

    exit_status = 2


class UnknownNameError(BenchError):
    """A model, system or option of that name does not exist."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"There is no {kind} called {name!r}: {hint}Known: {', '.join(names)}.")


class BadOptionError(BenchError):
    """Options that do not say what is needed, or name what is not there."""


class RecordError(BenchError):
    """A record file is missing, is not JSON, or does not follow the schema."""


class ModelError(BenchError):
    """A model cannot be built, exported, read or downloaded."""


class HubUnreachableError(ModelError):
    """The model hub did not answer."""


class SystemUnavailableError(BenchError):
    """A system cannot serve here; the message is the reason its row will show."""


class EnvironmentBuildError(BenchError):
    """An environment could not be built for a reason that trying again may cure (a download that broke off)."""

    exit_status = 1


class DiskFullError(BenchError):
    """There is no room for files: what fails now is no system's fault, so nothing is recorded."""

    exit_status = 1

    def __init__(self, folder: object) -> None:
        super().__init__(
            f"The disk that holds {folder} is full: free some of it, and the same command goes on from here."
        )


class MeasurementError(BenchError):
    """A measurement cannot be made at all (not: a system that failed in it, which is a row)."""

    exit_status = 1
