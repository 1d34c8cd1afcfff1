"""What stands in a cubin's machine code: its instructions, and those of its loops."""

from __future__ import annotations

import struct
from collections import Counter

from mononn_core.runtime.cubin import INSTRUCTION, opcodes, sections_of

OPCODES = {
    0x23C: "HMMA",
    0x83B: "LDSM",
    0xFAE: "LDGSTS",
    0x947: "BRA",
    0x547: "BRA",
    0xB1D: "BAR",
    0x98F: "CCTL",
    0x3BA: "UBLKCP",
    0x9B0: "ARRIVES",
}
"""Opcodes of NVIDIA's machine code that tests count."""


def instructions(text: bytes) -> Counter[str]:
    """How often each of ``OPCODES`` stands in a kernel's code."""
    return Counter(OPCODES[opcode] for opcode in opcodes(text) if opcode in OPCODES)


def kernel_code(cubin: bytes, name: str) -> bytes:
    """The machine code of one kernel."""
    return next(section.content for section in sections_of(cubin) if section.name == f".text.{name}")


def loops(text: bytes, arch: str) -> list[Counter[str]]:
    """Instructions between each backward branch and its target, shortest loop first. The branch's distance stands in
    bits 34 and up, in words; from sm_90 on its lowest 8 bits stand in bits 16 to 23."""
    wide = int(arch[3:].rstrip("af")) >= 90
    found = []
    for at in range(0, len(text) - 15, INSTRUCTION):
        (word,) = struct.unpack_from("<q", text, at)
        if OPCODES.get(word & 0xFFF) == "BRA":
            words = word >> 34
            offset = 4 * (words << 8 | word >> 16 & 0xFF if wide else words)
            if -at - INSTRUCTION <= offset < -INSTRUCTION:
                found.append((-offset, text[at + INSTRUCTION + offset : at + INSTRUCTION]))
    return [instructions(part) for _, part in sorted(found, key=lambda item: item[0])]
