"""One measurement a machine at a time, whoever starts it, and no build beside it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = Path("/tmp/mononn-bench.lock")
"""One place for all processes of the machine, whatever their TMPDIR."""


@contextmanager
def exclusive_machine(say: Callable[[str], None], path: Path = LOCK, *, shared: bool = False) -> Iterator[None]:
    """Hold the machine's lock, alone or with others that are `shared`; waits while somebody holds it otherwise. The
    kernel lets go when the process dies.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = _opened(path)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another measurement or build holds this machine; waiting for it to end")
            fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """The lock's file, which may be another user's: in a shared folder the kernel refuses to open that for creation."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
