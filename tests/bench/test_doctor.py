"""The doctor: what stops the suite is one sentence, and it needs nothing installed."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench_report.records import MACHINE

from mononn_bench import doctor, systems
from mononn_bench.doctor import COSTS, SUITE, Cost, examine, expectation, to_install

ROOT = Path(__file__).resolve().parents[2]
GOOD = replace(MACHINE, flags=("avx2", "fma"), memory_mb=24000)


def troubles(machine, free=100.0, needed=10.0, folder=ROOT):
    return [finding.trouble for finding in examine(machine, free, needed, folder) if finding.trouble]


def test_a_good_machine_has_no_trouble():
    assert troubles(GOOD) == []
    assert troubles(replace(GOOD, architecture="aarch64", flags=("asimd",))) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"flags": ("sse2",)}, "lacks avx2, fma"),
        ({"flags": ("avx2",)}, "lacks fma"),
        ({"architecture": "aarch64"}, "lacks asimd"),
        ({"architecture": "riscv64"}, "x86_64 or aarch64, not on Linux on riscv64"),
        ({"memory_mb": 2000}, "2000 MB of memory are too few"),
    ],
)
def test_a_machine_that_cannot_work_is_told_so_in_one_sentence(change, words):
    (trouble,) = troubles(replace(GOOD, **change))
    assert words in trouble and trouble.endswith(".") and "\n" not in trouble


def test_a_full_disk_and_a_folder_that_cannot_be_written_are_troubles(monkeypatch):
    (trouble,) = troubles(GOOD, free=5.0)
    assert "5.0 GB free, and 10.0 GB are needed" in trouble
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    (trouble,) = troubles(GOOD)
    assert "cannot be written to" in trouble


def test_an_old_python_and_one_without_venv_are_troubles(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 2))
    (trouble,) = troubles(GOOD)
    assert "3.9.2 is too old" in trouble and "PYTHON=" in trouble
    monkeypatch.undo()
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    (trouble,) = troubles(GOOD)
    assert "python3-venv" in trouble


def test_what_stands_is_not_expected_again(tmp_path):
    (tmp_path / "envs").mkdir()
    for name in ("torch", "own"):
        (tmp_path / "envs" / f"{name}.txt").write_text(f"{name}==1\n")
    assert to_install(tmp_path, ["torch", "own"]) == {SUITE: COSTS[SUITE], "torch": COSTS["torch"], "own": None}
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bench.done").touch()
    identity = doctor.requirements_id(tmp_path / "envs" / "torch.txt")
    stamp = tmp_path / ".cache" / "environments" / f"torch-{identity}" / "environment.json"
    stamp.parent.mkdir(parents=True)
    stamp.touch()
    assert to_install(tmp_path, ["torch", "own"]) == {"own": None}


def test_the_expectation_adds_up():
    line = expectation({"a": Cost(100, 400), "b": Cost(620, 1600), "c": None}, 25)
    assert line.startswith("download 720 MB and 1 environments of unknown size, disk 12.0 GB, installation 2 min")
    assert line.endswith("work 25 min")


@pytest.mark.parametrize("name", sorted(set(COSTS) - {SUITE}))
def test_every_size_belongs_to_an_environment(name):
    assert (ROOT / "envs" / f"{name}.txt").is_file()


def test_the_first_look_imports_nothing_but_the_standard_library(tmp_path):
    code = """
import sys
allowed = set(sys.stdlib_module_names) | {"mononn_bench", "__main__"}
import mononn_bench.doctor
strange = {name.partition(".")[0] for name in sys.modules} - allowed
print(sorted(name for name in strange if not name.startswith("_") and name != "sitecustomize"))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}){code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "[]"


ROOMY = SimpleNamespace(free=1e12)


def test_without_anything_installed_it_says_what_is_to_come():
    code = f"""
import shutil, sys
from types import SimpleNamespace
shutil.disk_usage = lambda folder: SimpleNamespace(free={ROOMY.free})
from mononn_bench import doctor
doctor.LEAST_MEMORY_MB = 0
sys.exit(doctor.main([]))
"""
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^processor +\S", done.stdout, re.MULTILINE)
    assert re.search(r"^expected +download \d+ MB, disk [\d.]+ GB, installation \d+ min", done.stdout, re.MULTILINE)


def test_with_the_suite_installed_every_system_is_probed(monkeypatch, capsys):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: ROOMY)
    monkeypatch.setattr(doctor, "LEAST_MEMORY_MB", 0)
    monkeypatch.setattr(systems, "REAL", tuple(map(systems.get_system, ("mononn", "onnxruntime", "fake-missing"))))
    assert doctor.main(["--configfile", str(ROOT / "workflows" / "config.test.yaml")]) == 0
    said = capsys.readouterr().out
    for system, answer in (
        ("mononn", "ok, version"),
        ("onnxruntime", "ok, version"),
        ("fake-missing", "unavailable: "),
    ):
        assert re.search(rf"^{system} +{answer}", said, re.MULTILINE)
    assert re.search(r"work \d+ min$", said, re.MULTILINE)


def test_trouble_is_status_2_and_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "describe_machine", lambda: replace(GOOD, flags=()))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: ROOMY)
    assert doctor.main(["--brief"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "lacks avx2" in said.err
