"""Machine: what the compiler knows of the processor it compiles for. Probed on this one, or given by name.

The numbers that time has a say in (peak, bandwidth, barrier) are stated defaults by processor family, never measured
here, so that two compilations on one machine decide alike; :mod:`mononn_core.runtime.ceilings` measures ceilings.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mononn_core.element import BF16, COMPUTE, itemsize
from mononn_core.errors import OptionError

ARCHITECTURES = ("x86_64", "aarch64", "generic")

# Feature sets of the x86-64 psABI's levels, under the compilers' names.
X86_64_V2 = frozenset({"cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"})
X86_64_V3 = X86_64_V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
X86_64_V4 = X86_64_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
X86_LEVELS = (("x86-64-v4", X86_64_V4), ("x86-64-v3", X86_64_V3), ("x86-64-v2", X86_64_V2))
NEON = frozenset({"neon"})

# The kernel's spelling in /proc/cpuinfo where it differs from the compilers'.
KERNEL_NAMES = {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx_vnni": "avxvnni",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "asimd": "neon",
    "asimddp": "dotprod",
}

DEFAULT_CLOCK = 2.5e9
DEFAULT_L2_BANDWIDTH, DEFAULT_L3_BANDWIDTH = 60e9, 25e9
DEFAULT_BARRIER_SECONDS = 1e-7
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Family:
    """What a core of a processor family does, rounded from :mod:`mononn_core.runtime.ceilings` of one or two of each.

    Attributes:
        vendor: as in /proc/cpuinfo; "" for any. first: the number of the family from which on this holds. has: features
            that tell its processors from those of another family under the same number.
        splits: whether vectors of 64 bytes take it two cycles.
        streams: whether it follows a stream through its caches by itself, faster than with prefetches in the code.
        strassen: whether products by that algorithm take it less time, since it adds beside its multiplications.
        bf16: operations that its vectors do on bf16 in the time of one on float32; 0 where the instruction has the
            same rate, as it adds two products.
        boost: its clock at work, over the time stamp counter's.
        l2_bytes, l3_bytes: that it reads of those caches a cycle. bandwidth: bytes a second that it reads of memory.
    """

    vendor: str
    first: int
    has: frozenset[str] = frozenset()
    splits: bool = False
    streams: bool = False
    strassen: bool = False
    bf16: float = 0
    boost: float = 1.0
    l2_bytes: float = DEFAULT_L2_BANDWIDTH / DEFAULT_CLOCK
    l3_bytes: float = DEFAULT_L3_BANDWIDTH / DEFAULT_CLOCK
    bandwidth: float = 12e9


ZEN_4 = frozenset({"avx512f"})
"""What Zen 3 lacks."""
AMD = functools.partial(Family, "AuthenticAMD")
FAMILIES = (
    AMD(26, boost=1.65, l2_bytes=60, l3_bytes=27, bandwidth=30e9),  # Zen 5
    AMD(0, ZEN_4, splits=True, streams=True, strassen=True, boost=1.2, l2_bytes=32, l3_bytes=26, bandwidth=24e9),
    AMD(0, boost=1.2, l2_bytes=32, l3_bytes=26, bandwidth=24e9),  # Zen 3
    # Sapphire Rapids and later: bf16 is for tiles, which a virtual machine may not have.
    Family("GenuineIntel", 0, has=frozenset({"avxvnni"}), bf16=0.5, l2_bytes=44),
    Family("GenuineIntel", 0, l2_bytes=44),
    Family("", 0),
)


@dataclass(frozen=True)
class ProductInstruction:
    """An instruction that multiplies elements and adds the products to accumulators.

    Attributes:
        instruction: its mnemonic.
        a, b: types of what it multiplies. sum: type of its accumulators.
        terms: products that one instruction adds to each accumulator.
        needs: the features that have it.
    """

    instruction: str
    a: str
    b: str
    sum: str
    terms: int
    needs: frozenset[str] = frozenset()


LINE_BYTES = 64
"""Of a cache line."""
AMX = frozenset({"avx512f", "amx-tile"})
TILE_ROWS, TILE_BYTES = 16, 64
"""Of a tile register, at most. Two are multiplied in as many cycles as the left one has rows."""
MULTIPLY_ADD = ProductInstruction("multiply, add", COMPUTE, COMPUTE, COMPUTE, 1)
"""What every processor has, in one instruction or in two."""
PRODUCTS = (
    # Intel SDM, volume 2. Of AMX's tiles of 16 x 64 bytes: terms of a whole tile.
    ProductInstruction("vfmadd231ps", COMPUTE, COMPUTE, COMPUTE, 1, frozenset({"fma"})),
    ProductInstruction("vdpbf16ps", BF16, BF16, COMPUTE, 2, frozenset({"avx512f", "avx512bf16"})),
    ProductInstruction("vpdpbusd", "uint8", "int8", "int32", 4, frozenset({"avx512f", "avx512vnni"})),
    ProductInstruction("vpdpbusd", "uint8", "int8", "int32", 4, frozenset({"avx2", "avxvnni"})),
    ProductInstruction("tdpbf16ps", BF16, BF16, COMPUTE, 32, AMX | {"amx-bf16", "avx512bf16"}),
    ProductInstruction("tdpbusd", "uint8", "int8", "int32", 64, AMX | {"amx-int8", "avx512vnni"}),
    ProductInstruction("tdpbssd", "int8", "int8", "int32", 64, AMX | {"amx-int8"}),
    # Arm ARM (DDI 0487), A64 vector instructions.
    ProductInstruction("fmla", COMPUTE, COMPUTE, COMPUTE, 1, frozenset({"neon"})),
    ProductInstruction("bfdot", BF16, BF16, COMPUTE, 2, frozenset({"neon", "bf16"})),
    ProductInstruction("sdot", "int8", "int8", "int32", 4, frozenset({"neon", "dotprod"})),
    ProductInstruction("udot", "uint8", "uint8", "uint32", 4, frozenset({"neon", "dotprod"})),
)
KERNELS = ("vdpbf16ps", "vpdpbusd")
"""Of these, what the vocabulary's kernels of narrow products are written with."""
TILE_KERNELS = ("tdpbf16ps", "tdpbusd")
"""What its kernels in tile registers are written with, beside those."""
MULTIPLIED = {p.a: p.terms for p in PRODUCTS if p.instruction in KERNELS}
"""Types of the left operands of those kernels -> terms that lie side by side in a lane."""
TILE_FEATURES = frozenset({"amx-tile", "amx-int8", "amx-bf16"})
LOOKUPS = frozenset({"avx512vbmi"})
"""What looks a vector of bytes up in tables of bytes, or in other vectors."""
PRODUCT_FEATURES = LOOKUPS.union(*(p.needs for p in PRODUCTS)) - X86_64_V4 - NEON
"""What is kept of the kernel's report beside a level's features."""


@dataclass(frozen=True)
class Machine:
    """One processor, as far as code for it depends on it.

    Attributes:
        arch: "x86_64", "aarch64" or "generic" (scalar code for the host's own architecture).
        features: instruction set extensions under the compilers' names ("avx2", "fma", ...): the level's, and those
            of products and lookups beyond it.
        vector_bytes: width of a vector register in bytes: 64, 32, 16, or 4 for scalar code.
        cores: processors this process may run on.
        l2_bytes: second-level cache of one core, bytes. l3_bytes: last-level cache of one socket, bytes (0: none).
        peak_flops_per_core: fp32 operations a second of one core, a multiply-add counted as two (a default by family).
        bandwidth: bytes a second all cores together read from memory (a default).
        l2_bandwidth, l3_bandwidth: bytes a second one core reads from those caches (defaults).
        barrier_seconds: a barrier of all cores (a default).
        product_peaks: (type, operations a second of one core) of products narrower than float32, where measured, or
            known not to follow from the instruction.
        streams: whether code for it leaves streams to its hardware (a default). strassen: whether large products
            are computed by that algorithm (a default).
    """

    arch: str
    features: frozenset[str]
    vector_bytes: int
    cores: int
    l2_bytes: int
    l3_bytes: int
    peak_flops_per_core: float
    bandwidth: float
    barrier_seconds: float
    l2_bandwidth: float = DEFAULT_L2_BANDWIDTH
    l3_bandwidth: float = DEFAULT_L3_BANDWIDTH
    product_peaks: tuple[tuple[str, float], ...] = ()
    streams: bool = False
    strassen: bool = False

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise OptionError(f"architecture {self.arch!r} is unknown; choose one of {', '.join(ARCHITECTURES)}")

    @staticmethod
    def probe() -> Machine:
        """The machine this process runs on, from /proc/cpuinfo and /sys. Its answer never varies in a process."""
        return _probe()

    @staticmethod
    def named(name: str) -> Machine:
        """A stated machine to compile for: "avx512", "avx2", "neon" or "scalar", with two cores of usual caches.

        Raises:
            OptionError: another name.
        """
        if name not in NAMED:
            raise OptionError(f"machine {name!r} is unknown; choose one of {', '.join(NAMED)}")
        return NAMED[name]

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in a vector register."""
        return self.vector_bytes // itemsize(dtype)

    @property
    def vector_registers(self) -> int:
        """Vector registers that code may name (Intel SDM, volume 1, 15.1; Arm ARM, B1.2.1)."""
        return 32 if self.vector_bytes == 64 or self.arch == "aarch64" else 16

    @property
    def level(self) -> str:
        """The psABI level ("x86-64-v3"), or "armv8-a", or "" for scalar code."""
        if self.arch == "x86_64":
            return next((level for level, needed in X86_LEVELS if needed <= self.features), "x86-64")
        return "armv8-a" if self.arch == "aarch64" else ""

    @property
    def level_features(self) -> frozenset[str]:
        """The features that compilers are told of: what all generated code may use."""
        return self.features - PRODUCT_FEATURES

    @property
    def products(self) -> tuple[ProductInstruction, ...]:
        """What it multiplies and adds with; an instruction in several encodings stands once."""
        found = {p.instruction: p for p in PRODUCTS if p.needs <= self.features}
        return tuple(found.values()) or (MULTIPLY_ADD,)

    def product(self, dtype: str) -> ProductInstruction | None:
        """The instruction for left operands of ``dtype`` that the kernels of narrow products are written with, in its
        widest encoding, if it has one."""
        fits = (p for p in PRODUCTS if p.a == dtype and p.needs <= self.features)
        return next((p for p in fits if p.instruction in KERNELS), None)

    def tiles(self, dtype: str) -> ProductInstruction | None:
        """The instruction that multiplies whole tiles of left operands of ``dtype``, if it has one."""
        fits = (p for p in PRODUCTS if p.a == dtype and p.needs <= self.features)
        return next((p for p in fits if p.instruction in TILE_KERNELS), None)

    @property
    def multiplies_words(self) -> bool:
        """Whether bytes are multiplied as words of 16 bits, whose products are added in pairs (vpmaddwd), since no
        instruction does so with bytes."""
        return self.arch == "x86_64" and self.product("uint8") is None

    def peak(self, dtype: str) -> float:
        """Operations a second of one core on products of ``dtype``: measured, or so many times those on float32 as an
        instruction of the kernels adds products (a row of a tile takes the cycle of two vectors)."""
        if found := self.tiles(dtype):
            terms = found.terms // 2
        else:
            vectors = self.product(dtype)
            terms = vectors.terms if vectors else 1
        return dict(self.product_peaks).get(dtype, self.peak_flops_per_core * terms)

    def faster_than_floats(self, dtype: str) -> bool:
        """Whether products of ``dtype`` are."""
        return self.peak(dtype) > self.peak(COMPUTE)

    def bandwidth_within(self, working_set: int, workers: int) -> float:
        """Bytes a second that ``workers`` cores together read from the nearest caches that hold ``working_set``."""
        if working_set <= self.l2_bytes * workers:
            return self.l2_bandwidth * workers
        return self.l3_bandwidth * workers if working_set <= self.l3_bytes else self.bandwidth

    def bandwidth_again(self, moved: int, workers: int) -> float:
        """The same, of what they read anew each time that ``moved`` bytes have passed, in an order that lets the near
        caches keep what they have room for."""
        kept = min(1.0, self.l2_bytes * workers / moved) if moved else 1.0
        return 1 / (kept / (self.l2_bandwidth * workers) + (1 - kept) / self.bandwidth_within(moved, workers))

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """-m flags for gcc and clang; empty for scalar code (the compiler's own baseline)."""
        if self.arch == "x86_64":
            return (f"-march={self.level}", *(("-mprefer-vector-width=512",) if self.vector_bytes == 64 else ()))
        return (f"-march={self.level}",) if self.level else ()


def _machine(arch: str, features: frozenset[str], vector_bytes: int) -> Machine:
    """A machine with the stated defaults."""
    multiply_adds = 2 if "fma" in features or arch == "aarch64" else 1
    return Machine(
        arch=arch,
        features=features,
        vector_bytes=vector_bytes,
        cores=2,
        l2_bytes=1 * MIB,
        l3_bytes=32 * MIB,
        peak_flops_per_core=DEFAULT_CLOCK * vector_bytes / itemsize(COMPUTE) * 2 * multiply_adds,
        bandwidth=2 * FAMILIES[-1].bandwidth,
        barrier_seconds=DEFAULT_BARRIER_SECONDS,
    )


NAMED = {
    "avx512": _machine("x86_64", X86_64_V4, 64),
    "avx2": _machine("x86_64", X86_64_V3, 32),
    "neon": _machine("aarch64", NEON, 16),
    "scalar": _machine("generic", frozenset(), 4),
}


@functools.cache
def _probe() -> Machine:
    info = parse_cpuinfo(_read("/proc/cpuinfo"))
    flags = kernel_flags(info)
    if "amx-tile" in flags and not _may_use_tiles():
        flags -= TILE_FEATURES
    base = from_flags(platform.machine(), flags)
    affinity = sorted(os.sched_getaffinity(0))
    caches = _caches(Path(f"/sys/devices/system/cpu/cpu{affinity[0]}/cache"))
    family = family_of(info)
    clock = _clock(info, affinity[0], family.boost)
    peak = base.peak_flops_per_core * clock / DEFAULT_CLOCK / (2 if family.splits else 1)
    return replace(
        base,
        cores=len(affinity),
        l2_bytes=caches.get(2, base.l2_bytes),
        l3_bytes=caches.get(3, 0) if caches else base.l3_bytes,
        peak_flops_per_core=peak,
        product_peaks=((BF16, peak * family.bf16),) if family.bf16 and base.tiles(BF16) is None else (),
        l2_bandwidth=clock * family.l2_bytes,
        l3_bandwidth=clock * family.l3_bytes,
        bandwidth=family.bandwidth * min(len(affinity), 8),
        streams=family.streams,
        strassen=family.strassen,
    )


def _may_use_tiles() -> bool:
    """Whether Linux lets this process use tile registers: arch_prctl(2), ARCH_REQ_XCOMP_PERM of XTILEDATA."""
    return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0


def kernel_flags(info: Mapping[str, str]) -> frozenset[str]:
    """The features that /proc/cpuinfo lists, under the compilers' names."""
    return frozenset(KERNEL_NAMES.get(flag, flag) for flag in info.get("flags", info.get("Features", "")).split())


def from_flags(architecture: str, flags: frozenset[str]) -> Machine:
    """Arch, features and vector width that generated code may use where the kernel reports ``flags``."""
    products = flags & PRODUCT_FEATURES
    if architecture in ("x86_64", "AMD64"):
        features = next((needed for _, needed in X86_LEVELS if needed <= flags), frozenset[str]())
        width = 64 if features == X86_64_V4 else 32 if features == X86_64_V3 else 16
        return _machine("x86_64", features | products, width)
    if architecture in ("aarch64", "arm64"):
        return _machine("aarch64", NEON | products, 16)
    return NAMED["scalar"]


def parse_cpuinfo(text: str) -> dict[str, str]:
    """Fields of the first processor in the text of /proc/cpuinfo."""
    first = text.split("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines()) if key}


def _read(path: str | Path) -> str:
    """A small system file's text, "" where the kernel does not expose it."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _caches(folder: Path) -> dict[int, int]:
    """Bytes of the data or unified cache of every level."""
    sizes: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        size = re.fullmatch(r"(\d+)([KM]?)", _read(index / "size"))
        if size and _read(index / "type") in ("Data", "Unified"):
            sizes[int(_read(index / "level"))] = int(size[1]) * {"": 1, "K": KIB, "M": MIB}[size[2]]
    return sizes


def family_of(info: Mapping[str, str]) -> Family:
    """The family of the processor that /proc/cpuinfo describes."""
    number, flags = int(info.get("cpu family", "0") or 0), kernel_flags(info)
    fits = (f for f in FAMILIES if f.vendor in ("", info.get("vendor_id")) and f.has <= flags)
    return next(f for f in fits if number >= f.first)


def _clock(info: Mapping[str, str], cpu: int, boost: float) -> float:
    """Hertz, from what stays equal from one moment to the next: the highest clock of cpufreq, else ``boost`` times the
    time stamp counter's rate (half of bogomips on x86), else a default. Rounded to 50 MHz."""
    kilohertz = _read(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq")
    if kilohertz.isdigit():
        hertz = int(kilohertz) * 1e3
    elif "flags" in info and re.fullmatch(r"[\d.]+", info.get("bogomips", "")):
        hertz = float(info["bogomips"]) / 2 * 1e6 * boost
    else:
        hertz = DEFAULT_CLOCK
    return max(round(hertz / 50e6), 1) * 50e6
