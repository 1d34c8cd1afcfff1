"""Emitted networks: every form built into a program by the tools that its users have, with the Session's answers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.cli.main import main
from mononn_core.emit import emit, forms, library
from mononn_core.emit.header import header, quoted
from mononn_core.errors import ArtifactError, MononnError
from mononn_core.options import FORMS
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.session import Session
from mononn_core.runtime.toolchain import build_library, find_compiler
from tests.core.networks import Builder

EXAMPLES = Path(__file__).parents[2] / "examples" / "library"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I.")
SHAPES = [{"x": (8, 48)}, {"x": (1, 48)}]
SUFFIXES = forms.SUFFIXES


@cache
def model() -> bytes:
    """Two products with a softmax between, over x [n, 48]; an index beside, constant tables."""
    b = Builder('it\'s "one"\\ net*/work')
    hidden = b.add("Softmax", b.linear("x", 48, 64), axis=-1)
    row = b.add("Gather", b.weight(4, 64), "k")
    b.add("Tanh", b.linear(b.add("Mul", hidden, row), 64, 24), output="y/out")
    inputs = {"x": (TensorProto.FLOAT, ("n", 48)), "k": (TensorProto.INT64, (1,))}
    return b.model(inputs, {"y/out": ("n", 24)})  # type: ignore[arg-type, dict-item]


@cache
def artifact() -> Artifact:
    return compiler.build_family(model(), SHAPES, threads=2)


@cache
def wanted(index: int) -> np.ndarray:
    """The answer to inputs of ones."""
    with Session(artifact()) as session:
        return session.run({"x": np.ones(SHAPES[index]["x"], np.float32), "k": np.ones(1, np.int64)})["y/out"]


def call(folder: Path, *command: object, **more: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False, **more)  # type: ignore[call-overload, no-any-return]


def built(folder: Path, *command: object) -> None:
    done = call(folder, *command)
    assert done.returncode == 0, done.stderr


def check(folder: Path, *command: object, shapes: int = len(SHAPES), exact: bool = True) -> None:
    """The program's lines are the first answers of every shape."""
    done = call(folder, *command)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == shapes
    for index, line in enumerate(lines):
        assert line.startswith(f"shape {index} y/out: ")
        found = np.array(line.split(": ")[1].split(), np.float32)
        np.testing.assert_allclose(found, wanted(index).ravel()[:4], rtol=0 if exact else 1e-4)


def works(tool: str) -> bool:
    """Whether a compiler is installed, and not only rustup's word for one that is not."""
    return shutil.which(tool) is not None and call(Path(), tool, "--version").returncode == 0


needs = {
    tool: pytest.mark.skipif(not works(tool), reason=f"{tool} is not installed") for tool in ("cc", "c++", "rustc")
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the network in every form but the wheel."""
    found = tmp_path_factory.mktemp("emitted")
    for form in ("shared", "object", "static"):
        written = emit(artifact(), form, found / f"{'' if form == 'object' else 'lib'}network{SUFFIXES[form]}")
        assert [path.name for path in written[1:]] == ["network.h"]
    return found


@needs["cc"]
@pytest.mark.parametrize("form", ["shared", "static", "object"])
def test_a_c_program(folder: Path, form: str) -> None:
    linked = {
        "shared": ("-L.", "-lnetwork", "-Wl,-rpath,$ORIGIN"),
        "static": ("libnetwork.a",),
        "object": ("network.o",),
    }
    built(folder, "cc", "-std=c11", *STRICT, EXAMPLES / "use.c", *linked[form], "-pthread", "-o", form)
    check(folder, f"./{form}")


@needs["c++"]
def test_a_cpp_program(folder: Path) -> None:
    linked = ("-L.", "-lnetwork", "-Wl,-rpath,$ORIGIN", "-pthread")
    built(folder, "c++", "-std=c++17", *STRICT, EXAMPLES / "use.cpp", *linked, "-o", "cpp")
    check(folder, "./cpp", shapes=1)


@needs["rustc"]
def test_a_rust_program(folder: Path) -> None:
    built(folder, "rustc", "-O", EXAMPLES / "use.rs", "-L", ".", "-o", "rust")
    check(folder, "./rust", shapes=1)


@pytest.mark.slow
def test_a_static_program_without_any_library(folder: Path) -> None:
    """musl, statically: nothing of glibc is needed."""
    if not find_compiler().is_zig:
        pytest.skip("ziglang is not installed")
    zig, target = (sys.executable, "-m", "ziglang", "cc"), f"{os.uname().machine}-linux-musl"
    built(folder, *zig, "-target", target, "-static", "-I.", EXAMPLES / "use.c", "libnetwork.a", "-o", "musl")
    check(folder, "./musl")


@needs["c++"]
def test_the_one_source_file_by_another_compiler_with_weights_beside(tmp_path: Path) -> None:
    written = emit(artifact(), "source", tmp_path / "network.cpp")
    assert [path.name for path in written] == ["network.cpp", "network.h", "network.weights"]
    command = re.search("Compile as: (.*)", (tmp_path / "network.cpp").read_text())
    assert command is not None
    built(tmp_path, *command[1].split())
    built(tmp_path, "cc", *STRICT, EXAMPLES / "use.c", "network.o", "-pthread", "-o", "use")
    check(tmp_path, "./use", "network.weights", exact=False)
    good = (tmp_path / "network.weights").read_bytes()
    altered = bytearray(good)
    altered[len(good) // 2] ^= 1
    foreign = bytearray(good)
    foreign[20] ^= 1
    for data, message in (
        (altered, "was altered after it was written"),
        (good[:-8], "has another length than this network's"),
        (foreign, "belongs to another network"),
        (b"", "has another length"),
        (None, "there is no weights file"),
    ):
        (tmp_path / "w").unlink(missing_ok=True)
        if data is not None:
            (tmp_path / "w").write_bytes(data)
        done = call(tmp_path, "./use", "w")
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
    assert "there is no weights file" in call(tmp_path, "./use").stderr


def test_a_wheel(tmp_path: Path) -> None:
    (path,) = emit(artifact(), "wheel", tmp_path / "classifier.whl")
    assert path.name.startswith("classifier-1.0.0-py3-none-")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path / "site")
    built(tmp_path, *pip, path)
    program = """
import numpy, threading, classifier
x, k = numpy.ones((1, 48), numpy.float32), numpy.ones(1, numpy.int64)
with classifier.Network(threads=3) as one, classifier.Network(private_weights=True) as other:
    first, second = (n.run({"x": x, "k": k})["y/out"] for n in (one, other))
    assert (first == second).all() and len(classifier.SHAPES) == 2
    numpy.save("y.npy", first)
    for inputs, message in (({"x": x}, "not what the network takes"), ({"x": x, "k": k * 9}, "out of range")):
        try: one.run(inputs)
        except ValueError as error: assert message in str(error), error
        else: raise SystemExit("no error")
with classifier.Network() as third:
    ends = threading.Thread(target=third.close)
    with third._turn:  # as a run in another thread has it
        ends.start()
        ends.join(0.2)
        assert ends.is_alive() and third._close.alive
    ends.join()
try: one.run({"x": x, "k": k})
except RuntimeError as error: assert "closed" in str(error)
else: raise SystemExit("no error")
"""
    done = call(tmp_path, sys.executable, "-c", program, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), wanted(1))


def test_the_same_network_gives_the_same_bytes(tmp_path: Path) -> None:
    for form in FORMS:
        names = [emit(artifact(), form, tmp_path / f"{name}/network{SUFFIXES[form]}") for name in _folders(tmp_path)]
        assert [p.read_bytes() for p in names[0]] == [p.read_bytes() for p in names[1]], form


def _folders(tmp_path: Path) -> tuple[str, str]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
    return "a", "b"


@needs["cc"]
def test_two_networks_in_one_program(tmp_path: Path) -> None:
    """Compiled for different vectors: neither may take the other's functions for its own."""
    levels = ("scalar", "avx2") if "avx2" in _features() else ("scalar",) * 2
    for name, level in zip(("first", "second"), levels, strict=True):
        one = compiler.build(
            compiler.lower(model(), shapes=SHAPES[0], machine=compiler.Machine.named(level), threads=2)
        )
        emit(one, "static", tmp_path / f"lib{name}.a")
    text = (EXAMPLES / "use.c").read_text()
    for name in ("first", "second"):
        (tmp_path / f"{name}.c").write_text(text.replace("network", name).replace("int main(", f"int {name}_main("))
    (tmp_path / "main.c").write_text(
        "int first_main(int, char **), second_main(int, char **);\n"
        "int main(int n, char **a) { return first_main(n, a) | second_main(n, a); }\n"
    )
    sources = ("main.c", "first.c", "second.c", "libfirst.a", "libsecond.a")
    built(tmp_path, "cc", "-I.", *sources, "-pthread", "-o", "both")
    done = call(tmp_path, "./both")
    first, second = done.stdout.splitlines()
    for line in (first, second):
        found = np.array(line.split(": ")[1].split(), np.float32)
        np.testing.assert_allclose(found, wanted(0).ravel()[:4], rtol=1e-4)


def _features() -> frozenset[str]:
    return compiler.Machine.probe().features


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="features are looked up with x86's cpuid")
def test_a_lesser_processor_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(library.CPUID, "telepathy", (0x7FFFFFF0, 0, 0, 0))
    machine = forms._machine(artifact())
    about = {**artifact().manifest["machine"], "features": [*artifact().manifest["machine"]["features"], "telepathy"]}
    changed = replace(artifact(), manifest={**artifact().manifest, "machine": about})
    files = {"network.bin": artifact().weights}
    features = sorted(set(artifact().manifest["machine"]["features"]) - machine.level_features)
    text = library.source("network", changed, True, "")
    data = build_library(text, "shared", machine=machine, features=features, files=files)
    (tmp_path / "libnetwork.so").write_bytes(data)
    program = (
        "import ctypes; n = ctypes.CDLL('./libnetwork.so'); p = ctypes.c_char_p()\n"
        "n.network_create.restype = ctypes.c_void_p\n"
        "print(n.network_create(None, ctypes.byref(p)), p.value.decode())"
    )
    done = call(tmp_path, sys.executable, "-c", program)
    assert done.stdout == (
        "None this processor lacks telepathy, which the library was compiled for; compile the model here\n"
    )


@pytest.mark.skipif(not shutil.which("objdump"), reason="binutils are not installed")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86's instructions")
@pytest.mark.parametrize("streams", [True, False])
def test_a_library_leaves_streams_to_the_hardware_as_the_file_does(streams: bool) -> None:
    found = compiler.build_family(
        model(), SHAPES, threads=2, machine=replace(compiler.Machine.probe(), streams=streams)
    )
    text, definition = library.source("network", found, True, ""), f"#define MONONN_STREAMS {int(streams)}\n"
    assert text.count(definition) == 1 and text.index(definition) < text.index("#if MONONN_STREAMS")
    assert f"-DMONONN_STREAMS={int(streams)}" in found.manifest["compile_command"]


def test_what_asks_the_processor_uses_nothing_that_an_old_one_lacks(folder: Path) -> None:
    text = call(folder, "objdump", "-d", "--no-show-raw-insn", "network.o").stdout
    asked = [
        part
        for part in text.split("\n\n")
        if re.search(r"<(network_create|\S*lacking\S*|\S*keeps_registers\S*)>:", part)
    ]
    assert asked
    for part in asked:
        words = {line.split("\t")[1].split()[0] for line in part.splitlines() if "\t" in line}
        assert not {
            w for w in words if w.startswith("v") or w in ("shlx", "shrx", "sarx", "rorx", "andn", "bextr", "bzhi")
        }


def test_a_checksum_notices_any_altered_or_moved_word() -> None:
    data = np.random.default_rng(0).integers(0, 256, 4099, np.uint8)
    found = {library.checksum(data.tobytes())}
    for place in (0, 7, 8, 4090, 4096, 4098):
        other = data.copy()
        other[place] ^= 0x80
        found.add(library.checksum(other.tobytes()))
    swapped = np.concatenate([data[8:16], data[:8], data[16:]])
    found.add(library.checksum(swapped.tobytes()))
    assert len(found) == 8
    assert library.checksum(b"") == (0, 0)
    words = np.frombuffer(data[:4096].tobytes(), np.uint64)
    tail = int.from_bytes(data[4096:].tobytes(), "little")
    plain = (sum(map(int, words)) + tail) % 2**64
    weighted = (sum(i * int(w) for i, w in enumerate(words, 1)) + 513 * tail) % 2**64
    assert library.checksum(data.tobytes()) == (plain, weighted)


@needs["cc"]
def test_a_header_stands_alone_in_c_and_cpp(tmp_path: Path) -> None:
    (tmp_path / "n.h").write_text(header("n", artifact(), True))
    (tmp_path / "n.c").write_text('#include "n.h"\n#include "n.h"\nint i = n_INPUT_x + n_INPUT_k + n_OUTPUT_y_out;\n')
    built(tmp_path, "cc", "-std=c99", *STRICT, "-c", "n.c")
    if shutil.which("c++"):
        built(tmp_path, "c++", "-x", "c++", *STRICT, "-c", "n.c")


@pytest.mark.parametrize("text", ["plain", 'a"b\\c', "tab\tnew\n", "größe", "??/", "*/"])
def test_names_of_any_text_are_c_strings(text: str, tmp_path: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("cc is not installed")
    (tmp_path / "s.c").write_text(f"#include <stdio.h>\nint main(void) {{ fputs({quoted(text)}, stdout); return 0; }}")
    built(tmp_path, "cc", "s.c", "-o", "s")
    assert subprocess.run([tmp_path / "s"], capture_output=True, check=True).stdout.decode() == text


@pytest.mark.parametrize(
    ("form", "name", "weights", "message"),
    [
        ("dll", "libx.dll", "", "form 'dll' is unknown; choose one of shared, static"),
        ("shared", "libx.a", "", r"'libx.a' is no name of form shared; end it in .so"),
        ("static", "lib3d.a", "", "'3d' cannot begin the names of C functions"),
        ("static", "libint.a", "", "'int' cannot begin the names of C functions"),
        ("wheel", "json.whl", "", "a package 'json' would hide another"),
        ("wheel", "x.whl", "beside", "a wheel has its weights inside"),
        ("source", "x.cpp", "inside", "source has its weights beside"),
        ("object", "x.o", "outside", "weights 'outside' are neither inside nor beside"),
        ("object", "no/x.o", "", "the folder of .*no/x.o does not exist"),
        ("object", "folder", "", "folder is a folder; name the file"),
    ],
)
def test_bad_requests_leave_nothing(tmp_path: Path, form: str, name: str, weights: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(MononnError, match=message):
        emit(artifact(), form, tmp_path / name, weights)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_weights_too_many_for_inside_are_put_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "MOST_INSIDE", 100)
    with pytest.raises(MononnError, match="0 MiB of weights do not fit inside a library; put them beside"):
        emit(artifact(), "object", tmp_path / "x.o")
    written = emit(artifact(), "object", tmp_path / "x.o", "beside")
    assert [p.name for p in written] == ["x.o", "x.h", "x.weights"]


def test_a_gpu_s_network_is_no_library(tmp_path: Path) -> None:
    other = Artifact({**artifact().manifest, "target": "cuda", "further": []}, b"", b"", b"")
    with pytest.raises(MononnError, match="libraries are a CPU's, the target is cuda"):
        emit(other, "object", tmp_path / "x.o")


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ArtifactError, match="choose a writable folder"):
        emit(artifact(), "source", tmp_path / "x.cpp")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.onnx").write_bytes(model())
    run: Callable[..., int] = lambda *more: main(  # noqa: E731
        ["compile", str(tmp_path / "x.onnx"), "--shape", "x=8x48", "--threads", "1", *more]
    )
    assert run("--emit", "static", "-o", str(tmp_path / "libx.a")) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/libx.a: ")
    assert run("-o", str(tmp_path / "x.mono"), "--weights", "beside") == 2
    assert "a .mono file has its weights inside" in capsys.readouterr().err


def test_the_page_names_the_functions_that_there_are() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "shipping.md").read_text()
    text = " ".join(header("bert", artifact(), True).split())
    for line in page.partition("```c\n")[2].partition("```")[0].splitlines():
        assert line in text, line
    for word in re.findall(r"`(bert_\w+)`", page):
        assert word in text, word
    for form in FORMS:
        assert f"| `{form}` |" in page
