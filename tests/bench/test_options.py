"""Options that vendors' guides offer, as variants of rivals: which share a build, what they set, who is beside whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.measure import case
from mononn_bench.measure.process import worker_variables
from mononn_bench.systems import built_as, torch_eager
from mononn_bench.systems.torch_eager import probe_torch
from mononn_bench.workflow.config import read_config
from mononn_bench.workflow.plan import ROOT, make_plan
from tests.bench.conftest import QUICK, Measure

VARIED = ["onnxruntime", "onnxruntime[affinity=on,blocks=dynamic]"]
VARIED += ["openvino", "openvino[pinning=off,denormals=flushed]", "openvino[mmap=off]"]


def test_what_is_chosen_at_a_load_alone_shares_the_build() -> None:
    assert built_as("onnxruntime[affinity=on]") == "onnxruntime"
    assert built_as("openvino[mmap=off,pinning=on]") == "openvino[mmap=off]"
    assert built_as("mononn[pages=small,fuse=off]") == "mononn[fuse=off]"
    assert built_as("mononn") == "mononn"


def test_a_suite_of_options_builds_once_what_it_measures_often() -> None:
    mapping = read_config(ROOT / "workflows" / "suites" / "options.yaml")
    plan = make_plan({**mapping, "models": {"mlp": None}})
    (one,) = plan.cases.values()
    folders = {build.system: build.folder for build in one.builds}
    assert set(folders) == set(mapping["systems"]) and len(plan.builds) < len(folders)
    assert folders["torch-eager"] == folders["torch-eager[malloc=jemalloc]"] == folders["torch-eager[pages=small]"]
    assert folders["xla"] != folders["xla[flags=vectors512]"]
    assert {build.folder for build in plan.builds.values()} == set(folders.values())
    fewer = make_plan({**mapping, "models": {"mlp": None}, "systems": mapping["systems"][:-1]})
    assert {c.record for c in fewer.cases.values()} != {one.record}, "the same builds, but not the same systems"


def test_options_of_rivals_change_no_answer(measure: Measure) -> None:
    record = measure(VARIED, replace(QUICK, memory_limit_mb=2000))
    assert [(row.label, row.status, row.reason) for row in record.systems] == [(name, "ok", "") for name in VARIED]


def test_in_pairs_a_system_stands_beside_its_variants(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "MEMORY_SHARE", 0.0)
    systems = ["fake-ok", "onnxruntime", "onnxruntime[pages=small]", "fake-ok"]
    record = measure(systems, replace(QUICK, cycles=1, memory_limit_mb=2000))
    groups = [r.systems for r in record.rounds]
    assert groups == [("fake-ok", "onnxruntime", "onnxruntime[pages=small]"), ("fake-ok", "fake-ok@2")]


def test_the_tuning_guides_variables_are_set_where_a_variant_chooses_them(tmp_path: Path) -> None:
    plain = worker_variables("torch-eager[malloc=glibc]", tmp_path)
    chosen = worker_variables("torch-eager[malloc=jemalloc,bind=on]", tmp_path)
    assert set(chosen) - set(plain) >= {"LD_PRELOAD", "OMP_PROC_BIND"}
    assert chosen["LD_PRELOAD"] == "libjemalloc.so.2"
    assert worker_variables("xla[flags=vectors512]", tmp_path)["XLA_FLAGS"] == "--xla_cpu_prefer_vector_width=512"


@pytest.mark.parametrize("system", ["torch-eager", "torch-inductor", "zentorch"])
def test_pytorch_has_tcmalloc_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    for found, wanted in (("libtcmalloc_minimal.so.4", "libtcmalloc_minimal.so.4"), (None, None)):
        monkeypatch.setattr(torch_eager, "find_library", lambda name, found=found: found)
        assert worker_variables(system, tmp_path).get("LD_PRELOAD") == wanted


def test_an_allocator_that_is_not_there_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "libtcmalloc_minimal.so.4")
    with pytest.raises(SystemUnavailableError, match="is not installed here"):
        probe_torch()
