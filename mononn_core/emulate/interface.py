"""The ctypes side of runtime/interface.h; the constants are read out of that header, so they are written once."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

_HEADER = (Path(__file__).parent / "runtime" / "interface.h").read_text(encoding="utf-8")
_TYPES = {"uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "int32_t": ctypes.c_int32}


def _constants() -> dict[str, int]:
    """Names of every enum, without their prefix, and their values."""
    found = {name: int(value) for name, value in re.findall(r"#define MN_EMU_(\w+) (\d+)", _HEADER)}
    for body in re.findall(r"enum mn_emu_\w+ \{(.*?)\}", _HEADER, re.DOTALL):
        following = 0
        for name, value in re.findall(r"MN_EMU_(\w+)(?: = (\d+))?", re.sub(r"//.*", "", body)):
            following = int(value) if value else following
            found[name] = following
            following += 1
    return found


CONSTANT = _constants()


def _fields(struct: str, **nested: Any) -> list[tuple[str, Any]]:
    """Fields of one struct of the header, in order."""
    matched = re.search(rf"struct {struct} \{{(.*?)\n\}}", _HEADER, re.DOTALL)
    assert matched, struct
    fields: list[tuple[str, Any]] = []
    for statement in re.sub(r"//.*", "", matched[1]).split(";"):
        words = statement.replace("struct ", "").split(None, 1)
        if not words:
            continue
        kind = nested.get(words[0]) or _TYPES[words[0]]
        for name in words[1].split(","):
            matched = re.fullmatch(r"\s*(\w+)(?:\[MN_EMU_(\w+)\])?\s*", name)
            assert matched, name
            fields.append((matched[1], kind * CONSTANT[matched[2]] if matched[2] else kind))
    return fields


class Range(ctypes.Structure):
    """``mn_emu_range``."""

    _fields_ = _fields("mn_emu_range")


class Actor(ctypes.Structure):
    """``mn_emu_actor``."""

    _fields_ = _fields("mn_emu_actor")


class Event(ctypes.Structure):
    """``mn_emu_event``."""

    _fields_ = _fields("mn_emu_event", mn_emu_actor=Actor)


class Bank(ctypes.Structure):
    """``mn_emu_bank``."""

    _fields_ = _fields("mn_emu_bank")


class Result(ctypes.Structure):
    """``mn_emu_result``."""

    _fields_ = _fields("mn_emu_result", mn_emu_event=Event, mn_emu_bank=Bank)


class Request(ctypes.Structure):
    """``mn_emu_request``."""

    _fields_ = _fields("mn_emu_request")
