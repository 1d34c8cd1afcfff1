"""What the kernels of a cubin use, read out of its ELF file: the same for every compiler, and without its tools.

Registers and stack stand in ``.nv.info`` (attributes EIATTR_REGCOUNT, EIATTR_FRAME_SIZE), static shared memory is the
size of ``.nv.shared.NAME``, and spills are counted in ``.text.NAME``: since Volta instructions have 16 bytes and their
opcode in the lowest 12 bits (as ``nvdisasm -hex`` shows them).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mononn_core.errors import ArtifactError

REGISTERS, FRAME = 0x2F, 0x11
LDL, STL = 0x983, 0x387
"""Opcodes of a load from local memory and of a store to it."""
INSTRUCTION = 16
RESERVED = 1024
"""Shared memory that the driver keeps of each block, which compilers for sm_90 and later add to the section."""


@dataclass(frozen=True)
class Usage:
    """One kernel's needs: 32-bit registers a thread, bytes of static shared memory a block, bytes of stack a thread,
    and accesses to local memory in its code (spilled registers, if the stack is not used otherwise)."""

    registers: int
    shared_static: int
    stack: int
    spills: int


@dataclass(frozen=True)
class Section:
    """A part of the file: ``size`` bytes in memory; ``info`` as the ELF format has it."""

    name: str
    content: bytes
    size: int
    info: int


def sections_of(code: bytes) -> list[Section]:
    """The parts of an ELF file; raises ArtifactError for bytes that are none."""
    if code[:5] != b"\x7fELF\x02":
        raise ArtifactError("this is no cubin (not a 64-bit ELF file); compile the model again")
    try:
        (at,) = struct.unpack_from("<Q", code, 0x28)
        width, count, names = struct.unpack_from("<HHH", code, 0x3A)
        raw = [struct.unpack_from("<IIQQQQIIQQ", code, at + i * width) for i in range(count)]
        start = raw[names][4]
        return [
            Section(
                code[start + s[0] : code.index(b"\0", start + s[0])].decode(),
                b"" if s[1] == 8 else code[s[4] : s[4] + s[5]],  # SHT_NOBITS
                s[5],
                s[7],
            )
            for s in raw
        ]
    except (struct.error, IndexError, ValueError) as error:
        raise ArtifactError("the cubin is truncated; compile the model again") from error


def kernel_usage(code: bytes) -> dict[str, Usage]:
    """Kernel name -> what it uses; raises ArtifactError for bytes that are no cubin."""
    sections = sections_of(code)
    symbols = next((_symbols(s.content, sections) for s in sections if s.name == ".symtab"), [])
    found: dict[int, dict[str, int]] = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, value in _attributes(section.content):
                symbol, number = struct.unpack_from("<II", value)
                found.setdefault(attribute, {})[symbols[symbol]] = number
    shared = {s.name.removeprefix(".nv.shared."): s.size for s in sections if s.name.startswith(".nv.shared.")}
    kernels = {s.name.removeprefix(".text."): s.content for s in sections if s.name.startswith(".text.")}
    return {
        name: Usage(
            found.get(REGISTERS, {}).get(name, 0),
            max(0, shared.get(name, 0) - (RESERVED if shared.get(name, 0) >= RESERVED else 0)),
            found.get(FRAME, {}).get(name, 0),
            sum(opcode in (LDL, STL) for opcode in opcodes(text)),
        )
        for name, text in kernels.items()
    }


def _symbols(table: bytes, sections: list[Section]) -> list[str]:
    names = next(s.content for s in sections if s.name == ".strtab")
    starts = [struct.unpack_from("<I", table, at)[0] for at in range(0, len(table), 24)]
    return [names[start : names.index(b"\0", start)].decode() for start in starts]


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) of those that have a value of their own size."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == 4:
            if size >= 8:
                yield attribute, content[at : at + size]
            at += size


def opcodes(text: bytes) -> list[int]:
    """Of each instruction in a kernel's code."""
    return [struct.unpack_from("<Q", text, at)[0] & 0xFFF for at in range(0, len(text) - 15, INSTRUCTION)]
