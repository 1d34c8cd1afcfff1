"""The binary interface between generated code, the host runner and Python: every constant and struct, once.

:func:`header` prints the C header from the tables below; the ctypes classes come from the same tables. An artifact
exports one function, ``int mononn_run(const mononn_call *call, int worker)``: every worker of an inference enters it
once and leaves it once; when worker 0 leaves, all work is done, though another may still be on its way through. It
returns 0, or the error code it found in ``call->error`` (already set by any worker).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

ABI_VERSION = 4
ENTRY = "mononn_run"
STEPS = "mononn_steps"
"""Exported by code that the host launches phase by phase (``step`` of the call): how many executed phases there are,
then for each whether more than one worker has tasks in it."""
CACHE_LINE = 128
"""Bytes between two workers' flags: two lines, because of adjacent-line prefetch."""
TRACE_POINTS = ("begin", "wait_end", "end")
"""Time stamps of one worker in one executed phase: before its barrier or counter wait, after it, after its tasks."""
GPU_STAMP = ("nanoseconds", "cycles", "multiprocessor")
"""Words of a stamp on a GPU: a coarse clock that all blocks share, the fine one of a multiprocessor, which that is."""
ERROR_NONE, ERROR_INDEX, ERROR_ABI, ERROR_TILES = 0, 1, 2, 3
ERROR_TEXT = {
    ERROR_INDEX: "an index taken from the inputs is out of range",
    ERROR_ABI: "the call was made with another ABI version",
    ERROR_TILES: "the system lets this process use no tile registers (AMX)",
}

# (C declaration, name, ctypes type, comment)
FIELDS: tuple[tuple[str, str, type, str], ...] = (
    ("uint32_t", "abi_version", ctypes.c_uint32, "MONONN_ABI_VERSION of the caller"),
    ("uint32_t", "workers", ctypes.c_uint32, "how many workers enter this call"),
    ("uint64_t", "epoch", ctypes.c_uint64, "number of this run on this sync block, from 1; written last"),
    (
        "unsigned char *",
        "sync",
        ctypes.c_void_p,
        "two elements a worker, MONONN_CACHE_LINE bytes apart, zeroed at first",
    ),
    ("uint64_t *", "counters", ctypes.c_void_p, "one element MONONN_CACHE_LINE bytes apart, zeroed at first"),
    ("unsigned char *", "arena", ctypes.c_void_p, "activations, 64-byte aligned"),
    ("unsigned char *", "scratch", ctypes.c_void_p, "worker-local memory, one slice a worker"),
    ("const unsigned char *", "weights", ctypes.c_void_p, "packed constants, 64-byte aligned, read only"),
    ("const void *const *", "inputs", ctypes.c_void_p, "in manifest order, C-contiguous"),
    ("void *const *", "outputs", ctypes.c_void_p, "in manifest order, C-contiguous"),
    ("uint64_t *", "trace", ctypes.c_void_p, "[workers][executed phases][3] nanoseconds, or null"),
    ("uint64_t *", "error", ctypes.c_void_p, "0, or code | phase << 8 | value << 32 of the first error"),
    ("uint64_t", "step", ctypes.c_uint64, "the executed phase to run alone, from 1, in code with mononn_steps"),
)


class Call(ctypes.Structure):
    """``mononn_call``."""

    _fields_ = [(name, kind) for _, name, kind, _ in FIELDS]


def decode_error(word: int) -> tuple[int, int, int]:
    """(code, executed phase's ordinal, offending value as signed 32 bit) of an error word."""
    value = word >> 32
    return word & 0xFF, (word >> 8) & 0xFFFFFF, value - (1 << 32) if value >> 31 else value


def header() -> str:
    """Text of ``mononn.h``."""
    constants = {
        "MONONN_ABI_VERSION": ABI_VERSION,
        "MONONN_CACHE_LINE": CACHE_LINE,
        "MONONN_ERROR_INDEX": ERROR_INDEX,
        "MONONN_ERROR_ABI": ERROR_ABI,
        "MONONN_ERROR_TILES": ERROR_TILES,
    }
    fields = [f"  {kind}{'' if kind.endswith('*') else ' '}{name}; /* {note} */" for kind, name, _, note in FIELDS]
    return "\n".join(
        [
            "/* Generated from mononn_core/program/abi.py: the interface of a compiled network. */",
            "#ifndef MONONN_H",
            "#define MONONN_H",
            "#include <stdint.h>",
            *(f"#define {name} {value}" for name, value in constants.items()),
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "typedef struct mononn_call {",
            *fields,
            "} mononn_call;",
            f"int {ENTRY}(const mononn_call *call, int worker);",
            f'extern __attribute__((visibility("default"))) const uint32_t {STEPS}[];',
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "#endif",
            "",
        ]
    )


# A CUDA kernel's only parameter, by value: (C declaration, name), every field 8 bytes; the callers' arrays follow.
GPU_FIELDS: tuple[tuple[str, str], ...] = (
    ("unsigned char *", "arena"),
    ("const unsigned char *", "weights"),
    ("uint32_t *", "sync"),
    ("uint64_t *", "trace"),
    ("uint64_t *", "error"),
)
GPU_ALIGN = 16
"""Bytes that every array handed to a kernel is aligned to."""


def gpu_sync_bytes(counters: int) -> int:
    """Bytes of the sync block: barrier word, blocks that have left, counters; zeroed once, when it is allocated."""
    return CACHE_LINE * (2 + counters)


def gpu_header(inputs: int, outputs: int) -> str:
    """The kernels' parameter ``mononn_gpu_call`` for a network of so many inputs and outputs, as C++ text. ``trace`` is
    [blocks][executed phases][3][3], a stamp being ``GPU_STAMP``, or null; ``error`` is as in :func:`decode_error`."""
    arrays = (("const void *", "inputs", inputs), ("void *", "outputs", outputs))
    return "\n".join(
        [
            f"#define MONONN_ERROR_INDEX {ERROR_INDEX}",
            '#include "mononn_ptx.cuh"',
            "struct mononn_gpu_call {",
            *(f"  {kind}{name};" for kind, name in GPU_FIELDS),
            *(f"  {kind}{name}[{count}];" for kind, name, count in arrays if count),
            "};",
            "",
        ]
    )


def pack_gpu_call(
    arena: int, weights: int, sync: int, trace: int, error: int, inputs: Sequence[int], outputs: Sequence[int]
) -> bytes:
    """The bytes of ``mononn_gpu_call``: device addresses, each a multiple of ``GPU_ALIGN``; ``trace`` may be 0."""
    words = (arena, weights, sync, trace, error, *inputs, *outputs)
    return struct.pack(f"<{len(words)}Q", *words)
