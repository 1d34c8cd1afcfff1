"""The whole workflow, tiny: three real systems from export to figure, and what makes a step run again."""

import csv
import json
import os
import shutil
import time
import zipfile
from pathlib import Path

import onnx
import pytest

from mononn_bench.report.names import report_files

CONFIG = "workflows/config.test.yaml"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MODELS, SYSTEMS = ("bert-test", "mlp-test"), ("mononn", "onnxruntime", "openvino")


@pytest.fixture
def edited(finished, tmp_path):
    """The finished copy's folder, with every file that a test may edit put back afterwards."""
    kept = [p for name in ("envs", "mononn_core", "workflows") for p in (finished.folder / name).rglob("*")]
    kept = [
        p for p in [*kept, *(finished.folder / "mononn_bench").rglob("*.py")] if p.suffix in {".py", ".txt", ".yaml"}
    ]
    for i, path in enumerate(kept):
        shutil.copy2(path, tmp_path / str(i))
    yield finished
    for i, path in enumerate(kept):
        shutil.copy2(tmp_path / str(i), path)


def cells(checkout):
    (path,) = checkout.folder.glob("results-test/*/tables/cells.csv")
    return list(csv.DictReader(path.open()))


def test_every_cell_is_ok_and_has_an_interval(finished):
    rows = cells(finished)
    assert [(r["model"], r["system"]) for r in rows] == [(m, s) for m in MODELS for s in SYSTEMS]
    assert [(r["status"], r["reason"]) for r in rows] == [("ok", "")] * 6
    for row in rows:
        assert float(row["median_ms"]) > 0
        assert float(row["rel_l2"]) < 1e-5
        assert float(row["p90_ms"]) > 0
        assert row["run_id"]
        assert row["version"]
        if row["system"] != "mononn":
            assert float(row["speedup_low"]) <= float(row["speedup"]) <= float(row["speedup_high"])
            assert row["verdict"] in {"faster", "slower", "tie", "unresolved"}


def test_the_report_is_there_and_its_table_is_printed(finished):
    (folder,) = (p for p in finished.folder.glob("results-test/*") if p.is_dir())
    assert all((folder / name).is_file() for name in report_files(MODELS, SYSTEMS))
    assert (folder / "figures" / "speedup.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "tables" / "speedup.md").read_text() in finished.output
    assert "installation:" in finished.output
    assert len(list((folder / "raw").iterdir())) == 2


def test_snakemake_makes_its_own_report_of_it(finished):
    result = finished.run("--configfile", CONFIG, "--report", "report.zip")
    assert result.returncode == 0, result.stderr[-3000:]
    with zipfile.ZipFile(finished.folder / "report.zip") as archive:
        names = {Path(name).name for name in archive.namelist()}
        text = archive.read("report/report.html").decode()
    assert {"report.html", "cells.csv", "speedup.md", "bert-test.md", "speedup.svg", "roofline.svg"} <= names
    assert "answers have no speed" in text and "A cross with a reason" in text, "captions"


def test_requests_of_many_lengths_need_encoders_and_no_builds(checkout):
    assert checkout.planned("workflows/suites/lengths.yaml") == {
        "environment": 4, "machine": 1, "encoder": 3, "lengths": 3, "report": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_bricks_alone_are_a_run_of_their_own(finished):
    """In the checkout whose models are exported already; a second run finds every brick in the database."""
    config = finished.folder / "bricks.yaml"
    config.write_text(
        "models: {mlp-test: }\nsystems: [fake-ok, onnxruntime]\nprofile: false\nresults: bricks\nbricks: [2]\n"
        "measuring: {rounds: 0}\nenvironments: {torch: driver, onnxruntime: driver}\n"
    )
    done = finished.run("--configfile", config, module="mononn_bench.workflow.run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Building mlp-test" not in done.stdout and "Measuring the bricks of mlp-test" in done.stdout
    assert "# Networks rebuilt from their bricks" in done.stdout
    (record,) = finished.folder.glob("bricks/*/bricks/mlp-test.json")
    found = json.loads(record.read_text())
    assert [cut["length"] for cut in found["cuts"]] == [0, 1, 2]
    assert [(s["system"], {t["status"] for t in s["times"].values()}) for s in found["systems"]] == [
        ("fake-ok", {"ok"}), ("onnxruntime", {"ok"}),
    ]  # fmt: skip
    assert "Networks rebuilt from their bricks" in (record.parents[1] / "report.html").read_text()
    record.unlink()
    (record.parents[1] / "report.html").unlink()
    again = finished.run("--configfile", config)
    assert again.returncode == 0, again.stderr
    (log,) = finished.folder.glob(".cache/logs/bricks/mlp-test.txt")
    assert "building" not in log.read_text()
    assert json.loads(record.read_text())["systems"] == found["systems"]


def test_our_own_system_ran_twice_and_every_system_was_profiled(finished):
    for path in finished.folder.glob("results-test/*/raw/*.json"):
        labels = [system["label"] for system in json.loads(path.read_text())["systems"]]
        assert labels == ["mononn", "mononn@2", *SYSTEMS[1:]]
    for model in MODELS:
        (path,) = finished.folder.glob(f"results-test/*/profiles/{model}.json")
        rows = json.loads(path.read_text())["profiles"]
        own = {row["system"]: row["status"] for row in rows if not row["tool"].startswith("Nsight")}
        assert own == dict.fromkeys(SYSTEMS, "ok")
        events = json.loads(path.with_suffix(".perfetto.json").read_text())["traceEvents"]
        assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == set(SYSTEMS)


def test_a_second_run_does_nothing_and_soon(finished):
    started = time.monotonic()
    result = finished.run("--configfile", CONFIG)
    assert result.returncode == 0
    assert "Nothing to be done" in result.stdout + result.stderr
    assert time.monotonic() - started < 20


def test_a_touch_and_a_comment_do_nothing(edited):
    for path in edited.folder.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts and "site-packages" not in path.parts:
            os.utime(path)
    for name in ("envs/openvino.txt", "mononn_core/errors.py", "mononn_bench/measure/rounds.py", CONFIG):
        with (edited.folder / name).open("a") as stream:
            stream.write("\n# a word more\n")
    with (edited.folder / "workflows/rules/measure.smk").open("a") as stream:
        stream.write("\n# a word more\n")
    assert edited.planned(CONFIG) == {}


def test_a_version_bump_builds_that_system_and_measures_its_cases_whole(edited):
    path = edited.folder / "envs" / "openvino.txt"
    path.write_text(path.read_text() + "\nsome-package==1.0\n")
    assert edited.planned(CONFIG) == {"environment": 1, "build": 2, "measure": 2, "profile": 2, "report": 1}


def test_a_change_of_the_compiler_builds_only_ours(edited):
    with (edited.folder / "mononn_core" / "errors.py").open("a") as stream:
        stream.write("\nANSWER = 42\n")
    assert edited.planned(CONFIG) == {"build": 2, "measure": 2, "profile": 2, "report": 1}


def test_a_change_of_the_report_measures_nothing(edited):
    with (edited.folder / "mononn_bench" / "report" / "tables.py").open("a") as stream:
        stream.write("\nANSWER = 42\n")
    assert edited.planned(CONFIG) == {"report": 1}


def test_a_new_model_leaves_the_others_alone(edited):
    path = edited.folder / CONFIG
    path.write_text(path.read_text().replace("  mlp-test:", "  mlp-test:\n  mlp:"))
    assert edited.planned(CONFIG) == {"export": 1, "reference": 1, "build": 3, "measure": 1, "profile": 1, "report": 1}


def test_other_rounds_measure_again_and_build_nothing(edited):
    path = edited.folder / CONFIG
    path.write_text(path.read_text().replace("rounds: 3", "rounds: 4"))
    assert edited.planned(CONFIG) == {"measure": 2, "report": 1}


@pytest.mark.parametrize("module", ["snakemake", "mononn_bench.workflow.run"])
def test_a_wrong_configuration_ends_with_status_2_and_one_sentence(checkout, module):
    path = checkout.folder / "wrong.yaml"
    path.write_text("models: {mlp-test: }\nsystems: [mononn, onnx-runtime]\n")
    result = checkout.run("--configfile", path, module=module)
    assert result.returncode == 2
    assert "did you mean 'onnxruntime'" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (checkout.folder / "results").exists()


def test_a_users_broken_model_ends_make_bench_with_status_2_and_one_sentence(checkout):
    (checkout.folder / "mine.onnx").write_bytes(b"no protobuf at all")
    path = checkout.folder / "mine.yaml"
    path.write_text("models: {mine: {path: mine.onnx}}\nsystems: [mononn]\n")
    result = checkout.run("--configfile", path, module="mononn_bench.workflow.run")
    assert result.returncode == 2
    assert "mine.onnx is not a valid ONNX model" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.networks
def test_a_network_of_ones_own_goes_through_snakemake_by_three_lines(checkout):
    shutil.copy2(LIGHT / "light_squeezenet.onnx", checkout.folder / "mine.onnx")
    path = checkout.folder / "mine.yaml"
    path.write_text("models: {mine: {path: mine.onnx}}\nsystems: [mononn, onnxruntime]\nresults: mine\n")
    result = checkout.run("--configfile", path)
    assert result.returncode == 0, result.stderr[-3000:]
    (table,) = checkout.folder.glob("mine/*/tables/cells.csv")
    rows = list(csv.DictReader(table.open()))
    assert [(r["model"], r["system"], r["status"]) for r in rows] == [
        ("mine", "mononn", "ok"),
        ("mine", "onnxruntime", "ok"),
    ]
    assert all(float(r["rel_l2"]) < 1e-5 for r in rows)
