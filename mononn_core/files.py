"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write and read under a temporary name beside ``path``, which is renamed at the end, so that no reader
    sees half of it."""
    path = path.resolve()  # what a link points to is replaced, not the link
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w+b") as stream:
            yield stream
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """Writes a whole file, see :func:`replacing`."""
    with replacing(path) as stream:
        for piece in pieces:
            stream.write(piece)
