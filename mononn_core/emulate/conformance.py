"""The conformance kernel: every primitive of mononn_ptx.cuh once, on the emulator and on hardware, results compared.

The kernel (conformance.cuh) compiles with nvcc or NVRTC for sm_80 and later as well as for the emulator. Its outputs
on a GPU are kept as an ``.npz`` file of the sections below (:func:`split` of the output buffer); :func:`compare` says
which primitives they confirm. Without such a file every primitive is :data:`UNCONFIRMED`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mononn_core.emulate.launch import build
from mononn_core.emulate.report import Watch

KERNEL, BLOCKS, THREADS, SHARED_BYTES = "mononn_conformance", 2, 128, 2048
WORDS, SYNC_WORDS = 4096, 64
UNCONFIRMED, CONFIRMED = "unconfirmed on hardware", "confirmed on hardware"


@dataclass(frozen=True)
class Section:
    """A part of the output: its name, its 32-bit words, the primitives it shows, how closely hardware must agree.

    Attributes:
        name: of the section.
        words: its length.
        primitives: names in mononn_ptx.cuh.
        rounding: 0 for equal bits; else the words are float32, and may differ by this much of the largest (sums whose
            order the ISA leaves open).
        infinity: bits of infinity in the words (32 bits) or their halves (16 bits): any NaN stands for any other.
    """

    name: str
    words: int
    primitives: tuple[str, ...]
    rounding: float = 0.0
    infinity: int = 0


SECTIONS = (
    Section("rows", 64, ("thread", "block")),
    Section("grid", 128, ("atomic_add", "load_acquire", "store_release", "fence_gpu", "global_time", "cycles",
                          "multiprocessor", "pause", "blocks", "prefetch_l2")),
    Section("f16 to float", 65536, ("to_float",), infinity=0x7F800000),
    Section("float to f16", WORDS, ("from_float",), infinity=0x7C00),
    Section("float to bf16", WORDS, ("from_float",), infinity=0x7F80),
    Section("float to tf32", WORDS, ("to_tf32",), infinity=0x7F800000),
    Section("bf16 to float", WORDS, ("to_float", "bits_float", "float_bits"), infinity=0x7F800000),
    Section("pack f16", WORDS, ("pack2",), infinity=0x7C00),
    Section("pack bf16", WORDS, ("pack2",), infinity=0x7F80),
    Section("near", 3072, ("reciprocal_near", "rsqrt_near", "exp2_near"), 2.0**-21),
    Section("barriers", 512, ("sync_warp", "sync_some", "sync_block", "shared_address", "shared_memory")),
    Section("shuffles", 256, ("shuffle_xor", "shuffle")),
    Section("ldmatrix", 384, ("ldmatrix_x4", "ldmatrix_x4_trans", "ldmatrix_x2", "ldmatrix_x2_trans")),
    Section("mma f16", 128, ("mma_16",)),
    Section("mma f16 rounded", 128, ("mma_16",), 2.0**-18),
    Section("mma bf16", 128, ("mma_16",)),
    Section("mma bf16 rounded", 128, ("mma_16",), 2.0**-18),
    Section("mma tf32", 128, ("mma_tf32",)),
    Section("mma tf32 rounded", 128, ("mma_tf32",), 2.0**-18),
    Section("copies", 480, ("cp_async_16", "cp_async_16_some", "cp_async_4", "cp_async_commit", "cp_async_wait")),
    Section("stores", 132, ("store_16", "atomic_add_relaxed")),
    Section("stages", 512, ("stage_open", "stage_copy", "stage_wait", "stage_fence")),
    Section("once", 2, ("set_once",)),
)  # fmt: skip
"""In the order of the output buffer; ``once`` is a buffer of its own and stands last."""
OUT_WORDS = sum(section.words for section in SECTIONS[:-1])


def source() -> str:
    """The kernel's CUDA C++; it includes "mononn_ptx.cuh" alone."""
    return (Path(__file__).parent / "conformance.cuh").read_text(encoding="utf-8")


def inputs() -> np.ndarray:
    """``in``: uint32 [4096], bits of float32: corner cases of the conversions, then numbers of every size."""
    random = np.random.default_rng(20240917)
    bits = random.integers(0, 1 << 32, WORDS, dtype=np.uint32)
    bits[:1024] = (
        (random.standard_normal(1024) * 2.0 ** random.integers(-24, 18, 1024)).astype(np.float32).view(np.uint32)
    )
    bits[1024:2048] = random.standard_normal(1024).astype(np.float32).view(np.uint32)
    halves = np.arange(0, 1 << 16, 61, dtype=np.uint16)[:1024].view(np.float16).astype(np.float32)
    between = halves.view(np.uint32) + random.integers(0, 2, 1024, dtype=np.uint32) * 0x1000  # ties of f16
    bits[2048:3072] = np.where(np.isfinite(halves), between, bits[2048:3072])
    ties = random.integers(0x3E00, 0x4200, 512, dtype=np.uint32) << 16 | 0x8000  # of bf16
    bits[3072:3584], bits[3584:3600] = ties, np.array(
        [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F7FFFFF, 0x00800000, 1, 0x807FFFFF,
         0x477FE000, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0x387FC000], np.uint32)  # fmt: skip
    return bits


def split(out: np.ndarray, once: np.ndarray) -> dict[str, np.ndarray]:
    """Sections by name, of the output buffer (uint32 [OUT_WORDS]) and the word that was set once (uint64 [1])."""
    cuts = np.cumsum([section.words for section in SECTIONS[:-1]])[:-1]
    parts = np.split(np.ascontiguousarray(out), cuts)
    return {s.name: p for s, p in zip(SECTIONS, [*parts, once.view(np.uint32)], strict=True)}


def emulated(schedule: str = "random:0") -> dict[str, np.ndarray]:
    """The emulator's sections.

    Raises:
        EmulationError: the emulator finds fault with the kernel.
        ToolchainError: there is no host compiler.
    """
    out, sync = np.zeros(OUT_WORDS + 32, np.uint32), np.zeros(SYNC_WORDS, np.uint32)
    fed, once = np.zeros(WORDS + 4, np.uint32), np.zeros(1, np.uint64)
    fed = fed[-fed.ctypes.data % 16 // 4 :][:WORDS]
    fed[:] = inputs()
    watched: list[tuple[str, np.ndarray, bool]] = [("out", out, False), ("in", fed, True)]
    watched += [("sync", sync, False), ("once", once, False)]
    words = struct.pack("<4Q", *(array.ctypes.data for _, array, _ in watched))
    build(source()).launch(
        KERNEL, words, BLOCKS, THREADS, SHARED_BYTES, schedule=schedule,
        watch=[Watch(array.ctypes.data, array.nbytes, name, read_only=fixed) for name, array, fixed in watched],
    )  # fmt: skip
    return split(out[:OUT_WORDS], once)


def save(path: Path, sections: Mapping[str, np.ndarray]) -> None:
    """Writes hardware's sections as ``.npz``."""
    temporary = path.with_suffix(".tmp.npz")
    arrays: dict[str, Any] = {name: np.asarray(words) for name, words in sections.items()}
    np.savez_compressed(temporary, **arrays)
    temporary.replace(path)


def compare(ours: Mapping[str, np.ndarray], hardware: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Each primitive's standing: :data:`CONFIRMED`, :data:`UNCONFIRMED`, or where hardware gives something else.

    Args:
        ours: sections of :func:`emulated`.
        hardware: sections of a GPU, perhaps not all.
    """
    standing = {primitive: UNCONFIRMED for section in SECTIONS for primitive in section.primitives}
    for section in SECTIONS:
        if section.name not in hardware:
            continue
        wrong = _differing(section, ours[section.name], np.asarray(hardware[section.name]))
        for primitive in section.primitives:
            if wrong:
                standing[primitive] = f"differs from hardware in {section.name!r}: {wrong}"
            elif standing[primitive] == UNCONFIRMED:
                standing[primitive] = CONFIRMED
    return standing


def table(hardware: Path | None = None) -> dict[str, str]:
    """:func:`compare` of the emulator with a saved file; all unconfirmed where there is none."""
    if hardware is None or not hardware.exists():
        return compare({}, {})
    with np.load(hardware, allow_pickle=False) as sections:
        return compare(emulated(), dict(sections))


def _without_nan(section: Section, words: np.ndarray) -> np.ndarray:
    """Words in which every NaN is one and the same."""
    if not section.infinity:
        return words
    parts = words.view(np.uint16) if section.infinity < 1 << 16 else words
    magnitude = np.iinfo(parts.dtype).max >> 1
    return np.where((parts & magnitude) > section.infinity, magnitude, parts).astype(parts.dtype).view(words.dtype)


def _differing(section: Section, ours: np.ndarray, theirs: np.ndarray) -> str:
    if theirs.shape != ours.shape:
        return f"{theirs.size} words instead of {ours.size}"
    if section.rounding:
        a, b = (words.view(np.float32).astype(np.float64) for words in (ours, theirs))
        bad = ~(np.abs(a - b) <= section.rounding * np.abs(a).max())
    else:
        bad = _without_nan(section, ours) != _without_nan(section, theirs)
    if not bad.any():
        return ""
    first = int(np.argmax(bad))
    return f"{int(bad.sum())} words, first word {first}: {int(ours[first]):#x} here, {int(theirs[first]):#x} there"
