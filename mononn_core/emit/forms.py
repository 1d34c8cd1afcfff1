"""Files that programs are built of, from a compiled network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mononn_core.emit.header import check_name, header
from mononn_core.emit.library import source, weights_file
from mononn_core.emit.wheel import wheel
from mononn_core.errors import ArtifactError, OptionError
from mononn_core.files import write_atomically
from mononn_core.machine import Machine, from_flags
from mononn_core.options import FORMS
from mononn_core.runtime.artifact import Artifact, Buffer
from mononn_core.runtime.toolchain import build_library, library_flags

SUFFIXES = {"shared": ".so", "static": ".a", "object": ".o", "source": ".cpp", "wheel": ".whl"}
MOST_INSIDE = 1 << 30
"""Bytes of weights inside a library: what is next to 2 GiB cannot be linked everywhere."""


def emit(artifact: Artifact, form: str, path: str | Path, weights: str = "") -> list[Path]:
    """Writes a compiled network of a CPU for programs: a library or its one C++ file with a C header beside, or a
    Python wheel, that need nothing but libc and threads (the wheel: and NumPy).

    Args:
        form: one of ``FORMS``: a shared library, a static one, an object file, C++ source, a wheel.
        path: of the library; its name without "lib" and suffix begins the names of the C functions, and names the
            wheel's package, whose file gets version and platform added.
        weights: "inside" the library, or "beside" it in a file NAME.weights; "": beside for source, else inside.

    Returns:
        the files written, the library first.

    Raises:
        OptionError: an unknown form, a name that is none in C, weights that the form cannot hold, a folder that is not
            there; nothing is written then.
        ToolchainError: there is no C++ compiler, or it refused the source.
    """
    path = Path(path)
    name, inside = checked(form, artifact.target, path, weights)
    if inside and len(artifact.weights) > MOST_INSIDE:
        raise OptionError(f"{len(artifact.weights) >> 20} MiB of weights do not fit inside a library; put them beside")
    machine = _machine(artifact)
    features = sorted(set(artifact.manifest["machine"]["features"]) - machine.level_features)
    flags = library_flags(machine, features)
    text = source(name, artifact, inside, flags)
    files: dict[Path, list[Buffer]] = {}
    if form == "source":
        files[path] = [text.encode()]
    else:
        built = build_library(
            text, "shared" if form == "wheel" else form, machine=machine, features=features,
            files={f"{name}.bin": artifact.weights} if inside else {},
        )  # fmt: skip
        if form == "wheel":
            path, data = wheel(name, artifact, built, path.parent)
            files[path] = [data]
        else:
            files[path] = [built]
    if form != "wheel":
        files[path.with_name(f"{name}.h")] = [header(name, artifact, inside).encode()]
    if not inside:
        files[path.with_name(f"{name}.weights")] = weights_file(artifact.weights)
    try:
        for file, pieces in files.items():
            write_atomically(file, pieces)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be written ({error.strerror}); choose a writable folder") from error
    return list(files)


def checked(form: str, target: str, path: Path, weights: str) -> tuple[str, bool]:
    """The network's name in such a form, and whether weights go inside. Raises OptionError, see :func:`emit`."""
    if form not in FORMS:
        raise OptionError(f"form {form!r} is unknown; choose one of {', '.join(FORMS)}")
    if target != "cpu":
        raise OptionError(f"libraries are a CPU's, the target is {target}; write a .mono file")
    if path.is_dir():
        raise OptionError(f"{path} is a folder; name the file to write, as {path / 'libnetwork'}{SUFFIXES[form]}")
    if not path.name.endswith(SUFFIXES[form]):
        raise OptionError(f"{path.name!r} is no name of form {form}; end it in {SUFFIXES[form]}")
    if not path.parent.is_dir():
        raise OptionError(f"the folder of {path} does not exist; create it first")
    where = weights or ("beside" if form == "source" else "inside")
    if where not in ("inside", "beside"):
        raise OptionError(f"weights {weights!r} are neither inside nor beside; choose one of these")
    if where == "inside" and form == "source":
        raise OptionError("source has its weights beside; leave them there, or choose another form")
    if where == "beside" and form == "wheel":
        raise OptionError("a wheel has its weights inside; leave them there, or choose another form")
    name = check_name(re.sub("^lib", "", path.name.removesuffix(SUFFIXES[form])))
    return name, where == "inside"


def _machine(artifact: Artifact) -> Machine:
    """What the artifact was compiled for."""
    about: Mapping[str, object] = artifact.manifest["machine"]
    return from_flags(str(about["arch"]), frozenset(artifact.manifest["machine"]["features"]))
