"""The command line for a GPU: compile, inspect, run, trace; what it prints, and its one sentence where it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mononn_core.cli import main
from mononn_core.cli.gpu import phase_line
from mononn_core.runtime import cuda_device
from mononn_core.runtime.artifact import PAGE_ALIGN
from tests.core.networks import mlp


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "mlp.onnx").write_bytes(mlp())
    assert main(["compile", str(folder / "mlp.onnx"), "--target", "cuda-emulated", "-o", str(folder / "e.mono")]) == 0
    return folder


@pytest.fixture
def call(folder, capsys, monkeypatch):
    """Runs a command in the folder; gives (exit status, standard output, standard error)."""
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_one_cubin_an_architecture_and_what_it_needs(call, folder):
    arches = ("--arch", "sm_80", "--arch", "sm_90a")
    status, out, _ = call(
        "compile", "mlp.onnx", "--target", "cuda", *arches, "--precision", "fp16", "-o", "g.mono"
    )  # fmt: skip
    assert status == 0
    assert "launch  one kernel, " in out
    assert all(f"{arch:7} mononn_run: " in out for arch in ("sm_80", "sm_90a"))
    assert out.count(" 0 spills, ") == out.count(": one resident wave") == 2
    assert "seconds passes" in out and "of memory" in out
    status, out, _ = call("inspect", "g.mono")
    assert status == 0
    assert "precision fp16, scheduled for A100 (sm_80)" in out
    assert "by the cost model, never measured" in out
    assert all(name in out for name in ("A10 ", "A100", "B200", "H100", "H200", "RTX 4090"))
    manifest = json.loads(call("inspect", "g.mono", "--json")[1])
    assert sorted(manifest["cubins"]) == ["sm_80", "sm_90a"]
    assert all(times["floor"] <= times["seconds"] for times in manifest["predicted"].values())
    again = folder / "again.mono"
    common = ("compile", "mlp.onnx", "--target", "cuda", *arches, "--precision", "fp16", "-o", str(again))
    facts = json.loads(call(*common, "--json")[1])
    assert facts["cubins"]["sm_80"]["kernels"]["mononn_run"]["registers"] > 0 and facts["peak_bytes"] > 0
    assert again.read_bytes() == (folder / "g.mono").read_bytes()


def test_layers_of_a_rolled_loop_are_counted():
    ids = ["start", *(f"{phase}[{layer}]" for layer in range(3) for phase in ("a", "b")), "end"]
    phases = [{"id": name, "tasks": 2} for name in ids]
    line = phase_line({"phases": phases, "barriers": 7, "counters": 1})
    assert line.split("  ")[-1] == "8, 2 a layer (3 layers), 16 tasks, 7 barriers, 1 counters"


def test_the_same_weights_serve_every_architecture(call, folder):
    common = ("compile", "mlp.onnx", "--target", "cuda", "--gpu", "A100")
    assert call(*common, "--arch", "sm_80", "-o", "one.mono")[0] == 0
    assert call(*common, "--arch", "sm_80", "--arch", "sm_90a", "-o", "two.mono")[0] == 0
    one, two = (json.loads(call("inspect", name, "--json")[1]) for name in ("one.mono", "two.mono"))
    assert one["weight_bytes"] == two["weight_bytes"]
    grown = (folder / "two.mono").stat().st_size - (folder / "one.mono").stat().st_size
    assert 0 < grown < two["cubins"]["sm_90a"]["bytes"] + PAGE_ALIGN


def test_a_graph_of_kernels_is_listed(call):
    status, out, _ = call(
        "compile", "mlp.onnx", "--target", "cuda", "--arch", "sm_80", "--launch", "graph", "-o", "p.mono"
    )  # fmt: skip
    assert status == 0
    assert "kernels, " in out and "mononn_part_0: " in out


def test_emulated_from_end_to_end(call, folder):
    np.save(folder / "x.npy", np.ones((3, 24), np.float32))
    status, out, _ = call("run", "e.mono", "--input", "x=x.npy", "--threads", "2", "--output", "out")
    assert status == 0 and out.startswith("y  float32[3, 24]")
    assert call("compile", "mlp.onnx", "-o", "cpu.mono")[0] == 0
    assert call("run", "cpu.mono", "--input", "x=x.npy", "--output", "cpu")[0] == 0
    np.testing.assert_allclose(np.load(folder / "out/y.npy"), np.load(folder / "cpu/y.npy"), rtol=1e-5)
    status, out, _ = call("trace", "e.mono", "--table", "--repeat", "1", "-o", "t.json")
    assert status == 0 and "imbalance" in out
    assert json.loads((folder / "t.json").read_text())["traceEvents"]
    assert call("inspect", "e.mono", "--source")[1].count("mononn_run") == 1


def test_bisect_through_the_emulator(call):
    status, out, _ = call(
        "bisect", "mlp.onnx", "--target", "cuda-emulated", "--precision", "fp16", "--tolerance", "0.02"
    )
    assert status == 0 and "agree with the reference" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("compile", "mlp.onnx", "--target", "cuda", "-o", "n.mono"), "name an architecture, as --arch sm_90a"),
        (("compile", "mlp.onnx", "--target", "cuda", "--arch", "sm_70", "-o", "n.mono"), "'sm_70' is unknown"),
        (("compile", "mlp.onnx", "--precision", "fp16", "-o", "n.mono"), "choose fp32 or bf16, or target cuda"),
    ],
)
def test_bad_input_is_one_sentence(call, monkeypatch, arguments, text):
    monkeypatch.setattr("mononn_core.compiler.cuda.present_gpu", lambda: None)
    status, out, err = call(*arguments)
    assert status == 2 and not out
    said = err.splitlines()[-1]
    assert said.startswith("mononn compile: ") and text in said


def test_running_without_a_gpu_is_one_sentence(call, monkeypatch):
    assert call("compile", "mlp.onnx", "--target", "cuda", "--arch", "sm_80", "-o", "g80.mono")[0] == 0
    monkeypatch.setattr(cuda_device.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError("no such file")))
    status, _, err = call("run", "g80.mono")
    assert status == 2 and err.startswith("mononn run: no NVIDIA driver is here") and err.count("\n") == 1
