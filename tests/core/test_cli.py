"""The command line: every command on a small model, JSON output, planted bugs for bisect, and bad input."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mononn_core.cli import main
from mononn_core.cli.run import write_outputs
from mononn_core.compiler import cpu
from mononn_core.errors import UnsupportedError
from mononn_core.importer import context
from mononn_core.passes import pipeline
from mononn_core.runtime.artifact import Artifact

RANDOM = np.random.default_rng(3)
W1, W2 = (RANDOM.standard_normal((16, 16)).astype(np.float32) for _ in range(2))


def model_proto(batch: int | str = 4) -> onnx.ModelProto:
    """y = sigmoid(relu(x @ W1) @ W2)"""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="rectify"),
        helper.make_node("MatMul", ["r", "w2"], ["s"], name="second"),
        helper.make_node("Sigmoid", ["s"], ["y"], name="squash"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 16])],
        [numpy_helper.from_array(W1, "w1"), numpy_helper.from_array(W2, "w2")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def expected(x: np.ndarray) -> np.ndarray:
    """The small model by NumPy in float64."""
    return 1 / (1 + np.exp(-(np.maximum(x.astype(np.float64) @ W1, 0) @ W2)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    onnx.save(model_proto(), folder / "small.onnx")
    onnx.save(model_proto("batch"), folder / "dynamic.onnx")
    os.mkfifo(folder / "pipe")
    assert main(["compile", str(folder / "small.onnx"), "-o", str(folder / "small.mono"), "--threads", "2"]) == 0
    return folder


@pytest.fixture
def call(folder, capsys, monkeypatch):
    """Runs a command in the folder; gives (exit status, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_compile_says_what_it_wrote_and_repeats_to_the_byte(call, folder):
    status, out, err = call("compile", "small.onnx", "-o", "again.mono", "--threads", "2")
    assert status == 0
    assert out.startswith("again.mono: 0.")
    assert "compiling" in err, "progress goes to standard error"
    assert (folder / "again.mono").read_bytes() == (folder / "small.mono").read_bytes()


def test_compile_json(call):
    status, out, _ = call("compile", "small.onnx", "-o", "json.mono", "--json")
    assert status == 0
    assert json.loads(out)["threads"] == len(os.sched_getaffinity(0))


def test_run_on_a_file_and_back(call, folder):
    x = RANDOM.standard_normal((4, 16)).astype(np.float32)
    np.save(folder / "x.npy", x)
    status, out, _ = call("run", "small.mono", "--input", "x=x.npy", "--output", "out", "--threads", "1")
    assert status == 0
    assert out.startswith("y  float32[4, 16]")
    np.testing.assert_allclose(np.load(folder / "out" / "y.npy"), expected(x), rtol=1e-5)


def test_run_is_seeded_and_timed(call):
    first, again, other = (json.loads(call("run", "small.mono", "--json", "--seed", seed)[1]) for seed in "112")
    assert first == again
    assert first != other
    timed = json.loads(call("run", "small.mono", "--repeat", "20", "--json")[1])
    assert timed["runs"] == 20
    assert 0 < timed["ms"]["min"] <= timed["ms"]["median"] <= timed["ms"]["p90"]
    assert "20 runs: median" in call("run", "small.mono", "--repeat", "20")[1]


@pytest.mark.parametrize("file", ["small.mono", "small.onnx"])
def test_inspect_summary(call, file):
    status, out, _ = call("inspect", file)
    assert status == 0
    for word in ("phases", "tasks", "barriers", "arena", "weights", "GFLOP", "floor", "one function", "'first'"):
        assert word in out
    facts = json.loads(call("inspect", file, "--json")[1])
    assert facts["flops"] >= 2 * 2 * 4 * 16 * 16
    assert facts["floor_seconds"] > 0


@pytest.mark.parametrize(
    ("text", "word"), [("graph", "matmul"), ("schedule", "group"), ("program", "phase"), ("source", "mononn_run")]
)
def test_inspect_texts_are_the_same_from_both_files(call, text, word):
    compiled = call("inspect", "small.mono", f"--{text}")
    lowered = call("inspect", "small.onnx", f"--{text}", "--threads", "2")
    assert compiled[:2] == lowered[:2]
    assert word in compiled[1]
    shown = json.loads(call("inspect", "small.mono", f"--{text}", "--json")[1])
    assert shown["intervals" if text == "schedule" else text]


def test_trace_says_what_the_cost_model_expected(call, folder):
    code, out, _ = call("trace", "small.mono", "--model", "--repeat", "2")
    lines = out.splitlines()
    assert code == 0 and lines[0].split()[:4] == ["phase", "us", "model", "us"] and len(lines) > 2
    assert all(float(line.split()[2]) >= 0 for line in lines[1:-1]) and "within 25%; modelled together" in lines[-1]


def test_trace_table_and_file(call, folder):
    status, out, _ = call("trace", "small.mono", "--table", "-o", "trace.json", "--repeat", "5")
    assert status == 0
    assert out.split("\n\n")[0].splitlines()[-1].startswith("total")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1}
    phases = json.loads(call("trace", "small.mono", "--json", "--repeat", "5")[1])
    assert all(phase["seconds"] >= 0 and phase["floor"] > 0 for phase in phases if "matmul" in phase["id"])


def test_check(call, folder):
    status, out, _ = call("check", "small.onnx")
    assert status == 0
    assert [line.split() for line in out.splitlines()[:3]] == [
        ["MatMul", "native", "2"],
        ["Relu", "native", "1"],
        ["Sigmoid", "native", "1"],
    ]
    assert out.splitlines()[-1] == "4 nodes: all have a form in this compiler"


def test_check_names_what_is_unsupported(call, folder):
    model = model_proto()
    model.graph.node[1].op_type = "Frobnicate"
    onnx.save(model, folder / "strange.onnx")
    status, out, _ = call("check", "strange.onnx")
    assert status == 1
    assert any("Frobnicate" in line and "'rectify'" in line for line in out.splitlines())
    rows = json.loads(call("check", "strange.onnx", "--json")[1])["nodes"]
    assert [row["status"] for row in rows] == ["native", "unsupported", "native", "native"]


def test_check_without_a_needed_shape_judges_by_operator(call, folder):
    onnx.save(model_proto("batch"), folder / "open.onnx")
    status, out, _ = call("check", "open.onnx")
    assert status == 0
    assert "'first': judged by its operator alone" in out
    assert "judged" not in call("check", "open.onnx", "--shape", "x=4x16")[1]


def test_check_says_when_the_whole_cannot_be_lowered(call, monkeypatch):
    def refuse(*arguments, **options):
        raise UnsupportedError("Conv node 'c': no template")

    check = importlib.import_module("mononn_core.cli.check")
    monkeypatch.setattr(check, "lower", refuse)
    status, out, _ = call("check", "small.onnx")
    assert status == 1
    assert out.endswith("all have a form in this compiler, but Conv node 'c': no template\n")


def test_bisect_agrees(call):
    status, out, _ = call("bisect", "small.onnx")
    assert (status, out.split(":")[0].startswith("all 4 nodes agree")) == (0, True)
    result = json.loads(call("bisect", "small.onnx", "--json")[1])
    assert result["finding"] is None
    assert 0 <= result["error"] < 1e-5


def test_bisect_finds_a_wrong_import(call, monkeypatch):
    monkeypatch.setitem(context._CONVERTERS, ("", "Relu"), lambda c: c.add("sigmoid", c.input(0)))
    status, out, _ = call("bisect", "small.onnx")
    assert status == 1
    assert out.startswith("Relu node 'rectify', tensor 'r': relative L2 error")
    assert out.rstrip().endswith("after import")


@pytest.mark.parametrize("own", [False, True], ids=["general", "the target's own"])
def test_bisect_finds_a_wrong_pass(call, monkeypatch, own):
    def spoil(graph):
        constants = {name: value * (1 + (name == "w2")) for name, value in graph.constants.items()}
        return graph.rebuild(graph.nodes, constants=constants)

    if own:
        monkeypatch.setitem(pipeline.FORMS, "cpu", (("spoil", spoil), *pipeline.FORMS["cpu"]))
    else:
        steps = (*pipeline.PIPELINE[:2], ("spoil", spoil), *pipeline.PIPELINE[2:])
        monkeypatch.setattr(pipeline, "PIPELINE", steps)
    finding = json.loads(call("bisect", "small.onnx", "--json")[1])["finding"]
    assert (finding["stage"], finding["node"], finding["tensor"]) == ("pass spoil", "second", "s")


def test_bisect_finds_a_wrong_function(call, monkeypatch):
    right = cpu.print_program

    def planted(*arguments):
        return right(*arguments).replace("mn::max<", "mn::min<")

    monkeypatch.setattr(cpu, "print_program", planted)
    status, out, _ = call("bisect", "small.onnx", "--json")
    finding = json.loads(out)["finding"]
    assert (status, finding["stage"], finding["node"]) == (1, "compilation", "rectify")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no.mono"], "no.mono cannot be read (No such file or directory)"),
        (["run", "small.onnx"], "small.onnx is no .mono file"),
        (["run", "small.mono", "--input", "X=x.npy"], "input 'X' is unknown; did you mean 'x'?"),
        (["run", "small.mono", "--input", "x=small.mono"], "small.mono holds no NumPy array"),
        (["run", "small.mono", "--input", "x=none.npy"], "none.npy cannot be read"),
        (["run", "small.mono", "--input", "x=wrong.npy"], "input 'x' is float32[4x15] but the network takes"),
        (["run", "small.mono", "--input", "x"], "'x' is not NAME=VALUE"),
        (["run", "small.mono", "--repeat", "0"], "--repeat 0 runs nothing"),
        (["run", "small.mono", "--threads", "0"], "threads is 0; give a positive number"),
        (["run", "small.mono", "--output", "small.onnx"], "small.onnx cannot be written"),
        (["compile", "small.onnx", "-o", "no/x.mono"], "the folder of no/x.mono does not exist"),
        (["compile", "small.onnx", "-o", "bad.mono", "--threads", "-2"], "--threads -2 is not a positive number"),
        (["compile", "small.onnx", "-o", "bad.mono", "--target", "tpu"], "invalid choice: 'tpu'"),
        (["compile", "small.onnx", "-o", "bad.mono", "--shape", "x=4,16"], "'x=4,16' is not NAME=1x128"),
        (["compile", "small.onnx", "-o", "bad.mono", "--shape", "x=4x16", "--shape", "x=4x16"], "gives 'x' twice"),
        (["compile", "dynamic.onnx", "-o", "bad.mono"], "dynamic; give its shape, as in --shape x="),
        (["compile", "wrong.npy", "-o", "bad.mono"], "is not an ONNX model"),
        (
            ["compile", "small.onnx", "-o", "bad.mono", "--schedule", "wrong.npy"],
            "the schedule wrong.npy cannot be read",
        ),
        (
            ["compile", "small.onnx", "-o", "bad.mono", "--schedule", "small.txt"],
            "is not legal: template 'conv' cannot",
        ),
        (["compile", "small.onnx", "-o", "bad.mono", "--schedule", "no"], "the schedule no cannot be read"),
        (["inspect", "nothing"], "nothing cannot be read"),
        (["trace", "small.mono"], "nothing to do; give -o TRACE.json"),
        (["trace", "small.mono", "--table", "--below", "0"], "--below 0 is no share of a ceiling"),
        (["trace", "small.mono", "-o", "no/t.json"], "no/t.json cannot be written"),
        (["bisect", "small.onnx", "--tolerance", "0"], "--tolerance 0.0 accepts nothing"),
        (
            ["compile", "small.onnx", "-o", "x.mono", "--schedule", "rows.txt"],
            "blocks of 1000000 rows are more than the",
        ),
        (["compile", "small.onnx", "-o", "x.mono", "--schedule", "strips.txt"], "cannot run in 2 strips"),
        (["compile", "small.onnx", "-o", "pipe"], "pipe is no file that could be replaced"),
        (["compile", "small.onnx", "-o", "x.mono", "--threads", "5000"], "threads is 5000; give a number up to 4096"),
        (["compile", "missing.onnx", "-o", "x.mono", "--emit", "shared"], "is no name of form shared; end it in .so"),
        (["run", "small.mono", "--seed", "-1"], "'-1' is not a number from 0 on"),
        (["run", "small.mono", "--shape", "x=4x\u00b2"], "is not NAME=1x128"),
        (["bisect"], "the following arguments are required: MODEL.onnx"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(call, folder, arguments, message):
    np.save(folder / "wrong.npy", np.zeros((4, 15), np.float32))
    text = Artifact.load(folder / "small.mono").texts["schedule"]
    (folder / "small.txt").write_text(
        text.replace("matmul", "conv", 1).replace("2 owners", f"{len(os.sched_getaffinity(0))} owners")
    )
    (folder / "rows.txt").write_text(re.sub(r"tile \d+ rows", "tile 1000000 rows", text, count=1))
    (folder / "strips.txt").write_text(text.replace(" at once\n", " at once, in 2 strips\n", 1))
    before = {path.name for path in folder.iterdir()}
    status, out, err = call(*arguments)
    errors = [line for line in err.splitlines() if not line.startswith("[")]
    assert (status, out, len(errors)) == (2, "", 1)
    assert errors[0].startswith("mononn")
    assert message in errors[0]
    assert {path.name for path in folder.iterdir()} == before, "nothing half-written is left"


def test_a_schedule_that_was_printed_is_taken_back(call, folder):
    """As text and as JSON, unchanged: the same file; changed: another, whose schedule is the one given."""
    for name, more in (("text", ()), ("json", ("--json",))):
        (folder / name).write_text(call("inspect", "small.mono", "--schedule", *more)[1])
        assert call("compile", "small.onnx", "-o", "again.mono", "--threads", "2", "--schedule", name)[0] == 0
        assert (folder / "again.mono").read_bytes() == (folder / "small.mono").read_bytes()
    changed = (
        (folder / "text")
        .read_text()
        .replace("barrier\n", "")
        .replace("by columns", "by single")
        .replace("by rows", "by single")
    )
    (folder / "changed").write_text(changed)
    assert call("compile", "small.onnx", "-o", "changed.mono", "--threads", "2", "--schedule", "changed")[0] == 0
    assert call("inspect", "changed.mono", "--schedule")[1] == changed
    status, _, err = call("compile", "small.onnx", "-o", "x.mono", "--target", "cuda-emulated", "--schedule", "text")
    assert status == 2 and "is a CPU's, the target is cuda-emulated" in err


def test_dynamic_dimension_with_a_shape(call):
    assert call("compile", "dynamic.onnx", "-o", "given.mono", "--shape", "x=3x16")[0] == 0
    assert "y  float32[3, 16]" in call("run", "given.mono")[1]


def test_outputs_whose_names_make_one_file_name_are_both_kept(folder, tmp_path):
    write_outputs(tmp_path, {"a/b": np.zeros(2), "a_b": np.ones(3)})
    assert [np.load(path).shape for path in sorted(tmp_path.iterdir())] == [(3,), (2,)]


def test_running_loads_neither_onnx_nor_the_compiler(folder):
    program = (
        "import sys; from mononn_core.cli import main; status = main(['run', 'small.mono']);"
        "sys.exit(status or any(m in sys.modules for m in ('onnx', 'mononn_core.compiler', 'mononn_core.importer')))"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, check=True, capture_output=True)


def test_a_reader_that_stops_early_is_no_error(folder):
    root = Path(__file__).parents[2]
    command = f"{sys.executable} -m mononn_core.cli inspect small.mono --source | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, b"")
