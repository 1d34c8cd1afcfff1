"""Toolchain: source text in, the bytes of a shared object out; the same source, flags and compiler give the same bytes.

The default compiler is the clang of the ``ziglang`` wheel, so that pip alone installs everything. It compiles and its
linker links in two steps without any library: undefined symbols (memcpy, clock_gettime, pthread_create) bind to the C
library of the process that loads the object, so one object serves every Linux of its architecture. Without the wheel an
installed g++ or clang++ serves. ``MONONN_CXX`` names another compiler; ``MONONN_CACHE`` chooses the folder of compiled
objects ("" for none).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mononn_core.errors import ToolchainError
from mononn_core.host_compiler import (
    HostCompiler,
    cache_folder,
    compiler_environment,
    find_host_compiler,
    read_cached,
    write_cached,
)
from mononn_core.machine import Machine
from mononn_core.program import abi
from mononn_core.vocabulary import FOLDER

HOST = Path(__file__).parent / "host"
SUFFIX = {"c++": "cpp", "c": "c"}
STANDARD = {"c++": ("-std=c++20", "-fno-exceptions", "-fno-rtti"), "c": ("-std=c11",)}
COMMON = (
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-stack-protector",
    "-fomit-frame-pointer",
    "-fno-asynchronous-unwind-tables",
    "-g0",
)
PART, MOST_PARTS = 1 << 17, 8
"""Characters of source that one process compiles, and into how many at most a source is dealt. By these alone, so that
every machine makes the same object."""
LINK = ("--build-id=none", "--gc-sections", "--hash-style=gnu", "-s", "-z", "now", "-z", "relro")
GLIBC = "2.17"


@dataclass(frozen=True)
class Compiled:
    """A shared object.

    Attributes:
        code: bytes of the ELF file.
        command: the compile command, for people (file names relative, no path of this machine).
    """

    code: bytes
    command: str


@dataclass(frozen=True)
class Compiler(HostCompiler):
    """Argument lists for a compilation and a link."""

    def machine_flags(self, machine: Machine) -> tuple[str, ...]:
        """Target and instruction set."""
        if not self.is_zig:
            return machine.compiler_flags
        arch = machine.arch if machine.arch != "generic" else os.uname().machine
        flags: tuple[str, ...] = ("-target", f"{arch}-linux-gnu.{GLIBC}", "-fno-sanitize=undefined", "-Xclang", "-O3")
        if machine.arch == "x86_64":
            wide = "-prefer_256_bit" if machine.vector_bytes == 64 else ""
            flags += (f"-mcpu={machine.level.replace('-', '_')}{wide}",)
        return flags

    def compile_command(self, machine: Machine, language: str, extra: Sequence[str]) -> list[str]:
        driver = ("c++" if language == "c++" else "cc",) if self.is_zig else ("-x", language)
        flags = (*COMMON, *STANDARD[language], *self.machine_flags(machine), *extra)
        return [
            *self.program,
            *driver,
            *flags,
            "-I.",
            f"-I{FOLDER}",
            "-c",
            f"source.{SUFFIX[language]}",
            "-o",
            "object.o",
        ]

    def link_command(self, objects: Sequence[str] = ("object.o",)) -> list[str]:
        if self.is_zig:
            return [*self.program, "ld.lld", "-shared", *objects, "-o", "object.so", *LINK]
        options = ",".join(("-Wl", "--as-needed", *LINK))
        return [*self.program, "-shared", "-nostartfiles", *objects, "-o", "object.so", options]

    def archive_command(self) -> list[str]:
        tool = [*self.program, "ar"] if self.is_zig else ["ar"]
        return [*tool, "rcsD", "object.a", "object.o"]


def find_compiler() -> Compiler:
    """As :func:`find_host_compiler`."""
    found = find_host_compiler()
    return Compiler(found.name, found.program, found.version)


def compile_shared(
    source: str, *, machine: Machine, language: str = "c++", extra_flags: Sequence[str] = ()
) -> Compiled:
    """Compiles one source text, which may include "mononn.h" and the headers of :mod:`mononn_core.vocabulary`.

    Args:
        source: C++20 or C11. Phases of more than ``PART`` characters are compiled in parts side by side, each those
            that are MN_HERE (mononn_vec.hpp).
        machine: instruction set to use; need not be the one this runs on.
        language: "c++" or "c".
        extra_flags: appended to the compile command.

    Raises:
        ToolchainError: no compiler, or it refused the source; the message holds its first error line.
    """
    compiler = find_compiler()
    parts = min(len(source) // PART + 1, MOST_PARTS) if "MN_HERE(" in source else 1
    dealt = (f"-DMONONN_PARTS={parts}",) if parts > 1 else ()
    command = compiler.compile_command(machine, language, (*extra_flags, *dealt))
    shown = compiler.shown([word for word in command if word != f"-I{FOLDER}"])
    shown += f" -DMONONN_PART=0..{parts - 1}" if parts > 1 else ""
    folder = cache_folder()
    entry = folder / (_digest(source, command, compiler) + ".so") if folder else None
    if entry and (code := read_cached(entry)):
        return Compiled(code, shown)
    with tempfile.TemporaryDirectory(prefix="mononn-") as name:
        work = Path(name)
        (work / f"source.{SUFFIX[language]}").write_text(source, encoding="utf-8")
        (work / "mononn.h").write_text(abi.header(), encoding="utf-8")
        if parts == 1:
            _call(command, work)
            _call(compiler.link_command(), work)
        else:
            objects = [f"object{part}.o" for part in range(parts)]
            made = [[*command[:-1], name, f"-DMONONN_PART={part}"] for part, name in enumerate(objects)]
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as processes:
                list(processes.map(_call, made, [work] * parts))
            _call(compiler.link_command(objects), work)
        code = (work / "object.so").read_bytes()
    if entry:
        write_cached(entry, code)
    return Compiled(code, shown)


def library_flags(machine: Machine, features: Sequence[str]) -> str:
    """For people: how to compile a library's one C++ file."""
    flags = (*machine.compiler_flags, *(f"-m{feature}" for feature in features))
    return shlex.join(("-O3", *STANDARD["c++"], "-ffp-contract=fast", "-fno-math-errno", "-pthread", *flags))


def build_library(
    source: str, form: str, *, machine: Machine, features: Sequence[str], files: Mapping[str, bytes | memoryview]
) -> bytes:
    """A library's one C++ file as an object file, a static or a shared library (``form``); nothing is cached.

    Args:
        features: beyond the machine's level.
        files: what the source includes, by name.

    Raises:
        ToolchainError: no compiler, or it refused the source; the message holds its first error line.
    """
    compiler = find_compiler()
    flags = tuple(f"-m{feature}" for feature in features)
    with tempfile.TemporaryDirectory(prefix="mononn-") as name:
        work = Path(name)
        (work / "source.cpp").write_text(source, encoding="utf-8")
        for file, data in files.items():
            (work / file).write_bytes(data)
        _call(compiler.compile_command(machine, "c++", flags), work)
        if form == "object":
            return (work / "object.o").read_bytes()
        shared = form == "shared"
        _call(compiler.link_command() if shared else compiler.archive_command(), work)
        return (work / ("object.so" if shared else "object.a")).read_bytes()


def compile_host(machine: Machine) -> Compiled:
    """The persistent workers' shared object (host/host.c) for a machine's architecture, at its baseline level."""
    header = (HOST / "mononn_host.h").read_text(encoding="utf-8")
    source = (HOST / "host.c").read_text(encoding="utf-8").replace('#include "mononn_host.h"', header)
    baseline = Machine.named("scalar") if machine.arch != "aarch64" else Machine.named("neon")
    return compile_shared(source, machine=baseline, language="c")


def _digest(source: str, command: Sequence[str], compiler: Compiler) -> str:
    """Identity of a compilation: source, headers, flags, compiler version."""
    digest = hashlib.sha256()
    headers = sorted(FOLDER.glob("*.hpp"))
    parts = [source, abi.header(), compiler.version, *command[len(compiler.program) :], *compiler.link_command()[1:]]
    for part in (*parts, *(text for path in headers for text in (path.name, path.read_text(encoding="utf-8")))):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def _call(command: Sequence[str], folder: Path) -> None:
    """Runs one step in ``folder``."""
    try:
        ended = subprocess.run(
            command, cwd=folder, env=compiler_environment(folder), check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        raise ToolchainError(f"{command[0]} cannot be started ({error.strerror}); check MONONN_CXX") from error
    if ended.returncode:
        raise ToolchainError(_failure(command, ended.returncode, ended.stdout.decode(errors="replace")))


def _failure(command: Sequence[str], status: int, text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((line for line in lines if "error:" in line), lines[0] if lines else f"exit status {status}")
    if status < 0:
        line = f"ended by signal {-status}" + (", perhaps for lack of memory" if status == -9 else "")
    program = Path(command[0]).name
    return f"the compiler {program} refused the generated source ({line}); report it, or try another in MONONN_CXX"
