"""One C++ file with everything: the vocabulary, the generated functions, the host runner, the C interface."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from mononn_core.emit.header import header, quoted, tables
from mononn_core.program import abi
from mononn_core.runtime.artifact import Artifact, Buffer, largest
from mononn_core.runtime.toolchain import HOST
from mononn_core.vocabulary import FOLDER

MAGIC = int.from_bytes(b"mononnw1", "little")
FILE_HEADER = 64
"""Bytes of a weights file before the weights; host/library.hpp."""
REGISTERS = {"avx": 0x6, "avx512f": 0xE6, "amx-tile": 0x600E6}
"""Feature -> what the system must save for it, and for those before it: bits of XCR0 (Intel SDM, volume 1, chapter
13)."""
EAX, EBX, ECX, EDX = range(4)
CPUID: dict[str, tuple[int, int, int, int]] = {
    # feature -> leaf, subleaf, register and bit of CPUID (Intel SDM, volume 2; AMD APM, volume 3)
    "sse3": (1, 0, ECX, 0),
    "ssse3": (1, 0, ECX, 9),
    "fma": (1, 0, ECX, 12),
    "cx16": (1, 0, ECX, 13),
    "sse4.1": (1, 0, ECX, 19),
    "sse4.2": (1, 0, ECX, 20),
    "movbe": (1, 0, ECX, 22),
    "popcnt": (1, 0, ECX, 23),
    "avx": (1, 0, ECX, 28),
    "f16c": (1, 0, ECX, 29),
    "bmi": (7, 0, EBX, 3),
    "avx2": (7, 0, EBX, 5),
    "bmi2": (7, 0, EBX, 8),
    "avx512f": (7, 0, EBX, 16),
    "avx512dq": (7, 0, EBX, 17),
    "avx512cd": (7, 0, EBX, 28),
    "avx512bw": (7, 0, EBX, 30),
    "avx512vl": (7, 0, EBX, 31),
    "avx512vbmi": (7, 0, ECX, 1),
    "avx512vnni": (7, 0, ECX, 11),
    "amx-bf16": (7, 0, EDX, 22),
    "amx-tile": (7, 0, EDX, 24),
    "amx-int8": (7, 0, EDX, 25),
    "avxvnni": (7, 1, EAX, 4),
    "avx512bf16": (7, 1, EAX, 5),
    "lzcnt": (0x80000001, 0, ECX, 5),
}
INCLUDE = re.compile(r'#include "(mononn[\w.]*)"[^\n]*\n')


def source(name: str, artifact: Artifact, inside: bool, flags: str) -> str:
    """The C++ text of a network whose C functions begin with ``name``.

    Args:
        inside: whether the weights come from a file NAME.bin beside the text when it is compiled; else from a file that
            ``NAME_create`` is told.
        flags: of the compiler, for people who compile it.
    """
    pieces = list(_functions(artifact))
    heads = sorted({head for piece in pieces for head in INCLUDE.findall(piece)})
    seen = set[str]()
    return "\n".join(
        [
            f"// {name}: a network compiled by mononn, as one C++ file; {name}.h is its interface.",
            f"// Compile as: c++ {flags} -c {name}.cpp",
            *_constants(name, artifact, inside),
            header(name, artifact, inside),
            *(_inlined(head, seen) for head in ("mononn.h", *heads)),
            *(f"namespace shape_{i} {{\n{INCLUDE.sub('', piece)}\n}}" for i, piece in enumerate(pieces)),
            _inlined("host.c", seen),
            *_functions_table(artifact),
            tables(name, artifact),
            _inlined("library.hpp", seen),
        ]
    )


def weights_file(weights: Buffer) -> list[Buffer]:
    """The pieces of NAME.weights."""
    about = np.array([MAGIC, len(weights), *checksum(weights)], np.uint64).tobytes()
    return [about.ljust(FILE_HEADER, b"\0"), weights]


def checksum(data: Buffer) -> tuple[int, int]:
    """The two sums of host/library.hpp: of the 64-bit words w[i], and of (i + 1) w[i], modulo 2^64."""
    whole = len(data) // 8 * 8
    tail = np.frombuffer(bytes(data[whole:]).ljust(8, b"\0") if whole < len(data) else b"", np.uint64)
    plain, weighted = np.uint64(0), np.uint64(0)
    words, step = np.frombuffer(data[:whole], np.uint64), 1 << 20
    with np.errstate(over="ignore"):
        for start in range(0, len(words), step):
            part = words[start : start + step]
            plain += part.sum(dtype=np.uint64)
            weighted += (part * np.arange(start + 1, start + 1 + len(part), dtype=np.uint64)).sum(dtype=np.uint64)
        if len(tail):
            plain, weighted = plain + tail[0], weighted + tail[0] * np.uint64(len(words) + 1)
    return int(plain), int(weighted)


def _constants(name: str, artifact: Artifact, inside: bool) -> Iterator[str]:
    manifest, shapes = artifact.manifest, artifact.specialisations
    features = sorted(set(manifest["machine"]["features"]) & set(CPUID))
    registers = max((bits for feature, bits in REGISTERS.items() if feature in features), default=0)
    yield "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif"
    values = {
        "MONONN_NAME": name,
        "mn": f"{name}_mn",  # apart from another network's, compiled for another processor
        "MONONN_API": '__attribute__((visibility("default")))',
        "MONONN_HOST_API": "static __attribute__((unused))",
        "MONONN_VECTOR_BYTES": manifest["machine"]["vector_bytes"],
        "MONONN_STREAMS": int(manifest["machine"].get("streams", False)),  # older files do not say
        "MONONN_THREADS": manifest["threads"],
        "MONONN_ARENA_BYTES": largest(shapes, "arena_bytes"),
        "MONONN_SCRATCH_BYTES": largest(shapes, "scratch_bytes"),
        "MONONN_WEIGHT_BYTES": f"{len(artifact.weights)}ull",
        "MONONN_WEIGHTS_INSIDE": int(inside),
        "MONONN_WEIGHTS": f"{name}_weight_bytes_" if inside else "nullptr",
        "MONONN_REGISTERS": f"{registers}u",
    }
    if not inside:
        plain, weighted = checksum(artifact.weights)
        values["MONONN_WEIGHTS_MAGIC"] = f"{MAGIC}ull"
        values["MONONN_CHECKSUM"], values["MONONN_WEIGHTED_CHECKSUM"] = f"{plain}ull", f"{weighted}ull"
    required = (
        f"{{{{{', '.join(f'{part}u' for part in CPUID[f])}}}, "
        f"{quoted(f'this processor lacks {f}, which the library was compiled for; compile the model here')}}}"
        for f in features
    )
    values["MONONN_REQUIRED"] = " ".join(f"{row}," for row in required)
    yield from (f"#define {key} {value}" for key, value in values.items())
    if inside:
        yield f"""\
#include <stdint.h>
extern "C" __attribute__((visibility("hidden"))) const unsigned char {name}_weight_bytes_[];
asm(".pushsection .rodata.{name}_weights,\\"a\\",@progbits\\n"
    ".balign 4096\\n.globl {name}_weight_bytes_\\n.hidden {name}_weight_bytes_\\n{name}_weight_bytes_:\\n"
    ".incbin \\"{name}.bin\\"\\n.byte 0\\n.popsection\\n");"""


def _functions(artifact: Artifact) -> Iterator[str]:
    """The generated source of every shape, its entry known in this file alone."""
    exported = f'extern "C" __attribute__((visibility("default"))) int {abi.ENTRY}('
    for index in range(len(artifact.specialisations)):
        text = artifact.texts[f"source:{index}" if index else "source"]
        assert text.count(exported) == 1
        clang = "#if defined(__clang__)\n#pragma clang fp contract(fast)\n#endif\n"
        yield clang + text.replace(exported, f"static int {abi.ENTRY}(")


def _functions_table(artifact: Artifact) -> Iterator[str]:
    yield "static const mononn_function functions_[] = {"
    for index, manifest in enumerate(artifact.specialisations):
        text = artifact.texts[f"source:{index}" if index else "source"]
        steps = f"shape_{index}::{abi.STEPS}" if f"const uint32_t {abi.STEPS}[]" in text else "nullptr"
        yield f"  {{shape_{index}::{abi.ENTRY}, {steps}, {manifest['counters']}u}},"
    yield "};"


def _inlined(head: str, seen: set[str]) -> str:
    """A file of the vocabulary or of the host with those that it includes, each once."""
    if head in seen:
        return ""
    seen.add(head)
    folder = FOLDER if (FOLDER / head).exists() else HOST
    text = abi.header() if head == "mononn.h" else (folder / head).read_text(encoding="utf-8")
    return INCLUDE.sub(lambda found: _inlined(found[1], seen), text.replace("#pragma once\n", ""))
