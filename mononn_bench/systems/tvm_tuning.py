"""Tunes TVM for a model by MetaSchedule, for so many seconds, adding to the database of this kind of machine.

Runs in TVM's environment: python -m mononn_bench.systems.tvm_tuning --model-folder FOLDER --seconds N. A run can be
stopped at any time; the next goes on from what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
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
    TuningRun,
    cpu_target,
    import_model,
    machine_folder,
    pack,
)

TRIALS_PER_ITERATION = 16
ALL_TRIALS = 1_000_000
"""No limit of its own: time ends a run."""


def tune(name: str, onnx_path: Path, *, seconds: float, threads: int, work: Path, shipped: Path = SHIPPED) -> TuningRun:
    """Tune every operator of a model for `seconds`; write the best schedules and what was spent under `shipped`.

    `work` keeps every measurement between runs; it starts from the shipped database where it is empty.
    """
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    os.environ["TVM_NUM_THREADS"] = str(threads)
    target = cpu_target(threads)
    place = shipped / machine_folder(target)
    work = work / machine_folder(target)
    _start_work(work, place)
    database = JSONDatabase(str(work / WORKLOADS), str(work / SCHEDULES))
    before, begun, started = _lines(work / SCHEDULES), time.monotonic(), datetime.now(UTC)
    try:
        module = import_model(onnx_path, target)
        _search(module, target, database, work, begun + seconds)
    except RuntimeError:
        if time.monotonic() - begun < seconds:
            raise
    finally:
        trials = _lines(work / SCHEDULES) - before
        run = TuningRun(name, f"{started:%Y-%m-%dT%H:%MZ}", time.monotonic() - begun, threads, trials)
        _ship(database, work, place, target, run)
    return run


def _search(module: Any, target: Any, database: Any, work: Path, deadline: float) -> None:
    """Random schedules for each task that was never measured, as no cost model guides there; then TVM's gradient
    scheduler and evolutionary search over all, slowest first.
    """
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks, extracted_tasks_to_tune_contexts
    from tvm.s_tir.meta_schedule.tune import tune_tasks

    tasks = extract_tasks(module, target)
    cost = {id(task): _weighted_seconds(task, target, database) for task in tasks}
    new = [task for task in tasks if cost[id(task)] == float("inf")]
    ordered = sorted(tasks, key=lambda task: cost[id(task)], reverse=True)
    builder, callbacks = _make_builder(), _callbacks(deadline)
    plans = ((new, "replay-trace", TRIALS_PER_ITERATION), (ordered, "evolutionary", ALL_TRIALS))
    for chosen, strategy, trials in plans:
        if not chosen:
            continue
        contexts, weights = extracted_tasks_to_tune_contexts(chosen, str(work), strategy=strategy)
        tune_tasks(
            tasks=contexts, task_weights=weights, work_dir=str(work), max_trials_global=ALL_TRIALS,
            max_trials_per_task=trials, num_trials_per_iter=TRIALS_PER_ITERATION, builder=builder, database=database,
            measure_callbacks=callbacks,
        )  # fmt: skip


def _weighted_seconds(task: Any, target: Any, database: Any) -> float:
    """What the model spends in a task with its best schedule; infinite where it has none."""
    record = database.query_tuning_record(task.dispatched[0], target, task.task_name)
    return float("inf") if record is None else task.weight * min(float(s) for s in record.run_secs)


def _callbacks(deadline: float) -> list[Any]:
    """TVM's own, which record measurements, and one that ends the run."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.measure_callback import MeasureCallback, PyMeasureCallback

    @derived_object
    class Deadline(PyMeasureCallback):  # type: ignore[misc]
        def apply(self, *_: Any) -> None:
            if time.monotonic() > deadline:
                raise RuntimeError("the seconds of this run are spent")

    return [*MeasureCallback.create("default"), Deadline()]


def _make_builder() -> Any:
    """Builds candidates in this process: TVM's local builder imports its tensor intrinsics, 8 s, in each fresh one."""
    from tvm.driver import build
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
    from tvm.support.tar import tar

    @derived_object
    class InProcessBuilder(PyBuilder):  # type: ignore[misc]
        def build(self, build_inputs: list[Any]) -> list[Any]:
            return [self._one(candidate) for candidate in build_inputs]

        @staticmethod
        def _one(candidate: Any) -> Any:
            try:
                module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(candidate.mod)
                path = Path(tempfile.mkdtemp()) / f"candidate.{tar.output_format}"
                build(module, target=candidate.target).export_library(str(path), fcompile=tar)
            except Exception as error:  # a candidate the compiler refuses is one the tuner drops
                return BuilderResult(None, str(error))
            return BuilderResult(str(path), None)

    return InProcessBuilder()


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


def _ship(database: Any, work: Path, place: Path, target: Any, run: TuningRun) -> None:
    """Write the best record of each workload and the budget, earlier runs included."""
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    best = work / "best"
    shutil.rmtree(best, ignore_errors=True)
    best.mkdir()
    database.dump_pruned(JSONDatabase(str(best / WORKLOADS), str(best / SCHEDULES)))
    budget = Budget(version("apache-tvm"), json.loads(str(target)), _cpu_name())
    if (place / BUDGET).exists():
        budget = replace(budget, runs=Database(place).budget.runs)
    pack(best, replace(budget, runs=(*budget.runs, run)), place)


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "not exposed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune the model of a folder; prints what was spent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--work", type=Path, required=True, help="where measurements are kept between runs")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = json.loads((options.model_folder / "model.json").read_text())["name"]
    onnx_path = options.model_folder / "model.onnx"
    run = tune(name, onnx_path, seconds=options.seconds, threads=options.threads, work=options.work)
    print(json.dumps(asdict(run)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
