"""Words and columns that several commands read and print."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def tensor_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """One line an input and output."""
    for kind in ("inputs", "outputs"):
        for tensor in manifest[kind]:
            shape = "x".join(map(str, tensor["shape"]))
            yield f"  {kind[:-1]:7} {tensor['name']}  {tensor['dtype']}[{shape}]"


def size(count: float) -> str:
    """Bytes in the unit that suits them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} bytes"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines: the first column to the left, the last as it is, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        middle = (c.rjust(w) for c, w in zip(row[1:-1], widths[1:-1], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *middle, row[-1]]).rstrip()


def assignment(text: str) -> tuple[str, str]:
    """ "NAME=VALUE" as a pair; the name may hold "=" if the value does not."""
    name, equals, value = text.rpartition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def whole(text: str) -> int:
    """A number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """ "NAME=1x128" as (name, extents)."""
    name, value = assignment(text)
    extents = value.split("x")
    if not all(extent.isdecimal() for extent in extents):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=1x128")
    return name, tuple(int(extent) for extent in extents)


def parse_value(text: str) -> tuple[str, float | bool | str]:
    """ "NAME=1" as (name, number), "NAME=FILE.npy" as (name, path)."""
    name, value = assignment(text)
    if value.endswith(".npy"):
        return name, value
    with contextlib.suppress(ValueError):
        return name, int(value)
    try:
        return name, {"true": True, "false": False}[value.lower()] if value.isalpha() else float(value)
    except (KeyError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither NAME=1 nor NAME=FILE.npy") from error
