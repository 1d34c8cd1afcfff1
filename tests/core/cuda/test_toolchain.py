"""Generated CUDA code through NVRTC (and nvcc, where there is one): no spills, and the instructions it should have."""

from __future__ import annotations

import re
import shutil

import pytest

from mononn_core import compiler
from mononn_core.errors import ArtifactError, ToolchainError
from mononn_core.runtime import cuda_toolchain
from mononn_core.runtime.cubin import kernel_usage
from mononn_core.runtime.cuda_toolchain import ARCHITECTURES, _find_nvrtc, compile_cubin, run_nvrtc
from mononn_core.vocabulary import cuda_headers as headers
from tests.core.cuda.cases import CASES
from tests.core.cuda.lowered import printed
from tests.core.cuda.networks import translator
from tests.core.cuda.programs import mlp
from tests.core.cuda.sass import instructions, kernel_code, loops

SPILLING = """
#define MONONN_THREADS 256
#define MONONN_ERROR_INDEX 1
#include "mononn_cuda.cuh"
extern "C" __global__ void __launch_bounds__(256, BLOCKS) greedy(float *p) {
  float v[64];
  MN_UNROLL for (int i = 0; i < 64; ++i) v[i] = p[i * 256 + mn::thread()];
  mn::sync_block();
  MN_UNROLL for (int i = 0; i < 64; ++i) p[mn::thread() * 64 + i] = v[i] * v[63 - i];
}
"""
SMALL = f"#define BLOCKS 1\n{SPILLING}"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONONN_CACHE", "")


def text(name: str, launch: str = "once") -> str:
    return printed(CASES[name]().program, 256, launch).text


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_gets_tensor_cores_and_asynchronous_copies(arch: str) -> None:
    source = printed(mlp("f16", K=96, H=96).program, 256).text
    cubin = compile_cubin(source, headers(), arch, compiler="nvrtc")
    (usage,) = cubin.kernels.values()
    assert usage.spills == usage.stack == usage.shared_static == 0
    assert 0 < usage.registers <= 128
    code = kernel_code(cubin.code, "mononn_run")
    assert min(instructions(code)[name] for name in ("HMMA", "LDSM", "LDGSTS")) > 0
    # A step of the first product: 16 x 40 columns a warp and 16 k are 5 products, which 4 matrix loads feed (one of a,
    # two pairs and a single one of b); one barrier.
    inner = next(loop for loop in loops(code, arch) if loop["HMMA"] == 5)
    assert (inner["LDSM"], inner["LDGSTS"], inner["BAR"]) == (4, 2, 1)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_bulk_copy_brings_a_stage_or_copies_of_all_threads(arch: str) -> None:
    code = compile_cubin(text("staged-f16"), headers(), arch, compiler="nvrtc").code
    found, bulk = instructions(kernel_code(code, "mononn_run")), arch in ("sm_90a", "sm_100", "sm_120")
    assert (found["UBLKCP"] > 0, found["ARRIVES"] > 0) == (bulk, not bulk)


@pytest.mark.emulated
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", sorted(CASES))
def test_nothing_spills(name: str, arch: str) -> None:
    for launch in ("once", "graph"):
        cubin = compile_cubin(text(name, launch), headers(), arch, compiler="nvrtc")
        assert all(u.spills == u.stack == 0 and u.registers <= 255 for u in cubin.kernels.values())


def test_the_largest_programs_do_not_spill() -> None:
    for name in ("attention-tf32x3", "filled_left-bf16"):
        cubin = compile_cubin(text(name), headers(), "sm_90a", compiler="nvrtc")
        assert all(u.spills == u.stack == 0 for u in cubin.kernels.values())


def test_kernels_of_a_graph_are_those_that_are_listed() -> None:
    source = printed(CASES["layers-bf16"]().program, 256, "graph")
    cubin = compile_cubin(source.text, headers(), "sm_80", compiler="nvrtc")
    assert set(cubin.kernels) == {kernel.name for kernel in source.kernels}


def test_spills_and_stack_are_seen() -> None:
    free, tight = (
        compile_cubin(f"#define BLOCKS {blocks}\n{SPILLING}", headers(), "sm_80", compiler="nvrtc").kernels["greedy"]
        for blocks in (1, 8)
    )
    assert (free.spills, free.stack) == (0, 0)
    assert tight.registers <= 32
    assert tight.spills > 0
    assert tight.stack > 0


def test_the_cache_holds_what_was_compiled(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("MONONN_CACHE", str(tmp_path))
    first = compile_cubin(SMALL, headers(), "sm_80", compiler="nvrtc")
    monkeypatch.setattr(cuda_toolchain, "run_nvrtc", None)
    assert compile_cubin(SMALL, headers(), "sm_80", compiler="nvrtc") == first


def test_a_source_with_an_error_is_refused_with_its_line() -> None:
    with pytest.raises(ToolchainError, match=r"source\.cu.*undefined_name.*report it"):
        compile_cubin('extern "C" __global__ void f() { undefined_name(); }', {}, "sm_80", compiler="nvrtc")


@pytest.mark.parametrize("arch", ["sm_999", "gfx90a", "sm_"])
def test_an_unknown_architecture_is_refused(arch: str) -> None:
    with pytest.raises(ToolchainError, match=r"sm_999|is no GPU architecture"):
        compile_cubin(SMALL, headers(), arch, compiler="nvrtc")


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONONN_NVCC", "no-such-nvcc")
    with pytest.raises(ToolchainError, match=r"no-such-nvcc.*not found"):
        cuda_toolchain.find_compiler()
    monkeypatch.setattr(cuda_toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"pip install nvidia-cuda-nvrtc"):
        cuda_toolchain._find_nvrtc()


def test_bytes_that_are_no_cubin_are_refused() -> None:
    cubin = compile_cubin(SMALL, headers(), "sm_80", compiler="nvrtc").code
    for wrong in (b"", b"MZ" + cubin[2:], cubin[: len(cubin) // 2]):
        with pytest.raises(ArtifactError, match="compile the model again"):
            kernel_usage(wrong)


def ptx_lines(source: str) -> list[str]:
    """The PTX of a source for sm_90a, a line an instruction."""
    ptx = run_nvrtc(_find_nvrtc(), source, headers(), ["-std=c++17", "-arch=compute_90a"], "PTX")
    return [line.strip() for line in ptx.decode(errors="replace").splitlines()]


def test_the_low_bits_of_a_tf32_are_cleared() -> None:
    """The ISA does not say what they are, and the second part of a split is what the first leaves."""
    source = """
#include "mononn_ptx.cuh"
extern "C" __global__ void f(float *p) { p[1] = mn::to_tf32(p[0]); }
"""
    lines = ptx_lines(source)
    (at,) = (number for number, line in enumerate(lines) if line.startswith("cvt.rna.tf32"))
    masked = [line for line in lines[at:] if line.startswith("and.b32") and line.endswith(", -8192;")]
    assert len(masked) == 1 and lines[at].split()[1].rstrip(",") in masked[0]


@pytest.mark.parametrize("precision", [pytest.param("fp16", marks=pytest.mark.slow), "fp32"])
def test_what_blocks_hand_to_each_other_is_read_through_the_coherent_path(precision: str) -> None:
    """No non-coherent load; of loads whose memory the compiler could not tell only those of addresses; and at every
    barrier of the grid one release, by a fence and an addition, and one acquire (PTX), which empties the first-level
    cache (CCTL in the machine code)."""
    stages = compiler.lower(translator(), target="cuda", arch=("sm_90a",), precision=precision)
    lines = ptx_lines(stages.source)
    assert not [line for line in lines if line.startswith("ld.global.nc")]
    known = ("ld.global", "ld.shared", "ld.param", "ld.const", "ld.local", "ld.acquire.gpu", "ld.volatile", "ld.u64")
    assert not [line for line in lines if line.startswith("ld.") and not line.startswith(known)]
    barriers = stages.source.count("now_.barrier(call.sync)")
    arrivals = re.findall(r"now_ = (arrive_\w+)\(", stages.source)
    assert barriers > 3 and arrivals
    released = barriers - len(arrivals) + len(set(arrivals))  # layers share the function in which they arrive
    for mark, count in (("fence.acq_rel.gpu", released), ("atom.add.relaxed.gpu.global.u32", released),
                        ("ld.acquire.gpu.global.u32", barriers)):  # fmt: skip
        assert sum(line.startswith(mark) for line in lines) == count
    code = kernel_code(compile_cubin(stages.source, headers(), "sm_90a", compiler="nvrtc").code, "mononn_run")
    assert instructions(code)["CCTL"] >= barriers


def test_results_are_stored_sixteen_bytes_at_once() -> None:
    """nvcc splits a store of four words into four stores where it computes them one by one."""
    lines = ptx_lines(printed(mlp("f16", K=96, H=96).program, 256).text)
    assert any(line.startswith("st.global.v4.b32") for line in lines)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_and_nvrtc_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONONN_NVCC", "nvcc")
    one = compile_cubin(text("mlp-f16"), headers(), "sm_90a")
    other = compile_cubin(text("mlp-f16"), headers(), "sm_90a", compiler="nvrtc")
    assert one.command.startswith("nvcc")
    for left, right in zip(one.kernels.values(), other.kernels.values(), strict=True):
        assert abs(left.registers - right.registers) <= 16
        assert (left.spills, left.stack, left.shared_static) == (right.spills, right.stack, right.shared_static)
