"""TVM's road from an ONNX file to a tuned module, and the database of schedules the tuner leaves.

The passes are those of TVM's own `static_shape_tuning` pipeline with weight prepacking, which its documentation expects
on a CPU; weights are constants, so that their layouts are changed once, while compiling.
Import this file anywhere; its functions need TVM.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mononn_bench.files import FILES
from mononn_bench.record import Tuning

SHIPPED = FILES / "results" / "tuning" / "tvm"
"""One folder a kind of machine: workloads.json.gz, schedules.json.gz (the best of each workload), budget.json."""
AVX512 = "avx512f"
"""What LLVM takes every processor of a family for, and a hypervisor may hide; all other sets of AVX-512 rest on it."""
GATHERS = ("take", "gather")
WORKLOADS, SCHEDULES, BUDGET = "workloads.json", "schedules.json", "budget.json"
TRIALS_PER_OPERATOR = 64
"""max_trials_per_task in the documentation of TVM's static_shape_tuning_pipeline, which every task shall get."""


@dataclass(frozen=True)
class TuningRun:
    """One run of the tuner: what it spent on which model. `seconds` are of wall clock, on `cores` cores."""

    model: str
    started: str
    seconds: float
    cores: int
    trials: int


@dataclass(frozen=True)
class Search:
    """How many schedules of an operator were measured, and whether TVM's search found no more that were new."""

    trials: int = 0
    exhausted: bool = False

    @property
    def enough(self) -> bool:
        """Whether TVM's pipeline would have ended it too."""
        return self.exhausted or self.trials >= TRIALS_PER_OPERATOR


@dataclass(frozen=True)
class Operator:
    """A tunable operator of a model: whether the database has a schedule, and its search; None where that was not
    kept.
    """

    name: str
    scheduled: bool
    search: Search | None


@dataclass(frozen=True)
class Budget:
    """What a database cost, for which processor it was made, and the search of each operator by TVM's hash of it.

    Databases from before searches were kept have none.
    """

    version: str
    target: dict[str, Any]
    cpu: str
    runs: tuple[TuningRun, ...] = field(default=())
    searches: Mapping[str, Search] = field(default_factory=dict)

    def spent_on(self, model: str) -> Tuning | None:
        """All runs for `model` together; None where there was none."""
        runs = [run for run in self.runs if run.model == model]
        if not runs:
            return None
        return Tuning(sum(r.seconds for r in runs), max(r.cores for r in runs), sum(r.trials for r in runs))


@dataclass(frozen=True)
class Database:
    """A folder of tuned schedules; its two tables may be compressed."""

    folder: Path

    @cached_property
    def budget(self) -> Budget:
        """The budget beside the tables."""
        stored = json.loads((self.folder / BUDGET).read_text())
        runs = tuple(TuningRun(**run) for run in stored["runs"])
        searches = {key: Search(**search) for key, search in stored.get("searches", {}).items()}
        return Budget(**{**stored, "runs": runs, "searches": searches})

    def unpack(self, folder: Path) -> Any:
        """TVM's own JSONDatabase over uncompressed copies in `folder`."""
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        folder.mkdir(parents=True, exist_ok=True)
        for name in (WORKLOADS, SCHEDULES):
            packed = self.folder / f"{name}.gz"
            (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
        return JSONDatabase(str(folder / WORKLOADS), str(folder / SCHEDULES))


def pack(source: Path, budget: Budget, folder: Path) -> None:
    """Write the tables of `source` (uncompressed, best records only) and the budget as a shipped database."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WORKLOADS, SCHEDULES):
        _replace(folder / f"{name}.gz", gzip.compress((source / name).read_bytes(), mtime=0))
    _replace(folder / BUDGET, (json.dumps(asdict(budget), indent=1) + "\n").encode())


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def make_target(kind: str, threads: int) -> Any:
    """TVM's target for this very processor with `threads` cores (`cpu`) or this very GPU (`cuda`)."""
    import tvm
    from tvm.target.codegen import llvm_get_cpu_features, llvm_get_system_cpu

    if kind == "cuda":
        return tvm.target.Target.from_device("cuda")
    facts = {"kind": "llvm", "mcpu": str(llvm_get_system_cpu()), "num-cores": threads}
    if AVX512 in llvm_get_cpu_features(tvm.target.Target(facts)) and not _has_instructions(AVX512):
        facts["mattr"] = [f"-{AVX512}"]
    return tvm.target.Target(facts)


def _has_instructions(feature: str) -> bool:
    """Whether Linux says that this processor has an instruction set; a hypervisor may hide one."""
    return any(feature in line.split() for line in Path("/proc/cpuinfo").read_text().splitlines())


def machine_folder(target: Any) -> str:
    """The name of a target's database: its processor and how many cores it was tuned for, or its GPU architecture."""
    if target.kind.name == "cuda":
        return str(target.attrs["arch"])
    without = "".join(str(feature) for feature in target.attrs.get("mattr", ()))
    return f"{target.attrs['mcpu']}{without}-{int(target.attrs['num-cores'])}c"


def find_database(target: Any, shipped: Path = SHIPPED) -> tuple[Database, str] | None:
    """The database for `target` and an empty reason, or another of its kind and why that does not match.

    None where there is no database for this kind of target.
    """
    wanted = machine_folder(target)
    databases = [Database(path.parent) for path in sorted(shipped.glob(f"*/{BUDGET}"))]
    databases = [database for database in databases if database.budget.target["kind"] == target.kind.name]
    databases.sort(key=lambda database: database.folder.name != wanted)
    if not databases:
        return None
    nearest, installed = databases[0], version("apache-tvm")
    if nearest.folder.name != wanted:
        return nearest, f"its schedules were found for {nearest.folder.name}, and this is {wanted}"
    if nearest.budget.version != installed:
        return nearest, f"its schedules were found by TVM {nearest.budget.version}, and this is {installed}"
    return nearest, ""


def import_model(onnx_path: Path, target: Any) -> Any:
    """The Relax module, its operators lowered and fused, ready to be tuned or to have schedules applied."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    passes = relax.transform
    prepacked = [passes.AttachAttrLayoutFreeBuffers()] if target.kind.name == "llvm" else []
    steps = [passes.DecomposeOpsForInference(), passes.CanonicalizeBindings(), relax.get_pipeline("zero"), *prepacked]
    module = from_onnx(onnx.load(onnx_path), keep_params_in_input=False)
    with target:
        return tvm.transform.Sequential(steps)(module)


def tunable_tasks(module: Any, target: Any) -> list[Any]:
    """MetaSchedule's tasks of a module but its gathers: their measurement reads random indices, and crashes."""
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks

    return [task for task in extract_tasks(module, target) if not any(op in task.task_name for op in GATHERS)]


def operator_key(task: Any, database: Any) -> str:
    """TVM's structural hash of a task, by which its database knows it too."""
    return str(database.commit_workload(task.dispatched[0]).as_json()[0])


def find_operators(module: Any, target: Any, database: Any, searches: Mapping[str, Search]) -> list[Operator]:
    """The tunable operators of `module`, and what `database` and its `searches` know of each."""
    return [
        Operator(
            str(task.task_name),
            database.query_tuning_record(task.dispatched[0], target, task.task_name) is not None,
            searches.get(operator_key(task, database)),
        )
        for task in tunable_tasks(module, target)
    ]


def why_undertuned(operators: Sequence[Operator], trials: int) -> str:
    """What a search of so many trials lacks of what TVM's documentation asks for; empty where it lacks nothing."""
    count = len(operators)
    missing = [operator.name for operator in operators if not operator.scheduled]
    if missing:
        return f"{len(missing)} of its {count} operators have no schedule in the database ({missing[0]})"
    asked = f"TVM's pipeline asks for {TRIALS_PER_OPERATOR} each"
    few = [(o.search.trials, o.name) for o in operators if o.search is not None and not o.search.enough]
    if few:
        fewest, name = min(few)
        return f"{len(few)} of its {count} operators have too few trials ({fewest}: {name}); {asked}"
    if any(operator.search is None for operator in operators):
        return f"{trials} trials over {count} operators, the count of each not kept; {asked}"
    return ""


def summarise(operators: Sequence[Operator]) -> dict[str, Any]:
    """A build's details: the search of each operator by name, and one line of it for a row that is ok."""
    searches = [operator.search for operator in operators if operator.search is not None]
    ended = sum(search.exhausted for search in searches)
    fewest = min((search.trials for search in searches if not search.exhausted), default=0)
    note = f"{sum(search.trials for search in searches)} trials over {len(operators)} operators, at least {fewest} each"
    note += f" but {ended} for which no more schedules were found" if ended else ""
    return {
        "operators": {o.name: asdict(o.search) if o.search else None for o in operators},
        "note": note if searches else "",
    }


def apply_database(module: Any, target: Any, database: Any) -> Any:
    """`module` with the database's schedules, weights laid out as these want them."""
    import tvm
    from tvm import relax

    passes = relax.transform
    prepacked = [passes.SplitLayoutRewritePreproc(), passes.FoldConstant()] if target.kind.name == "llvm" else []
    with target, database:
        return tvm.transform.Sequential([passes.MetaScheduleApplyDatabase(), *prepacked])(module)


def compile_module(module: Any, target: Any) -> Any:
    """The executable; on a GPU, runs are captured as CUDA graphs."""
    import tvm

    with tvm.transform.PassContext(opt_level=3, config={"relax.backend.use_cuda_graph": target.kind.name == "cuda"}):
        return tvm.compile(module, target)
