"""Families: one file for several shapes. Each answers as the network compiled for its shape alone; weights are one."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from mononn_core import compiler
from mononn_core.cli.main import main
from mononn_core.compiler.family import MOST
from mononn_core.errors import ArtifactError, InputError, MononnError
from mononn_core.importer.context import UnknownValueError
from mononn_core.machine import Machine
from mononn_core.runtime import loading, trace
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.session import Session
from mononn_core.runtime.toolchain import HOST
from tests.core.networks import Builder

WIDTH, HEADS = 64, 2
Shape = Mapping[str, tuple[int, ...]]
Command = Callable[..., tuple[int, str, str]]
SHAPES = [{"x": (1, 8, WIDTH)}, {"x": (1, 33, WIDTH)}, {"x": (3, 8, WIDTH)}, {"x": (1, 1, WIDTH)}]


@cache
def network() -> bytes:
    """Attention and a recurrence over x [batch, length, WIDTH], to y of that shape."""
    b = Builder("encoder")

    def heads(x: str) -> str:
        return b.add("Transpose", b.add("Reshape", x, b.ints(0, 0, HEADS, WIDTH // HEADS)), perm=[0, 2, 1, 3])

    q, k, v = (heads(b.linear("x", WIDTH, WIDTH)) for _ in range(3))
    score = b.add("Softmax", b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    context = b.add("Transpose", b.add("MatMul", score, v), perm=[0, 2, 1, 3])
    seen = b.add("Add", b.linear(b.add("Reshape", context, b.ints(0, 0, WIDTH)), WIDTH, WIDTH), "x")
    steps = b.add("Transpose", seen, perm=[1, 0, 2])
    gates = b.weight(1, 3 * WIDTH, WIDTH), b.weight(1, 3 * WIDTH, WIDTH)
    state = b.add("Squeeze", b.add("GRU", steps, *gates, hidden_size=WIDTH), b.ints(1))
    b.add("Add", b.add("Transpose", state, perm=[1, 0, 2]), "x", output="y")
    value = {"x": (TensorProto.FLOAT, ("batch", "length", WIDTH))}
    return b.model(value, {"y": ("batch", "length", WIDTH)})  # type: ignore[arg-type, dict-item]


@cache
def family(launch: str = "once") -> Artifact:
    return compiler.build_family(network(), SHAPES, threads=2, launch=launch)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; gives (exit status, standard output, standard error without progress)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        out, err = capsys.readouterr()
        return status, out, "".join(line for line in err.splitlines(True) if not line.startswith("["))

    return run


def feed(shapes: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@cache
def alone(index: int) -> Artifact:
    return compiler.build(compiler.lower(network(), shapes=SHAPES[index], threads=2))


def wanted(index: int, seed: int = 0) -> np.ndarray:
    with Session(alone(index)) as session:
        answer: np.ndarray = session.run(feed(SHAPES[index], seed))["y"]
        return answer


@pytest.mark.parametrize("launch", ["once", "phases"])
def test_every_shape_answers_as_alone_whatever_ran_before(launch: str) -> None:
    with Session(family(launch)) as session:
        for index in (0, 1, 1, 2, 0, 3, 2, 1, 3):
            np.testing.assert_array_equal(session.run(feed(SHAPES[index]))["y"], wanted(index))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_bindings_of_several_shapes_from_several_threads(workers: int) -> None:
    answers = [wanted(index) for index in range(len(SHAPES))]
    wrong: list[int] = []
    with Session(family(), threads=workers) as session:

        def runs(index: int) -> None:
            binding = session.bind(feed(SHAPES[index]))
            for _ in range(50):
                binding.run()
                wrong.extend([] if np.array_equal(binding.outputs["y"], answers[index]) else [index])

        threads = [threading.Thread(target=runs, args=(index,)) for index in range(len(SHAPES))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        other = session.clone()
        np.testing.assert_array_equal(other.run(feed(SHAPES[1]))["y"], answers[1])
    assert not wrong


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_weights_beyond_the_caches_are_one_copy_however_few_rows_a_shape_has(rows: int) -> None:
    """A product of few rows prefers wider panels: alone it has them, in a family those of the others."""
    width = 992  # panels of two vectors suit many rows, whatever the vectors are
    b = Builder("wide")
    b.add("Relu", b.linear("x", width, width), output="y")
    model = b.model({"x": (TensorProto.FLOAT, ("n", width))}, {"y": ("n", width)})  # type: ignore[arg-type, dict-item]
    machine = replace(Machine.probe(), l2_bytes=256 << 10)
    shapes = [{"x": (rows, width)}, {"x": (64, width)}]
    found = compiler.build_family(model, shapes, machine=machine, threads=2)
    many = compiler.build(compiler.lower(model, shapes=shapes[1], machine=machine, threads=2))
    assert len(found.weights) == len(many.weights)
    x, weight, bias = feed(shapes[0])["x"], *(numpy_helper.to_array(w).astype(np.float64) for w in b.weights)
    with Session(found) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(x @ weight + bias, 0), atol=1e-5)
    near = compiler.build_family(model, shapes, machine=replace(machine, l2_bytes=64 << 20), threads=2)
    assert (len(near.weights) > 1.5 * len(many.weights)) == (rows < 7)


def test_all_specialisations_tell_of_the_weights_of_all() -> None:
    assert {m["weight_bytes"] for m in family().specialisations} == {len(family().weights)}


def test_every_manifest_is_that_of_its_shape_alone() -> None:
    for index, manifest in enumerate(family().specialisations):
        for key in ("arena_bytes", "scratch_bytes", "counters", "inputs", "outputs", "barriers"):
            assert manifest[key] == alone(index).manifest[key], (index, key)
    assert len({m["arena_bytes"] for m in family().specialisations}) > 1


def test_constants_of_one_name_and_other_values_are_kept_apart() -> None:
    """A table of as many rows as there are steps: a constant of each shape."""
    b = Builder("positions")
    length = b.add("Slice", b.add("Shape", "x"), b.ints(1), b.ints(2), b.ints(0))
    table = b.add("Slice", b.weight(40, WIDTH), b.ints(0), length, b.ints(0))
    other = b.add("Slice", b.weight(40, WIDTH), b.add("Neg", length), b.ints(1 << 30), b.ints(0))
    b.add("Add", b.add("Mul", "x", table), other, output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, "n", WIDTH))}, {"y": (1, "n", WIDTH)})  # type: ignore[dict-item]
    with compiler.compile(model, shapes=SHAPES[:2], threads=2) as session:
        for shapes in SHAPES[:2]:
            with compiler.compile(model, shapes=shapes, threads=2) as one:
                np.testing.assert_array_equal(session.run(feed(shapes))["y"], one.run(feed(shapes))["y"])


def test_same_bytes_again_and_the_file_reads_back(tmp_path: Path) -> None:
    family().save(tmp_path / "a.mono")
    compiler.build_family(network(), SHAPES, threads=2).save(tmp_path / "b.mono")
    assert (tmp_path / "a.mono").read_bytes() == (tmp_path / "b.mono").read_bytes()
    for share in ("private", "shared"):
        with loading.load(tmp_path / "a.mono", weights=share) as session:
            assert [s.shapes for s in session.specialisations] == SHAPES
            for index in (2, 1):
                np.testing.assert_array_equal(session.run(feed(SHAPES[index]))["y"], wanted(index))


def test_altered_code_of_a_later_shape_is_noticed(tmp_path: Path) -> None:
    family().save(tmp_path / "a.mono")
    data = bytearray((tmp_path / "a.mono").read_bytes())
    data[data.index(family().further[1]) + 100] ^= 1
    (tmp_path / "a.mono").write_bytes(data)
    with pytest.raises(ArtifactError, match="its code:2 section"):
        loading.load(tmp_path / "a.mono")


def test_a_manifest_of_other_shapes_than_code_is_refused() -> None:
    with pytest.raises(ArtifactError, match="other specialisations than there is code for"):
        Artifact(family().manifest, family().code, family().host, family().weights, further=family().further[:1])


def test_a_trace_has_the_phases_of_its_shape() -> None:
    with Session(family()) as session:
        for one in session.specialisations:
            stamps = trace.record(session, feed(one.shapes), runs=2)
            assert stamps.shape[1:] == (2, len(one.phases), 3)
            rows, _ = trace.trace_report(session, feed(one.shapes), runs=2)
            floors = trace.floor_seconds(session.artifact.specialisations[one.index], Machine.probe(), session.workers)
            assert [row["floor"] for row in rows] == pytest.approx(floors)


def test_what_a_shape_lacks_is_said_as_for_one_shape() -> None:
    b = Builder("given")
    b.add("Reshape", "x", "shape", output="y")
    value = {"x": (TensorProto.FLOAT, ("n", 4)), "shape": (TensorProto.INT64, (2,))}
    model = b.model(value, {"y": ("n", "m")})  # type: ignore[arg-type, dict-item]
    with pytest.raises(UnknownValueError, match=r"at x=\[?2.*--value"):
        compiler.build_family(model, [{"x": (2, 4)}, {"x": (1, 4)}])


def test_errors_name_the_phase_of_the_shape_that_ran() -> None:
    b = Builder("lookup")
    b.add("Mul", b.add("Gather", b.weight(4, 8), "i"), b.weight(1), output="y")
    model = b.model({"i": (TensorProto.INT64, ("n",))}, {"y": ("n", 8)})  # type: ignore[dict-item]
    with compiler.compile(model, shapes=[{"i": (1,)}, {"i": (3,)}], threads=2) as session:
        with pytest.raises(InputError, match=r"out of range in Mul node 'Mul_1' \(it is 9\)"):
            session.run({"i": np.array([0, 9, 1])})
        assert session.run({"i": np.array([3])})["y"].shape == (1, 8)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((1, 9, WIDTH), np.float32), r"not compiled for x=1x9x64; give x=1x8x64, or x=1x33x64, or"),
        (np.zeros((1, 33, WIDTH)), r"input 'x' is float64\[1x33x64\] but the network takes float32\[1x33x64\]"),
    ],
)
def test_inputs_of_no_shape_there_is(value: np.ndarray, message: str) -> None:
    with Session(family()) as session, pytest.raises(InputError, match=message):
        session.run({"x": value})


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ([], {}, f"0 shapes are given for one file; give 1 to {MOST}"),
        ([{"x": (1, n, WIDTH)} for n in range(1, MOST + 2)], {}, f"{MOST + 1} shapes are given"),
        ([SHAPES[0], SHAPES[1], SHAPES[0]], {}, "shapes 1 and 3 are both x=1x8x64; give each once"),
        ([SHAPES[0], {"x": (1, 8)}], {}, "at x=1x8: input 'x' has 3 dimensions"),
        ([SHAPES[0], {"z": (1,)}], {}, "at z=1: the model has no input 'z'"),
        ([SHAPES[0], {}], {}, "dimension 0 .batch. is dynamic"),
        (SHAPES, {"target": "cuda"}, "a file of several shapes is a CPU's, the target is cuda"),
    ],
)
def test_what_is_no_family(shapes: list[Shape], options: dict[str, str], message: str) -> None:
    with pytest.raises(MononnError, match=message):
        compiler.build_family(network(), shapes, **options)  # type: ignore[arg-type]


def test_the_command_line(tmp_path: Path, command: Command) -> None:
    (tmp_path / "x.onnx").write_bytes(network())
    (tmp_path / "shapes.txt").write_text("x=1x8x64 # short\n\nx=1x33x64\n")
    model, file, shapes = (str(tmp_path / name) for name in ("x.onnx", "x.mono", "shapes.txt"))
    assert command("compile", model, "-o", file, "--threads", "2", "--shapes-file", shapes)[0] == 0
    assert "y  float32[1, 33, 64]" in command("run", file, "--shape", "x=1x33x64")[1]
    np.save(tmp_path / "x.npy", feed(SHAPES[1])["x"])
    assert "y  float32[1, 33, 64]" in command("run", file, "--input", f"x={tmp_path}/x.npy")[1]
    assert "one function of 2, one a shape" in command("inspect", file)[1]
    assert "input   x  float32[1x33x64]" in command("inspect", file, "--shape", "x=1x33x64")[1]
    assert command("inspect", file, "--program", "--shape", "x=1x33x64") != command("inspect", file, "--program")
    status, _, error = command("run", file, "--shape", "x=1x9x64")
    assert (status, error) == (
        2, "mononn run: the network was not compiled for x=1x9x64; give x=1x8x64, or x=1x33x64\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("# none\n", [], "has no shapes; write a line for each"),
        ("x=1x8x64\nx=1xtwo\n", [], "line 2: 'x=1xtwo' is not NAME=1x128"),
        ("x=1x8x64 x=1x9x64\n", [], "line 1 gives an input twice"),
        ("x=1x8x64\n", ["--shape", "x=1x8x64"], "--shape and --shapes-file are given"),
        (None, [], "cannot be read"),
    ],
)
def test_files_of_no_shapes(tmp_path: Path, command: Command, text: str | None, more: list[str], message: str) -> None:
    (tmp_path / "x.onnx").write_bytes(network())
    if text is not None:
        (tmp_path / "s.txt").write_text(text)
    given = ("--shapes-file", str(tmp_path / "s.txt"), *more)
    status, _, error = command("compile", str(tmp_path / "x.onnx"), "-o", str(tmp_path / "x.mono"), *given)
    assert (status, message in error, error.count("\n")) == (2, True, 1), error
    assert not (tmp_path / "x.mono").exists()


def test_from_c_the_sizes_of_the_inputs_say_which(tmp_path: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    example = Path(__file__).parents[2] / "examples" / "run_mono.c"
    flags = ["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{HOST}"]
    subprocess.run(["cc", *flags, example, "-ldl", "-pthread", "-o", tmp_path / "run_mono"], check=True)
    family().save(tmp_path / "x.mono")

    def run(values: np.ndarray) -> subprocess.CompletedProcess[str]:
        values.tofile(tmp_path / "x.raw")
        command = [tmp_path / "run_mono", tmp_path / "x.mono", tmp_path / "x.raw"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    for index in (1, 0, 2):
        ended = run(feed(SHAPES[index])["x"])
        assert (ended.returncode, ended.stderr) == (0, "")
        found = np.array(ended.stdout.split(":")[1].split(), np.float32)
        np.testing.assert_array_equal(found, wanted(index).ravel()[: len(found)])
    ended = run(np.zeros(7, np.float32))
    assert (ended.returncode, "compiled for no inputs of these sizes" in ended.stderr) == (2, True)
