"""The machine code of the register tiles: the multiply-adds they should have, and no spill in the inner loop."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mononn_core.machine import Machine
from mononn_core.runtime.toolchain import compile_shared
from mononn_core.schedule.decisions import most_at_once

SOURCE = """
#include "mononn_cpu.hpp"
extern "C" __attribute__((visibility("default"))) void tiles(const float *A, const float *B, float *C) {
  auto element = [&](long m, long n, auto v) { mn::store<decltype(v)>(C + m * 64 + n, v); };
  mn::matmul<%d, %d, %d, true>(A, 784, B, %d, 768, element);
}
"""


def inner_loops(code: bytes, folder: Path, mnemonic: str = "vfmadd") -> list[list[str]]:
    """Bodies of the innermost loops that multiply and add: from a backward jump's target to the jump."""
    (folder / "tile.so").write_bytes(code)
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(folder / "tile.so")], capture_output=True, text=True, check=True
    ).stdout
    lines = [m.groups() for m in re.finditer(r"^\s*([0-9a-f]+):\s+(\S.*)$", listing, re.MULTILINE)]
    position = {address: i for i, (address, _) in enumerate(lines)}
    loops = []
    for i, (_, text) in enumerate(lines):
        jump = re.match(r"j\w+\s+([0-9a-f]+)", text)
        if jump and position.get(jump[1], i) < i:
            body = [t for _, t in lines[position[jump[1]] : i]]
            if any(mnemonic in t for t in body) and not any(re.match(r"j\w+\s", t) for t in body):
                loops.append(body)
    return loops


@pytest.mark.skipif(not shutil.which("objdump"), reason="objdump is not installed")
@pytest.mark.parametrize(
    ("level", "rows", "vectors"),
    [
        ("avx512", 14, 2),
        ("avx512", 12, 2),
        ("avx512", 9, 3),
        ("avx512", 6, 4),
        ("avx2", 6, 2),
        ("avx2", 4, 3),
        ("avx2", 2, 4),
    ],
)
def test_inner_loop(level: str, rows: int, vectors: int, tmp_path: Path) -> None:
    machine = Machine.named(level)
    panel = vectors * machine.vector_bytes // 4
    most = most_at_once(vectors, machine)
    assert most == rows or rows == 12, "the most that registers hold, or fewer"
    flags = (f"-DMONONN_VECTOR_BYTES={machine.vector_bytes}",)
    code = compile_shared(SOURCE % (rows, panel, most, panel), machine=machine, extra_flags=flags).code
    (body,) = inner_loops(code, tmp_path)
    multiply_adds = [t for t in body if "vfmadd" in t]
    assert all(("zmm" if level == "avx512" else "ymm") in t for t in multiply_adds)
    steps = len(multiply_adds) // (vectors * rows)
    assert steps >= 2 and len(multiply_adds) == steps * vectors * rows
    assert not [t for t in body if re.search(r"\((%rsp|%rbp)", t) and "vmov" in t and t.rstrip().endswith(")")], (
        "a spill"
    )
    others = [t for t in body if "vfmadd" not in t and "prefetch" not in t]
    assert len(others) <= steps * (vectors + rows) + 4, others


@pytest.mark.skipif(not shutil.which("objdump"), reason="objdump is not installed")
@pytest.mark.parametrize("weights", ["float", "mn::bf16", "int8_t"])
@pytest.mark.parametrize(("rows", "asks"), [(1, False), (4, False), (5, True)])
def test_few_rows_leave_a_stream_to_the_hardware(weights: str, rows: int, asks: bool, tmp_path: Path) -> None:
    machine = Machine.named("avx512")
    left = {"float": "float", "mn::bf16": "mn::bf16", "int8_t": "uint8_t"}[weights]
    kernel, stride = ("matmul", "32, ") if weights == "float" else ("dot", "")
    source = f"""
#include "mononn_cpu.hpp"
#include "mononn_dot.hpp"
extern "C" __attribute__((visibility("default"))) void tiles(const {left} *A, const {weights} *B, int32_t *C) {{
  auto element = [&](long m, long n, auto v) {{ mn::store<mn::V>((float *)C + m * 64 + n, (mn::V)v); }};
  mn::{kernel}<{rows}, 32, 14, true>(A, 784, B, {stride}768, element);
}}
"""
    flags = (f"-DMONONN_VECTOR_BYTES={machine.vector_bytes}", "-mavx512vnni", "-mavx512bf16")
    found = [
        compile_shared(source, machine=machine, extra_flags=(*flags, f"-DMONONN_STREAMS={streams}")).code
        for streams in (1, 0)
    ]
    mnemonic = {"float": "vfmadd", "mn::bf16": "vdpbf16ps", "int8_t": "vpdpbusd"}[weights]
    loops = [inner_loops(code, tmp_path, mnemonic) for code in found]
    asked = [any("prefetch" in text for body in bodies for text in body) for bodies in loops]
    assert all(loops) and asked == [asks, True]
