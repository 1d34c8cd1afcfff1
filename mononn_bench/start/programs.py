"""The program of each system that answers once, as one who ships a network would build it. It is made in the system's
own environment, whose library it links.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.systems.base import Task
from mononn_bench.systems.openvino import HINTS
from mononn_bench.systems.torch_inductor import PACKAGE

SOURCES = Path(__file__).with_name("native")


@dataclass(frozen=True)
class Program:
    """What to start: the program, the model's file or folder and the setting that it takes (native/first_answer.h), and
    in words what it is made of.
    """

    program: str
    model: str
    setting: str
    how: str


def make_programs(system: str, task: Task, folder: Path) -> dict[str, Program]:
    """Build a system's programs for a build into the empty `folder`, by the variant's name, which is empty where there
    is one alone. Raises SystemUnavailableError where there is none, or nothing here compiles it.
    """
    if system not in MAKERS:
        raise SystemUnavailableError(f"there is no native program for {system} here")
    return MAKERS[system](task, folder)


def _mononn(task: Task, folder: Path) -> dict[str, Program]:
    from mononn_bench.start.emitted import emit_static

    library = folder / "libnetwork.a"
    emit_static(task.build_folder / "model.mono", library)
    made = _compiled("mononn.c", folder, [f"-I{folder}", str(library), "-pthread"])
    library.unlink()
    how = "linked statically, weights inside"
    return {kind: Program(str(made), str(made), kind, f"{how}, {kind}") for kind in ("shared", "private")}


def _onnxruntime(task: Task, folder: Path) -> dict[str, Program]:
    import onnxruntime

    found = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not found:
        raise SystemUnavailableError("this build of onnxruntime has no library for C programs")
    link = folder / "libonnxruntime.so.1"
    link.symlink_to(found[0])
    made = _compiled("onnxruntime.c", folder, [str(link), f"-Wl,-rpath,{folder}"])
    return {"": Program(str(made), str(task.build_folder / "model.onnx"), "", "C API, file optimised ahead of time")}


def _openvino(task: Task, folder: Path) -> dict[str, Program]:
    import openvino

    libraries = Path(openvino.__file__).parent / "libs"
    found = sorted(libraries.glob("libopenvino_c.so*"))
    if not found:
        raise SystemUnavailableError("this build of openvino has no library for C programs")
    made = _compiled("openvino.c", folder, [str(found[0]), f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"])
    setting = f"{HINTS[task.precision]},{task.build_folder}"
    return {"": Program(str(made), str(task.onnx), setting, "C API, compiled model in its cache")}


def _torch_inductor(task: Task, folder: Path) -> dict[str, Program]:
    import torch

    home = Path(torch.__file__).parent
    with zipfile.ZipFile(task.build_folder / PACKAGE) as package:
        package.extractall(folder / "package")
    includes = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    libraries = [f"-L{home / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{home / 'lib'}"]
    made = _compiled("torch_inductor.cpp", folder, ["-std=c++20", abi, *includes, "-Wl,--no-as-needed", *libraries])
    return {"": Program(str(made), str(folder / "package"), "", "C++ loader, package unpacked ahead of time")}


MAKERS: dict[str, Callable[[Task, Path], dict[str, Program]]] = {
    "mononn": _mononn,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch-inductor": _torch_inductor,
}


def _compiled(source: str, folder: Path, options: Sequence[str]) -> Path:
    """The program of a source, by the machine's own compiler."""
    compiler = os.environ.get("CXX", "c++") if source.endswith(".cpp") else os.environ.get("CC", "cc")
    made = folder / "program"
    if shutil.which(compiler) is None:
        raise SystemUnavailableError(f"there is no compiler {compiler} here to build the native program with")
    command = [compiler, "-O2", str(SOURCES / source), *options, "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemUnavailableError(f"{source} cannot be built here: {_last(done.stderr.splitlines())}")
    return made


def _last(lines: Iterable[str]) -> str:
    said = [line for line in lines if "error" in line] or list(lines)
    return said[-1][:200] if said else f"{sys.platform}"
