"""A Python wheel of one network (PyPA, Binary distribution format): its library, and a module that calls it."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import zipfile
from pathlib import Path

from mononn_core.errors import OptionError
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.toolchain import GLIBC, find_compiler

VERSION = "1.0.0"
MODULE = Path(__file__).parent / "network.py"
"""The package's module, with NAME for the network's."""


def wheel(name: str, artifact: Artifact, library: bytes, folder: Path) -> tuple[Path, bytes]:
    """The wheel's path in ``folder`` and its bytes: the same for the same network and library.

    Raises:
        OptionError: a package of that name would hide Python's own or NumPy.
    """
    if name in sys.stdlib_module_names or name in ("numpy", "mononn", "mononn_core"):
        raise OptionError(f"a package {name!r} would hide another; choose another name")
    arch = str(artifact.manifest["machine"]["arch"]).replace("generic", "x86_64")
    linux = f"manylinux_{GLIBC.replace('.', '_')}" if find_compiler().is_zig else "linux"
    tag = f"py3-none-{linux}_{arch}"
    info = f"{name}-{VERSION}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n"
    about += f"Summary: The network {artifact.manifest['name']!r}, compiled by mononn\n"
    about += "Requires-Python: >=3.9\nRequires-Dist: numpy\n"
    files = {
        f"{name}/__init__.py": MODULE.read_text(encoding="utf-8").replace("NAME", name).encode(),
        f"{name}/lib{name}.so": library,
        f"{info}/METADATA": about.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: mononn\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return folder / f"{name}-{VERSION}-{tag}.whl", stream.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
