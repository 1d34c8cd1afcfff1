"""Machine: probing, names, levels and flags."""

from __future__ import annotations

import platform

import pytest

from mononn_core.element import COMPUTE, accumulator, itemsize
from mononn_core.errors import OptionError
from mononn_core.machine import (
    NAMED,
    PRODUCTS,
    X86_64_V2,
    X86_64_V3,
    X86_64_V4,
    Machine,
    from_flags,
    kernel_flags,
    parse_cpuinfo,
)

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9R14
bogomips\t: 5192.28
flags\t\t: fpu sse2 pni ssse3 cx16 sse4_1 sse4_2 popcnt avx f16c fma movbe abm bmi1 bmi2 avx2

processor\t: 1
model name\t: never read
"""
X86_BASE = "fpu sse2 pni ssse3 cx16 sse4_1 sse4_2 popcnt avx f16c fma movbe abm bmi1 bmi2 avx2"
AVX512 = "avx512f avx512dq avx512cd avx512bw avx512vl"
SAPPHIRE_RAPIDS = (
    f"flags\t\t: {X86_BASE} {AVX512} avx_vnni avx512_bf16 avx512_vnni avx512_fp16 amx_bf16 amx_tile amx_int8"
)
ZEN_4 = f"flags\t\t: {X86_BASE} {AVX512} avx512_bf16 avx512_vnni avx512_bitalg"
ALDER_LAKE = f"flags\t\t: {X86_BASE} avx_vnni gfni vaes"
HASWELL = f"flags\t\t: {X86_BASE}"
GRAVITON_3 = "Features\t: fp asimd evtstrm aes fphp asimdhp asimddp sve asimdfhm svei8mm svebf16 i8mm bf16 dgh rng"


def test_probe_is_this_machine_and_constant():
    machine = Machine.probe()
    assert machine == Machine.probe()
    assert machine.arch in ("generic", platform.machine())
    assert machine.cores >= 1
    assert machine.l2_bytes > 4096
    assert machine.peak_flops_per_core > 1e8


def test_kernel_names_become_compiler_names():
    info = parse_cpuinfo(CPUINFO)
    assert info["model name"] == "AMD EPYC 9R14"
    assert kernel_flags(info) == X86_64_V3 | {"fpu", "sse2"}


@pytest.mark.parametrize(
    ("flags", "level", "width"),
    [
        (X86_64_V4 | {"avx512vnni"}, "x86-64-v4", 64),
        (X86_64_V4 - {"avx512vl"}, "x86-64-v3", 32),
        (X86_64_V3, "x86-64-v3", 32),
        (X86_64_V3 - {"fma"}, "x86-64-v2", 16),
        (X86_64_V2, "x86-64-v2", 16),
        (frozenset({"sse2"}), "x86-64", 16),
    ],
)
def test_levels_need_every_one_of_their_features(flags: frozenset[str], level: str, width: int):
    machine = from_flags("x86_64", frozenset(flags))
    assert (machine.level, machine.vector_bytes) == (level, width)
    assert machine.features <= flags
    assert f"-march={level}" in machine.compiler_flags


def test_names():
    assert Machine.named("neon").compiler_flags == ("-march=armv8-a",)
    assert Machine.named("scalar").compiler_flags == ()
    assert from_flags("riscv64", frozenset()).arch == "generic"
    with pytest.raises(OptionError, match=r"'sve'.*choose one of avx512, avx2, neon, scalar"):
        Machine.named("sve")


def reported(text: str, architecture: str = "x86_64") -> Machine:
    return from_flags(
        architecture, kernel_flags(parse_cpuinfo(f"processor\t: 0\n{text}\n\nprocessor\t: 1\nflags\t: \n"))
    )


@pytest.mark.parametrize(
    ("text", "architecture", "level", "instructions"),
    [
        (
            SAPPHIRE_RAPIDS,
            "x86_64",
            "x86-64-v4",
            ["vfmadd231ps", "vdpbf16ps", "vpdpbusd", "tdpbf16ps", "tdpbusd", "tdpbssd"],
        ),
        (ZEN_4, "x86_64", "x86-64-v4", ["vfmadd231ps", "vdpbf16ps", "vpdpbusd"]),
        (ZEN_4.replace(" avx512vl", ""), "x86_64", "x86-64-v3", ["vfmadd231ps"]),
        (ALDER_LAKE, "x86_64", "x86-64-v3", ["vfmadd231ps", "vpdpbusd"]),
        (HASWELL, "x86_64", "x86-64-v3", ["vfmadd231ps"]),
        (HASWELL.replace(" fma", ""), "x86_64", "x86-64-v2", ["multiply, add"]),
        (GRAVITON_3, "aarch64", "armv8-a", ["fmla", "bfdot", "sdot", "udot"]),
        (GRAVITON_3.replace(" bf16", ""), "aarch64", "armv8-a", ["fmla", "sdot", "udot"]),
        ("Features\t: fp asimd", "aarch64", "armv8-a", ["fmla"]),
    ],
)
def test_products_are_what_the_kernel_reports(text: str, architecture: str, level: str, instructions: list[str]):
    machine = reported(text, architecture)
    assert [p.instruction for p in machine.products] == instructions
    assert machine.level == level


@pytest.mark.parametrize("text", [SAPPHIRE_RAPIDS, ZEN_4])
def test_products_change_nothing_that_compilers_are_told(text: str):
    machine, plain = reported(text), Machine.named("avx512")
    assert machine.features > plain.features == machine.level_features
    assert machine.compiler_flags == plain.compiler_flags


def test_a_product_s_accumulators_are_what_its_types_are_added_up_in():
    for product in PRODUCTS:
        assert itemsize(product.sum) == itemsize(COMPUTE), product.instruction
        assert {product.a, product.b} == {"uint8"} or accumulator(product.b) == product.sum, product.instruction


@pytest.mark.parametrize("name", NAMED)
def test_every_machine_multiplies_and_adds_floats(name: str):
    first = Machine.named(name).products[0]
    assert (first.a, first.b, first.sum, first.terms) == (COMPUTE, COMPUTE, COMPUTE, 1)
