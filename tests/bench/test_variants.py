"""Variants of a system, its twin, and caches emptied before each run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mononn_bench import by_hand
from mononn_bench.by_hand import with_twin
from mononn_bench.cli import _names, _pair, make_parser
from mononn_bench.errors import BadOptionError, UnknownNameError
from mononn_bench.measure import eviction
from mononn_bench.measure.case import COLD_SAMPLES
from mononn_bench.measure.environment import describe_machine
from mononn_bench.systems import get_system
from mononn_bench.workflow.parts import slug
from tests.bench.conftest import QUICK, Measure

PHASES = "mononn[launch=phases]"


def test_a_variant_is_its_system_with_something_chosen() -> None:
    plain, variant = get_system("mononn"), get_system("mononn[launch=phases,fuse=off]")
    assert issubclass(variant, plain)
    assert (variant.name, variant.chosen) == ("mononn[launch=phases,fuse=off]", {"launch": "phases", "fuse": "off"})
    assert (variant.family, variant.environment, plain.chosen) == (plain.family, plain.environment, {})
    assert slug("mononn[launch=phases,fuse=off]") == "mononn.launch-phases.fuse-off"


@pytest.mark.parametrize("name", ["mononn[x=1]", "mononn[launch=twice]", "mononn[launch=phases", "onnxruntime[a=b]"])
def test_no_such_variant(name: str) -> None:
    with pytest.raises(BadOptionError, match="is no variant of"):
        get_system(name)


def test_a_variant_of_an_unknown_system() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mononn'"):
        get_system("monon[launch=phases]")


def test_names_with_brackets_on_the_command_line() -> None:
    assert _names("mononn, mononn[a=1,b=2],x") == ["mononn", "mononn[a=1,b=2]", "x"]
    assert [str(part) for part in _pair(f"{PHASES}=a/b=c")] == [PHASES, "a/b=c"]
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=FOLDER"):
        _pair(PHASES)


def test_ours_always_has_a_twin() -> None:
    assert with_twin(["onnxruntime", "mononn", PHASES]) == ["onnxruntime", "mononn", "mononn", PHASES]
    assert with_twin(["mononn", "mononn"]) == ["mononn", "mononn"]
    assert with_twin(["onnxruntime"]) == ["onnxruntime"]


def test_variants_that_share_a_build_are_each_told_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[str]()

    def build(system: str, *, output: Path, **_: object) -> None:
        built.append(system)
        output.mkdir(parents=True)
        (output / "build.json").touch()

    for name in ("prepare_environments", "_prepare_model"):
        monkeypatch.setattr(by_hand, name, lambda *_: None)
    monkeypatch.setattr(by_hand, "build_system", build)
    monkeypatch.chdir(tmp_path)
    names = ["onnxruntime", "onnxruntime[affinity=on]", "mononn"]
    options = make_parser().parse_args(["measure", "--model", "mlp-test", "--systems", ",".join(names)])
    folder, builds, environments = by_hand._prepare(options)
    assert list(builds) == list(environments) == names
    assert builds[names[0]] == builds[names[1]] != builds["mononn"]
    assert environments[names[0]] == environments[names[1]]
    assert built == ["onnxruntime", "mononn"]
    assert folder.name.startswith("mlp-test-")


def test_twin_and_variant_are_measured_beside_their_system(measure: Measure) -> None:
    record = measure(["mononn", "mononn", PHASES], QUICK)
    assert [(s.label, s.system, s.status, s.reason) for s in record.systems] == [
        ("mononn", "mononn", "ok", ""),
        ("mononn@2", "mononn", "ok", ""),
        (PHASES, PHASES, "ok", ""),
    ]
    chosen = {option.name: option.value for option in record.systems[2].options}
    assert chosen["launch"] == "phases"
    assert record.state == "warm"


def test_cold_runs_have_samples_enough_and_cost_more(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied = eviction.FACTOR * max(describe_machine().caches_kib.values(), default=0) * 1024 // 10**6
    cold = measure(["mononn"], replace(QUICK, cold=True, memory_limit_mb=QUICK.memory_limit_mb + emptied))
    warm = measure(["mononn"], QUICK)
    assert (cold.state, warm.state) == ("cold", "warm")
    blocks = [b for r in cold.rounds for c in r.cycles for b in c.blocks]
    assert sum(len(b.samples_ns) for b in blocks) >= COLD_SAMPLES
    times = [
        np.median([b.value_s for r in record.rounds for c in r.cycles for b in c.blocks]) for record in (cold, warm)
    ]
    assert times[0] > 1.5 * times[1]


def test_what_no_cache_holds_is_as_warm(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mononn_bench.measure.case.FACTOR", 0)
    assert measure(["mononn"], replace(QUICK, cold=True)).state == "as warm"


@pytest.mark.parametrize("disturbed", [True, False])
def test_only_an_undisturbed_sentinel_makes_a_ceiling(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, disturbed: bool
) -> None:
    monkeypatch.setattr("mononn_bench.measure.rounds.is_disturbed", lambda *_: disturbed)
    record = measure(["fake-ok"], QUICK)
    readings = [cycle.sentinel for r in record.rounds for cycle in r.cycles]
    assert {reading.undisturbed for reading in readings if reading} == {not disturbed}
    assert (record.ceilings is None) == disturbed


def test_every_core_reads_more_than_the_caches_hold() -> None:
    evict = eviction.Evictor(1 << 20)
    assert evict._memory.nbytes == eviction.FACTOR << 20
    evict()
