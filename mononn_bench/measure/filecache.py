"""Whether the kernel's page cache holds files: read into it, or dropped from it, before a load is timed."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

PAGE = mmap.PAGESIZE
COLD_SHARE, WARM_SHARE = 0.02, 0.98
"""Of the bytes: at most so much may be left in a cold cache, at least so much must be in a warm one."""
CacheState = Literal["warm", "cold", "neither"]


def files_below(folders: Iterable[Path]) -> list[Path]:
    """Every file with content below the folders, sorted."""
    found = {path for folder in folders for path in folder.rglob("*") if path.is_file() and path.stat().st_size}
    return sorted(found)


def resident_share(files: Sequence[Path]) -> float:
    """The share of the files' pages that memory holds (mincore); 1 of nothing."""
    held = total = 0
    for path in files:
        pages = -(-path.stat().st_size // PAGE)
        held += _resident_pages(path, pages)
        total += pages
    return held / total if total else 1.0


def drop_files(files: Sequence[Path]) -> CacheState:
    """Ask the kernel to forget the files (posix_fadvise, which needs no rights); what came of it.

    Pages that another process maps, and some file systems, stay: then the answer is `neither`.
    """
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return "cold" if resident_share(files) <= COLD_SHARE else "neither"


def read_files(files: Sequence[Path]) -> CacheState:
    """Read what of the files memory does not hold; what came of it."""
    for path in files:
        if resident_share([path]) < 1:
            with path.open("rb") as stream:
                while stream.read(1 << 24):
                    pass
    return "warm" if resident_share(files) >= WARM_SHARE else "neither"


def _resident_pages(path: Path, pages: int) -> int:
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        states = (ctypes.c_ubyte * pages)()
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), states
        )
        del first
    return 0 if failed else sum(state & 1 for state in bytes(states))
