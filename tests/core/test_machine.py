"""Machine: probing, names, levels and flags."""

from __future__ import annotations

import platform

import pytest

from mononn_core.errors import OptionError
from mononn_core.machine import X86_64_V2, X86_64_V3, X86_64_V4, Machine, from_flags, parse_cpuinfo

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9R14
bogomips\t: 5192.28
flags\t\t: fpu sse2 pni ssse3 cx16 sse4_1 sse4_2 popcnt avx f16c fma movbe abm bmi1 bmi2 avx2

processor\t: 1
model name\t: never read
"""


def test_probe_is_this_machine_and_constant():
    machine = Machine.probe()
    assert machine == Machine.probe()
    assert machine.arch in ("generic", platform.machine())
    assert machine.cores >= 1
    assert machine.l2_bytes > 4096
    assert machine.peak_flops_per_core > 1e8


def test_kernel_names_become_compiler_names():
    flags = parse_cpuinfo(CPUINFO)["flags"].split()
    assert parse_cpuinfo(CPUINFO)["model name"] == "AMD EPYC 9R14"
    assert "abm" in flags


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
