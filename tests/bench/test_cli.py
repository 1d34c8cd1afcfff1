"""The command line: lists, bad input in one sentence with status 2, and a whole case by its steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from mononn_bench.cli import main
from mononn_bench.codec import read_record, write_record
from mononn_bench.measure import case
from mononn_bench.measure.build import build_system
from mononn_bench.record import CaseRecord
from tests.bench.conftest import ROOT, linear_model
from tests.bench_report.profiles import a_profile


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert main(["systems"]) == 0
    said = capsys.readouterr().out
    for name in ("bert-base", "mlp-test", "mononn", "torch-inductor", "openvino=="):
        assert name in said


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["measure", "--model", "bert-bse"], "did you mean 'bert-base'"),
        (["measure", "--model", "mlp", "--systems", "mononn,onnxruntme"], "did you mean 'onnxruntime'"),
        (["explain"], "Name what to measure: --model M or --path FILE"),
        (["explain", "--path", "gone.onnx", "--systems", "mononn"], "gone.onnx"),
        (["explain", "--profile", "gone.json"], "cannot be read"),
        (["measure", "--model-folder", "x", "--systems", "mononn"], "no build or no environment"),
        (["build", "--system", "openvin", "--environment", "e", "--model-folder", "m", "--output", "o"], "'openvino'"),
        (
            ["build", "--system", "openvino", "--environment", "e", "--model-folder", "m", "--output", "o"],
            "cannot be read",
        ),
        (["export", "--model", "mine", "--path", "gone.onnx", "--output", "o"], "There is no model file"),
        (["reference", "--model-folder", "gone"], "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence_and_status_two(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert text in said
    assert len(said.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "nothing half-written is left"


def test_a_kept_profile_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "net.json"
    write_record(a_profile(), kept)
    assert main(["explain", "--profile", str(kept)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# net: mononn beside openvino")
    assert "products at 25% of peak against 12%" in said
    assert main(["explain", "--profile", str(kept), "--systems", "mononn,tvm,openvino"]) == 0
    said = capsys.readouterr().out
    assert "# net: mononn beside openvino" in said and "cannot be explained beside tvm" in said
    assert main(["explain", "--profile", str(kept), "--systems", "mononn,tvm"]) == 2
    assert "its profiler does not say which ONNX nodes" in capsys.readouterr().err
    write_record(a_profile(profiles=()), kept)
    assert main(["explain", "--profile", str(kept)]) == 2
    assert "no other system" in capsys.readouterr().err


def test_ill_formed_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--shape", "x=1y8"], ["--shape", "1x8"], ["--shape", "x=0x8"]):
        with pytest.raises(SystemExit) as stop:
            main(["export", "--model", "m", "--output", "o", *option])
        assert stop.value.code == 2
    assert "x=1y8" in capsys.readouterr().err


def test_a_case_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for function in (case.measure_case, build_system):
        kept = {**function.__kwdefaults__, "lock": tmp_path / "lock"}
        monkeypatch.setattr(function, "__kwdefaults__", kept)
    monkeypatch.chdir(tmp_path)
    onnx.save(linear_model(), "mine.onnx")
    steps = [
        ["environment", "--requirements", str(ROOT / "envs" / "onnxruntime.txt"), "--existing", sys.executable],
        ["export", "--model", "mine", "--path", "mine.onnx", "--shape", "x=1x8", "--output", "model"],
        ["reference", "--model-folder", "model"],
        ["build", "--system", "onnxruntime", "--environment", "env", "--model-folder", "model", "--output", "ort"],
        ["build", "--system", "torch-eager", "--environment", "env", "--model-folder", "model", "--output", "eager"],
    ]
    steps[0] += ["--folder", "env"]
    for step in steps:
        assert main([*step, *(["--threads", "1"] if step[0] == "build" else [])]) == 0, step
    measuring = ["measure", "--model-folder", "model", "--rounds", "1", "--cycles", "1", "--block-seconds", "0.01"]
    for system, build in (("onnxruntime", "ort"), ("torch-eager", "eager")):
        measuring += ["--build", f"{system}={build}", "--environment", f"{system}=env"]
    assert main([*measuring, "--threads", "1", "--precision", "bf16", "--output", "raw.json"]) == 2
    assert "ort has precision fp32, not bf16: build it anew" in capsys.readouterr().err
    assert main([*measuring, "--threads", "1", "--output", "raw.json"]) == 0
    record = read_record(CaseRecord, tmp_path / "raw.json")
    rows = {row.label: (row.status, row.reason) for row in record.systems}
    assert rows["onnxruntime"] == ("ok", "")
    assert rows["torch-eager"] == (
        "unavailable",
        "torch-eager needs a PyTorch module; this model is an ONNX file alone",
    )
    assert record.systems[0].identity_us is not None
    assert "mononn-bench measure --model mine --systems onnxruntime,torch-eager" in record.command
    assert not list(tmp_path.glob(".*scratch"))
    assert "onnxruntime" in capsys.readouterr().out


def test_the_command_starts_where_only_a_system_s_packages_are() -> None:
    absent = ("scipy", "pandas", "matplotlib", "seaborn", "jinja2", "yaml", "jsonschema", "torch", "onnxruntime")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import mononn_bench.cli"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
