"""TVM's adapter, tuner and database. What needs TVM, which has its own environment, is skipped with a reason."""

import importlib.util
import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from bench.small_networks import check_adapter, convolutional, make_task, product

from mononn_bench.record import Tuning
from mononn_bench.systems import REAL, get_system, tvm_model, tvm_tuning
from mononn_bench.systems.tvm import Tvm, TvmUntuned
from mononn_bench.systems.tvm_model import (
    Budget,
    Database,
    Operator,
    Search,
    TuningRun,
    find_database,
    pack,
    summarise,
    why_undertuned,
)

needs_tvm = pytest.mark.skipif(
    importlib.util.find_spec("tvm") is None, reason="TVM lives in the environment envs/tvm.txt"
)
RUNS = (
    TuningRun("a", "2026-01-01T00:00Z", 60.0, 2, 100),
    TuningRun("b", "2026-01-01T01:00Z", 30.0, 2, 40),
    TuningRun("a", "2026-01-02T00:00Z", 90.0, 4, 50),
)


def target(kind="llvm", **attributes):
    """What the database asks of a target."""
    return SimpleNamespace(kind=SimpleNamespace(name=kind), attrs=attributes)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A database made for znver4 with 2 cores by TVM 1.0, which is the one installed."""
    source = tmp_path / "work"
    source.mkdir()
    (source / "workloads.json").write_text("[]\n")
    (source / "schedules.json").write_text("[1]\n")
    budget = Budget("1.0", {"kind": "llvm", "mcpu": "znver4", "num-cores": 2}, "a processor", RUNS)
    pack(source, budget, tmp_path / "shipped" / "znver4-2c")
    monkeypatch.setattr(tvm_model, "version", lambda _: "1.0")
    return tmp_path / "shipped"


def test_a_budget_adds_up_over_runs_of_a_model(shipped):
    budget = Database(shipped / "znver4-2c").budget
    assert budget.runs == RUNS
    assert budget.spent_on("a") == Tuning(150.0, 4, 150)
    assert budget.spent_on("b") == Tuning(30.0, 2, 40)
    assert budget.spent_on("c") is None


def test_equal_tables_pack_to_equal_bytes(shipped, tmp_path):
    budget = Database(shipped / "znver4-2c").budget
    pack(tmp_path / "work", budget, tmp_path / "again")
    for path in (shipped / "znver4-2c").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_the_matching_database_is_found_and_any_other_says_why_it_does_not_match(shipped, monkeypatch):
    found, reason = find_database(target(mcpu="znver4", **{"num-cores": 2}), shipped)
    assert (found.folder.name, reason) == ("znver4-2c", "")
    assert (
        tvm_model.machine_folder(target(mcpu="znver4", mattr=["-avx512f"], **{"num-cores": 2})) == "znver4-avx512f-2c"
    )
    found, reason = find_database(target(mcpu="znver4", **{"num-cores": 8}), shipped)
    assert (found.folder.name, reason) == ("znver4-2c", "its schedules were found for znver4-2c, and this is znver4-8c")
    assert find_database(target("cuda", arch="sm_90"), shipped) is None
    monkeypatch.setattr(tvm_model, "version", lambda _: "1.1")
    _, reason = find_database(target(mcpu="znver4", **{"num-cores": 2}), shipped)
    assert reason == "its schedules were found by TVM 1.0, and this is 1.1"


def test_the_shipped_databases_say_what_they_cost():
    budgets = [Database(path.parent).budget for path in tvm_model.SHIPPED.glob("*/budget.json")]
    assert budgets
    for budget in budgets:
        assert budget.runs
        assert all(run.seconds > 0 and run.trials > 0 for run in budget.runs)


def test_searches_are_shipped_and_older_databases_have_none(shipped, tmp_path):
    database = Database(shipped / "znver4-2c")
    assert database.budget.searches == {}
    searches = {"17": Search(72), "18": Search(5, exhausted=True)}
    pack(tmp_path / "work", replace(database.budget, searches=searches), tmp_path / "kept")
    assert Database(tmp_path / "kept").budget.searches == searches
    old = shipped / "znver4-2c" / "budget.json"
    old.write_text(json.dumps({k: v for k, v in json.loads(old.read_text()).items() if k != "searches"}))
    assert Database(old.parent).budget.searches == {}


FULL, SMALL, FEW = Search(64), Search(5, exhausted=True), Search(63)


@pytest.mark.parametrize(
    ("operators", "reason"),
    [
        ([("a", True, FULL), ("b", True, SMALL)], ""),
        ([("a", True, FULL), ("b", False, FULL)], "1 of its 2 operators have no schedule in the database (b)"),
        ([("a", True, FEW), ("b", True, FULL)],
         "1 of its 2 operators have too few trials (63: a); TVM's pipeline asks for 64 each"),
        ([("a", True, None), ("b", True, Search(8)), ("c", True, FEW)],
         "2 of its 3 operators have too few trials (8: b); TVM's pipeline asks for 64 each"),
        ([("a", True, None), ("b", True, FULL)],
         "9000 trials over 2 operators, the count of each not kept; TVM's pipeline asks for 64 each"),
    ],
)  # fmt: skip
def test_each_operator_has_had_the_trials_that_tvm_asks_for(operators, reason):
    assert why_undertuned([Operator(*one) for one in operators], 9000) == reason


def test_a_build_says_how_often_each_operator_was_tried():
    details = summarise([Operator("a", True, Search(80)), Operator("b", True, SMALL), Operator("c", True, FULL)])
    assert details["operators"]["b"] == {"trials": 5, "exhausted": True}
    assert details["note"] == (
        "149 trials over 3 operators, at least 64 each but 1 for which no more schedules were found"
    )
    assert summarise([Operator("a", True, None)]) == {"operators": {"a": None}, "note": ""}


@pytest.mark.parametrize(
    ("stakes", "searches", "chosen"),
    [
        ([3.0, float("inf"), 9.0], [FEW, Search(), FEW], 1),
        ([3.0, 5.0, 9.0], [FEW, FEW, FULL], 1),
        ([3.0, 5.0, 9.0], [FULL, SMALL, FULL], 2),
    ],
)
def test_the_tuner_goes_on_with_what_is_below_the_rule_before_all_else(stakes, searches, chosen):
    assert tvm_tuning.choose(stakes, searches) == chosen


def test_a_run_that_was_cut_off_leaves_no_half_a_line(tmp_path):
    (tmp_path / "schedules.json").write_text("[0, []]\n[1, [2]]\n[2, [3, ")
    tvm_tuning._start_work(tmp_path, tmp_path / "nothing")
    lines = (tmp_path / "schedules.json").read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == [0, 1]


def test_the_untuned_one_is_for_suites():
    assert get_system("tvm-untuned") is TvmUntuned
    assert Tvm in REAL
    assert TvmUntuned not in REAL


@needs_tvm
@pytest.mark.parametrize("network", [convolutional, product])
def test_answers_follow_the_bound_arrays(network, tmp_path):
    built = check_adapter(TvmUntuned, make_task(network(), tmp_path))
    assert not built.undertuned


@needs_tvm
def test_a_model_without_schedules_reads_undertuned(tmp_path, monkeypatch):
    monkeypatch.setattr("mononn_bench.systems.tvm.find_database", lambda _: find_database(_, tmp_path / "none"))
    built = check_adapter(Tvm, make_task(product(), tmp_path))
    assert "no schedules" in built.undertuned
    assert built.tuning is None


@needs_tvm
def test_tuning_adds_up_and_its_schedules_are_applied(tmp_path, monkeypatch):
    task = make_task(product(), tmp_path)
    how = {"kind": "cpu", "threads": 1, "work": tmp_path / "work", "shipped": tmp_path / "shipped"}
    runs = [tvm_tuning.tune("small", task.onnx, seconds=seconds, **how) for seconds in (1, 1)]
    assert all(run.trials > 0 for run in runs)
    (folder,) = (tmp_path / "shipped").iterdir()
    assert Database(folder).budget.runs == tuple(runs)
    monkeypatch.setattr("mononn_bench.systems.tvm.find_database", lambda _: find_database(_, tmp_path / "shipped"))
    built = check_adapter(Tvm, task)
    (search,) = Database(folder).budget.searches.values()
    assert search.trials == built.tuning.trials == sum(run.trials for run in runs)
    assert search.enough == (built.undertuned == "")
    assert list(built.details["operators"].values()) == [asdict(search)]
    other = make_task(convolutional(), _folder(tmp_path / "other"))
    assert "operators have no schedule" in check_adapter(Tvm, other).undertuned


def _folder(path):
    path.mkdir()
    return path


@needs_tvm
def test_an_undertuned_build_that_takes_seconds_a_run_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("mononn_bench.systems.tvm.find_database", lambda _: None)
    monkeypatch.setattr("mononn_bench.systems.tvm.SLOW_S", 0.0)
    built = Tvm().build(make_task(product(), tmp_path))
    assert "one run takes 0.0 s" in built.undertuned
    assert built.details["left_out"] is True
