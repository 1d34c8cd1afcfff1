"""One measurement a machine at a time, whoever starts it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = Path(tempfile.gettempdir()) / "mononn-bench.lock"


@contextmanager
def exclusive_machine(say: Callable[[str], None], path: Path = LOCK) -> Iterator[None]:
    """Hold the machine's lock; waits while another measurement holds it. The kernel lets go when the process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another measurement holds this machine; waiting for it to end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
