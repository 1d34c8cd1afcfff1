"""Tools that watch a process from outside, by their command lines."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from mononn_bench.errors import SystemUnavailableError


def require(tool: str) -> str:
    """The tool's path; SystemUnavailableError says which one is missing."""
    found = shutil.which(tool)
    if not found:
        raise SystemUnavailableError(f"{tool} not found")
    return found


def run(command: Sequence[str], variables: Mapping[str, str] | None = None, seconds: float = 300.0) -> str:
    """What the command prints; SystemUnavailableError with its last line where it fails or takes longer. Nothing that
    it has started stays where it is not waited for to its end.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=variables, start_new_session=True) as made:
        try:
            said, complained = made.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise SystemUnavailableError(f"{Path(command[0]).name} took more than {seconds:g} s") from error
        finally:
            if made.poll() is None:
                os.killpg(made.pid, signal.SIGKILL)
    if made.returncode != 0:
        last = (complained or said).strip().splitlines()[-1:] or ["no message"]
        raise SystemUnavailableError(f"{Path(command[0]).name} failed: {last[0][:200]}")
    return said
