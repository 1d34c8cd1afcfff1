"""The C program of examples/ runs a .mono file with the answers of the Session, and refuses what is no such file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.runtime.toolchain import HOST
from tests.core import handmade
from tests.core.test_switches import NETWORKS, feed

EXAMPLE = Path(__file__).parents[2] / "examples" / "run_mono.c"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("c")
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    flags = ["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{HOST}"]
    subprocess.run(["cc", *flags, EXAMPLE, "-ldl", "-pthread", "-o", folder / "run_mono"], check=True)
    handmade.artifact().save(folder / "x.mono")
    return folder


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [folder / "run_mono", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_same_answers_as_numpy(folder):
    a = np.random.default_rng(7).standard_normal(64).astype(np.float32)
    a.tofile(folder / "a.raw")
    np.array([5], np.int32).tofile(folder / "k.raw")
    result = call(folder, "x.mono", "a.raw", "k.raw")
    assert (result.returncode, result.stderr) == (0, "")
    rows = [np.array(line.split(":")[1].split(), np.float32) for line in result.stdout.splitlines()]
    expected = handmade.expected(a, 5)
    np.testing.assert_array_equal(rows[0], expected["y"][:6])
    np.testing.assert_array_equal(rows[1], expected["s"])


@pytest.mark.parametrize("launch", ["once", "phases"])
def test_compiled_networks_in_either_launch(folder, launch):
    x = feed("chain")["x"]
    x.tofile(folder / "x.raw")
    with compiler.compile(NETWORKS["chain"](), threads=2, launch=launch) as session:
        session.save(folder / f"{launch}.mono")
        want = session.run({"x": x})["y"]
    result = call(folder, f"{launch}.mono", "x.raw")
    assert (result.returncode, result.stderr) == (0, "")
    (row,) = result.stdout.splitlines()
    np.testing.assert_allclose(np.array(row.split(":")[1].split(), np.float32), want.ravel()[:6], rtol=1e-5)


def test_error_word(folder):
    np.array([99], np.int32).tofile(folder / "bad.raw")
    np.zeros(64, np.float32).tofile(folder / "zero.raw")
    result = call(folder, "x.mono", "zero.raw", "bad.raw")
    assert result.returncode == 1
    assert result.stderr.split() == ["error", f"{99 << 32 | 1 << 8 | 1:x}"]


@pytest.mark.parametrize(("length", "message"), [(0, "cannot be mapped"), (40, "no .mono file"), (5000, "truncated")])
def test_wrong_files(folder, length, message):
    (folder / "y.mono").write_bytes((folder / "x.mono").read_bytes()[:length])
    result = call(folder, "y.mono")
    assert (result.returncode, result.stderr.strip()) == (2, f"y.mono: {message}")
