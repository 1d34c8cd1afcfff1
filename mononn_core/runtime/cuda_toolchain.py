"""CUDA toolchain: generated CUDA C++ in, a cubin for one architecture out, and what its kernels use.

``nvcc`` compiles where it is on the PATH (or named by ``MONONN_NVCC``, where "nvrtc" stands for NVRTC), else NVRTC of
the ``nvidia-cuda-nvrtc`` wheel, so that pip alone installs what is needed. Neither needs a GPU. What a kernel uses is
read out of the cubin itself and is the same for both. ``MONONN_CACHE`` chooses the folder of compiled objects ("" for
none). ``MONONN_CUBINS`` names such a folder that was brought along: what it holds of the same source is taken,
whichever compiler made it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mononn_core.errors import ToolchainError
from mononn_core.host_compiler import cache_folder, read_cached, write_cached
from mononn_core.runtime.cubin import Usage, kernel_usage

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
"""What the generated code is tested for; a newer one within a major version runs an older one's cubin."""
NEXT_STEP = "pip install nvidia-cuda-nvrtc, or put nvcc on the PATH or into MONONN_NVCC"


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture.

    Attributes:
        code: bytes of the cubin (an ELF file).
        kernels: name -> registers, shared memory, stack and spills.
        command: the compile command, for people.
    """

    code: bytes
    kernels: Mapping[str, Usage]
    command: str


@dataclass(frozen=True)
class Compiler:
    """``path`` of nvcc, or of NVRTC's library, and its version."""

    name: str
    path: str
    version: str


def find_compiler() -> Compiler:
    """``MONONN_NVCC``, nvcc on the PATH, or NVRTC of the ``nvidia-cuda-nvrtc`` wheel, in this order.

    Raises:
        ToolchainError: there is none, or the one named is missing.
    """
    return _find_compiler(os.environ.get("MONONN_NVCC", ""), os.environ.get("PATH", ""))


@functools.cache
def _find_compiler(chosen: str, _path: str) -> Compiler:
    if chosen == "nvrtc":
        return _find_nvrtc()
    program = shutil.which(chosen or "nvcc")
    if program:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
        return Compiler("nvcc", program, said.splitlines()[-1] if said else "")
    if chosen:
        raise ToolchainError(f"MONONN_NVCC names {chosen!r}, which is not found; name an installed nvcc, or nvrtc")
    return _find_nvrtc()


def _find_nvrtc() -> Compiler:
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [p for folder in folders for p in sorted(Path(folder).glob("*/lib/libnvrtc.so*")) if "alt" not in p.name]
    if not found:
        raise ToolchainError(f"no CUDA compiler: neither nvcc nor NVRTC is installed; {NEXT_STEP}")
    path = max(found, key=lambda p: p.parent.parent.name)  # .../cu13/lib before .../cuda_nvrtc/lib of CUDA 12 wheels
    major, minor = ctypes.c_int(), ctypes.c_int()
    _load(str(path)).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return Compiler("nvrtc", str(path), f"{major.value}.{minor.value}")


@functools.cache
def _load(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ToolchainError(f"NVRTC cannot be loaded ({error}); {NEXT_STEP}") from error
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def compile_cubin(source: str, headers: Mapping[str, str], arch: str, compiler: str = "") -> Cubin:
    """Compiles generated CUDA C++ for one architecture.

    Args:
        source: C++17.
        headers: file name -> text of what it includes.
        arch: "sm_80", "sm_90a", ...
        compiler: "nvcc" or "nvrtc", or "" for :func:`find_compiler`'s choice.

    Raises:
        ToolchainError: no compiler, one that does not know the architecture, or it refused the source; the message
            holds its first error line.
    """
    if not arch.startswith("sm_") or not arch[3:].rstrip("af").isdigit():
        raise ToolchainError(f"{arch!r} is no GPU architecture; give one like {', '.join(ARCHITECTURES[:4])}")
    flags = ["-std=c++17", f"-arch={arch}"]
    digest = _digest(*flags, source, *(text for item in sorted(headers.items()) for text in item))
    brought = os.environ.get("MONONN_CUBINS")
    for path in sorted(Path(brought).glob(f"{digest}-*.cubin")) if brought else ():
        if code := read_cached(path):
            return Cubin(code, kernel_usage(code), f"brought along: {path.name}")
    chosen = _find_nvrtc() if compiler == "nvrtc" else find_compiler()
    shown = f"{chosen.name} {' '.join(flags)} -cubin source.cu"
    folder = cache_folder()
    entry = folder / f"{digest}-{_digest(chosen.name, chosen.version)[:16]}.cubin" if folder else None
    if entry and (code := read_cached(entry)):
        return Cubin(code, kernel_usage(code), shown)
    code = (_run_nvcc if chosen.name == "nvcc" else run_nvrtc)(chosen, source, headers, flags)
    if entry:
        write_cached(entry, code)
    return Cubin(code, kernel_usage(code), shown)


def _run_nvcc(compiler: Compiler, source: str, headers: Mapping[str, str], flags: list[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="mononn-") as name:
        work = Path(name)
        for file, text in {**headers, "source.cu": source}.items():
            (work / file).write_text(text, encoding="utf-8")
        command = [compiler.path, *flags, "-I.", "-cubin", "source.cu", "-o", "object.cubin"]
        said, both = subprocess.PIPE, subprocess.STDOUT
        ended = subprocess.run(command, cwd=work, stdin=subprocess.DEVNULL, stdout=said, stderr=both, check=False)
        if ended.returncode:
            raise _refused(compiler, flags, ended.stdout.decode(errors="replace"))
        return (work / "object.cubin").read_bytes()


def run_nvrtc(
    compiler: Compiler, source: str, headers: Mapping[str, str], flags: list[str], what: str = "CUBIN"
) -> bytes:
    """What NVRTC makes of a source ("CUBIN" or "PTX"); errors as those of :func:`compile_cubin`."""
    library = _load(compiler.path)
    names, texts = ([part.encode() for part in parts] for parts in (headers.keys(), headers.values()))
    program, array = ctypes.c_void_p(), ctypes.c_char_p * len(headers)
    status = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"source.cu", len(headers), array(*texts), array(*names)
    )
    if status:
        raise ToolchainError(f"NVRTC {compiler.version} failed ({library.nvrtcGetErrorString(status).decode()})")
    try:
        options = [flag.encode() for flag in flags]
        status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if status:
            log = _fetch(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise _refused(compiler, flags, log or library.nvrtcGetErrorString(status).decode())
        return _fetch(library, program, what)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """The log or the code of a compiled program."""
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, content)
    return content.raw


def _refused(compiler: Compiler, flags: list[str], log: str) -> ToolchainError:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    line = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
    what = f"{compiler.name} {compiler.version}"
    if "arch" in line:
        return ToolchainError(f"{what} does not know {flags[1]} ({line}); choose another architecture, or {NEXT_STEP}")
    return ToolchainError(f"{what} refused the generated source ({line}); report it, or try another in MONONN_NVCC")


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()
