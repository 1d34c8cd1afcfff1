"""From an address in a kernel's object to the source lines it came from, where ``addr2line`` is installed."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path


class Lines:
    """Callable: offset in the object to "file:line" words, innermost inlined call first, or "" where not known."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        self._look_up = functools.cache(self._ask)

    def __call__(self, offset: int) -> str:
        return self._look_up(offset)

    def _ask(self, offset: int) -> str:
        program = shutil.which("addr2line") or shutil.which("llvm-addr2line")
        if not program:
            return f"+{offset:#x}"
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(self._code)
            file.flush()
            # a return address stands behind the call
            command = [program, "-i", "-e", file.name, hex(offset - 1)]
            said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        frames = [
            f"{Path(line.rsplit(':', 1)[0]).name}:{line.rsplit(':', 1)[1].split()[0]}"
            for line in said.split("\n")
            if ":" in line
        ]
        known = [frame for frame in frames if not frame.startswith(("?", "mononn_ptx.cuh"))]
        return " in ".join(dict.fromkeys(known[:4]))
