"""What stands on the pages is so: blocks run, commands are those that there are, configurations are legal.

A reader has more than the page: a model with the inputs that it speaks of, as files and as arrays. What would take
minutes, or needs another machine, is replaced on the path by a program that only writes its arguments down; they are
read by the parsers that would have read them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from mononn_bench.cli import make_parser as bench_parser
from mononn_bench.gpu_suite.__main__ import parser as gpu_parser
from mononn_bench.workflow.config import load_config
from mononn_core.cli.main import parser as core_parser
from tests.docs.pages import ONLY_READ, PAGES, REST, ROOT, RUN, blocks, spans

COSTLY = ("make", "mononn-bench", "snakemake", "pip")
STAND_IN = """#!/bin/sh
{ printf '%s\\037' "${0##*/}" "$@"; echo; } >> "$CALLS"
for word; do case $word in *.whl) python -m zipfile -e "$word" . ;; esac; done
"""
NAMES = ("input_ids", "attention_mask")
LEAST = {"models": {"mlp": None}, "systems": ["mononn"]}


def model(names: list[str]) -> onnx.ModelProto:
    """Embeddings, masked where there is a mask, times a matrix."""
    random = np.random.default_rng(0)
    table, weights = (random.standard_normal(shape).astype(np.float32) for shape in ((100, 64), (64, 32)))
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["embedded"])]
    if len(names) > 1:
        nodes.append(helper.make_node("Unsqueeze", ["attention_mask", "last"], ["column"]))
        nodes.append(helper.make_node("Cast", ["column"], ["factor"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", ["embedded", "factor"], ["masked"]))
    nodes.append(helper.make_node("MatMul", [nodes[-1].output[0], "weights"], ["y"]))
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "sequence", 32])]
    constants = {"table": table, "weights": weights, "last": np.array([2])}
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "network", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def prepare(page: str, folder: Path) -> dict[str, str]:
    """What a reader of the page has, in a folder; the environment in which its commands run."""
    text = (ROOT / page).read_text()
    named = [name for name in NAMES if name in text]
    if named:
        onnx.save(model(named), folder / "model.onnx")
    for name, value in zip(NAMES, (np.arange(128)[None] % 100, np.ones((1, 128), np.int64)), strict=True):
        value.tofile(folder / f"{name}.raw")
        np.save(folder / {"input_ids": "ids", "attention_mask": "mask"}[name], value)
    (folder / "examples").symlink_to(ROOT / "examples")
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    real = {"python": "", "mononn": "-m mononn_core.cli"}
    for name in (*COSTLY, *real):
        run_it = name in real and page not in ONLY_READ
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {real[name]} "$@"\n' if run_it else STAND_IN)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "CALLS": str(folder / "calls"), "TMPDIR": str(folder)}


def run(page: str, folder: Path) -> tuple[str, list[list[str]]]:
    """What went wrong with the blocks of a page ("": nothing), and the calls that were written down."""
    environment = prepare(page, folder)
    command = [sys.executable, "-m", "tests.docs.pages", page]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    calls = folder / "calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return done.stdout + done.stderr if done.returncode else "", [line.split("\037")[:-1] for line in lines]


def target_problem(words: list[str]) -> str:
    """Why `make` would not take its arguments; "" where it would."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and word not in targets:
            return f"there is no target {word}"
        if name == "SUITE" and value.islower() and not (ROOT / "workflows" / "suites" / f"{value}.yaml").exists():
            return f"there is no suite {value}"
        if equals and f"$({name})" not in (ROOT / "Makefile").read_text():
            return f"there is no variable {name}"
    return ""


def parser_of(words: list[str]) -> argparse.ArgumentParser | None:
    """The parser of a command line's program; None of one that is not ours."""
    if words[0] == "python":
        return gpu_parser() if words[1:3] == ["-m", "mononn_bench.gpu_suite"] else None
    return {"mononn": core_parser, "mononn-bench": bench_parser}.get(words[0], lambda: None)()


def call_problem(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Why a command would not take its arguments; "" where it would, or is not ours."""
    if words[0] == "make":
        return target_problem(words[1:])
    if (chosen := parser_of(words)) is None:
        return ""
    try:
        chosen.parse_args(words[3 if words[0] == "python" else 1 :])
    except SystemExit:
        return capsys.readouterr().err
    return ""


def span_problem(span: str) -> str:
    """Why a command in a sentence, which may leave arguments out, is none; "" where it is one."""
    words = span.removeprefix(".venv/bin/").split()
    if words[0] == "make":
        return target_problem([word for word in words[1:] if not word.endswith("...")])
    if words[0] not in ("mononn", "mononn-bench") or len(words) == 1:
        return ""
    chosen = parser_of(words)
    steps = next(a for a in chosen._actions if isinstance(a, argparse._SubParsersAction)).choices
    if words[1] not in steps:
        return f"{words[0]} has no {words[1]}"
    options = re.findall(r"(?<!\S)--?[a-z][\w-]*", span)
    unknown = [option for option in options if option not in steps[words[1]]._option_string_actions]
    return f"{words[0]} {words[1]} has no {unknown[0]}" if unknown else ""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language(page: str) -> None:
    """An indented block has none."""
    assert [(b.line, b.language) for b in blocks(page) if b.language not in (*RUN, *REST)] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language in RUN for b in blocks(page))])
def test_blocks_run(page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem, calls = run(page, tmp_path)
    assert problem == ""
    assert {" ".join(call): why for call in calls if (why := call_problem(call, capsys))} == {}


@pytest.mark.parametrize("page", PAGES)
def test_configurations_are_legal(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.onnx").touch()
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.language == "yaml":
            load_config({**LEAST, **yaml.safe_load(block.text)})


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_are_there(page: str) -> None:
    assert {span: why for span in spans(page) if span.strip() and (why := span_problem(span))} == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", 'page.md", line 8'),
        ("```sh\nmononn check no-such.onnx\n```", "no-such.onnx"),
        ("```sh\nfalse | true\n```", "page.md, line 3: exit status 1"),
        ("```c\nint f(void) { return g(); }\n```", "page.md, line 3: it is not C"),
    ],
)
def test_a_broken_block_is_found(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"# Page\n\n{text}\n")
    assert message in run(str(tmp_path / "page.md"), tmp_path)[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("make benches", "no target benches"),
        ("make suite SUITE=nothing", "no suite nothing"),
        ("make bench CONFIGS=mine.yaml", "no variable CONFIGS"),
        ("mononn trace x.mono --tables", "unrecognized arguments: --tables"),
        ("mononn-bench measure --rival x", "unrecognized arguments: --rival"),
        ("python -m mononn_bench.gpu_suite --minute-s 3", "unrecognized arguments"),
    ],
)
def test_a_wrong_command_is_found(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in call_problem(line.split(), capsys)


@pytest.mark.parametrize(
    "span", ["mononn tune", "mononn trace --tables", "make suits", ".venv/bin/mononn-bench measures"]
)
def test_a_wrong_command_in_a_sentence_is_found(span: str) -> None:
    assert span_problem(span)
