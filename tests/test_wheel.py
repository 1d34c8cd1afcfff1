"""The wheel, installed with no checkout near: both commands work, and it is small."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("mononn_core", "mononn_bench", "envs", "workflows", "results/tuning", "pyproject.toml", "README.md", "LICENSE")
TUNED = ROOT / "results" / "tuning" / "tvm"
MOST_BYTES = 3_000_000


def run(*command: object, cwd: Path) -> str:
    """What a command prints; one that fails fails the test with what it says."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves files beside its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in PARTS:
        source, copy = ROOT / name, folder / "source" / name
        ignore = shutil.ignore_patterns("__pycache__")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, copy, ignore=ignore) if source.is_dir() else shutil.copy(source, copy)
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder,
        folder / "source", cwd=folder,
    )  # fmt: skip
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel, and what it needs from that of the tests but their checkout."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel,
        cwd=folder,
    )  # fmt: skip
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_a_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES


def test_an_installation_compiles_and_runs(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import mononn_core; print(mononn_core.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", np.full((2, 3), 5, np.float32))
    run(installed / "mononn", "compile", "net.onnx", "-o", "net.mono", cwd=tmp_path)
    assert "mean 5" in run(installed / "mononn", "run", "net.mono", "--input", "x=x.npy", cwd=tmp_path)


def test_an_installation_finds_what_the_benchmark_reads(installed: Path, tmp_path: Path) -> None:
    roomy = "import shutil, types; shutil.disk_usage = lambda _: types.SimpleNamespace(free=1e12)"
    examine = f"{roomy}; from mononn_bench.doctor import main; main(['--brief'])"
    assert "expected" in run(installed / "python", "-c", examine, cwd=tmp_path)
    assert "measure" in run(installed / "mononn-bench", "--help", cwd=tmp_path)
    script = (
        "from pathlib import Path; from mononn_bench.files import FILES, ROOT, import_path\n"
        "from mononn_bench.workflow.config import DEFAULT, read_config\n"
        "from mononn_bench.workflow.plan import make_plan\n"
        "from mononn_bench.systems.tvm_model import SHIPPED\n"
        f"assert len(list(SHIPPED.glob('*/budget.json'))) == {len(list(TUNED.glob('*/budget.json')))}\n"
        "plan = make_plan({**read_config(DEFAULT), 'machine': 'here'})\n"
        "assert all(one.requirements.is_file() for one in plan.environments.values())\n"
        "where = import_path(Path('.cache'))\n"
        "assert FILES != ROOT and sorted(p.name for p in where.iterdir()) == ['mononn_bench', 'mononn_core']\n"
        "assert import_path(Path('.cache')) == where\n"
    )
    run(installed / "python", "-c", script, cwd=tmp_path)
