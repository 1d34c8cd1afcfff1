"""Host compiler for emulated kernels: CUDA C++ text in, a shared object with the emulator's runtime out.

The clang of the ``ziglang`` wheel, or what ``MONONN_CXX`` names. The kernel is compiled with the *instrumentation* of
ThreadSanitizer and of the alignment and bounds sanitizers; their run-time libraries are not linked: the emulator's
runtime supplies the functions that the instrumentation calls.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mononn_core.emulate import fragments
from mononn_core.errors import ToolchainError
from mononn_core.host_compiler import (
    HostCompiler,
    cache_folder,
    compiler_environment,
    find_host_compiler,
    read_cached,
    write_cached,
)
from mononn_core.vocabulary import cuda_headers

HERE = Path(__file__).parent
COMMON = (
    *(
        "-fPIC",
        "-std=c++20",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-stack-protector",
        "-fno-threadsafe-statics",
        "-fstack-clash-protection",
    ),
    *("-fno-math-errno", "-ffp-contract=off", "-fno-asynchronous-unwind-tables"),
)
RUNTIME = ("-O2", "-g0", "-fvisibility=hidden")
CHECKS = "alignment,array-bounds"
CLANG: dict[bool, tuple[str, ...]] = {  # without and with instrumentation
    False: ("-O2", "-g1", "-fno-vectorize", "-fno-slp-vectorize", "-fno-optimize-sibling-calls", "-Wno-everything"),
    True: (
        *("-fsanitize=thread", "-Xclang", f"-fsanitize={CHECKS}", "-Xclang", f"-fsanitize-recover={CHECKS}"),
        *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
    ),
}
GCC: dict[bool, tuple[str, ...]] = {  # a call that gcc duplicates would look like two places of a warp's rendezvous
    False: (
        *("-O2", "-g1", "-w", "-fno-tree-vectorize", "-fno-optimize-sibling-calls"),
        *("-fno-thread-jumps", "-fno-split-paths", "-fno-reorder-blocks-and-partition", "-fno-tree-dominator-opts"),
    ),
    True: ("-fsanitize=thread,alignment,bounds",),
}
LINK = ("--build-id=none", "--hash-style=gnu", "-z", "now")
GLIBC = "2.17"


@dataclass(frozen=True)
class Compiler(HostCompiler):
    """Argument lists for a compilation and a link."""

    def compile(self, flags: Sequence[str], source: str, output: str) -> list[str]:
        language = ("-x", "c++")
        if self.is_zig:
            target = ("-target", f"{os.uname().machine}-linux-gnu.{GLIBC}", "-fno-sanitize=undefined")
            return [*self.program, "c++", *COMMON, *target, *flags, *language, "-I.", "-c", source, "-o", output]
        return [*self.program, *COMMON, *flags, *language, "-I.", "-c", source, "-o", output]

    def link(self, objects: Sequence[str], output: str) -> list[str]:
        if self.is_zig:
            return [*self.program, "ld.lld", "-shared", *objects, "-o", output, *LINK]
        return [*self.program, "-shared", "-nostdlib", *objects, "-o", output, ",".join(("-Wl", *LINK))]


def find_compiler() -> Compiler:
    """As :func:`find_host_compiler`."""
    found = find_host_compiler()
    return Compiler(found.name, found.program, found.version)


def vocabulary(changed: Mapping[str, str] | None = None) -> dict[str, str]:
    """Headers that a kernel may include, by name: the vocabulary's, the emulator's own, then ``changed``."""
    own = {path.name: path.read_text(encoding="utf-8") for path in sorted((HERE / "include").glob("*.cuh"))}
    return {**cuda_headers(), **own, **(changed or {})}


def compile_kernel(source: str, headers: Mapping[str, str], *, sanitize: bool) -> bytes:
    """Bytes of a shared object that holds ``source`` and the runtime.

    Args:
        source: C++ text; includes headers by name.
        headers: name to text.
        sanitize: with the instrumentation (and alignment and bounds checks).

    Raises:
        ToolchainError: no compiler, or it refused the source; the message holds its first error line.
    """
    compiler = find_compiler()
    chosen = CLANG if compiler.is_clang else GCC
    flags = chosen[False] + (chosen[True] if sanitize else ())
    files = {**headers, "kernel.cu": source}
    runtime = _runtime(compiler)

    def make(folder: Path) -> bytes:
        (folder / "runtime.o").write_bytes(runtime)
        _call(compiler.compile(flags, "kernel.cu", "kernel.o"), folder)
        _call(compiler.link(("kernel.o", "runtime.o"), "kernel.so"), folder)
        return (folder / "kernel.so").read_bytes()

    return _cached(files, (compiler.version, *flags, hashlib.sha256(runtime).hexdigest()), make)


def _runtime(compiler: Compiler) -> bytes:
    """The runtime's object."""
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted((HERE / "runtime").iterdir())}
    files["fragments.hpp"] = fragments.header()

    def make(folder: Path) -> bytes:
        _call(compiler.compile(RUNTIME, "runtime.cpp", "runtime.o"), folder)
        return (folder / "runtime.o").read_bytes()

    return _cached(files, (compiler.version, *RUNTIME), make)


def _cached(files: Mapping[str, str], key: Sequence[str], make: Callable[[Path], bytes]) -> bytes:
    """What ``make(folder with files)`` returns, from the cache of ``MONONN_CACHE`` where it is known."""
    digest = hashlib.sha256()
    for part in (*key, *COMMON, *LINK, *(text for name in sorted(files) for text in (name, files[name]))):
        digest.update(f"{len(part)}:{part}".encode())
    folder = cache_folder()
    entry = folder / f"emulated-{digest.hexdigest()}.o" if folder else None
    if entry and (known := read_cached(entry)):
        return known
    with tempfile.TemporaryDirectory(prefix="mononn-") as name:
        for path, text in files.items():
            (Path(name) / path).write_text(text, encoding="utf-8")
        code = make(Path(name))
    if entry:
        write_cached(entry, code)
    return code


def _call(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        list(command),
        cwd=folder,
        env=compiler_environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    line = next((line for line in lines if "error:" in line), lines[0] if lines else f"exit status {done.returncode}")
    raise ToolchainError(
        f"the host compiler refused the CUDA source to emulate ({line}); report it, or try another in MONONN_CXX"
    )
