"""The host compiler that generated code is handed to, and the folder where what it made is kept."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mononn_core.errors import ToolchainError
from mononn_core.files import write_atomically


@dataclass(frozen=True)
class HostCompiler:
    """How to call one compiler, and what ``--version`` says."""

    name: str
    program: tuple[str, ...]
    version: str

    @property
    def is_zig(self) -> bool:
        return self.name == "zig"

    def shown(self, command: Sequence[str]) -> str:
        """A command of its program for people, without a path of this machine."""
        wheel = self.is_zig and Path(self.program[0]).parent.name == "ziglang"
        program = ("python", "-m", "ziglang") if wheel else self.program
        return shlex.join((*program, *command[len(self.program) :]))

    @property
    def is_clang(self) -> bool:
        return self.is_zig or "clang" in self.version


def find_host_compiler() -> HostCompiler:
    """``MONONN_CXX``; else the clang of the ziglang wheel; where that is not installed, ``g++`` or ``clang++``.

    Raises:
        ToolchainError: none is there.
    """
    return _find(os.environ.get("MONONN_CXX", ""))


@functools.cache
def _find(chosen: str) -> HostCompiler:
    if chosen:
        try:
            words = shlex.split(chosen)
        except ValueError as error:
            raise ToolchainError(f"MONONN_CXX is {chosen!r} ({error}); name a g++ or clang++") from error
        if not words or not shutil.which(words[0]):
            raise ToolchainError(f"MONONN_CXX names {chosen!r}, which is not found; name an installed g++ or clang++")
        return _installed(words)
    wheel = find_spec("ziglang")
    if wheel is not None and wheel.origin is not None:
        program = str(Path(wheel.origin).with_name("zig"))  # what `python -m ziglang` becomes, without a Python before
        with suppress(OSError):
            result = subprocess.run([program, "version"], capture_output=True, text=True, check=False)
            if result.returncode == 0:
                return HostCompiler("zig", (program,), result.stdout.strip())
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return _installed([name])
    raise ToolchainError(
        "there is no compiler, neither the ziglang wheel nor g++ or clang++; pip install ziglang, or name one of "
        "your own in MONONN_CXX"
    )


def _installed(words: list[str]) -> HostCompiler:
    try:
        version = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise ToolchainError(f"the compiler {words[0]} cannot be started ({error.strerror}); name another") from error
    return HostCompiler(Path(words[0]).name, tuple(words), version)


def compiler_environment(folder: Path) -> dict[str, str]:
    """The environment of a compiler that works in ``folder`` and leaves nothing elsewhere."""
    zig = str(folder / "zig")
    return {**os.environ, "ZIG_GLOBAL_CACHE_DIR": zig, "ZIG_LOCAL_CACHE_DIR": zig}


def cache_folder() -> Path | None:
    """Where compiled objects are kept (``MONONN_CACHE``, "" for nowhere), or None."""
    chosen = os.environ.get("MONONN_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mononn"


def read_cached(entry: Path) -> bytes | None:
    """An ELF file of the cache, or None."""
    try:
        code = entry.read_bytes()
    except OSError:
        return None
    return code if code.startswith(b"\x7fELF") else None


def write_cached(entry: Path, code: bytes) -> None:
    """Keep ``code``, whole or not at all; a cache that cannot be written only costs time."""
    with suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(entry, [code])
