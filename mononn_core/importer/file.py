"""ONNX files without their large constants, which stay where they are: in the mapped file, or in the bytes given.

A model's weights would otherwise be copied three times before they are packed: out of the file, into protobuf's
message, out of it into an array.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LARGE = 1 << 14
"""Bytes of a constant, at least, that stays where it is."""
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Field numbers in ModelProto, GraphProto and TensorProto (onnx.proto)."""
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types (protobuf's encoding guide)."""


def map_file(path: Path) -> memoryview:
    """The bytes of a file, read when they are used: it must not be overwritten as long as they are, which ends the
    process. Raises OSError."""
    with path.open("rb") as stream:
        try:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError):  # a pipe, an empty file
            return memoryview(stream.read())


def without_large(data: memoryview) -> tuple[bytes, dict[int, memoryview]]:
    """A serialised ModelProto without the raw data of its graph's large initializers, and these by the initializer's
    number. What is no such message is given back whole, for protobuf's parser to say so."""
    large = dict[int, memoryview]()
    if len(data) < LARGE:
        return bytes(data), large
    try:
        model = list(_fields(data, 0, len(data)))
        (graph,) = (field for field in model if field.number == GRAPH)
        text = b"".join(_graph(data, graph, large))
    except ValueError:
        return bytes(data), {}
    return b"".join((data[: graph.tag], _head(GRAPH, len(text)), text, data[graph.end :])), large


class _Field(NamedTuple):
    """A field of a message: where its tag begins, and its value."""

    number: int
    tag: int
    start: int
    end: int


def _fields(data: memoryview, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message; raises ValueError where it is none."""
    while start < end:
        key, value = _varint(data, start, end)
        wire, number = key & 7, key >> 3
        if wire == LENGTH:
            length, value = _varint(data, value, end)
            after = value + length
        elif wire == VARINT:
            _, after = _varint(data, value, end)
        elif wire in (FIXED64, FIXED32):
            after = value + (8 if wire == FIXED64 else 4)
        else:
            raise ValueError
        if after > end:
            raise ValueError
        yield _Field(number if wire == LENGTH else 0, start, value, after)
        start = after


def _varint(data: memoryview, start: int, end: int) -> tuple[int, int]:
    """(the number at ``start``, where it ends)."""
    value = 0
    for at in range(start, min(end, start + 10)):
        value |= (data[at] & 127) << 7 * (at - start)
        if data[at] < 128:
            return value, at + 1
    raise ValueError


def _graph(data: memoryview, graph: _Field, large: dict[int, memoryview]) -> Iterator[bytes | memoryview]:
    """The pieces of a GraphProto without what goes to ``large``."""
    number, written = 0, graph.start
    for field in _fields(data, graph.start, graph.end):
        if field.number != INITIALIZER:
            continue
        if field.end - field.start >= LARGE:
            raw = [f for f in _fields(data, field.start, field.end) if f.number == RAW_DATA]
            if len(raw) == 1 and raw[0].end - raw[0].start >= LARGE:
                (found,) = raw
                large[number] = data[found.start : found.end]
                yield data[written : field.tag]
                yield _head(INITIALIZER, field.end - field.start - (found.end - found.tag))
                yield data[field.start : found.tag]
                yield data[found.end : field.end]
                written = field.end
        number += 1
    yield data[written : graph.end]


def _head(number: int, length: int) -> bytes:
    """The tag of a field of so many bytes, and that length."""
    found = bytearray((number << 3 | LENGTH,))
    while length > 127:
        found.append(length & 127 | 128)
        length >>= 7
    return bytes((*found, length))
