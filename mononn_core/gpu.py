"""Gpu: what the compiler knows of the graphics processor it compiles for. Nothing is probed: kernels are chosen on
machines that have none.

Counts and sizes are from NVIDIA's architecture white papers ("NVIDIA A100 Tensor Core GPU Architecture", "NVIDIA Ampere
GA102 GPU Architecture", "NVIDIA Ada GPU Architecture", "NVIDIA H100 Tensor Core GPU Architecture", "NVIDIA Blackwell
Architecture Technical Brief") and the CUDA C++ Programming Guide's table of compute capabilities; bandwidths and dense
tensor rates (without sparsity, float32 accumulation) from the data sheets of A10 (2021), A100 80 GB SXM (2021),
GeForce RTX 4090 (2022), H100 SXM (2023), H200 SXM (2024) and B200 (HGX, 2024). What no data sheet says (bytes a second
of one SM from the second-level cache, barrier, launches) is a stated default until it has been measured: bytes a second
of H100 and H200 are those of cp.async in all multiprocessors of an H200 (docs/gpu.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from mononn_core.errors import OptionError

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Gpu:
    """One graphics processor, as far as code for it depends on it.

    Attributes:
        name: for people. arch: what the compiler calls it ("sm_80").
        sms: streaming multiprocessors.
        shared_per_block, shared_per_sm: bytes of shared memory a block may ask for, and an SM has for all its blocks.
        registers_per_sm, threads_per_sm: 32-bit registers; resident threads at most.
        l2_bytes: second-level cache. bandwidth: bytes a second from memory.
        l2_bytes_per_second_per_sm: bytes a second one SM reads from the second-level cache (a default).
        tensor_flops: dense fp16 and bf16 operations a second with float32 accumulation. tf32_flops: the same for tf32.
        fma_flops: float32 operations a second without tensor cores, a multiply-add counted as two.
        barrier_seconds: a barrier of all blocks. launch_seconds: one cooperative launch (defaults, both).
    """

    name: str
    arch: str
    sms: int
    shared_per_block: int
    shared_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    l2_bytes: int
    bandwidth: float
    l2_bytes_per_second_per_sm: float
    tensor_flops: float
    tf32_flops: float
    fma_flops: float
    barrier_seconds: float
    launch_seconds: float

    @staticmethod
    def named(name: str) -> Gpu:
        """A shipped description: one of :data:`NAMED`.

        Raises:
            OptionError: another name.
        """
        if name not in NAMED:
            raise OptionError(f"GPU {name!r} is unknown; choose one of {', '.join(NAMED)}")
        return NAMED[name]

    @staticmethod
    def names() -> tuple[str, ...]:
        """All shipped descriptions."""
        return tuple(NAMED)

    @staticmethod
    def for_arch(arch: str) -> Gpu:
        """The processor that stands for an architecture where nothing else is said.

        Raises:
            OptionError: another architecture than those of :data:`ARCHITECTURES`.
        """
        if arch not in ARCHITECTURES:
            raise OptionError(f"GPU architecture {arch!r} is unknown; choose one of {', '.join(ARCHITECTURES)}")
        return ARCHITECTURES[arch]


def _gpu(name: str, arch: str, sms: int, shared: int, threads: int, l2: int, l2_rate: float, **rates: float) -> Gpu:
    """``shared``: KiB of an SM; 1 KiB of it is the system's for every block. ``l2``: MiB. ``l2_rate``: bytes/ns."""
    return Gpu(
        name,
        arch,
        sms,
        (shared - 1) * KIB,
        shared * KIB,
        64 * KIB,
        threads,
        l2 * MIB,
        l2_bytes_per_second_per_sm=l2_rate * 1e9,
        barrier_seconds=1.0e-6,
        launch_seconds=4.0e-6,
        **rates,
    )


NAMED = {
    g.name: g
    for g in (
        _gpu("A10", "sm_86", 72, 100, 1536, 6, 45,
             bandwidth=600e9, tensor_flops=125e12, tf32_flops=62.5e12, fma_flops=31.2e12),
        _gpu("A100", "sm_80", 108, 164, 2048, 40, 45,
             bandwidth=2039e9, tensor_flops=312e12, tf32_flops=156e12, fma_flops=19.5e12),
        _gpu("RTX 4090", "sm_89", 128, 100, 1536, 72, 45,
             bandwidth=1008e9, tensor_flops=165.2e12, tf32_flops=82.6e12, fma_flops=82.6e12),
        _gpu("H100", "sm_90a", 132, 228, 2048, 50, 75,
             bandwidth=3350e9, tensor_flops=989e12, tf32_flops=494e12, fma_flops=67e12),
        _gpu("H200", "sm_90a", 132, 228, 2048, 50, 75,
             bandwidth=4800e9, tensor_flops=989e12, tf32_flops=494e12, fma_flops=67e12),
        _gpu("B200", "sm_100", 148, 228, 2048, 126, 64,
             bandwidth=8000e9, tensor_flops=2250e12, tf32_flops=1120e12, fma_flops=75e12),
    )
}  # fmt: skip

ARCHITECTURES = {
    "sm_80": NAMED["A100"],
    "sm_86": NAMED["A10"],
    "sm_89": NAMED["RTX 4090"],
    "sm_90a": NAMED["H100"],
    "sm_100": NAMED["B200"],
    "sm_120": _gpu("RTX 5090", "sm_120", 170, 100, 1536, 96, 45,
                   bandwidth=1792e9, tensor_flops=209.5e12, tf32_flops=104.8e12, fma_flops=104.8e12),
}  # fmt: skip
"""Architecture -> the processor assumed for it; that of sm_120 is the GeForce RTX 5090 (data sheet of 2025)."""
