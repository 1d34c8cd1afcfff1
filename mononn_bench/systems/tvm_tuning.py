"""Tunes TVM by MetaSchedule for some models, so many seconds each, adding to the database of this kind of machine.

Runs in TVM's environment: python -m mononn_bench.systems.tvm_tuning MODEL_FOLDER.. --seconds N --work FOLDER. A run
can be stopped at any time; the next goes on from what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mononn_bench.systems.tvm_model import (
    BUDGET,
    SCHEDULES,
    SHIPPED,
    WORKLOADS,
    Budget,
    Database,
    Search,
    TuningRun,
    import_model,
    machine_folder,
    make_target,
    operator_key,
    pack,
    tunable_tasks,
)

FIRST_TRIALS, TRIALS = 8, 64
"""Trials of a task's first iteration, whose schedules are random, and of each later one."""
BUILD_S, BUILDS_PER_PROCESS = 20.0, 256
"""A candidate that compiles longer is dropped; a process of the builder is replaced after so many (it leaks)."""
RUN_S, MEASURED_MS = 10.0, 50
"""A candidate that runs longer is dropped; a shorter one is repeated until it has run for so long."""


def tune(
    name: str, onnx_path: Path, *, kind: str, seconds: float, threads: int, work: Path, shipped: Path = SHIPPED
) -> TuningRun:
    """Tune every operator of a model for `seconds`; write the best schedules and what was spent under `shipped`.

    `kind` is the target: cpu or cuda.

    `work` keeps every measurement between runs; it starts from the shipped database where it is empty.
    """
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    os.environ["TVM_NUM_THREADS"] = str(threads)
    target = make_target(kind, threads)
    place = shipped / machine_folder(target)
    work = work / machine_folder(target)
    _start_work(work, place)
    database = JSONDatabase(str(work / WORKLOADS), str(work / SCHEDULES))
    before, begun, started = _lines(work / SCHEDULES), time.monotonic(), datetime.now(UTC)
    searches = dict(Database(place).budget.searches) if (place / BUDGET).exists() else {}
    try:
        module = import_model(onnx_path, target)
        _search(module, target, database, work, threads, begun + seconds, searches)
    finally:
        trials = _lines(work / SCHEDULES) - before
        run = TuningRun(name, f"{started:%Y-%m-%dT%H:%MZ}", time.monotonic() - begun, threads, trials)
        _ship(database, work, place, target, run, searches)
    return run


def _search(
    module: Any, target: Any, database: Any, work: Path, threads: int, deadline: float, searches: dict[str, Search]
) -> None:
    """One iteration at a time, at least one, until the deadline, so that each leaves its measurements in the database.

    A task never measured comes first, with random schedules, as no cost model guides there; then evolutionary search:
    of tasks that have not had the trials TVM asks for, or, where all have, of all, the one that has most to lose, the
    model's seconds in it over the square root of its trials so far. `searches` is kept up to date.
    """
    from tvm.s_tir.meta_schedule.cost_model import CostModel
    from tvm.s_tir.meta_schedule.relax_integration import extracted_tasks_to_tune_contexts
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, LocalRunner
    from tvm.s_tir.meta_schedule.tune import tune_tasks

    tasks = tunable_tasks(module, target)
    trials, keys = [_trials(task, database) for task in tasks], [operator_key(task, database) for task in tasks]
    builder, model = _make_builder(threads), CostModel.create("xgb", num_tuning_cores=threads, tree_method="auto")
    runner = LocalRunner(timeout_sec=RUN_S, evaluator_config=EvaluatorConfig(number=1, min_repeat_ms=MEASURED_MS))
    done = False
    while not done:
        stakes = [_at_stake(task, n, target, database) for task, n in zip(tasks, trials, strict=True)]
        chosen = choose(stakes, [searches.get(key, Search()) for key in keys])
        strategy, count = ("evolutionary", TRIALS) if trials[chosen] else ("replay-trace", FIRST_TRIALS)
        measured = _lines(work / SCHEDULES)
        contexts, weights = extracted_tasks_to_tune_contexts([tasks[chosen]], str(work), strategy=strategy)
        tune_tasks(
            tasks=contexts, task_weights=weights, work_dir=str(work), max_trials_global=count,
            num_trials_per_iter=count, builder=builder, runner=runner, database=database, cost_model=model,
        )  # fmt: skip
        trials[chosen] += count
        found = _lines(work / SCHEDULES) - measured
        had = searches.get(keys[chosen], Search())
        exhausted = strategy == "evolutionary" and found < count
        searches[keys[chosen]] = Search(had.trials + found, exhausted)
        done = time.monotonic() > deadline


def choose(stakes: Sequence[float], searches: Sequence[Search]) -> int:
    """Which task comes next: one never measured (its stake is infinite), else one without enough trials, by stake."""
    return max(range(len(stakes)), key=lambda i: (stakes[i] == float("inf"), not searches[i].enough, stakes[i]))


def _trials(task: Any, database: Any) -> int:
    """How often a task was measured."""
    module = task.dispatched[0]
    return len(database.get_top_k(database.commit_workload(module), 1 << 20)) if database.has_workload(module) else 0


def _at_stake(task: Any, trials: int, target: Any, database: Any) -> float:
    """The model's seconds in a task over the square root of its trials; a task that never could be run fades away."""
    if trials == 0:
        return float("inf")
    record = database.query_tuning_record(task.dispatched[0], target, task.task_name)
    if record is None:
        return float(trials) ** -2
    return float(task.weight) * min(float(seconds) for seconds in record.run_secs) / trials**0.5


def _make_builder(workers: int) -> Any:
    """Builds candidates in processes that live on; TVM's local builder makes fresh ones for every iteration, each of
    which reads all tensor intrinsics first (8 s) that no fp32 schedule of these uses.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
    from tvm.support.popen_pool import PopenPoolExecutor, StatusKind

    pool = PopenPoolExecutor(max_workers=workers, timeout=BUILD_S, maximum_process_uses=BUILDS_PER_PROCESS)

    @derived_object
    class LastingBuilder(PyBuilder):  # type: ignore[misc]
        def build(self, build_inputs: list[Any]) -> list[Any]:
            candidates = [(candidate.mod, candidate.target) for candidate in build_inputs]
            done = pool.map_with_error_catching(lambda pair: build_candidate(*pair), candidates)
            return [
                BuilderResult(answer.value, None)
                if answer.status == StatusKind.COMPLETE
                else BuilderResult(None, f"{answer.status.name}: {answer.value}")
                for answer in done
            ]

    return LastingBuilder()


def build_candidate(module: Any, target: Any) -> str:
    """Compile one candidate; the path of its archive. Runs in a process of the builder's pool."""
    from tvm.driver import build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
    from tvm.support.tar import tar

    path = Path(tempfile.mkdtemp()) / f"candidate.{tar.output_format}"
    module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    build(module, target=target).export_library(str(path), fcompile=tar)
    return str(path)


def _start_work(work: Path, place: Path) -> None:
    """Have the tables in `work`: those of earlier runs without a line that was cut off, or the shipped ones."""
    if not (work / SCHEDULES).exists():
        work.mkdir(parents=True, exist_ok=True)
        if (place / BUDGET).exists():
            Database(place).unpack(work)
        return
    lines = (work / SCHEDULES).read_text().splitlines()
    whole = [line for line in lines if _is_json(line)]
    if len(whole) < len(lines):
        (work / SCHEDULES).write_text("".join(f"{line}\n" for line in whole))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def _ship(database: Any, work: Path, place: Path, target: Any, run: TuningRun, searches: Mapping[str, Search]) -> None:
    """Write the best record of each workload and the budget, earlier runs included."""
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    best = work / "best"
    shutil.rmtree(best, ignore_errors=True)
    best.mkdir()
    database.dump_pruned(JSONDatabase(str(best / WORKLOADS), str(best / SCHEDULES)))
    budget = Budget(version("apache-tvm"), json.loads(str(target)), _cpu_name())
    if (place / BUDGET).exists():
        budget = replace(budget, runs=Database(place).budget.runs)
    pack(best, replace(budget, runs=(*budget.runs, run), searches=searches), place)


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "not exposed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune the models of some folders, one after the other; prints what was spent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_folders", type=Path, nargs="+", metavar="MODEL_FOLDER")
    parser.add_argument("--seconds", type=float, required=True, help="for each model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--work", type=Path, required=True, help="where measurements are kept between runs")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for folder in options.model_folders:
        name = json.loads((folder / "model.json").read_text())["name"]
        how = {"kind": options.target, "seconds": options.seconds, "threads": options.threads, "work": options.work}
        run = tune(name, folder / "model.onnx", **how)
        print(json.dumps(asdict(run)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
