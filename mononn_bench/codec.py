"""Frozen dataclasses to JSON and back, checked against their type hints, written atomically.

Supported field types: str, int, float, bool, Literal, Any, X | None, tuple[X, ...], Mapping[str, X] and dataclasses
of these.
"""

from __future__ import annotations

import json
import math
import os
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mononn_bench.errors import RecordError

T = TypeVar("T")
_NUMBERS = re.compile(r"\[\s+((?:-?\d[\d.e+-]*,?\s+)+)\]")
"""A list of numbers, which a record keeps on one line."""


def to_plain(value: Any) -> Any:
    """Dataclasses as dictionaries, tuples as lists; a float that is not finite becomes None (JSON has no NaN)."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def from_plain(kind: type[T], plain: Any, where: str = "record") -> T:
    """The dataclass `kind` from plain JSON values. RecordError names the field that is missing, unknown or
    ill-typed.
    """
    if not isinstance(plain, dict):
        raise RecordError(f"{where} must be an object, not {type(plain).__name__}: make the record again.")
    hints = _hints(kind)  # type: ignore[arg-type]
    unknown = sorted(set(plain) - set(hints))
    if unknown:
        raise RecordError(
            f"{where} has an unknown field {unknown[0]!r}: it was written by another version, make it again."
        )
    values = {}
    for f in fields(kind):  # type: ignore[arg-type]
        if f.name in plain:
            values[f.name] = _read(hints[f.name], plain[f.name], f"{where}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise RecordError(f"{where} lacks the field {f.name!r}: make the record again.")
    return kind(**values)


def _read(hint: Any, plain: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return plain
    if origin in (Union, types.UnionType):
        if plain is None and type(None) in arguments:
            return None
        return _read(next(a for a in arguments if a is not type(None)), plain, where)
    if origin is Literal:
        return _expect(plain in arguments, plain, where, f"one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        _expect(isinstance(plain, list), plain, where, "a list")
        return tuple(_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(plain))
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(plain, dict), plain, where, "an object")
        return {k: _read(arguments[1], v, f"{where}.{k}") for k, v in plain.items()}
    if is_dataclass(hint):
        return from_plain(hint, plain, where)  # type: ignore[arg-type]
    if hint is float:
        return float(_expect(isinstance(plain, int | float) and not isinstance(plain, bool), plain, where, "a number"))
    fits = isinstance(plain, hint) and not (hint is int and isinstance(plain, bool))
    return _expect(fits, plain, where, hint.__name__)


def _expect(fits: bool, plain: Any, where: str, wanted: str) -> Any:
    if not fits:
        raise RecordError(f"{where} must be {wanted}, not {str(plain)[:40]!r}: make the record again.")
    return plain


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name in the same folder, flush to disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_record(value: Any, path: Path) -> None:
    """Write a dataclass as JSON, atomically; equal values give equal bytes."""
    text = json.dumps(to_plain(value), indent=1, allow_nan=False)
    write_text(path, _NUMBERS.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text) + "\n")


def read_record(kind: type[T], path: Path) -> T:
    """Read and check a dataclass written by `write_record`. Raises RecordError, naming the file and the field."""
    try:
        plain = json.loads(path.read_text())
    except OSError as error:
        raise RecordError(f"The record {path} cannot be read ({error.strerror}): make it again.") from error
    except ValueError as error:
        raise RecordError(f"The record {path} is not JSON ({error}): make it again.") from error
    wanted = getattr(kind, "schema_version", None)
    found = plain.get("schema_version") if isinstance(plain, dict) else None
    if wanted is not None and found != wanted:
        raise RecordError(f"The record {path} has schema version {found}, this program reads {wanted}: make it again.")
    try:
        return from_plain(kind, plain)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
