"""The view of defaults: no option set, whatever precision a system then chooses, never mixed with experts' settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mononn_bench.by_hand import make_contestants, measure
from mononn_bench.cli import make_parser
from mononn_bench.errors import BadOptionError, SystemUnavailableError
from mononn_bench.measure.build import build_system
from mononn_bench.measure.case import measure_case
from mononn_bench.measure.process import Limits, worker_variables
from mononn_bench.measure.runner import Course
from mononn_bench.record import BuildRecord, CaseRecord
from mononn_bench.systems import REAL, get_system, torch_eager
from mononn_bench.systems.base import Task, require_defaults
from tests.bench.conftest import QUICK

SYSTEMS = ("mononn", "onnxruntime", "openvino")


@pytest.fixture(scope="module")
def by_default(linear_folder: Path, driver_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> CaseRecord:
    folder = tmp_path_factory.mktemp("defaults")
    builds = {name: folder / "builds" / name for name in SYSTEMS}
    for name, output in builds.items():
        build_system(
            name, environment=driver_environment, model_folder=linear_folder, output=output, threads=1,
            precision="fp32", target="cpu", limits=Limits(60, 2000), defaults=True, lock=folder / "lock",
        )  # fmt: skip
    made = make_contestants(SYSTEMS, builds, dict.fromkeys(SYSTEMS, driver_environment))
    settings = replace(QUICK, memory_limit_mb=2000)
    reference = linear_folder / "reference.npz"
    course = Course(linear_folder, reference, "fp32", "cpu", settings, (0,), folder / "scratch", defaults=True)
    return measure_case(made, course, machine_name="here", command="", say=lambda _: None, lock=folder / "lock")


def test_every_system_answers_by_default_with_no_option_set(by_default: CaseRecord) -> None:
    assert by_default.view == "defaults"
    for row in by_default.systems:
        assert (row.status, row.reason) == ("ok", "")
        assert [option.name for option in row.options] == ["GLIBC_TUNABLES"]


def test_what_a_system_computes_in_by_default_is_its_own_word(by_default: CaseRecord) -> None:
    computes = {row.label: row.computes for row in by_default.systems}
    assert computes["mononn"] == computes["onnxruntime"] == "fp32"
    assert computes["openvino"] in ("fp32", "bf16", "fp16")
    errors = {row.label: max(c.limit for c in row.accuracy) for row in by_default.systems}
    assert (errors["openvino"] > 1e-3) == (computes["openvino"] != "fp32"), "judged by the rule of that precision"


def test_no_allocator_of_our_choice_is_preloaded_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_eager, "find_library", lambda _: "libtcmalloc_minimal.so.4")
    for system in ("torch-eager", "torch-inductor"):
        assert "LD_PRELOAD" in worker_variables(system, tmp_path)
        assert "LD_PRELOAD" not in worker_variables(system, tmp_path, defaults=True)


def test_a_system_without_such_a_view_says_so(linear_folder: Path) -> None:
    for system in REAL:
        on_gpu = Task(None, linear_folder, linear_folder, 1, "fp32", "cuda", defaults=True)  # type: ignore[arg-type]
        with pytest.raises(SystemUnavailableError, match="no view of its defaults on cuda"):
            require_defaults(on_gpu, get_system(system.name)())
        require_defaults(replace(on_gpu, defaults=False), get_system(system.name)())


def test_builds_of_two_views_are_not_measured_together(
    by_default: CaseRecord, linear_folder: Path, driver_environment: Path, tmp_path: Path
) -> None:
    arguments = ["measure", "--model-folder", str(linear_folder), "--output", str(tmp_path / "record.json")]
    arguments += ["--threads", "1"]
    for name, defaults in (("mononn", True), ("onnxruntime", False)):
        record: BuildRecord = build_system(
            name, environment=driver_environment, model_folder=linear_folder, output=tmp_path / name, threads=1,
            precision="fp32", target="cpu", limits=Limits(60, 2000), defaults=defaults, lock=tmp_path / "lock",
        )  # fmt: skip
        assert record.defaults is defaults
        arguments += ["--build", f"{name}={tmp_path / name}", "--environment", f"{name}={driver_environment}"]
    with pytest.raises(BadOptionError, match="build all with --defaults, or none"):
        measure(make_parser().parse_args(arguments))
