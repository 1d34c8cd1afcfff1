"""Toolchain: both compilers, cross compilation, reproducible bytes, the cache, and its errors."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mononn_core import host_compiler
from mononn_core.compiler import build, lower
from mononn_core.errors import ToolchainError
from mononn_core.machine import Machine
from mononn_core.runtime import toolchain
from mononn_core.runtime.artifact import ELF_MACHINES
from mononn_core.runtime.session import Session
from mononn_core.runtime.toolchain import compile_host, compile_shared
from mononn_core.vocabulary import FOLDER
from tests.core import handmade, networks
from tests.core.narrow import LEVELS

COMPILERS = ["", "g++"]
VECTOR = """
typedef float V __attribute__((vector_size({bytes})));
extern "C" __attribute__((visibility("default"))) void multiply_add(V *a, const V *b, const V *c) {{ *a += *b * *c; }}
"""


@pytest.fixture(params=COMPILERS, ids=["zig", "gcc"])
def compiler(request, monkeypatch, tmp_path):
    if request.param and not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv("MONONN_CXX", request.param)
    monkeypatch.setenv("MONONN_CACHE", str(tmp_path / "cache"))
    return request.param


def test_same_source_same_bytes_and_no_path_of_this_machine(compiler, monkeypatch):
    monkeypatch.setenv("MONONN_CACHE", "")
    machine = Machine.named("scalar")
    first, second = (compile_shared(handmade.SOURCE, machine=machine) for _ in range(2))
    assert first.code == second.code
    for path in (toolchain.FOLDER, Path.home(), "/tmp"):
        assert str(path).encode() not in first.code
        assert str(path) not in first.command


@pytest.mark.parametrize(("name", "register"), [("avx512", "zmm"), ("avx2", "ymm")])
def test_full_vector_width_is_used(compiler, name, register, tmp_path):
    machine = Machine.named(name)
    code = compile_shared(VECTOR.format(bytes=machine.vector_bytes), machine=machine).code
    (tmp_path / "x.so").write_bytes(code)
    text = subprocess.run(["objdump", "-d", tmp_path / "x.so"], capture_output=True, text=True, check=True).stdout
    fused = [line for line in text.splitlines() if "vfmadd" in line]
    assert len(fused) == 1
    assert register in fused[0]


@pytest.mark.parametrize("level", [level for level in LEVELS if "neon" not in level])
def test_the_vocabulary_is_read_at_every_level(compiler, level):
    headers = (name.name for name in sorted(FOLDER.glob("*.hpp")))
    LEVELS[level].compile("".join(f'#include "{name}"\n' for name in headers))


@pytest.mark.parametrize("level", ["avx512 vnni bf16", "avx2 avxvnni", "sse"])
def test_clang_reads_no_header_of_intrinsics(monkeypatch, level):
    """They take it longer than all of the vocabulary."""
    monkeypatch.setenv("MONONN_CXX", "")
    monkeypatch.setenv("MONONN_CACHE", "")
    LEVELS[level].compile('#include "mononn_cpu.hpp"\n#ifdef __MMINTRIN_H\n#error\n#endif\n')


def test_one_function_is_exported(compiler, tmp_path):
    (tmp_path / "x.so").write_bytes(compile_shared(handmade.SOURCE, machine=Machine.named("scalar")).code)
    text = subprocess.run(["objdump", "-T", tmp_path / "x.so"], capture_output=True, text=True, check=True).stdout
    exported = [line.split()[-1] for line in text.splitlines() if " DF .text" in line]
    assert exported == ["mononn_run"]


@pytest.mark.parametrize(("name", "elf"), [("neon", "aarch64"), ("scalar", None), ("avx2", "x86_64")])
def test_cross_compilation(name, elf, monkeypatch):
    monkeypatch.delenv("MONONN_CXX", raising=False)
    machine = Machine.named(name)
    for code in (compile_shared(handmade.SOURCE, machine=machine).code, compile_host(machine).code):
        built_for = ELF_MACHINES[int.from_bytes(code[18:20], "little")]
        assert built_for == (elf or toolchain.os.uname().machine)


def test_cache_answers_the_second_time_and_sees_every_change(compiler, monkeypatch):
    machine = Machine.named("scalar")
    first = compile_shared(handmade.SOURCE, machine=machine)
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "_call", None)
        assert compile_shared(handmade.SOURCE, machine=machine) == first
    compile_shared(handmade.SOURCE + "\n// ", machine=machine)
    compile_shared(handmade.SOURCE, machine=machine, extra_flags=["-DX"])
    folder = toolchain.cache_folder()
    assert folder is not None
    assert len(list(folder.iterdir())) == 3, "no temporary file is left"
    for path in folder.iterdir():
        path.write_bytes(b"broken")
    assert compile_shared(handmade.SOURCE, machine=machine).code == first.code


def test_a_long_source_is_compiled_in_parts_to_the_same_answers(compiler, monkeypatch):
    feeds = {"ids": np.arange(6).reshape(1, 6), "mask": np.array([[1, 1, 1, 1, 0, 1]])}
    model = networks.encoder(layers=1)
    whole = build(lower(model, threads=2))
    monkeypatch.setattr(toolchain, "PART", len(whole.texts["source"]))
    parts, call = set(), toolchain._call

    def seen(command, work):
        parts.update(word for word in command if word.startswith("-DMONONN_PART="))
        call(command, work)

    monkeypatch.setattr(toolchain, "_call", seen)
    first = build(lower(model, threads=2))
    assert parts == {"-DMONONN_PART=0", "-DMONONN_PART=1"}
    shutil.rmtree(toolchain.cache_folder())
    assert build(lower(model, threads=2)).code == first.code
    with Session(whole) as one, Session(first) as other:
        np.testing.assert_array_equal(one.run(feeds)["y"], other.run(feeds)["y"])


def test_refused_source_names_the_first_error(compiler):
    with pytest.raises(ToolchainError, match=r"refused the generated source \(source.cpp:2.*error.*nonsense"):
        compile_shared("// fine\nint f() { return nonsense; }", machine=Machine.named("scalar"))


def test_missing_compiler(monkeypatch):
    monkeypatch.setenv("MONONN_CXX", "no-such-compiler-7")
    with pytest.raises(ToolchainError, match=r"no-such-compiler-7.*name an installed"):
        compile_shared("", machine=Machine.named("scalar"))


@pytest.fixture
def no_wheel(monkeypatch, tmp_path):
    """A Python whose ziglang cannot be run."""
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__init__.py").touch()
    (tmp_path / "ziglang" / "zig").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "ziglang" / "zig").chmod(0o755)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("MONONN_CXX", raising=False)
    monkeypatch.setenv("MONONN_CACHE", "")
    host_compiler._find.cache_clear()
    yield
    host_compiler._find.cache_clear()


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
def test_where_the_wheel_is_missing_an_installed_compiler_serves(no_wheel):
    assert toolchain.find_compiler().name == "g++"
    assert compile_shared(handmade.SOURCE, machine=Machine.named("scalar")).command.startswith("g++")


def test_without_any_compiler_the_error_says_what_to_install(no_wheel, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolchainError, match=r"there is no compiler.*pip install ziglang"):
        compile_shared(handmade.SOURCE, machine=Machine.named("scalar"))


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_host_is_clean_under_sanitizers(sanitizer, tmp_path):
    status, text = _sanitized(sanitizer, tmp_path, broken=False)
    assert (status, text) == (0, "")


def test_thread_sanitizer_would_see_a_missing_release(tmp_path):
    status, text = _sanitized("thread", tmp_path, broken=True)
    assert status
    assert "data race" in text


def _sanitized(sanitizer: str, folder: Path, broken: bool) -> tuple[int, str]:
    """Exit status and messages of race_main.c under gcc's sanitizers."""
    here = Path(__file__).parent
    host = (toolchain.HOST / "host.c").read_text()
    if broken:
        assert "__ATOMIC_ACQ_REL" in host
        host = host.replace("__ATOMIC_ACQ_REL", "__ATOMIC_RELAXED")
    (folder / "host.c").write_text(host)
    (folder / "mononn.h").write_text(toolchain.abi.header())
    include = ["-I.", f"-I{toolchain.HOST}", f"-I{toolchain.FOLDER}"]
    flags = [f"-fsanitize={sanitizer}", "-O1", "-g", *include, "-Wall", "-Wextra", "-Werror"]
    built = []
    for compiler, standard, source in (
        ("gcc", "-std=c11", "host.c"),
        ("gcc", "-std=gnu11", here / "race_main.c"),
        ("g++", "-std=c++20", here / "fixture.cpp"),
    ):
        if not shutil.which(compiler):
            pytest.skip(f"{compiler} is not installed")
        built.append(f"{len(built)}.o")
        subprocess.run([compiler, *flags, standard, "-c", source, "-o", built[-1]], cwd=folder, check=True)
    link = subprocess.run(
        ["g++", flags[0], *built, "-o", "race", "-pthread"], cwd=folder, capture_output=True, text=True
    )
    if link.returncode:
        pytest.skip(f"the sanitizer's library is not installed: {link.stderr.splitlines()[-1]}")
    result = subprocess.run([folder / "race"], capture_output=True, text=True, timeout=60, check=False)
    return result.returncode, result.stderr
